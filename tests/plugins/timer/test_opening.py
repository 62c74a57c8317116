"""The files of timers: opened after a stop, after a kill at any point of a write, after Apache's broker, and
when they contradict themselves."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rmqkit.errors import ConfigError
from rmqkit_timer import checkpoint as checkpoints
from rmqkit_timer.checkpoint import Checkpoint
from rmqkit_timer.opening import InMemory, Opened, TimerFiles
from rmqkit_timer.settings import TimerSettings
from rmqkit_timer.timer_log import Files, units_of
from rmqkit_timer.timers import Snapshot, Timers
from rmqkit_timer.units import UNIT_BYTES
from rmqkit_timer.wheel import SLOTS, WHEEL_BYTES, Slot
from tests.plugins.timer.kit import place

NOW_MS = 1_700_000_000_000
FILE_BYTES = 10 * UNIT_BYTES + 20
GIVEN = TimerSettings(mapped_file_size_timer_log=FILE_BYTES)


def files_in(directory: Path) -> TimerFiles:
    return TimerFiles(directory, directory / "config")


def opened(directory: Path, given: TimerSettings = GIVEN) -> Opened:
    return files_in(directory).open(given, NOW_MS)


def entered(timers: Timers, *seconds: int, first: int = 0) -> None:
    """Let messages wait; their records are `first` and the following numbers."""
    for number, each in enumerate(seconds, first):
        assert timers.enter(NOW_MS + each * 1_000, place(number))


def snapshot(timers: Timers, queue_offset: int) -> Snapshot:
    taken = timers.snapshot(timers.checkpoint(queue_offset, 0, NOW_MS), b"")
    timers.wrote(taken)
    return taken


def saved(directory: Path, timers: Timers, queue_offset: int) -> None:
    files_in(directory).write(timers, snapshot(timers, queue_offset))


async def chains(timers: Timers) -> dict[int, list[int]]:
    """Seconds from now -> the records of the slot, oldest first; checks the numbers of the slots."""
    found: dict[int, list[int]] = {}
    for slot in timers.wheel.slots():
        units, positions, _ = await timers.log.chain(slot.last, 1_000)
        assert slot.number == len(units)
        assert positions[-1] == slot.first
        found[(slot.time_ms - NOW_MS) // 1_000] = [unit.physical_offset for unit in units][::-1]
    assert timers.waiting == sum(map(len, found.values()))
    return found


def test_the_first_start(tmp_path: Path) -> None:
    """Nothing is there, and nothing is written."""
    found = opened(tmp_path)
    assert (found.queue_offset, found.timers.read_time_ms, found.timers.waiting) == (0, NOW_MS, 0)
    assert not [*tmp_path.iterdir()]


async def test_what_was_written_is_found(tmp_path: Path) -> None:
    """With Apache's names and sizes; twice the same."""
    timers = opened(tmp_path).timers
    entered(timers, *(number % 4 + 1 for number in range(25)))
    timers.unit_position = 52
    saved(tmp_path, timers, 25)
    assert (tmp_path / "timerwheel").stat().st_size == WHEEL_BYTES
    assert [path.name for path in sorted((tmp_path / "timerlog").iterdir())] == [
        f"{number * FILE_BYTES:020}" for number in range(3)
    ]
    for _ in range(2):
        found = opened(tmp_path)
        assert (found.queue_offset, found.timers.read_time_ms) == (25, NOW_MS)
        assert found.timers.unit_position == 52
        assert await chains(found.timers) == {each + 1: list(range(each, 25, 4)) for each in range(4)}
        found.timers.log.close()


@pytest.mark.parametrize("parts", ["nothing", "half of the log", "log", "log and a page", "log and wheel"])
@pytest.mark.parametrize("seconds", [(1, 2, 3), (1, 90_000, 180_000), (5,) * 30])
async def test_a_kill_within_a_write_is_as_one_before_it(
    tmp_path: Path, parts: str, seconds: tuple[int, ...]
) -> None:
    """The checkpoint is written last: everything that it does not name is cut off, and entered again."""
    timers = opened(tmp_path).timers
    entered(timers, *seconds)
    saved(tmp_path, timers, len(seconds))
    expected = await chains(timers)
    entered(timers, *seconds, 4, first=100)
    taken, files = snapshot(timers, 99), files_in(tmp_path)
    log = taken.log_data[: len(taken.log_data) // 2] if parts == "half of the log" else taken.log_data
    if parts != "nothing":
        timers.log.write(taken.log_position, log)
    if parts == "log and a page":
        files._write_wheel(taken.pages[:1])
    if parts == "log and wheel":
        files._write_wheel(taken.pages)
    timers.log.close()
    for _ in range(2):
        found = opened(tmp_path)
        assert found.queue_offset == len(seconds)
        assert await chains(found.timers) == expected
        stored = list(units_of(Files(tmp_path / "timerlog", FILE_BYTES), 0))
        assert [unit.physical_offset for _, unit in stored] == list(range(len(seconds)))
        found.timers.log.close()
    entered(found.timers, *seconds, 4, first=100)
    assert await chains(found.timers) == await chains(timers)


async def test_a_store_of_apaches_broker(tmp_path: Path) -> None:
    """Its checkpoint is older than its log: the log is read to its end, and slots are brought up to it; what
    was entered already is known."""
    timers = opened(tmp_path).timers
    entered(timers, *(number % 4 + 1 for number in range(15)))
    saved(tmp_path, timers, 15)
    wheel = (tmp_path / "timerwheel").read_bytes()
    entered(timers, *(number % 4 + 1 for number in range(15, 25)), first=15)
    expected = await chains(timers)
    saved(tmp_path, timers, 25)
    (tmp_path / "timerwheel").write_bytes(wheel)
    plain = Checkpoint(
        read_time_ms=NOW_MS, log_position=7 * UNIT_BYTES, queue_offset=9, master_queue_offset=9
    )
    checkpoints.write(tmp_path / "config" / "timercheck", plain)
    found = opened(tmp_path)
    assert found.queue_offset == 9
    assert found.known == frozenset(range(25))
    assert await chains(found.timers) == expected
    found.timers.log.close()


def broken_wheel(directory: Path) -> None:
    (directory / "timerwheel").write_bytes(b"x")


def missing_wheel(directory: Path) -> None:
    (directory / "timerwheel").unlink()


def empty_wheel(directory: Path) -> None:
    (directory / "timerwheel").write_bytes(b"")


def missing_log(directory: Path) -> None:
    for path in (directory / "timerlog").iterdir():
        path.unlink()


def gap_in_log(directory: Path) -> None:
    (directory / "timerlog" / f"{FILE_BYTES:020}").unlink()


def uneven_log(directory: Path) -> None:
    with (directory / "timerlog" / f"{0:020}").open("ab") as file:
        file.write(b"x")


def lost_checkpoint(directory: Path) -> None:
    (directory / "config" / "timercheck").unlink()


def empty_log(directory: Path) -> None:
    (directory / "timerlog" / f"{2 * FILE_BYTES:020}").write_bytes(bytes(FILE_BYTES))


def short_log(directory: Path) -> None:
    """After Apache's broker, with a log that ends before what the wheel knows."""
    path = directory / "config" / "timercheck"
    found = checkpoints.read(path)
    assert found is not None
    checkpoints.write(path, msgspec.structs.replace(found, moment=None))
    empty_log(directory)


@pytest.mark.parametrize(
    "damage",
    [
        broken_wheel,
        missing_wheel,
        empty_wheel,
        missing_log,
        gap_in_log,
        uneven_log,
        lost_checkpoint,
        empty_log,
        short_log,
    ],
)
async def test_files_that_contradict_themselves_are_made_anew(
    tmp_path: Path, damage: object, caplog: pytest.LogCaptureFixture
) -> None:
    """From the records of the timer topic; the checkpoint says from where on."""
    timers = opened(tmp_path).timers
    entered(timers, *(number % 4 + 1 for number in range(25)))
    saved(tmp_path, timers, 25)
    timers.log.close()
    assert callable(damage)
    damage(tmp_path)
    found = opened(tmp_path)
    assert found.queue_offset is None
    assert found.timers.waiting == 0
    assert found.timers.log.end == 0
    assert "made anew" in caplog.text
    entered(found.timers, 5)
    saved(tmp_path, found.timers, 26)
    found.timers.log.close()
    again = opened(tmp_path)
    assert again.queue_offset == 26
    assert await chains(again.timers) == {5: [0]}
    again.timers.log.close()


async def test_another_precision_makes_timers_anew(tmp_path: Path) -> None:
    """The wheel has other slots then."""
    timers = opened(tmp_path).timers
    entered(timers, 5)
    saved(tmp_path, timers, 1)
    found = opened(tmp_path, msgspec.structs.replace(GIVEN, timer_precision_ms=100))
    assert (found.queue_offset, found.checkpoint.queue_offset) == (None, 1)


async def test_a_log_keeps_the_size_of_its_files(tmp_path: Path) -> None:
    """mappedFileSizeTimerLog is for a new one."""
    timers = opened(tmp_path).timers
    entered(timers, *range(25))
    saved(tmp_path, timers, 25)
    found = opened(tmp_path, TimerSettings())
    entered(found.timers, *range(25), first=25)
    saved(tmp_path, found.timers, 50)
    assert len([*(tmp_path / "timerlog").iterdir()]) == 5


async def test_a_checkpoint_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    """With the file and what to do."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "timercheck").write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"timercheck cannot be read: .*restore it, or delete it"):
        opened(tmp_path)


async def test_slots_of_another_turn_are_no_units_of_this_one(tmp_path: Path) -> None:
    """A cut takes back no slot whose units are before it."""
    timers = opened(tmp_path).timers
    timers.wheel.put(Slot(NOW_MS - SLOTS * 1_000 + 9_000, 0, 0, 1))
    entered(timers, 1, 2)
    saved(tmp_path, timers, 2)
    found = opened(tmp_path).timers
    assert found.wheel.slot(NOW_MS - SLOTS * 1_000 + 9_000) is not None
    assert found.waiting == 2


async def test_timers_in_memory() -> None:
    """Only the checkpoint is kept; a later run makes the timers anew."""
    kept = InMemory()
    found = kept.open(GIVEN, NOW_MS)
    assert found.queue_offset == 0
    entered(found.timers, 5)
    kept.write(found.timers, snapshot(found.timers, 1))
    again = kept.open(GIVEN, NOW_MS + 9_000)
    assert (again.queue_offset, again.checkpoint.queue_offset) == (None, 1)
    assert again.timers.read_time_ms == NOW_MS
