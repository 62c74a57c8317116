"""Records of the trace topic, compared with what Java's TraceDataEncoder (5.3.3) wrote for the same
contexts."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import pytest

from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.client.hooks import ConsumeReturnType
from rmqkit.model.message import Message
from rmqkit.model.message_type import MessageType
from rmqkit.model.queue import MessageQueue
from rmqkit_hook_trace.message_trace import MAX_BODY_BYTES, MAX_KEYS_BYTES, trace_messages
from rmqkit_hook_trace.records import TraceRecord, is_traced, pub, sub_after, sub_before

VECTORS = Path(__file__).parent.parent.parent / "vectors" / "trace.tsv"
AT_MS = 1_700_000_000_123
REQUEST = "0A00000200B1018B0000000000000001"
OFFSET_ID = "0A00000100002A9F0000000000000123"


def java(name: str) -> tuple[bytes, set[str]]:
    """Bytes and keys of a vector."""
    for line in VECTORS.read_text(encoding="utf-8").splitlines():
        found, data, keys = line.split("\t")
        if found == name:
            return bytes.fromhex(data), set(keys.split(","))
    raise AssertionError(name)


def same(name: str, *records: TraceRecord) -> bool:
    ours = (
        "".join(record.text for record in records).encode(),
        {key for record in records for key in record.keys},
    )
    return ours == java(name)


def sent(
    message_id: str,
    tag: str | None,
    keys: tuple[str, ...],
    kind: MessageType,
    offset_id: str = "X",
    success: bool = True,
) -> TraceRecord:
    return pub(
        Message("Orders", b"hello", tag=tag, keys=keys),
        sent_ms=AT_MS,
        region="DefaultRegion",
        group="team",
        message_id=message_id,
        store_host="10.0.0.1:10911",
        cost_ms=7,
        kind=kind,
        offset_message_id=offset_id,
        success=success,
    )


def received(message_id: str, topic: str = "Orders", **properties: str) -> ReceivedMessage:
    return ReceivedMessage(
        topic=topic,
        body=b"hello",
        tag=None,
        keys=tuple(properties.get("KEYS", "").split()),
        properties=MappingProxyType({"MSG_REGION": "DefaultRegion"} | properties),
        queue=MessageQueue(topic, "b", 0),
        queue_offset=0,
        message_id=message_id,
        offset_message_id=OFFSET_ID,
        born_timestamp_ms=0,
        store_timestamp_ms=0,
        born_host="",
        store_host="",
        physical_offset=0,
        reconsume_times=2,
    )


def test_what_was_sent() -> None:
    """Normal, delayed and ordered messages; a missing tag or key is written as null; texts are UTF-8; group
    and topic have no namespace."""
    assert same("pub", sent("ID1", "TagA", ("k1", "k2"), MessageType.NORMAL, OFFSET_ID))
    assert same(
        "pub without tag and keys, delayed, not stored everywhere",
        sent("ID2", None, (), MessageType.DELAY, success=False),
    )
    assert same("pub ordered, not ascii", sent("ID3", "标签", ("键",), MessageType.ORDER))
    wrapped = pub(
        Message("ns%Orders", b"hello", tag="TagA", keys=("k1", "k2")),
        sent_ms=AT_MS,
        region="DefaultRegion",
        group="ns%team",
        message_id="ID1",
        store_host="10.0.0.1:10911",
        cost_ms=7,
        kind=MessageType.NORMAL,
        offset_message_id=OFFSET_ID,
        success=True,
    )
    assert same("pub", wrapped)


def test_what_was_consumed() -> None:
    """One record before and one after for each message, related by the request id."""
    first, second = received("ID1", KEYS="k1 k2"), received("ID2")
    assert same(
        "sub before of two",
        *(sub_before(each, began_ms=AT_MS, group="team", request_id=REQUEST) for each in (first, second)),
    )

    def after(message: ReceivedMessage, result: ConsumeReturnType) -> TraceRecord:
        return sub_after(message, ended_ms=AT_MS, group="team", request_id=REQUEST, cost_ms=7, result=result)

    assert same(
        "sub after of two", after(first, ConsumeReturnType.SUCCESS), after(second, ConsumeReturnType.SUCCESS)
    )
    assert same("sub after failed", after(first, ConsumeReturnType.FAILED))


def test_the_switch_of_the_broker() -> None:
    """A message with the property TRACE_ON=false is not traced; without the property it is."""
    assert is_traced(received("ID1"))
    assert is_traced(received("ID1", TRACE_ON="true"))
    assert not is_traced(received("ID1", TRACE_ON="false"))


def record(number: int, region: str = "r", size: int = 10) -> TraceRecord:
    return TraceRecord(region, "x" * size + "\x02", (f"id{number}", f"key{number}"))


def test_records_travel_together() -> None:
    """Records of one region share one message, whose keys hold all their ids and keys, each once."""
    same_key = TraceRecord("r", "y\x02", ("id0", "id9"))
    one, other = trace_messages("Trace", [record(0), record(1, "far"), same_key])
    assert (one.topic, one.body) == ("Trace", b"xxxxxxxxxx\x02y\x02")
    assert tuple(one.keys) == ("id0", "key0", "id9")
    assert tuple(other.keys) == ("id1", "key1")


@pytest.mark.parametrize("size", [10, 1_000, MAX_BODY_BYTES - 1])
def test_what_does_not_fit_goes_into_the_next_message(size: int) -> None:
    """Body and keys stay below their limits, however many records there are; no record is lost, and their
    order is kept."""
    records = [record(number, size=size) for number in range(2_000 if size < 10_000 else 5)]
    messages = list(trace_messages("Trace", records))
    assert len(messages) > 1
    assert (
        b"".join(message.body for message in messages) == "".join(record.text for record in records).encode()
    )
    assert [key for message in messages for key in message.keys] == [
        key for record in records for key in record.keys
    ]
    for message in messages:
        assert len(message.body) <= MAX_BODY_BYTES
        assert len(" ".join(message.keys).encode()) <= MAX_KEYS_BYTES
