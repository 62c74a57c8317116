"""Pulls of messages that are only on disk: answered when they are in memory, while others are served."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from rmqkit.model.sysflag import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.toolkit.cold_reads import MAX_ROUNDS
from tests.broker.cold import cold_desk, store_of
from tests.broker.desk import BrokerHarness, bodies, places

Opened = Callable[..., AbstractAsyncContextManager[BrokerHarness]]


@pytest.mark.only_store(why="brings its own store")
async def test_a_cold_pull_waits_while_others_are_served(opened: Opened) -> None:
    """The answer comes after the device has read; a send, and a pull of data in memory, are answered
    before."""
    async with cold_desk(opened) as desk:
        await desk.sent(body=b"old")
        store_of(desk).cold = 1
        answers: list[Command] = []

        async def pull() -> None:
            answers.append(await desk.pull())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pull)
            await wait_all_tasks_blocked()
            await desk.sent(body=b"new", queue_id=1)
            assert bodies(await desk.pull(queue_id=1)) == [b"new"]
            assert answers == []
            store_of(desk).device.set()
        assert [bodies(answer) for answer in answers] == [[b"old"]]
        assert places(answers[0]) == (1, 0, 1)
        assert store_of(desk).warmed == [(1,)]
        assert store_of(desk).waits == [False, False, False]


@pytest.mark.only_store(why="brings its own store")
async def test_what_will_not_stay_in_memory_is_read_all_the_same(opened: Opened) -> None:
    """After many attempts a pull waits for the device directly, so that it is answered eventually."""
    async with cold_desk(opened) as desk:
        await desk.sent(body=b"old")
        store_of(desk).cold = 1_000
        store_of(desk).device.set()
        assert bodies(await desk.pull()) == [b"old"]
        assert len(store_of(desk).warmed) == MAX_ROUNDS
        assert store_of(desk).waits == [False] * (MAX_ROUNDS + 1) + [True]


@pytest.mark.only_store(why="brings its own store")
async def test_the_offset_of_a_cold_pull_is_committed_once_at_first(opened: Opened) -> None:
    """As with a held pull, the offset is committed at the first read."""
    async with cold_desk(opened) as desk:
        await desk.sent(body=b"old")
        store_of(desk).cold = 2
        async with trio.open_nursery() as nursery:
            flags = PULL_SUBSCRIPTION | PULL_SUSPEND | PULL_COMMIT_OFFSET
            nursery.start_soon(lambda: desk.pull(sys_flag=flags, commit_offset=7))
            await wait_all_tasks_blocked()
            assert desk.broker.offsets.get("g", "T", 0) == 7
            desk.broker.offsets.commit("g", "T", 0, 9)
            store_of(desk).device.set()
        assert desk.broker.offsets.get("g", "T", 0) == 9


@pytest.mark.only_store(why="brings its own store")
async def test_a_topic_that_goes_while_a_pull_waits(opened: Opened) -> None:
    """The pull is refused like any later one."""
    async with cold_desk(opened) as desk:
        await desk.sent(body=b"old")
        store_of(desk).cold = 1
        answers: list[Command] = []

        async def pull() -> None:
            answers.append(await desk.pull())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pull)
            await wait_all_tasks_blocked()
            await desk.broker.topics.delete("T")
            store_of(desk).device.set()
        assert [answer.code for answer in answers] == [ResponseCode.TOPIC_NOT_EXIST]


@pytest.mark.only_store(why="brings its own store")
async def test_an_arriving_message_does_not_let_its_sender_wait(opened: Opened) -> None:
    """A held pull is not answered within the send that wakes it, but later in a task of its own
    connection."""
    async with cold_desk(opened) as desk:
        assert (
            await desk.outcome(
                desk.pull_request(sys_flag=PULL_SUBSCRIPTION | PULL_SUSPEND, suspend_timeout_millis=1_000)
            )
            is None
        )
        store_of(desk).cold = 2
        await desk.sent(body=b"new")
        assert desk.peer.answers == []
        store_of(desk).device.set()
        await desk.peer.run_work()
        assert [bodies(answer) for answer in desk.peer.answers] == [[b"new"]]
        assert store_of(desk).waits == [False] * 4
        assert len(desk.broker.held) == 0


@pytest.mark.only_store(why="brings its own store")
async def test_a_held_pull_of_a_topic_that_goes_while_it_waits(opened: Opened) -> None:
    """The pull is refused, like one that was not held."""
    async with cold_desk(opened) as desk:
        assert (
            await desk.outcome(
                desk.pull_request(sys_flag=PULL_SUBSCRIPTION | PULL_SUSPEND, suspend_timeout_millis=1_000)
            )
            is None
        )
        store_of(desk).cold = 1
        await desk.sent(body=b"new")
        await desk.broker.topics.delete("T")
        store_of(desk).device.set()
        await desk.peer.run_work()
        assert [answer.code for answer in desk.peer.answers] == [ResponseCode.TOPIC_NOT_EXIST]


@pytest.mark.row("S112")
async def test_limits_of_messages_that_count_as_on_disk(opened: Opened) -> None:
    """Messages that count as on disk are limited to 8 messages or 64 KiB, but at least one."""
    async with opened(accessMessageInMemoryMaxRatio=0) as desk:
        for number in range(20):
            await desk.sent(body=b"%d" % number)
        assert len(bodies(await desk.pull())) == 8
        for _ in range(4):
            await desk.sent(body=bytes(30_000), queue_id=1)
        assert len(bodies(await desk.pull(queue_id=1))) == 2
        await desk.sent(body=bytes(70_000), queue_id=2)
        assert len(bodies(await desk.pull(queue_id=2))) == 1
    async with opened(
        accessMessageInMemoryMaxRatio=0,
        maxTransferCountOnMessageInDisk=3,
        maxTransferBytesOnMessageInDisk=1_000_000,
    ) as desk:
        for _ in range(20):
            await desk.sent(body=b"body")
        assert len(bodies(await desk.pull())) == 3
