"""Pulls of messages that are on disk alone: answered when they are in memory, while others are served."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from rmqkit import hookimpl
from rmqkit.abc import FileRange, MessageStore, ReadLimits, ReadResult, RecordFilter, StoreFactory, UnitFilter
from rmqkit.config import Config
from rmqkit.hookspecs import Register
from rmqkit.model.sysflag import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command
from rmqkit_store_memory.store import MemoryStore
from tests.broker.desk import Desk, bodies, places

Opened = Callable[..., AbstractAsyncContextManager[Desk]]
COLD = [FileRange(Path("file"), 0, 1)]


class ColdStore(MemoryStore):
    """What is read without waiting is cold for the next `cold` reads. `warm` waits for `device`."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.cold = 0
        self.warmed: list[ReadResult] = []
        self.waits: list[bool] = []
        self.device = trio.Event()

    def read(
        self, topic: str, queue_id: int, offset: int, limits: ReadLimits, unit_filter: UnitFilter | None, record_filter: RecordFilter | None
    ) -> ReadResult:
        self.waits.append(limits.wait)
        result = super().read(topic, queue_id, offset, limits, unit_filter, record_filter)
        if self.cold and not limits.wait:
            self.cold -= 1
            result.cold = COLD
        return result

    async def warm(self, result: ReadResult) -> None:
        await self.device.wait()
        self.warmed.append(result)


class ColdPlugin:
    @hookimpl
    def rmqkit_register_stores(self, register: Register[StoreFactory], config: Config) -> None:
        register("cold", ColdStore)


def cold_desk(opened: Opened, **keys: Any) -> AbstractAsyncContextManager[Desk]:
    return opened(extra=[("cold", ColdPlugin())], store="cold", **keys)


def store_of(desk: Desk) -> ColdStore:
    store: MessageStore = desk.broker.store
    assert isinstance(store, ColdStore)
    return store


async def test_a_cold_pull_waits_while_others_are_served(opened: Opened) -> None:
    """Its answer comes when the device has read; a send, and a pull of something in memory, pass it."""
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
        assert [list(result.cold) for result in store_of(desk).warmed] == [COLD]
        assert store_of(desk).waits == [False, False, False]


async def test_what_will_not_stay_in_memory_is_read_all_the_same(opened: Opened) -> None:
    """After three attempts a pull waits for the device where it is: nothing keeps it from its answer for ever."""
    async with cold_desk(opened) as desk:
        await desk.sent(body=b"old")
        store_of(desk).cold = 1_000
        store_of(desk).device.set()
        assert bodies(await desk.pull()) == [b"old"]
        assert len(store_of(desk).warmed) == 3
        assert store_of(desk).waits == [False] * 4 + [True]


async def test_the_offset_of_a_cold_pull_is_committed_once_at_first(opened: Opened) -> None:
    """As with a held pull: when it is read for the first time."""
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
            desk.broker.topics.delete("T")
            store_of(desk).device.set()
        assert [answer.code for answer in answers] == [ResponseCode.TOPIC_NOT_EXIST]


async def test_an_arriving_message_does_not_let_its_sender_wait(opened: Opened) -> None:
    """A held pull is answered inside the send that wakes it, with what is there."""
    async with cold_desk(opened) as desk:
        assert await desk.outcome(desk.pull_request(sys_flag=PULL_SUBSCRIPTION | PULL_SUSPEND, suspend_timeout_millis=1_000)) is None
        store_of(desk).cold = 1
        await desk.sent(body=b"new")
        assert [bodies(answer) for answer in desk.peer.answers] == [[b"new"]]
        assert store_of(desk).waits == [False, True]


@pytest.mark.row("S112")
async def test_limits_of_messages_that_count_as_on_disk(opened: Opened) -> None:
    """8 messages or 64 KiB, but always one, of what lies further behind the end of the log than the share of memory the settings give to messages."""
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
        accessMessageInMemoryMaxRatio=0, maxTransferCountOnMessageInDisk=3, maxTransferBytesOnMessageInDisk=1_000_000
    ) as desk:
        for _ in range(20):
            await desk.sent(body=b"body")
        assert len(bodies(await desk.pull())) == 3
