"""A slave learns how far the timers of its master have come, and goes on with them when it is the master."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rmqkit.broker.run.running import RunningBroker
from rmqkit.errors import DecodeError
from rmqkit.model import names
from rmqkit.model.run import MessageRun
from rmqkit.model.topic import DataVersion
from rmqkit.plugin.role import Role
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.record import unpack
from rmqkit.testing.calls import calling_broker
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.master_table import check_master_table
from rmqkit_timer import checkpoint as checkpoints
from rmqkit_timer.checkpoint import Checkpoint, Moment
from rmqkit_timer.copying import CheckpointCopy, CountsCopy
from rmqkit_timer.counts import Count, Counts
from rmqkit_timer.service import TimerService
from rmqkit_timer.units import UNIT_BYTES
from tests.broker.desk import open_desk
from tests.plugins.ha.pair import caught_up, follow, group_of, lead, running_member, until
from tests.plugins.timer.kit import service_of, timed, timing

STORES = pytest.mark.parametrize("store", ["mmap", "lmdb", "memory"])


def timers_of(broker: RunningBroker) -> TimerService:
    service = broker.context.registry.services["timer"]
    assert isinstance(service, TimerService)
    return service


def send(broker: RunningBroker, *seconds: int) -> None:
    messages = [
        timed(b"%d" % each, {"TIMER_DELAY_SEC": str(each), "UNIQ_KEY": f"K{each}"}) for each in seconds
    ]
    results = broker.context.appender.append(MessageRun(messages))
    assert not [each for each in results if isinstance(each, Exception)]


def found(broker: RunningBroker) -> list[bytes]:
    store = broker.context.store
    with store.blocking_reads():
        units = store.read_units("T", 0, 0, 1_000)
        records = [store.read_record(unit.physical_offset) for unit in units]
    return [unpack(record).body for record in records if record is not None]


async def joined(master: RunningBroker, slave: RunningBroker, epoch: int) -> None:
    """Let a slave follow a master, and be its in-sync set with it."""
    await follow(slave, master, epoch)
    name, group = group_of(slave).name, group_of(master)
    await until(lambda: name in group.members() and group.members()[name].is_caught_up)
    group.set_in_sync({group.name, name})


@STORES
@pytest.mark.parametrize("is_copied_late", [False, True])
async def test_a_new_master_goes_on(tmp_path: Path, store: str, is_copied_late: bool) -> None:
    """What was delivered is not delivered again, also what its last copy of the checkpoint does not tell of;
    what waits is delivered; and once more after the next change."""
    clock = FakeClock()
    async with (
        running_member(tmp_path / "a", "a", store=store, clock=clock) as a,
        running_member(tmp_path / "b", "b", store=store, clock=clock) as b,
    ):
        await lead(a, 1)
        await joined(a, b, 1)
        send(a, 1, 2, 5, 100)
        await until(lambda: timers_of(a).figures().get("timerOffsetBehind") == 0)
        clock.advance(1_000)
        await until(lambda: found(a) == [b"1"])
        if is_copied_late:
            tables = b.context.replication.tables
            await until(lambda: _copied(timers_of(b), b) > 0)
            tables.clear()
        clock.advance(1_000)
        await until(lambda: found(a) == [b"1", b"2"])
        await caught_up(a, b)
        await a.context.role.set(Role.FENCED, 1)
        await lead(b, 2)
        clock.advance(3_000)
        await until(lambda: len(found(b)) >= 3)
        assert found(b) == [b"1", b"2", b"5"]
        await joined(b, a, 2)
        send(b, 1)
        clock.advance(1_000)
        await until(lambda: len(found(b)) >= 4)
        await caught_up(b, a)
        await until(lambda: _copied(timers_of(a), a) >= clock.now_ms())
        await b.context.role.set(Role.FENCED, 2)
        await lead(a, 3)
        clock.advance(100_000)
        await until(lambda: len(found(a)) >= 5)
        assert found(a) == [b"1", b"2", b"5", b"1", b"100"]


def _copied(service: TimerService, broker: RunningBroker) -> int:
    """The time up to which the copy of a slave says that everything is delivered; 0 without a copy."""
    kept = service.kept(broker.context).checkpoint()
    return 0 if kept is None or kept.moment is None else kept.read_time_ms


async def test_what_a_master_answers(tmp_path: Path) -> None:
    """Apache's seven numbers first, and JSON of the counts; nothing while no timers run."""
    async with running_member(tmp_path, "a", store="memory") as broker:
        requests = [
            Command(code=code) for code in (RequestCode.GET_TIMER_CHECK_POINT, RequestCode.GET_TIMER_METRICS)
        ]
        async with calling_broker(broker) as call:
            assert {(await call(each)).code for each in requests} == {ResponseCode.SYSTEM_ERROR}
            await lead(broker, 1)
            send(broker, 100)
            await until(lambda: timers_of(broker).figures().get("timerOffsetBehind") == 0)
            place, counts = [await call(each) for each in requests]
        assert len(place.body) > checkpoints.WIRE_BYTES
        assert checkpoints.decode(place.body).master_queue_offset == 1
        assert msgspec.json.decode(counts.body, type=Counts).timing_count["T"].count == 1


@pytest.mark.durable_store
async def test_a_checkpoint_is_taken_over_with_the_log_of_which_it_tells(tmp_path: Path) -> None:
    """Not before: a delivery that this broker does not have would be lost. An older one that it has meanwhile
    is as good; one of Apache's tells of no log."""
    async with open_desk(tmp_path) as desk:
        copy = CheckpointCopy(service_of(desk), desk.broker)
        path = tmp_path / "config" / "timercheck"

        def answer(read_time_ms: int, broker_end: int | None) -> bytes:
            moment = None if broker_end is None else Moment(broker_end=broker_end)
            data = checkpoints.encode(Checkpoint(read_time_ms=read_time_ms, moment=moment))
            return data if moment else data[: checkpoints.WIRE_BYTES]

        await copy.take(answer(1, 1))
        assert not path.exists()
        await desk.sent()
        end = desk.broker.store.end_offset
        await copy.take(answer(2, end + 1))
        taken = checkpoints.read(path)
        assert taken is not None
        assert taken.moment is not None
        assert (taken.read_time_ms, taken.moment.log_end) == (1, -1)
        await copy.take(answer(3, end))
        await copy.take(answer(4, None))
        taken = checkpoints.read(path)
        assert taken is not None
        assert taken.read_time_ms == 4
        with pytest.raises(DecodeError):
            await copy.take(b"x")


@pytest.mark.durable_store
async def test_the_contract_of_both_copies(tmp_path: Path) -> None:
    """Whatever a master answers."""
    counts = Counts(data_version=DataVersion(counter=3), timing_count={"T": Count(count=2, time_stamp=5)})
    place = checkpoints.encode(Checkpoint(read_time_ms=1_000, queue_offset=7))
    async with open_desk(tmp_path) as desk:
        service = service_of(desk)
        copied = service.kept(desk.broker)
        await check_master_table(CheckpointCopy(service, desk.broker), place, copied.checkpoint)
        path = tmp_path / "config" / "timermetrics"
        await check_master_table(
            CountsCopy(service, desk.broker),
            msgspec.json.encode(counts),
            lambda: path.read_bytes() if path.exists() else b"",
        )


@pytest.mark.durable_store
async def test_the_files_of_a_former_master_do_not_count_on_a_new_one(tmp_path: Path) -> None:
    """They tell of another log; the topic has everything."""
    async with open_desk(tmp_path) as desk:
        async with timing(desk):
            for seconds in ("1", "5"):
                await desk.sent(properties={"TIMER_DELAY_SEC": seconds})
            await until(lambda: service_of(desk).figures().get("timerOffsetBehind") == 0)
            desk.clock.advance(1_000)
            await until(lambda: len(desk.stored()) == 1)
        kept = service_of(desk).kept(desk.broker)
        found = checkpoints.read(tmp_path / "config" / "timercheck")
        assert found is not None
        kept.copy(found)
        async with timing(desk) as service:
            await until(lambda: service.figures().get("timerOffsetBehind") == 0)
            assert service.timers is not None
            assert service.timers.log.end == UNIT_BYTES
        assert len(desk.stored(names.TIMER_TOPIC)) == 2
