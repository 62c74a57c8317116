"""Receipt handles and the other texts of pop consumption."""

from __future__ import annotations

from base64 import b64encode

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.errors import DecodeError
from rmqkit.protocol.headers import PopMessageResponseHeader
from rmqkit.protocol.receipt import (
    BatchAck,
    QueueOffsets,
    Receipt,
    offset_infos,
    order_count_entries,
    parse_offset_infos,
    parse_receipt,
    receipts,
    retry_mark,
)

NUMBERS = st.integers(0, 2**63 - 1)
NAMES = st.text("abcXYZ-_0", min_size=1, max_size=20)


@given(
    st.builds(
        Receipt,
        NUMBERS,
        NUMBERS,
        NUMBERS,
        st.integers(0, 999),
        st.sampled_from("012"),
        NAMES,
        NUMBERS,
        NUMBERS,
    )
)
def test_a_handle_is_read_as_it_was_written(handle: Receipt) -> None:
    """Also with the field that Apache's proxy appends."""
    assert parse_receipt(handle.text) == handle
    assert parse_receipt(handle.text + " 12345") == handle


def test_javas_handle() -> None:
    """As the sheet has it; one of a whole run has no offset."""
    handle = parse_receipt("100 1700000000000 60000 3 1 broker-a 2 101")
    assert handle == Receipt(100, 1_700_000_000_000, 60_000, 3, "1", "broker-a", 2, 101)
    assert handle.topic("T", "g") == "%RETRY%g_T"
    assert handle._replace(retry="2").topic("T", "g") == "%RETRY%g+T"
    assert parse_receipt("100 1 1 999 0 broker-a 2").offset is None
    assert parse_receipt("100 1 1 999 0 broker-a 2").is_ordered


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 2 3",
        "1 2 3 4 5 b 6 7",
        "1 2 3 4 0 b x 7",
        "-1 2 3 4 0 b 6 7",
        "1 2 3 4 0 b 6 9223372036854775808",
        "1 2 3 4 0 b 6 99999999999999999999999999",
        "1 ٢ 3 4 0 b 6 7",
        "1\x002 3 4 0 b 6 7",
        "a" * 100_000,
    ],
)
def test_what_is_no_handle_is_refused(text: str) -> None:
    """Truncated, forged and odd ones, with a reason of bounded length."""
    with pytest.raises(DecodeError) as refused:
        parse_receipt(text)
    assert 0 < len(str(refused.value)) < 300


@given(st.text())
def test_any_text_is_a_handle_or_refused(text: str) -> None:
    """Nothing else is raised."""
    try:
        parse_receipt(text)
    except DecodeError:
        return
    assert len(text.split(" ")) >= 7


def test_the_texts_of_an_answer() -> None:
    """What a broker writes is what a client reads."""
    queues = [QueueOffsets("0", 3, 100, [100, 102]), QueueOffsets("1", 0, 7, [7])]
    starts, offsets = offset_infos(queues)
    assert (starts, offsets) == ("0 3 100;1 0 7", "0 3 100,102;1 0 7")
    header = PopMessageResponseHeader(
        pop_time=5,
        invisible_time=6,
        revive_qid=2,
        rest_num=0,
        start_offset_info=starts,
        msg_offset_info=offsets,
    )
    assert parse_offset_infos(header) == queues
    assert [handle.text for handle in receipts(header, "b").values()] == [
        "100 5 6 2 0 b 3 100",
        "100 5 6 2 0 b 3 102",
    ]
    assert order_count_entries("0", 3, [(100, 0), (101, 2)]) == ["0 qo3%101 2", "0 3 0"]
    for broken in ("0 3", "0 3 x", "0 4 1"):
        with pytest.raises(DecodeError):
            parse_offset_infos(msgspec.structs.replace(header, msg_offset_info=broken))


def test_the_mark_of_a_topic() -> None:
    """Where messages were read from."""
    assert [retry_mark(topic) for topic in ("T", "%RETRY%g_T", "%RETRY%g+T", "a+b")] == ["0", "1", "2", "0"]


@given(st.sets(st.integers(0, 200)))
def test_the_bits_of_a_batch(places: set[int]) -> None:
    """In base64, lowest byte first, as Java's BitSet."""
    offsets = sorted(50 + place for place in places)
    ack = _batch(bits=BatchAck.bits_of(50, offsets))
    assert ack.offsets() == offsets
    assert msgspec.json.decode(msgspec.json.encode(ack), type=BatchAck) == ack


def test_bits_that_are_none() -> None:
    """Bad base64 and a span beyond the limit are refused."""
    assert _batch(bits=b64encode(b"\x05").decode()).offsets() == [50, 52]
    for bits in ("*", "AAA", b64encode(bytes(10_000)).decode()):
        with pytest.raises(DecodeError):
            _batch(bits=bits).offsets()


def _batch(bits: str) -> BatchAck:
    return BatchAck(
        group="g", topic="T", start_offset=50, queue_id=0, revive_queue=0, pop_time_ms=1, bits=bits
    )
