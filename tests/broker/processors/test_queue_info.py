"""Offsets of queues and groups, times, locks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import pytest

from rmqkit.model.queue import MessageQueue
from rmqkit.model.topic import TopicConfig
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers import (
    LockBatchMqBody,
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    TimestampResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from tests.broker.desk import BrokerHarness

Opened = Callable[..., AbstractAsyncContextManager[BrokerHarness]]


def offset_of(answer: Command) -> int:
    assert (answer.code, answer.remark) == (0, None)
    return answer.header(OffsetResponseHeader).offset


async def query(
    desk: BrokerHarness, group: str = "g", topic: str = "T", queue_id: int = 0, zero: bool | None = None
) -> Command:
    header = QueryConsumerOffsetRequestHeader(
        consumer_group=group, topic=topic, queue_id=queue_id, set_zero_if_not_found=zero
    )
    return await desk.ask(RequestCode.QUERY_CONSUMER_OFFSET, header)


async def update(
    desk: BrokerHarness, offset: int, group: str = "g", topic: str = "T", queue_id: int = 0
) -> Command:
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset
    )
    return await desk.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)


@pytest.mark.row("S007", "S023")
async def test_an_offset_is_committed_and_asked_for(desk: BrokerHarness) -> None:
    """An offset may also be decreased."""
    for offset in (7, 3):
        answer = await update(desk, offset)
        assert (answer.code, answer.fields()) == (0, {})
        assert offset_of(await query(desk)) == offset


async def test_a_new_group_starts_at_the_beginning_that_is_still_there(desk: BrokerHarness) -> None:
    """The offset is 0 while the queue has its first message; with setZeroIfNotFound=false always
    QUERY_NOT_FOUND."""
    await desk.sent()
    assert offset_of(await query(desk)) == 0
    assert offset_of(await query(desk, zero=True)) == 0
    assert (await query(desk, zero=False)).code == ResponseCode.QUERY_NOT_FOUND


async def test_a_new_group_on_a_long_queue_has_no_offset(opened: Opened) -> None:
    """The part of the log that counts as memory is a setting; 0 percent contain no message."""
    async with opened(accessMessageInMemoryMaxRatio=0) as desk:
        await desk.sent()
        assert (await query(desk)).code == ResponseCode.QUERY_NOT_FOUND


async def test_a_negative_offset_counts_as_none(desk: BrokerHarness) -> None:
    """A client that committed -1 starts like a new group."""
    await update(desk, -1)
    assert offset_of(await query(desk)) == 0
    assert (await query(desk, zero=False)).code == ResponseCode.QUERY_NOT_FOUND


@pytest.mark.parametrize(
    ("topic", "queue_id", "code"),
    [("Nothing", 0, 17), ("../x", 0, 17), ("T", 4, 29), ("T", -1, 29), ("T", 2**31 - 1, 29), ("T", 3, 0)],
)
async def test_offsets_of_made_up_queues_are_refused(
    desk: BrokerHarness, topic: str, queue_id: int, code: int
) -> None:
    """Offsets of invented queues would stay in the table."""
    assert (await update(desk, 1, topic=topic, queue_id=queue_id)).code == code
    assert desk.broker.offsets.get("g", topic, queue_id) == (1 if code == 0 else None)


async def test_offsets_of_unknown_groups_are_refused(
    desk: BrokerHarness, opened: Opened, tmp_path: Path
) -> None:
    """The answer is SUBSCRIPTION_GROUP_NOT_EXIST, checked before the topic."""
    assert (await update(desk, 1, group="a/b")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    async with opened(autoCreateSubscriptionGroup=False, storePathRootDir=str(tmp_path / "other")) as other:
        assert (await update(other, 1, topic="Nothing")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_ends_of_a_queue(desk: BrokerHarness) -> None:
    """The maximum is the offset after the last message; an unknown queue has 0 and 0."""
    for _ in range(3):
        await desk.sent()
    for topic, queue_id, first, end in (("T", 0, 0, 3), ("T", 1, 0, 0), ("Nothing", 9, 0, 0)):
        header = QueueRequestHeader(topic=topic, queue_id=queue_id)
        assert offset_of(await desk.ask(RequestCode.GET_MIN_OFFSET, header)) == first
        assert offset_of(await desk.ask(RequestCode.GET_MAX_OFFSET, header)) == end
    assert desk.broker.topics.get("Nothing") is None


async def test_the_earliest_store_time(desk: BrokerHarness) -> None:
    """The time is that of the first message, -1 when there is none."""
    stored_ms = desk.clock.now_ms()
    await desk.sent()
    desk.clock.advance(5)
    await desk.sent()
    for queue_id, expected in ((0, stored_ms), (1, -1)):
        answer = await desk.ask(
            RequestCode.GET_EARLIEST_MSG_STORETIME, QueueRequestHeader(topic="T", queue_id=queue_id)
        )
        assert answer.header(TimestampResponseHeader).timestamp == expected


@pytest.mark.parametrize(
    ("after_ms", "lower", "upper"), [(-1, 0, 0), (0, 0, 0), (5, 1, 0), (10, 1, 1), (25, 3, 2)]
)
async def test_offsets_by_time(desk: BrokerHarness, after_ms: int, lower: int, upper: int) -> None:
    """LOWER is the first message at or after the time, UPPER the last at or before it; any other value counts
    as LOWER."""
    began = desk.clock.now_ms()
    for _ in range(3):
        await desk.sent()
        desk.clock.advance(10)
    for boundary, expected in (
        (None, lower),
        ("LOWER", lower),
        ("strange", lower),
        ("UPPER", upper),
        ("upper", upper),
    ):
        header = SearchOffsetRequestHeader(
            topic="T", queue_id=0, timestamp=began + after_ms, boundary_type=boundary
        )
        assert offset_of(await desk.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)) == expected


# --- locks --------------------------------------------------------------------------------------------------


async def lock(
    desk: BrokerHarness, client_id: str, *queues: MessageQueue, code: int = RequestCode.LOCK_BATCH_MQ
) -> list[dict[str, object]]:
    body = LockBatchMqBody(consumer_group="g", client_id=client_id, mq_set=list(queues))
    answer = await desk.ask(code, body=loose_json.dumps(body))
    assert answer.code == 0
    locked: list[dict[str, object]] = msgspec.json.decode(answer.body)["lockOKMQSet"] if answer.body else []
    return locked


def queue(queue_id: int = 0, topic: str = "T", broker: str = "broker-a") -> MessageQueue:
    return MessageQueue(topic, broker, queue_id)


async def test_locks_are_granted_renewed_and_released(desk: BrokerHarness) -> None:
    """The answer lists the queues now held by this client; another client gets a queue when it is released or
    was not renewed for 60 s."""
    ours = {"topic": "T", "brokerName": "broker-a", "queueId": 0}
    assert await lock(desk, "c1", queue()) == [ours]
    assert await lock(desk, "c2", queue()) == []
    desk.clock.advance(50_000)
    assert await lock(desk, "c1", queue()) == [ours]
    desk.clock.advance(50_000)
    assert await lock(desk, "c2", queue()) == []
    await lock(desk, "c2", queue(), code=RequestCode.UNLOCK_BATCH_MQ)
    assert await lock(desk, "c2", queue()) == []
    await lock(desk, "c1", queue(), code=RequestCode.UNLOCK_BATCH_MQ)
    assert await lock(desk, "c2", queue()) == [ours]
    desk.clock.advance(60_001)
    assert await lock(desk, "c1", queue()) == [ours]


async def test_only_queues_that_exist_are_locked(desk: BrokerHarness) -> None:
    """Invented topics, queue ids or brokers get no lock and no table entry."""
    await desk.broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=1))
    wanted = [queue(1), queue(2), queue(-1), queue(0, "Nothing"), queue(0, "T", "elsewhere")]
    assert [item["queueId"] for item in await lock(desk, "c1", *wanted)] == [1]


@pytest.mark.parametrize("code", [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ])
@pytest.mark.parametrize(
    "body", [b"", b"{}", b"{half", b'{"consumerGroup":"g","clientId":"c","mqSet":[{"topic":"T"}]}']
)
async def test_lock_bodies_that_do_not_parse(desk: BrokerHarness, code: int, body: bytes) -> None:
    """The answer is SYSTEM_ERROR with the reason."""
    answer = await desk.ask(code, body=body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (answer.remark or "").startswith("the body cannot be read")


@pytest.mark.parametrize("code", [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ])
@pytest.mark.parametrize(
    ("group", "client_id", "why"),
    [
        ("g" * 5_000, "c1", "the group has"),
        ("g/h", "c1", "besides letters"),
        ("g", "c" * 5_000, "client id"),
        ("g", "", "client id"),
    ],
)
async def test_locks_with_impossible_names_are_refused(
    desk: BrokerHarness, code: int, group: str, client_id: str, why: str
) -> None:
    """Such a request gets a remark and takes no memory."""
    body = LockBatchMqBody(consumer_group=group, client_id=client_id, mq_set=[queue()])
    answer = await desk.ask(code, body=loose_json.dumps(body))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert why in (answer.remark or "")
    assert len(desk.broker.locks) == 0


async def test_a_lock_request_of_megabytes_is_refused_unread(desk: BrokerHarness) -> None:
    """Such a body is refused without decoding, because no client holds so many queues."""
    answer = await desk.ask(RequestCode.LOCK_BATCH_MQ, body=b" " * 2_000_000)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "name fewer queues" in (answer.remark or "")
