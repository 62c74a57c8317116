"""Positions of the log: who is called after a move, in which order, and what a failing follower does."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from attrs import define, field

from rmqkit.plugin.positions import LogPosition, LogPositions, LowestPosition, wait_moved


@define
class Log:
    """A log whose offsets the test sets."""

    end: int = 0
    position: LogPosition = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.position = LogPosition(lambda: self.end)

    def move(self, end: int) -> None:
        self.end = end
        self.position.moved()


def test_followers_are_called_after_each_move() -> None:
    """Followers are called in the order in which they began to follow, once for each change of the offset,
    forward or back, until they follow no longer."""
    log, calls = Log(5), list[tuple[str, int]]()

    def first() -> None:
        calls.append(("first", log.position.offset))

    def second() -> None:
        calls.append(("second", log.position.offset))

    log.position.follow(first)
    log.position.follow(second)
    log.position.moved()
    assert calls == []
    log.move(7)
    log.position.moved()
    assert calls == [("first", 7), ("second", 7)]
    log.position.unfollow(first)
    log.move(6)
    assert calls[2:] == [("second", 6)]
    log.position.unfollow(second)
    log.position.unfollow(second)
    log.move(9)
    assert len(calls) == 3


def test_a_follower_that_fails_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """Its error is logged; the followers behind it and the caller of `moved` do not see it."""
    log, calls = Log(), list[int]()

    def fail() -> None:
        raise ValueError("boom")

    log.position.follow(fail)
    log.position.follow(lambda: calls.append(log.end))
    log.move(1)
    log.move(2)
    assert calls == [1, 2]
    assert [record.message for record in caplog.records] == ["a follower of the log failed"] * 2


def test_a_follower_may_leave_while_it_is_called() -> None:
    """A follower that leaves during a call is not called again, and the others are called all the same."""
    log, calls = Log(), list[str]()

    def once() -> None:
        calls.append("once")
        log.position.unfollow(once)

    log.position.follow(once)
    log.position.follow(lambda: calls.append("always"))
    log.move(1)
    log.move(2)
    assert calls == ["once", "always", "always"]


def test_a_position_without_followers_is_not_read() -> None:
    """An announcement costs nothing while there are no followers."""
    reads = []

    def read() -> int:
        reads.append(1)
        return 0

    positions = LogPositions(read, read, read)
    positions.moved()
    assert reads == []


def test_the_lowest_of_several() -> None:
    """The lowest position is as far as the slowest one, and its followers are called only when it moves."""
    fast, slow, offsets = Log(), Log(), list[int]()
    both = LowestPosition([fast.position, slow.position])

    def follow() -> None:
        offsets.append(both.offset)

    both.follow(follow)
    fast.move(10)
    assert (both.offset, offsets) == (0, [])
    slow.move(4)
    slow.move(20)
    assert offsets == [4, 10]
    both.unfollow(follow)
    assert fast.position.followers == slow.position.followers == ()
    fast.move(30)
    assert (both.offset, offsets) == (20, [4, 10])


async def test_waiting_for_a_move() -> None:
    """`wait_moved` returns at once when the position is beyond the offset, otherwise as soon as it is."""
    log, found = Log(5), list[int]()

    async def wait(beyond: int) -> None:
        found.append(await wait_moved(log.position, beyond))

    async with trio.open_nursery() as nursery:
        for beyond in (4, 5, 8):
            nursery.start_soon(wait, beyond)
        await trio.testing.wait_all_tasks_blocked()
        assert found == [5]
        log.move(8)
        await trio.testing.wait_all_tasks_blocked()
        assert found == [5, 8]
        log.move(9)
    assert found == [5, 8, 9]


async def test_a_cancelled_wait_follows_no_longer() -> None:
    """Cancelling `wait_moved` leaves nothing behind at the position."""
    log = Log()
    with trio.move_on_after(0):
        await wait_moved(log.position, 0)
    assert log.position.followers == ()
