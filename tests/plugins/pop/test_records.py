"""The records of the revive topic."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.errors import DecodeError
from rmqkit.model.message import StoredMessage
from rmqkit.protocol import record
from rmqkit_pop.records import AckRecord, CheckPointRecord, Record, ack_of, from_message, to_message

HOST = b"\x7f\x00\x00\x01\x00\x00\x00\x01"
TIMES = st.integers(0, 2**62)
CHECK_POINTS = st.builds(
    CheckPointRecord,
    start=TIMES,
    pop_ms=TIMES,
    invisible_ms=st.integers(-(2**40), 2**40),
    acked=st.integers(0, 2**31 - 1),
    count=st.integers(1, 32),
    queue_id=st.integers(0, 100),
    topic=st.text("abcXYZ%_+", min_size=1),
    group=st.text("abc_", min_size=1),
    differences=st.none() | st.lists(st.integers(0, 1_000), min_size=1, max_size=32).map(tuple),
    broker_name=st.none() | st.text("abc"),
    first_pop_ms=TIMES,
    next_offset=st.none() | TIMES,
    suspended=st.booleans(),
    attempts=st.lists(st.integers(0, 20), max_size=32).map(tuple),
    attempt_id=st.none() | st.text(max_size=9),
    hidden=st.booleans(),
    ordered=st.booleans(),
    own=st.booleans(),
)


def stored(change: Record) -> StoredMessage:
    put = to_message(change, "rmq_sys_REVIVE_LOG_c", 3, HOST, 77, 0)
    return record.unpack(record.pack(put, record.message_size(put), 5, 900, 78, HOST))


@given(CHECK_POINTS)
def test_a_record_is_read_as_it_was_written(change: CheckPointRecord) -> None:
    """Check points, and acknowledgements of one and of several messages."""
    assert from_message(stored(change)) == change
    for offsets in ([4], [4, 9]):
        ack = ack_of(change, offsets)
        assert from_message(stored(ack)) == ack
        assert list(ack.offsets) == offsets


def test_a_record_is_no_delayed_message() -> None:
    """Its delivery time is stored for a Java broker, and put hooks do not see it."""
    ack = AckRecord(offset=1, start=0, pop_ms=5, group="g", topic="T", queue_id=0)
    put = to_message(ack, "rmq_sys_REVIVE_LOG_c", 3, HOST, 77, 0)
    assert "TIMER_DELIVER_MS" not in put.properties
    assert stored(ack).properties["TIMER_DELIVER_MS"] == "77"


def test_records_of_java() -> None:
    """With its tags and fields; a check point of an old version has no differences."""
    java = {
        "ck": {"so": 5, "pt": 9, "it": 60, "bm": 2, "n": 3, "q": 1, "t": "T", "c": "g", "ro": 8, "rp": "1"},
        "ack": {"ao": 6, "so": 5, "pt": 9, "q": 1, "t": "T", "c": "g", "bn": "b"},
        "bAck": {"ao": -1, "aol": [5, 7], "so": 5, "pt": 9, "q": 1, "t": "T", "c": "g", "bn": "b"},
    }
    found = {}
    for tag, fields in java.items():
        message = msgspec.structs.replace(
            stored(AckRecord(offset=0, start=0, pop_ms=0, group="g", topic="T", queue_id=0)),
            body=msgspec.json.encode(fields),
            properties={"TAGS": tag},
        )
        found[tag] = from_message(message)
    check_point, ack, several = found.values()
    assert isinstance(check_point, CheckPointRecord)
    assert [offset for _, offset in check_point.places] == [5, 7]
    assert not check_point.own
    assert isinstance(ack, AckRecord)
    assert isinstance(several, AckRecord)
    assert (ack.offsets, several.offsets) == ((6,), (5, 7))


@pytest.mark.parametrize(
    "fields", [{}, {"so": "x"}, {"n": 33, "so": 0, "pt": 0, "it": 0, "q": 0, "t": "T", "c": "g"}, []]
)
def test_what_is_no_record_is_refused(fields: object) -> None:
    """And names its tag; messages with other tags are not looked at."""
    message = msgspec.structs.replace(
        stored(AckRecord(offset=0, start=0, pop_ms=0, group="g", topic="T", queue_id=0)),
        body=msgspec.json.encode(fields),
        properties={"TAGS": "ck"},
    )
    with pytest.raises(DecodeError):
        from_message(message)
    assert from_message(msgspec.structs.replace(message, properties={})) is None
