"""Keeps backlog readers from delaying producers: large answers are produced one by one.

Requests that arrive while the event loop works wait until it checks its sockets again. A pull answered with
32 messages takes a tenth of a millisecond, so a few consumers that read as fast as they can would delay every
send by several times its own duration. While other connections are being served, each pass of the loop
produces one such answer; otherwise they are not delayed.
"""

from __future__ import annotations

from math import inf

import trio

#: Answers larger than this, from one read of a connection, are large.
BIG_ANSWER_BYTES = 16 * 1024
#: Other connections count as being served for this time after a request with a small answer.
_LIVELY_S = 0.01


class Paced:
    """Lets waiting tasks continue in order, a fixed number per pass of the loop. `run` must be running."""

    def __init__(self, per_turn: int) -> None:
        self._per_turn = per_turn
        self._idle = trio.lowlevel.ParkingLot()
        self._waiting = trio.lowlevel.ParkingLot()

    async def wait(self) -> None:
        """Wait for a turn. When cancelled, the turn goes to the next task."""
        self._idle.unpark()
        await self._waiting.park()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            if not self._waiting:
                await self._idle.park()
            self._waiting.unpark(count=self._per_turn)
            await trio.lowlevel.checkpoint()


class Turns(Paced):
    """The turns of one server. `run` assigns them; connections with large answers `wait`. `served_at` is when
    a connection with small answers was last served (trio's clock); the connection sets it."""

    def __init__(self) -> None:
        super().__init__(1)
        self.served_at = -inf

    def crowded(self, now: float) -> bool:
        """Whether a connection with large answers has to `wait` before it is served."""
        return now < self.served_at + _LIVELY_S
