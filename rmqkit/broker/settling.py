"""Who waits for the disk is answered from here, all at once when a flush has passed them (Java: GroupCommitService and the futures it completes)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

import trio
from attrs import frozen

from rmqkit.abc import Level, MessageStore
from rmqkit.errors import RequestRefused, StoreError
from rmqkit.protocol.codes import ResponseCode

_log = logging.getLogger(__name__)

#: Called with SUCCESS; with FLUSH_DISK_TIMEOUT when the flush takes too long (the message is written all the same); or with why nothing may be promised,
#: SERVICE_NOT_AVAILABLE: writing or flushing failed, or the write takes too long.
Settled = Callable[[int | RequestRefused], None]


@frozen
class _Waiting:
    end: int
    deadline: float
    then: Settled


class Settling:
    """Waits for a store on behalf of many. `run` must be running for anybody to be told; each is told once, unless it is cancelled."""

    def __init__(self, store: MessageStore, timeout_ms: int) -> None:
        self._store = store
        self._timeout_ms = timeout_ms
        self._waiting: dict[Level, deque[_Waiting]] = {level: deque() for level in Level}
        self._idle = {level: trio.lowlevel.ParkingLot() for level in Level}

    def add(self, end: int, level: Level, then: Settled) -> None:
        """Call `then`, in a task of `run`, once everything before log offset `end` is settled, or the time-out is over. To be called in the order of the
        log; those that come while a flush runs share the next one."""
        self._waiting[level].append(_Waiting(end, trio.current_time() + self._timeout_ms / 1000, then))
        self._idle[level].unpark()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            for level in Level:
                nursery.start_soon(self._run, level, nursery)
            task_status.started()

    async def _run(self, level: Level, nursery: trio.Nursery) -> None:
        waiting = self._waiting[level]
        while True:
            if not waiting:
                await self._idle[level].park()
            first = waiting[0]
            failure, done = None, []
            with trio.move_on_at(first.deadline):
                try:
                    await self._store.settled(first.end, level)
                    done.append(waiting.popleft())
                except StoreError as error:
                    failure = str(error)
            while waiting and self._store.is_settled(waiting[0].end, level):
                done.append(waiting.popleft())
            if done:
                # The next flush is not to wait until all of these are answered.
                nursery.start_soon(self._tell, done)
            else:
                waiting.popleft()
                self._tell_one(first, self._result(first, failure))

    def _result(self, waited: _Waiting, failure: str | None) -> int | RequestRefused:
        """Of one that is not settled."""
        if failure is None:
            if self._store.is_settled(waited.end, Level.WRITTEN):
                return ResponseCode.FLUSH_DISK_TIMEOUT
            failure = f"the disk has not taken it within {self._timeout_ms} ms"
        _log.error("a message before log offset %s cannot be promised: %s", waited.end, failure)
        return RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, f"the message may or may not be stored: {failure}")

    async def _tell(self, done: Sequence[_Waiting]) -> None:
        for each in done:
            self._tell_one(each, ResponseCode.SUCCESS)
        await trio.lowlevel.checkpoint()

    def _tell_one(self, waited: _Waiting, result: int | RequestRefused) -> None:
        try:
            waited.then(result)
        except Exception:  # noqa: BLE001 - one sender's trouble must not keep the others waiting
            _log.exception("an answer that had waited for the disk failed")


__all__ = ["Settled", "Settling"]
