"""Lets a consumer that reads a backlog not slow those who send: big answers go one by one.

Everything a loop is asked for while it works has to wait until it looks at its sockets again. A pull answered with 32 messages takes it a tenth of a
millisecond, so a few consumers that read as fast as they can make every send wait several times as long as it takes. While others are being
served, each turn of the loop answers one of them; when nobody else asks for anything, they do not wait.
"""

from __future__ import annotations

import trio

#: Answers of more than this, from one read of a connection, are big.
BIG_ANSWER_BYTES = 16 * 1024
#: Others count as being served for so long after a connection with small answers was heard.
_LIVELY_S = 0.01


class Turns:
    """One server's. `run` hands out the turns; connections whose answers are big `wait`, the others say that they are `lively`."""

    def __init__(self) -> None:
        self._until = 0.0
        self._idle = trio.lowlevel.ParkingLot()
        self._waiting = trio.lowlevel.ParkingLot()

    def lively(self, now: float) -> None:
        """A connection with small answers was heard at `now` (trio's clock)."""
        self._until = now + _LIVELY_S

    def crowded(self, now: float) -> bool:
        """Whether a connection with big answers is to `wait` before it is served."""
        return now < self._until

    async def wait(self) -> None:
        """Until it is one's turn, in the order of asking. Cancelled: the turn goes to the next."""
        self._idle.unpark()
        await self._waiting.park()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if not self._waiting:
                await self._idle.park()
            self._waiting.unpark()
            await trio.lowlevel.checkpoint()
