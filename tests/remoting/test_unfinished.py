"""The limit on unfinished frames: who may be read, who waits, and which connections are closed."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from rmqkit.remoting import unfinished
from rmqkit.remoting.unfinished import OLD, SLOW, UnfinishedFrames

#: Numbers of looks until a connection is closed, and bytes that are progress.
LOOKS, PROGRESS, PROGRESS_OF_ALL = 4, 1_000, 4_000


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> UnfinishedFrames[str]:
    """A limit of 100 000 bytes, up to 60 000 everybody is read."""
    monkeypatch.setattr(unfinished, "MAX_UNFINISHED_BYTES", 100_000)
    monkeypatch.setattr(unfinished, "FREELY_READ_UNFINISHED_BYTES", 60_000)
    monkeypatch.setattr(unfinished, "LOOKS_WITHOUT_PROGRESS", LOOKS)
    monkeypatch.setattr(unfinished, "MIN_FRAME_PROGRESS_BYTES", PROGRESS)
    monkeypatch.setattr(unfinished, "MIN_PROGRESS_BYTES", PROGRESS_OF_ALL)
    return UnfinishedFrames()


async def waits(frames: UnfinishedFrames[str], nursery: trio.Nursery, *names: str) -> list[str]:
    """Let connections wait in this order; the list gets those that continue."""
    continued: list[str] = []

    async def wait(name: str) -> None:
        assert not frames.may_read(name, 1_000)
        await frames.wait(name)
        continued.append(name)

    for name in names:
        nursery.start_soon(wait, name)
        await trio.testing.wait_all_tasks_blocked()
    return continued


def looked(frames: UnfinishedFrames[str], times: int) -> list[tuple[str, str]]:
    """The connections that were closed within so many looks, with the reasons."""
    closed: list[tuple[str, str]] = []
    for _ in range(times):
        frames.close_obstacles(lambda name, why: closed.append((name, why)))
    return closed


def test_everybody_is_read_while_there_is_room(frames: UnfinishedFrames[str]) -> None:
    """Below the limit, and without a counted frame, a connection is read."""
    frames.note("small", 100, 900_000, False)
    frames.note("large", 50_000, 900_000, False)
    assert frames.may_read("small", 1_000)
    assert frames.may_read("large", 1_000)
    assert frames.may_read("unknown", 1_000)
    assert (frames.total, "small" in frames) == (50_000, False)


async def test_above_it_those_are_read_that_fit(frames: UnfinishedFrames[str], nursery: trio.Nursery) -> None:
    """A frame is read to its end if it fits besides those that are admitted; the next one waits until a frame
    is whole, and those behind it do not overtake it."""
    for name in ("first", "second", "third", "small"):
        frames.note(name, 20_000, 15_000 if name != "small" else 1, False)
    assert frames.may_read("first", 1_000)
    continued = await waits(frames, nursery, "second", "small")
    frames.note("first", 34_000, 1_000, False)
    assert frames.may_read("first", 1_000)
    await trio.testing.wait_all_tasks_blocked()
    assert continued == []
    frames.note("first", 0, 0, True)
    await trio.testing.wait_all_tasks_blocked()
    assert sorted(continued) == ["second", "small"]
    assert frames.total == 60_000


def test_reads_that_are_under_way_count(frames: UnfinishedFrames[str]) -> None:
    """Connections that all wait for data at the same time do not read more than there is room for: each has
    reserved what it may read, until it has read."""
    for name in ("a", "b", "c"):
        frames.note(name, 5_000, 90_000, False)
    assert frames.may_read("a", 25_000)
    assert frames.may_read("b", 25_000)
    assert frames.may_read("c", 25_000), "the only one that is completed"
    frames.note("d", 5_000, 10_000, False)
    assert not frames.may_read("d", 1_000)
    frames.note("a", 6_000, 89_000, False)
    frames.forget("b")
    frames.forget("c")
    assert frames.may_read("d", 1_000)
    assert frames.total == 11_000


async def test_one_frame_is_always_completed(frames: UnfinishedFrames[str], nursery: trio.Nursery) -> None:
    """A frame that is larger than the limit leaves is admitted when no other one is."""
    frames.note("first", 70_000, 900_000, False)
    frames.note("second", 20_000, 1, False)
    assert frames.may_read("first", 1_000)
    continued = await waits(frames, nursery, "second")
    frames.forget("first")
    await trio.testing.wait_all_tasks_blocked()
    assert continued == ["second"]


async def test_a_waiting_connection_that_ends_makes_room(
    frames: UnfinishedFrames[str], nursery: trio.Nursery
) -> None:
    """Those behind a connection that stops waiting move up, and nothing of it stays."""
    frames.note("first", 70_000, 20_000, False)
    frames.note("second", 5_000, 90_000, False)
    frames.note("third", 5_000, 5_000, False)
    assert frames.may_read("first", 1_000)
    scope = trio.CancelScope()

    async def give_up() -> None:
        with scope:
            await frames.wait("second")

    nursery.start_soon(give_up)
    await trio.testing.wait_all_tasks_blocked()
    continued = await waits(frames, nursery, "third")
    scope.cancel()
    await trio.testing.wait_all_tasks_blocked()
    frames.forget("second")
    await trio.testing.wait_all_tasks_blocked()
    assert continued == ["third"]
    assert frames.total == 75_000


async def test_who_keeps_others_waiting_without_progress_goes(
    frames: UnfinishedFrames[str], nursery: trio.Nursery
) -> None:
    """Closed are connections that could be read and bring nothing; neither those that move on, nor those that
    are not read. Nobody is closed while nobody waits."""
    frames.note("stopped", 50_000, 40_000, False)
    frames.note("moving", 20_000, 19_000, False)
    assert looked(frames, 2 * LOOKS) == []
    assert frames.may_read("moving", 1_000)
    frames.note("waiting", 20_000, 35_000, False)
    continued = await waits(frames, nursery, "waiting")
    for at in range(1, LOOKS):
        frames.note("moving", 20_000 + 4_000 * at, 19_000 - 4_000 * at, False)
        assert looked(frames, 1) == []
    frames.note("moving", 36_000, 3_000, False)
    assert looked(frames, 1) == [("stopped", SLOW)]
    await trio.testing.wait_all_tasks_blocked()
    assert continued == ["waiting"]
    assert "stopped" not in frames


async def test_an_admitted_frame_that_stands_still_loses_its_place(
    frames: UnfinishedFrames[str], nursery: trio.Nursery
) -> None:
    """When next to nothing comes, those that wait may read once; one that has stopped waits no longer, and
    the next one is admitted."""
    for name in ("admitted", "stopped", "good"):
        frames.note(name, 20_000, 30_000, False)
    assert frames.may_read("admitted", 1_000)
    continued = await waits(frames, nursery, "stopped", "good")
    assert looked(frames, 2) == []
    await trio.testing.wait_all_tasks_blocked()
    assert sorted(continued) == ["good", "stopped"]
    assert frames.may_read("good", 1_000), "once"
    frames.note("good", 25_000, 25_000, False)
    continued = await waits(frames, nursery, "good", "admitted")
    assert looked(frames, 1) == []
    frames.forget("stopped")
    await trio.testing.wait_all_tasks_blocked()
    assert "good" in continued
    frames.note("good", 49_000, 1_000, False)
    assert frames.may_read("good", 1_000)


async def test_a_crowd_that_trickles_goes(frames: UnfinishedFrames[str], nursery: trio.Nursery) -> None:
    """When all frames together bring next to nothing, those that have been there all the time are closed,
    also those that wait: each of them would otherwise be waited for in turn."""
    sizes = dict.fromkeys(("a", "b", "c"), 30_000)
    closed: list[tuple[str, str]] = []
    for look in range(3 * LOOKS):
        for name in sorted(set(sizes) - set(frames.waiting) - {name for name, _ in closed}):
            sizes[name] += 1
            frames.note(name, sizes[name], 120_000 - sizes[name], False)
            if not frames.may_read(name, 1_000):
                nursery.start_soon(frames.wait, name)
        if look == 2 * LOOKS - 1:
            frames.note("good", 5_000, 10_000, False)
        await trio.testing.wait_all_tasks_blocked()
        closed += looked(frames, 1)
        await trio.testing.wait_all_tasks_blocked()
    assert sorted(name for name, _ in closed) == ["a", "b", "c"]
    assert OLD in [why for _, why in closed]
    assert frames.total == 5_000


def test_first_parts_alone_are_limited_too(frames: UnfinishedFrames[str]) -> None:
    """First parts of frames are read without waiting; if they take too much, the oldest frame goes."""
    for number in range(5):
        frames.note(f"{number}", 30_000, 1, False)
    assert frames.surplus() is None
    frames.note("5", 30_000, 1, False)
    assert frames.surplus() == "0"
    frames.forget("0")
    assert frames.surplus() is None


def test_what_was_finished_is_counted_no_longer(frames: UnfinishedFrames[str]) -> None:
    """Finished frames do not count; a frame that follows in the same read is a new one."""
    frames.note("a", 50_000, 1, False)
    frames.note("a", 0, 0, True)
    assert frames.total == 0
    frames.note("a", 50_000, 10_000, False)
    frames.note("b", 20_000, 10_000, False)
    frames.note("a", 30_000, 10_000, True)
    assert frames.total == 50_000
    assert frames.may_read("b", 1_000)
