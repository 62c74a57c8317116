"""Cleaning rounds over real stores, with a disk usage given by the test."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from rmqkit import hookimpl
from rmqkit.broker.run import assemble
from rmqkit.config import Config
from rmqkit.errors import StoreError
from rmqkit.model.names import lite_queue
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.dispatcher import LogFollower
from rmqkit.plugin.hookspecs import Register
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import request
from rmqkit.testing.broker import running_broker
from rmqkit.testing.peer import FakePeer, ask
from rmqkit.testing.store import message
from rmqkit_retention import service as module
from rmqkit_retention.processor import CODES
from rmqkit_retention.service import RetentionService
from rmqkit_store_mmap.store import MmapStore
from tests.broker.desk import BrokerHarness, bodies, open_desk, places
from tests.counting import Volatile

SEGMENT_BYTES = 66_560
HOUR_MS = 3_600_000
SMALL: dict[str, Any] = {
    "store": "mmap",
    "maxMessageSize": 1_000,
    "mappedFileSizeCommitLog": SEGMENT_BYTES,
    "mappedFileSizeConsumeQueue": 200,
    "deleteCommitLogFilesInterval": 0,
}


class FakeDisk:
    """Usage in percent; `full` paths raise an error."""

    def __init__(self, percent: int = 10) -> None:
        self.percent = percent
        self.fails = False
        self.asked: list[Path] = []

    def usage(self, path: Path) -> int:
        self.asked.append(path)
        if self.fails:
            raise OSError("no such device")
        return self.percent


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let local hours be those of UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@asynccontextmanager
async def opened(
    directory: Path, segments: int = 5, **keys: Any
) -> AsyncIterator[tuple[BrokerHarness, RetentionService, FakeDisk]]:
    """A broker whose log has this many full segments, 100 hours old and one hour less each; its clock shows
    12:00."""
    async with open_desk(directory, **SMALL | keys) as desk:
        store = desk.broker.store
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            while store.end_offset < segments * SEGMENT_BYTES:
                await desk.sent(body=b"x" * 900)
            desk.clock.advance(12 * HOUR_MS - desk.clock.now_ms() % (24 * HOUR_MS))
            await flush(desk)
            for number in range(segments if isinstance(store, MmapStore) else 0):
                modified_s = (desk.clock.now_ms() - (100 - number) * HOUR_MS) / 1000
                os.utime(directory / "commitlog" / f"{number * SEGMENT_BYTES:020d}", (modified_s, modified_s))
            disk = FakeDisk()
            yield desk, RetentionService(desk.broker.config, disk.usage), disk
            nursery.cancel_scope.cancel()


async def flush(desk: BrokerHarness) -> None:
    """Flush, because only flushed data can be deleted."""
    if isinstance(desk.broker.store, MmapStore):
        await desk.broker.store._log.flush()


def log_start(desk: BrokerHarness) -> int:
    return desk.broker.store.statistics().min_physical_offset


@pytest.mark.only_store("mmap", why="is about the files of one store")
@pytest.mark.row("S338", "S339")
async def test_expired_files_go_at_their_hour(tmp_path: Path) -> None:
    """Files are deleted only at the hour, and only expired ones: of five files that are 100 to 96 hours old,
    the first three with a limit of 98."""
    async with opened(tmp_path, fileReservedTime=98 + 16) as (desk, service, disk):
        await service.round(desk.broker)
        assert log_start(desk) == 0
        desk.clock.advance(16 * HOUR_MS)
        await service.round(desk.broker)
        assert log_start(desk) == 3 * SEGMENT_BYTES
        await service.round(desk.broker)
        assert log_start(desk) == 3 * SEGMENT_BYTES
        assert set(disk.asked) == {tmp_path / "commitlog", tmp_path / "consumequeue"}


@pytest.mark.only_store("mmap", why="is about the files of one store")
async def test_dispatchers_are_told_what_went(tmp_path: Path) -> None:
    """After each deletion, dispatchers get the new start of the log."""
    told: list[int] = []

    class Told(Volatile):
        def forget_before(self, log_start: int) -> None:
            told.append(log_start)

    class Plugin:
        @hookimpl
        def rmqkit_register_dispatchers(self, register: Register[LogFollower]) -> None:
            register("told", Told())

    async with opened(tmp_path, fileReservedTime=98, extra=[("mine", Plugin())]) as (desk, service, disk):
        disk.percent = 76
        await service.round(desk.broker)
        assert told == [SEGMENT_BYTES, 2 * SEGMENT_BYTES, 3 * SEGMENT_BYTES]


@pytest.mark.only_store("mmap", why="is about the files of one store")
@pytest.mark.row("S340", "S342")
async def test_a_full_disk_deletes_what_has_not_expired(tmp_path: Path) -> None:
    """Above 75 % only expired files are deleted, above 85 % all but the newest, consumed or not."""
    async with opened(tmp_path, fileReservedTime=99) as (desk, service, disk):
        disk.percent = 76
        await service.round(desk.broker)
        assert log_start(desk) == 2 * SEGMENT_BYTES
        disk.percent = 86
        await service.round(desk.broker)
        assert log_start(desk) == 5 * SEGMENT_BYTES
        await service.round(desk.broker)
        assert log_start(desk) == 5 * SEGMENT_BYTES
        assert len(desk.stored()) > 0
        await desk.sent(body=b"more")


@pytest.mark.only_store("mmap", why="is about the files of one store")
@pytest.mark.row("S341")
async def test_above_the_warning_level_sends_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Sends get SERVICE_NOT_AVAILABLE with ratio and path, while pulls continue; at the level sends are
    accepted again. Each change is logged once."""
    async with opened(tmp_path, cleanFileForciblyEnable=False) as (desk, service, disk):
        caplog.set_level(logging.WARNING, "rmqkit_retention")
        disk.percent = 91
        await service.round(desk.broker)
        await service.round(desk.broker)
        answer = await desk.send(body=b"refused")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert answer.remark is not None
        assert "91 % full" in answer.remark
        assert str(tmp_path / "commitlog") in answer.remark
        low = desk.broker.store.min_offset("T", 0)
        assert len(bodies(await desk.pull(offset=low))) > 0
        disk.percent = 90
        await service.round(desk.broker)
        await desk.sent(body=b"taken")
        assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


@pytest.mark.only_store("mmap", why="is about the files of one store")
@pytest.mark.row("S341")
async def test_sends_are_taken_again_as_soon_as_deleting_made_room(tmp_path: Path) -> None:
    """The disk is checked again after a forced deletion, instead of in the next round."""
    async with opened(tmp_path) as (desk, service, _):

        def usage(path: Path) -> int:
            return 95 if log_start(desk) == 0 else 60

        service._usage = usage
        await service.round(desk.broker)
        assert log_start(desk) == 5 * SEGMENT_BYTES
        await desk.sent(body=b"taken")


@pytest.mark.only_store("mmap", why="is about the files of one store")
async def test_consumers_of_what_was_deleted_are_told_where_to_go_on(tmp_path: Path) -> None:
    """A pull gets PULL_OFFSET_MOVED with the first existing offset."""
    async with opened(tmp_path) as (desk, service, disk):
        disk.percent = 86
        await service.round(desk.broker)
        low, high = desk.broker.store.min_offset("T", 0), desk.broker.store.max_offset("T", 0)
        assert 0 < low < high
        answer = await desk.pull(offset=low - 1)
        assert (answer.code, answer.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL")
        assert places(answer) == (low, low, high)
        assert (await desk.pull(offset=low)).code == 0


@pytest.mark.only_store("memory", why="is about a store without files")
async def test_messages_without_a_disk(tmp_path: Path) -> None:
    """The memory store is cleaned by age only."""
    async with opened(tmp_path, store="memory") as (desk, service, disk):
        disk.percent = 99
        await service.round(desk.broker)
        assert (log_start(desk), disk.asked) == (0, [])
        desk.clock.advance((72 + 16) * HOUR_MS)
        await service.round(desk.broker)
        assert log_start(desk) > 3 * SEGMENT_BYTES
        await desk.sent(body=b"more")


# --- rounds -------------------------------------------------------------------------------------------------


class CountedRetention(RetentionService):
    """Records the times of its rounds, and whether they were requested."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.times: list[float] = []
        self.error: Exception | None = None

    async def round(self, broker: Broker) -> None:
        self.times.append(trio.current_time())
        if self.error is not None:
            raise self.error


@pytest.mark.row("S337")
async def test_when_rounds_are(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """The first round is after a minute, then one every ten seconds, and one at once on request. An error is
    logged and the next round follows."""
    async with open_desk(tmp_path) as desk, trio.open_nursery() as nursery:
        service = CountedRetention(desk.broker.config)
        start = trio.current_time()
        await nursery.start(service.run, desk.broker)
        await trio.sleep(59.9)
        assert service.times == []
        await trio.sleep(20.2)
        service.error = StoreError("no")
        await trio.sleep(20)
        service.error = OSError("nor this")
        await trio.sleep(10)
        service.ask()
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert [round(at - start, 1) for at in service.times] == [60, 70, 80, 90, 100, 110, 110.1]


@pytest.mark.only_store("mmap", why="is about the files of one store")
async def test_a_round_that_fails_does_not_end_the_broker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A path whose usage cannot be read is logged; nothing is deleted or refused."""
    async with opened(tmp_path) as (desk, service, disk), trio.open_nursery() as nursery:
        disk.fails = True
        await nursery.start(service.run, desk.broker)
        service.ask()
        with trio.fail_after(120):
            while not caplog.records:
                await trio.lowlevel.checkpoint()
        assert "no such device" in caplog.text
        assert log_start(desk) == 0
        await desk.sent(body=b"taken")
        nursery.cancel_scope.cancel()


# --- requests -----------------------------------------------------------------------------------------------


@pytest.mark.only_store("mmap", why="is about the files of one store")
async def test_deleting_by_request(tmp_path: Path) -> None:
    """DELETE_EXPIRED_COMMITLOG is answered at once; the next twenty rounds delete expired files at any
    hour."""
    async with opened(tmp_path) as (desk, _, disk):
        installed = desk.broker.registry.services["retention"]
        assert isinstance(installed, RetentionService)
        installed._usage = disk.usage
        assert (await desk.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == 0
        assert log_start(desk) == 0
        await installed.round(desk.broker)
        assert log_start(desk) == 5 * SEGMENT_BYTES
        for _ in range(module._MANUAL_ROUNDS - 1):
            assert installed._manual_rounds > 0
            await installed.round(desk.broker)
        assert installed._manual_rounds == 0


async def test_asking_a_broker_that_deletes_nothing(tmp_path: Path) -> None:
    """If the service is disabled, the request is refused."""
    async with open_desk(tmp_path, disabledServices="retention") as desk:
        answer = await desk.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "retention" in (answer.remark or "")


@pytest.mark.only_store("mmap", why="is about the files of one store")
async def test_cleaning_expired_queues(tmp_path: Path) -> None:
    """CLEAN_EXPIRED_CONSUMEQUEUE removes queues whose messages are all deleted; those with messages, empty
    ones, system topics and lite topics stay."""
    async with opened(tmp_path, segments=0) as (desk, _, _):
        store = desk.broker.store
        await desk.sent(body=b"old", queue_id=3)
        await desk.sent(body=b"old", queue_id=0)
        await desk.sent(properties={"DELAY": "3"})
        store.append([message(lite_queue("T", "one"))])
        while store.end_offset < 2 * SEGMENT_BYTES:
            await desk.sent(body=b"x" * 900)
        await flush(desk)
        assert (await desk.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)).code == 0
        assert store.queues()["T"] == [0, 3]
        await store.trim(SEGMENT_BYTES)
        assert (store.min_offset("T", 3), store.max_offset("T", 3)) == (1, 1)
        assert (await desk.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)).code == 0
        assert store.queues() == {"T": [0], "SCHEDULE_TOPIC_XXXX": [2], lite_queue("T", "one"): [0]}
        assert (await desk.sent(body=b"new", queue_id=3)).queue_offset == 0


async def test_cleaning_unused_topics(tmp_path: Path) -> None:
    """CLEAN_UNUSED_TOPIC removes the queues of topics that are in no table, and of their lite topics; system
    topics stay."""
    async with open_desk(tmp_path) as desk:
        await desk.sent(topic="A", default_topic="TBW102", default_topic_queue_nums=1)
        await desk.sent(topic="B", default_topic="TBW102", default_topic_queue_nums=1)
        await desk.sent(properties={"DELAY": "3"})
        for topic in "AB":
            desk.broker.store.append([message(lite_queue(topic, "one"))])
        del desk.broker.topics.configs["A"]
        assert "SCHEDULE_TOPIC_XXXX" not in desk.broker.topics.configs
        assert (await desk.ask(RequestCode.CLEAN_UNUSED_TOPIC)).code == 0
        assert set(desk.broker.store.queues()) == {"B", lite_queue("B", "one"), "SCHEDULE_TOPIC_XXXX"}


async def test_the_service_is_part_of_a_broker(tmp_path: Path) -> None:
    """The plugin registers the service and its requests; a broker runs the service and stops while it
    waits."""
    async with running_broker(tmp_path) as broker:
        assert isinstance(broker.context.registry.services["retention"], RetentionService)
        router, _ = assemble.make_routers(broker.context)
        for code in CODES:
            answer = await ask(router.processors[code], request(code), FakePeer())
            assert answer is not None
            assert answer.code == 0


# --- usage --------------------------------------------------------------------------------------------------


@pytest.mark.only_store("mmap", why="is about the files of one store")
async def test_a_pin_holds_expired_files_until_the_disk_is_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A reader's pin is honoured and named in the log, also when the disk is full enough to delete files that
    have not expired; above the ratio at which no messages are taken the reader loses it."""
    async with opened(tmp_path, fileReservedTime=1) as (desk, service, disk):
        store = desk.broker.store
        with store.pin(SEGMENT_BYTES + 5, "the copier") as pin:
            disk.percent = 86
            await service.round(desk.broker)
            assert log_start(desk) == SEGMENT_BYTES
            assert pin.holds
            assert f"the copier holds the log from {SEGMENT_BYTES + 5} on" in caplog.text
            disk.percent = 91
            await service.round(desk.broker)
            assert log_start(desk) > 2 * SEGMENT_BYTES
            assert not pin.holds
            assert f"the copier loses the log from {SEGMENT_BYTES + 5}" in caplog.text
