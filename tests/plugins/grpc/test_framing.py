"""Messages with their length before them, time-outs and texts of statuses."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit_grpc.framing import GrpcError, GrpcStatus, MessageReader, framed, percent_encoded, timeout_ms

MESSAGES = st.lists(st.binary(max_size=300), max_size=8)


@given(MESSAGES, st.data())
def test_messages_do_not_depend_on_how_their_bytes_arrive(messages: list[bytes], data: st.DataObject) -> None:
    """However the bytes are divided, the same messages come out, in order, and nothing is left."""
    whole = b"".join(map(framed, messages))
    reader, found, at = MessageReader(), [], 0
    while at < len(whole):
        size = data.draw(st.integers(1, len(whole) - at))
        found += reader.feed(whole[at : at + size])
        at += size
    assert found == messages
    assert reader.pending_bytes == 0


@given(MESSAGES, st.integers(1, 4))
def test_an_unfinished_message_is_counted(messages: list[bytes], missing: int) -> None:
    """The bytes behind the last whole message are those that are pending."""
    reader = MessageReader()
    part = framed(b"12345")[:-missing]
    assert reader.feed(b"".join(map(framed, messages)) + part) == messages
    assert reader.pending_bytes == len(part)
    assert reader.feed(b"12345"[-missing:]) == [b"12345"]


def test_a_compressed_message_is_refused() -> None:
    """No client compresses, and a decompressed message could have any size."""
    with pytest.raises(GrpcError, match="compressed") as caught:
        MessageReader().feed(b"\x01\0\0\0\1x")
    assert caught.value.status is GrpcStatus.UNIMPLEMENTED


@pytest.mark.parametrize("more", [b"", b"x" * 40])
def test_a_too_long_message_is_refused_by_its_prefix(more: bytes) -> None:
    """Nothing is kept of a message whose length is over the limit."""
    with pytest.raises(GrpcError, match="at most 10 are allowed") as caught:
        MessageReader(10).feed(framed(b"ok") + b"\0\0\0\0\x0b" + more)
    assert caught.value.status is GrpcStatus.RESOURCE_EXHAUSTED


@given(st.binary(max_size=200))
def test_any_bytes_are_messages_or_are_refused(data: bytes) -> None:
    """Nothing but a refusal is raised, whatever arrives."""
    with suppress(GrpcError):
        assert isinstance(MessageReader(100).feed(data), list)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1H", 3_600_000.0),
        ("2M", 120_000.0),
        ("3S", 3_000.0),
        ("99999999m", 99_999_999.0),
        ("1000u", 1.0),
        ("5000000n", 5.0),
        (None, None),
        ("", None),
        ("5", None),
        ("-5m", None),
        ("123456789m", None),
        ("١S", None),
    ],
)
def test_timeouts(text: str | None, wanted: float | None) -> None:
    """Up to eight digits and a unit; anything else is not a time-out."""
    found = timeout_ms(text)
    assert found is None if wanted is None else found == pytest.approx(wanted)


@given(st.text(max_size=60))
def test_texts_of_statuses(text: str) -> None:
    """The text is ASCII on the wire, and is decoded as it was."""
    encoded = percent_encoded(text)
    assert encoded.isascii()
    assert encoded.isprintable()
    assert encoded.strip() == encoded
    assert unquote(encoded) == text
