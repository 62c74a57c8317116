"""Repeated messages are stored once, whatever way they come."""

from __future__ import annotations

from typing import Any

import pytest

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.errors import RequestRefused
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.model.run import MessageRun
from rmqkit.plugin.hooks import EachPutHook, PutMessageHook
from rmqkit.plugin.hookspecs import Register
from rmqkit.protocol import batch
from rmqkit.protocol.batch import BatchItem
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers import SendMessageRequestHeaderV2, SendMessageResponseHeader
from rmqkit.testing.store import message
from rmqkit_dedup.service import hook_of
from tests.broker.desk import BrokerHarness
from tests.plugins.dedup.conftest import Opened, put_topic

MINUTE_MS = 60_000


def keyed(key: str, **more: str) -> dict[str, str]:
    return {props.UNIQ_KEY: key} | more


async def batched(desk: BrokerHarness, *items: tuple[bytes, str], queue_id: int = 0) -> Command:
    """The answer to a batch of bodies with keys."""
    header = SendMessageRequestHeaderV2(
        producer_group="p", topic="T", queue_id=queue_id, batch=True, properties=""
    )
    made = [BatchItem(0, body, props.encode(keyed(key)).encode()) for body, key in items]
    return await desk.ask(RequestCode.SEND_BATCH_MESSAGE, header, batch.encode(made))


def bodies(desk: BrokerHarness) -> list[list[bytes]]:
    """What is stored in each queue."""
    return [[each.body for each in desk.stored("T", queue_id)] for queue_id in range(4)]


async def test_a_repeated_send_gets_the_place_of_the_first(desk: BrokerHarness) -> None:
    """Id, queue and offset, whatever queue and body it names; another key is another message, and after the
    window it is one as well."""
    await desk.sent(properties=keyed("a"))
    first = await desk.sent(queue_id=1, body=b"1", properties=keyed("k"))
    desk.clock.advance(MINUTE_MS - 1)
    assert await desk.sent(queue_id=3, body=b"again", properties=keyed("k")) == first
    other = await desk.sent(queue_id=1, body=b"2", properties=keyed("l"))
    assert (other.queue_id, other.queue_offset) == (1, 1)
    desk.clock.advance(1)
    later = await desk.sent(queue_id=1, body=b"3", properties=keyed("k"))
    assert (later.queue_id, later.queue_offset) == (1, 2)
    assert bodies(desk) == [[b"body"], [b"1", b"2", b"3"], [], []]
    assert hook_of(desk.broker).windows["T"].repeated == 1


async def test_a_property_of_ones_own(desk: BrokerHarness) -> None:
    """The topic names it; a message without it is stored however often it comes."""
    await put_topic(desk, dedup_key="order")
    first = await desk.sent(properties=keyed("a", order="7"))
    again = await desk.sent(properties=keyed("b", order="7"))
    assert (again.msg_id, again.queue_offset) == (first.msg_id, first.queue_offset)
    for _ in range(2):
        await desk.sent(queue_id=1, properties=keyed("c"))
    assert list(map(len, bodies(desk))) == [1, 2, 0, 0]


async def test_other_topics_are_left_alone(desk: BrokerHarness) -> None:
    for _ in range(2):
        await desk.sent(topic="TBW102", properties=keyed("k"))
    assert len(desk.stored("TBW102")) == 2


async def test_a_batch(desk: BrokerHarness) -> None:
    """Each of its messages counts by itself, also two of one batch; the answer names the first one's
    place."""
    first = await desk.sent(queue_id=1, body=b"first", properties=keyed("b"))
    answer = await batched(desk, (b"new", "a"), (b"old", "b"), (b"twice", "a"), (b"last", "c"), queue_id=2)
    assert answer.code == 0
    header = answer.header(SendMessageResponseHeader)
    assert bodies(desk) == [[], [b"first"], [b"new", b"last"], []]
    ids = header.msg_id.split(",")
    assert (len(ids), ids[1], ids[2]) == (4, first.msg_id, ids[0])
    assert header.queue_offset == 0


async def test_two_that_arrive_together(desk: BrokerHarness) -> None:
    """The second one has the place of the first, which is not stored yet when it is looked at."""
    run = MessageRun([message("T", at, b"%d" % at, unique_key="k") for at in range(3)])
    results = desk.broker.appender.append(run)
    assert len(set(results)) == 1
    assert [each.queue_id for each in run] == [0, 0, 0]
    assert bodies(desk) == [[b"0"], [], [], []]


class _Refuse(EachPutHook):
    """Refuses messages by their body, behind all other hooks."""

    def before_each(self, message: PutMessage) -> None:
        if message.body == b"bad":
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "bad")


class _Refusing:
    @hookimpl
    def rmqkit_register_put_message_hooks(self, register: Register[PutMessageHook], config: Config) -> None:
        register("refuse", _Refuse(), order=2_000)


async def test_what_is_refused_is_not_remembered(opened: Opened) -> None:
    """By a later hook; one that came with it gets the same answer, and the next one is stored."""
    async with opened(extra=[("refuse", _Refusing())]) as desk:
        run = MessageRun([message("T", 0, body, unique_key="k") for body in (b"bad", b"good")])
        first, second = desk.broker.appender.append(run)
        assert isinstance(first, RequestRefused)
        assert second is first
        await desk.sent(body=b"good", properties=keyed("k"))
        assert bodies(desk)[0] == [b"good"]


async def test_a_repeated_message_in_a_batch_that_is_refused(opened: Opened) -> None:
    """The whole batch is, as without windows."""
    async with opened(extra=[("refuse", _Refusing())]) as desk:
        await desk.sent(properties=keyed("b"))
        answer = await batched(desk, (b"x", "b"), (b"bad", "c"))
        assert (answer.code, answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, "bad")


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_repeated_message_is_acknowledged_when_the_first_is_safe(opened: Opened, flush: str) -> None:
    """Also behind others of its run."""
    async with opened(flushDiskType=flush) as desk:
        old = desk.broker.appender.append_durably(MessageRun([message("T", 0, b"1", unique_key="a")]))
        run = MessageRun([message("T", 1, b"2", unique_key="b"), message("T", 0, b"3", unique_key="a")])
        new = desk.broker.appender.append_durably(run)
        assert run.last_of(new.results) == new.results[0]
        assert await new.wait() == await old.wait() == ResponseCode.SUCCESS
        assert new.results[1] == old.results[0]


async def test_keys_are_limited(opened: Opened) -> None:
    """The topic with the most keys forgets its oldest."""
    async with opened(dedupMaxKeys=3) as desk:
        for key in "abcd":
            await desk.sent(properties=keyed(key))
        window: Any = hook_of(desk.broker).windows["T"]
        assert (len(window), window.forgotten) == (3, 1)
        await desk.sent(properties=keyed("d"))
        await desk.sent(properties=keyed("a"))
        assert len(bodies(desk)[0]) == 5


async def test_a_timed_message_is_compared_when_it_is_due(desk: BrokerHarness) -> None:
    """It is not in the topic before."""
    parked = await desk.sent(properties=keyed("k", DELAY="1"))
    stored = await desk.sent(properties=keyed("k"))
    assert parked.msg_id != stored.msg_id
    assert bodies(desk)[0] == [b"body"]
