"""Positions of the log, and callbacks for their followers: dispatchers, held pulls, replicas,
acknowledgements.

All of it belongs to the event loop of the broker. Offsets are physical, in bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

import trio

from rmqkit.errors import StoreError

_log = logging.getLogger(__name__)

#: Beyond every offset of a log.
BEYOND_LOG = 1 << 62
#: Called after a position has moved, within the call that moved it. Must not block; exceptions are logged.
PositionFollower = Callable[[], None]
#: Called with the new end of a truncated log, before anything is appended there.
TruncationFollower = Callable[[int], Awaitable[None]]


class LogPosition:
    """One position of the log: everything before `offset` has reached some state. It grows, except when the
    log is truncated.

    `read` returns the offset. The owner of the position calls `moved` after each change; that costs nothing
    while there are no `followers`. `on_followers` is called when these change.
    """

    def __init__(self, read: Callable[[], int], on_followers: Callable[[], None] | None = None) -> None:
        self._read = read
        self._on_followers = on_followers
        self.followers: tuple[PositionFollower, ...] = ()
        self._announced = 0

    @property
    def offset(self) -> int:
        return self._read()

    def follow(self, follower: PositionFollower) -> None:
        """Call `follower` after each move from now on, after the existing followers."""
        if not self.followers:
            self._announced = self._read()
        self._set((*self.followers, follower))

    def unfollow(self, follower: PositionFollower) -> None:
        """Stop calling a follower. Does nothing if it does not follow."""
        self._set(tuple(other for other in self.followers if other != follower))

    def _set(self, followers: tuple[PositionFollower, ...]) -> None:
        self.followers = followers
        if self._on_followers is not None:
            self._on_followers()

    def moved(self) -> None:
        """Call the followers if the offset has changed. Raises nothing."""
        if not self.followers or self._announced == (offset := self._read()):
            return
        self._announced = offset
        for follower in self.followers:
            try:
                follower()
            except Exception:  # noqa: BLE001 - an error must not affect other followers or the appender
                _log.exception("a follower of the log failed")


class LogPositions:
    """The positions of a store's log.

    appended   the end of the log
    written    the part that survives the death of the process and can be read
    flushed    the part that survives the death of the machine
    confirmed  the part that consumers, queries and dispatchers may see: the written part, or less with `gate`
    followed   whether one of the first three has followers; `moved` does nothing otherwise
    """

    def __init__(
        self, appended: Callable[[], int], written: Callable[[], int], flushed: Callable[[], int]
    ) -> None:
        self.followed = False
        self.appended = LogPosition(appended, self._followers_changed)
        self.written = LogPosition(written, self._followers_changed)
        self.flushed = LogPosition(flushed, self._followers_changed)
        self.confirmed = self.written
        self._all = self.appended, self.written, self.flushed
        self._truncation_followers: tuple[TruncationFollower, ...] = ()
        #: Whether followers are going back with a truncated log, or one of them could not: appends are
        #: refused.
        self.going_back = False

    def moved(self) -> None:
        """Call the followers of every position that has changed. Raises nothing."""
        for position in self._all:
            if position.followers:
                position.moved()

    def _followers_changed(self) -> None:
        self.followed = any(position.followers for position in self._all)

    def gate(self, positions: Sequence[LogPosition]) -> None:
        """Let `confirmed` go no further than these positions. For the owner of the store, before anything
        uses `confirmed`."""
        self.confirmed = LowestPosition([self.written, *positions])

    @property
    def is_gated(self) -> bool:
        """Whether `confirmed` may be behind `written`."""
        return self.confirmed is not self.written

    def follow_truncation(self, follower: TruncationFollower) -> None:
        """Call `follower` after each truncation from now on, after the existing followers."""
        self._truncation_followers += (follower,)

    def unfollow_truncation(self, follower: TruncationFollower) -> None:
        """Stop calling a follower of truncations. Does nothing if it does not follow."""
        self._truncation_followers = tuple(each for each in self._truncation_followers if each != follower)

    async def truncated(self, end: int) -> None:
        """Call the followers of truncations one after the other, then those of the positions: the log was
        truncated and ends at `end`. Raises StoreError when a follower fails; it may still know records that
        do not exist any more."""
        self.going_back = True
        for follower in self._truncation_followers:
            try:
                await follower(end)
            except Exception as error:
                _log.exception("a follower of the log cannot go back to %s", end)
                raise StoreError(f"a follower of the log cannot go back to {end}: {error}") from error
        self.going_back = False
        self.moved()


class LowestPosition(LogPosition):
    """The lowest of several positions. It follows them as long as it has followers."""

    def __init__(self, positions: Sequence[LogPosition]) -> None:
        super().__init__(lambda: min(each.offset for each in positions))
        self._positions = positions

    def follow(self, follower: PositionFollower) -> None:
        if not self.followers:
            for each in self._positions:
                each.follow(self.moved)
        super().follow(follower)

    def unfollow(self, follower: PositionFollower) -> None:
        super().unfollow(follower)
        if not self.followers:
            for each in self._positions:
                each.unfollow(self.moved)


async def wait_moved(position: LogPosition, beyond: int) -> int:
    """Wait until a position is beyond an offset; returns its offset then. Cancelled: the position is no
    longer followed."""
    if position.offset <= beyond:
        moved = trio.Event()

        def follow() -> None:
            if position.offset > beyond:
                moved.set()

        position.follow(follow)
        try:
            await moved.wait()
        finally:
            position.unfollow(follow)
    else:
        await trio.lowlevel.checkpoint()
    return position.offset
