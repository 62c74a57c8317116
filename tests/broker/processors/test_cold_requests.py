"""Requests for old messages: answered when their data is in memory, while others are served."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from rmqkit.model import names
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers import (
    GetConsumeStatsRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryMessageRequestHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    ViewMessageRequestHeader,
)
from rmqkit.toolkit.cold_reads import MAX_ROUNDS
from rmqkit_store_memory.store import MemoryStore
from tests.broker.cold import cold_desk, store_of
from tests.broker.desk import BrokerHarness, bodies

Opened = Callable[..., AbstractAsyncContextManager[BrokerHarness]]

REQUESTS: dict[str, Callable[[BrokerHarness], Awaitable[Command]]] = {
    "by key": lambda desk: desk.ask(RequestCode.QUERY_MESSAGE, QueryMessageRequestHeader(topic="T", key="k")),
    "by id": lambda desk: desk.ask(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=0)),
    "by time": lambda desk: desk.ask(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        SearchOffsetRequestHeader(topic="T", queue_id=0, timestamp=desk.clock.now_ms() - 15),
    ),
    "earliest time": lambda desk: desk.ask(
        RequestCode.GET_EARLIEST_MSG_STORETIME, QueueRequestHeader(topic="T", queue_id=0)
    ),
    "offset of a new group": lambda desk: desk.ask(
        RequestCode.QUERY_CONSUMER_OFFSET,
        QueryConsumerOffsetRequestHeader(consumer_group="g", topic="T", queue_id=0),
    ),
    "topic statistics": lambda desk: desk.ask(
        RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequestHeader(topic="T")
    ),
    "group statistics": lambda desk: desk.ask(
        RequestCode.GET_CONSUME_STATS, GetConsumeStatsRequestHeader(consumer_group="seen", topic="T")
    ),
    "send back": lambda desk: desk.send_back(0),
}


async def fill(desk: BrokerHarness) -> None:
    for number in range(8):
        await desk.sent(body=b"%d" % number, queue_id=number % 2, properties={"KEYS": "k"})
        desk.clock.advance(10)
    for queue_id in (0, 1):
        desk.broker.offsets.commit("seen", "T", queue_id, 3)


def content(answer: Command) -> tuple[int, str | None, dict[str, str], bytes]:
    return answer.code, answer.remark, answer.fields(), answer.body


@pytest.mark.only_store(why="brings its own store")
@pytest.mark.parametrize("kind", REQUESTS)
async def test_a_request_about_old_messages_waits_while_others_are_served(opened: Opened, kind: str) -> None:
    """The answer comes after the device has read, equals the immediate one, and no read waits in the event
    loop."""
    async with cold_desk(opened) as desk:
        await fill(desk)
        store = store_of(desk)
        expected = content(await REQUESTS[kind](desk))
        assert expected[0] == 0
        store.waits.clear()
        store.cold = 1
        answers: list[Command] = []

        async def ask() -> None:
            answers.append(await REQUESTS[kind](desk))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            assert bodies(await desk.pull(queue_id=1, offset=3)) == [b"7"]
            assert answers == []
            store.cold = 1
            store.device.set()
        assert [content(answer) for answer in answers] == [expected]
        assert len(store.warmed) == 2
        assert not any(store.waits)


@pytest.mark.only_store(why="brings its own store")
@pytest.mark.parametrize(("kind", "reads"), [("by key", 8), ("topic statistics", 4), ("group statistics", 4)])
async def test_many_messages_are_waited_for_together(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, kind: str, reads: int
) -> None:
    """All data that an answer needs is fetched together."""
    async with cold_desk(opened) as desk:
        await fill(desk)
        store = store_of(desk)
        store.device.set()
        monkeypatch.setattr(store, "query_by_key", partial(MemoryStore.query_by_key, store))
        store.cold = reads
        assert (await REQUESTS[kind](desk)).code == 0
        assert [len(pieces) for pieces in store.warmed] == [reads]


@pytest.mark.only_store(why="brings its own store")
async def test_what_does_not_stay_in_memory_is_read_all_the_same(opened: Opened) -> None:
    """The request is answered eventually."""
    async with cold_desk(opened) as desk:
        await fill(desk)
        store = store_of(desk)
        store.cold = 1_000_000
        store.device.set()
        assert content(await REQUESTS["by id"](desk))[0] == 0
        assert store.waits == [False] * (MAX_ROUNDS + 1) + [True]


@pytest.mark.only_store(why="brings its own store")
async def test_a_message_that_is_sent_back_is_stored_once(opened: Opened) -> None:
    """The message is stored once, however often its original was not in memory."""
    async with cold_desk(opened) as desk:
        await fill(desk)
        store_of(desk).cold = 5
        store_of(desk).device.set()
        assert (await desk.send_back(0, delay_level=1)).code == 0
        assert len(desk.stored(names.SCHEDULE_TOPIC, 0)) == 1


@pytest.mark.only_store(why="brings its own store")
async def test_a_message_that_goes_while_it_is_waited_for(opened: Opened) -> None:
    """The answer depends on the data at that time."""
    async with cold_desk(opened) as desk:
        await fill(desk)
        store = store_of(desk)
        store.cold = 1
        answers: list[Command] = []

        async def ask() -> None:
            answers.append(await REQUESTS["by id"](desk))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            store._log.records.clear()
            store.device.set()
        assert [answer.code for answer in answers] == [ResponseCode.SYSTEM_ERROR]
