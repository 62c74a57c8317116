"""Header compression, beside another implementation."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jh2.hpack import Decoder as OtherDecoder
from jh2.hpack import Encoder

from rmqkit.errors import ProtocolError
from rmqkit_grpc.hpack import STATIC, Decoder, encoded, huffman_decoded

LIMIT = 16_384
NAMES = st.one_of(
    st.sampled_from(sorted({name for name, _ in STATIC[1:]})), st.from_regex(r"x-[a-z]{1,12}", fullmatch=True)
)
VALUES = st.one_of(
    st.sampled_from([value for _, value in STATIC if value]),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=90),
)
LISTS = st.lists(st.tuples(NAMES, VALUES), max_size=12)


@given(st.lists(LISTS, max_size=6), st.booleans(), st.sampled_from([0, 64, 4_096]))
def test_blocks_of_another_encoder(blocks: list[list[tuple[str, str]]], huffman: bool, table: int) -> None:
    """All its forms are read, with a table that both ends keep and that changes its size."""
    encoder, decoder = Encoder(), Decoder(LIMIT)
    for number, fields in enumerate(blocks):
        if number == 2:
            encoder.header_table_size = table
        block = encoder.encode([(name.encode(), value.encode()) for name, value in fields], huffman=huffman)
        assert decoder.decode(block) == fields


@given(LISTS)
def test_another_decoder_reads_our_blocks(fields: list[tuple[str, str]]) -> None:
    """They are literals, and change no table."""
    other = OtherDecoder()
    for _ in range(2):
        found = other.decode(encoded(fields), raw=True)
        assert [(bytes(field[0]).decode(), bytes(field[1]).decode()) for field in found] == fields


@given(st.lists(st.binary(max_size=80), max_size=5))
def test_any_bytes_are_a_block_or_are_refused(blocks: list[bytes]) -> None:
    """Nothing but a ProtocolError is raised, and the table stays within its size."""
    decoder = Decoder(LIMIT)
    for block in blocks:
        with suppress(ProtocolError):
            decoder.decode(block)
        assert sum(size for *_, size in decoder._table) == decoder._table_bytes <= 4_096


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",
        b"\xbe",
        b"\x00\x05abc",
        b"\x00\xff\xff\xff\xff\xff\xff\x7f",
        b"\x3f\xe2\x1f",
        b"\x82\x20",
        b"\x00\x01a\x81\x00",
        b"\x00\x01a\x82\xff\xff",
        b"\x00\x01a\x84\xff\xff\xff\xff",
    ],
)
def test_faults_of_blocks(block: bytes) -> None:
    """Missing entries, numbers without end, a table that is too large, codes and ends that are wrong."""
    with pytest.raises(ProtocolError, match="HTTP/2"):
        Decoder(LIMIT).decode(block)


def test_the_list_has_a_limit() -> None:
    """Also where a short block repeats a long entry of the table."""
    decoder = Decoder(LIMIT)
    long = b"\x40\x01x\x7f\x81\x17" + b"y" * 3_072
    assert decoder.decode(long) == [("x", "y" * 3_072)]
    with pytest.raises(ProtocolError, match="more than 16384 bytes"):
        decoder.decode(b"\xbe" * 6)


def test_huffman_codes_of_the_standard() -> None:
    """The examples of RFC 7541, appendix C.4."""
    assert huffman_decoded(bytes.fromhex("f1e3c2e5f23a6ba0ab90f4ff")) == b"www.example.com"
    assert huffman_decoded(bytes.fromhex("a8eb10649cbf")) == b"no-cache"
    assert huffman_decoded(b"") == b""
