"""The timer log: chains over memory and files, the end of a file, removal of what is old."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqkit_timer import timer_log
from rmqkit_timer.timer_log import Files, TimerLog, units_of
from rmqkit_timer.units import LEAST_FILE_BYTES, NOWHERE, UNIT_BYTES, Unit, blank, pack

#: Three units and a blank.
FILE_BYTES = 3 * UNIT_BYTES + 30


def unit(previous: int, number: int = 0) -> Unit:
    return Unit(previous, 1, 1_000, number, number, 100, 7)


def write(log: TimerLog) -> None:
    """Write everything that is not written, as the service does."""
    position, data = log.take_unwritten()
    log.write(position, data)
    log.wrote(position, data)


def filled(log: TimerLog, count: int, *, flush_each: int = 0) -> list[int]:
    """Append a chain of units; returns their positions."""
    positions: list[int] = []
    for number in range(count):
        positions.append(log.append(unit(positions[-1] if positions else NOWHERE, number)))
        if flush_each and number % flush_each == 0:
            write(log)
    return positions


@pytest.fixture(params=["memory", "files", "read back"])
def log(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TimerLog:
    """A log in memory, one of files, and one of which only the newest part is in memory."""
    if request.param == "memory":
        return TimerLog(None, FILE_BYTES)
    if request.param == "read back":
        monkeypatch.setattr(timer_log, "KEPT_BYTES", UNIT_BYTES)
        monkeypatch.setattr(timer_log, "_READ_BYTES", 2 * UNIT_BYTES)
    return TimerLog(Files(tmp_path / "timerlog", FILE_BYTES), FILE_BYTES)


async def test_a_chain_is_followed_backwards(log: TimerLog) -> None:
    """In parts, over files and memory; other chains are passed over."""
    ours: list[int] = []
    others: list[int] = []
    for number in range(20):
        ours.append(log.append(unit(ours[-1] if ours else NOWHERE, number)))
        others.append(log.append(unit(others[-1] if others else NOWHERE, 100 + number)))
        if number % 6 == 5:
            write(log)
    numbers: list[int] = []
    found: list[int] = []
    at = ours[-1]
    while at != NOWHERE:
        units, positions, at = await log.chain(at, 3)
        assert len(units) <= 3
        numbers += [each.delay_ms for each in units]
        found += positions
    assert numbers == list(range(19, -1, -1))
    assert found == ours[::-1]
    log.close()


async def test_a_chain_ends_where_there_is_no_unit(log: TimerLog) -> None:
    """Behind the end, in front of the start, and where it would lead forward: it ends for certain."""
    positions = filled(log, 9, flush_each=2)
    assert await log.chain(log.end, 5) == ([], [], NOWHERE)
    assert await log.chain(NOWHERE, 5) == ([], [], NOWHERE)
    loop = log.append(unit(log.end))
    units, found, following = await log.chain(loop, 5)
    assert (len(units), found, following) == (1, [loop], NOWHERE)
    units, _, following = await log.chain(positions[1], 5)
    assert ([each.delay_ms for each in units], following) == ([1, 0], NOWHERE)
    log.close()


@settings(max_examples=40)
@given(st.integers(1, 40), st.integers(LEAST_FILE_BYTES, 400), st.integers(0, 5))
def test_units_are_read_back_from_files(count: int, file_bytes: int, flush_each: int) -> None:
    """In their order, each once, over the blanks at the ends of files; a new log goes on behind them."""
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        files = Files(Path(directory) / "timerlog", file_bytes)
        log = TimerLog(files, file_bytes)
        positions = filled(log, count, flush_each=flush_each)
        write(log)
        found = list(units_of(files, 0))
        assert [position for position, _ in found] == positions
        assert [each.delay_ms for _, each in found] == list(range(count))
        assert files.positions() == list(range(0, log.end, file_bytes))
        assert {path.stat().st_size for path in files.directory.iterdir()} == {file_bytes}
        more = TimerLog(files, file_bytes, 0, log.end)
        position = more.append(unit(NOWHERE, 99))
        assert position == log.append(unit(NOWHERE, 99))
        write(more)
        assert next(reversed(list(units_of(files, 0))))[0] == position
        files.close()


def test_a_cut_removes_what_is_behind_it(tmp_path: Path) -> None:
    """From the file of the place, where zeros follow, and whole files; twice the same."""
    files = Files(tmp_path / "timerlog", FILE_BYTES)
    log = TimerLog(files, FILE_BYTES)
    positions = filled(log, 8)
    write(log)
    for _ in range(2):
        files.cut(positions[4])
        assert [position for position, _ in units_of(files, 0)] == positions[:4]
        assert files.positions() == [0, FILE_BYTES]
        content = (files.directory / f"{FILE_BYTES:020}").read_bytes()
        assert content == pack(unit(positions[2], 3)) + bytes(FILE_BYTES - UNIT_BYTES)
    files.cut(0)
    assert files.positions() == []
    files.close()


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    """Only names of twenty digits are files of the log."""
    directory = tmp_path / "timerlog"
    directory.mkdir()
    (directory / "README").touch()
    (directory / "000").touch()
    (directory / f"{7:020}").mkdir()
    assert Files(directory, FILE_BYTES).positions() == []
    assert Files(tmp_path / "none", FILE_BYTES).positions() == []


async def test_old_files_are_removed(log: TimerLog) -> None:
    """When the last message of a file was removed with the log; never the newest file."""
    positions = filled(log, 10)
    write(log)
    await log.remove_before(3)
    assert log.start == FILE_BYTES
    assert (await log.chain(positions[5], 9))[1] == positions[5:2:-1]
    await log.remove_before(1 << 60)
    assert log.start == 3 * FILE_BYTES
    assert (await log.chain(positions[9], 9))[1] == positions[9:8:-1]
    await log.remove_before(1 << 60)
    assert log.start == 3 * FILE_BYTES
    log.close()


async def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written leaves the memory but for the newest part; while nothing can be written, the log is
    full at some time."""
    monkeypatch.setattr(timer_log, "KEPT_BYTES", 10 * UNIT_BYTES)
    monkeypatch.setattr(timer_log, "MAX_UNWRITTEN_BYTES", 100 * UNIT_BYTES)
    log = TimerLog(Files(tmp_path / "timerlog", 1 << 20), 1 << 20)
    positions = filled(log, 90)
    assert not log.is_full
    filled(log, 11)
    assert log.is_full
    write(log)
    assert not log.is_full
    assert len(log._memory) <= 20 * UNIT_BYTES
    assert (await log.chain(positions[-1], 1_000))[1] == positions[::-1]
    log.close()


def test_a_blank_that_fills_a_unit_is_no_unit() -> None:
    """52 bytes are left in a file of some sizes."""
    data = blank(UNIT_BYTES, 2 * UNIT_BYTES)
    assert len(data) == UNIT_BYTES
    assert data[:4] == b"\0\0\0\x34"
