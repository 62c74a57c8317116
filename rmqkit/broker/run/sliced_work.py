"""Processes many entries of a table in slices between the requests of clients, so that no request waits for
all of them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator

import trio

_log = logging.getLogger(__name__)
#: Time spent on jobs per pass of the event loop, in approximate microseconds, which limits the delay of other
#: requests.
SLICE_COST = 2_000


class SlicedWork:
    """Jobs that take turns. A job is an iterator that does a little work per step, yields its approximate
    cost in microseconds, and ends when it is done.

    `run` must be running for jobs to make progress.
    """

    def __init__(self) -> None:
        self._jobs: deque[Iterator[int]] = deque()
        self._idle = trio.lowlevel.ParkingLot()

    @property
    def busy(self) -> bool:
        """Whether a job is unfinished."""
        return bool(self._jobs)

    def add(self, job: Iterator[int]) -> None:
        """Start a job after those in progress. Its first step is done by `run`, never in this call."""
        self._jobs.append(job)
        self._idle.unpark()

    def step(self) -> None:
        """Continue the jobs, in turn, until SLICE_COST is spent or all are done. A job that raises is logged
        and ends."""
        spent = 0
        while self._jobs:
            job = self._jobs.popleft()
            try:
                for cost in job:
                    spent += cost
                    if spent >= SLICE_COST:
                        self._jobs.append(job)
                        return
            except Exception:  # noqa: BLE001 - an error of one job must not end other jobs
                _log.exception("background work failed")

    def finish(self) -> None:
        """Do all remaining work without a pause."""
        while self._jobs:
            self.step()

    async def run(self) -> None:
        """One slice per pass of the event loop, until cancelled; unfinished jobs are then dropped."""
        while True:
            if not self._jobs:
                await self._idle.park()
            self.step()
            await trio.lowlevel.checkpoint()
