"""Completes pending acknowledgements after each move of a condition (Java: CommitLog.handleDiskFlushAndHA,
GroupCommitService)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence

import trio
from attrs import Factory, define

from rmqkit.broker.appending.gate import Gate
from rmqkit.errors import RequestRefused, StoreError
from rmqkit.plugin.acks import STORED, AckCondition, ConditionLost, Settled
from rmqkit.plugin.flush import FlushPolicy, Level
from rmqkit.plugin.positions import BEYOND_LOG, LogPosition, LowestPosition
from rmqkit.plugin.store import Log
from rmqkit.protocol.codes import ResponseCode

_log = logging.getLogger(__name__)


class LogCondition(AckCondition):
    """The condition that the broker's own log is written, or flushed."""

    title = "the disk"

    def __init__(self, log: Log, level: Level, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self.timeout_code = (
            ResponseCode.FLUSH_DISK_TIMEOUT if level is Level.FLUSHED else ResponseCode.SERVICE_NOT_AVAILABLE
        )
        self._log = log
        self._level = level

    @property
    def position(self) -> LogPosition:
        positions = self._log.positions
        return positions.flushed if self._level is Level.FLUSHED else positions.written

    async def wait_passed(self, offset: int) -> None:
        try:
            await self._log.settled(offset, self._level)
        except StoreError as error:
            raise ConditionLost(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)) from error


@define(eq=False)
class _Pending:
    """A message, or several stored together, up to log offset `end`. `left` is the number of conditions still
    awaited; `failures` are those that failed, by their index in the list."""

    end: int
    since: float
    then: Settled
    left: int = 0
    failures: dict[int, ConditionLost] = Factory(dict)
    is_answered: bool = False

    def result(self) -> int | RequestRefused:
        for place in sorted(self.failures):
            failure = self.failures[place]
            if failure.code not in STORED:
                return RequestRefused(failure.code, _uncertain(failure))
        return self.failures[max(self.failures)].code if self.failures else ResponseCode.SUCCESS


@define(eq=False)
class _ConditionQueue:
    """The pending messages of one condition, in the order of the log."""

    place: int
    condition: AckCondition
    position: LogPosition
    pending: deque[_Pending] = Factory(deque)
    idle: trio.lowlevel.ParkingLot = Factory(trio.lowlevel.ParkingLot)
    waiting: trio.CancelScope = Factory(trio.CancelScope)


class AckQueue:
    """Waits for the conditions on behalf of all senders. `run` must be running; each sender is answered once,
    unless `run` is cancelled.

    `timeout_ms` applies to the conditions of the broker's own log, `further` are those of plugins;
    `conditions` are all of them.
    `confirmed` is the position that has passed every condition. Nothing is acknowledged while `gate` is
    closed.
    """

    def __init__(
        self, log: Log, policy: FlushPolicy, timeout_ms: int, further: Iterable[AckCondition] = ()
    ) -> None:
        written = LogCondition(log, Level.WRITTEN, timeout_ms)
        flushed = LogCondition(log, Level.FLUSHED, timeout_ms)
        own = [] if log.written_by_append else [written]
        self._own = tuple(self._queue(place, condition) for place, condition in enumerate(own))
        conditions = [*([flushed] if policy.acknowledge_at is Level.FLUSHED else []), *further]
        self._queues = self._own + tuple(
            self._queue(place, condition) for place, condition in enumerate(conditions, len(own))
        )
        self.conditions = tuple(queue.condition for queue in self._queues)
        self.confirmed = LowestPosition([log.positions.written, *(queue.position for queue in self._queues)])
        self.refusing = [
            condition for condition in further if type(condition).refusal is not AckCondition.refusal
        ]
        self.gate = Gate()
        self._log = log

    @staticmethod
    def _queue(place: int, condition: AckCondition) -> _ConditionQueue:
        return _ConditionQueue(place, condition, condition.position)

    def refusal(self) -> RequestRefused | None:
        """The reason why no message whose sender waits for the conditions may be stored now; None if it
        may. Without conditions in `refusing` it always may. Where the gate is closed the append refuses."""
        if self.gate.refusal is not None:
            return None
        for condition in self.refusing:
            refusal = condition.refusal()
            if refusal is not None:
                return refusal
        return None

    def passed(self, wait: bool) -> int:
        """The log offset before which everything may be acknowledged now, to senders that `wait` for the
        conditions or do not; -1 where nothing may."""
        if self.gate.is_limited and self.gate.closed() is not None:
            return -1
        return min(
            [queue.position.offset for queue in (self._queues if wait else self._own)], default=BEYOND_LOG
        )

    def add(self, end: int, wait: bool, then: Settled) -> None:
        """Call `then` when everything before log offset `end` has passed the conditions or failed: at once,
        or later in a task of `run`. Calls must be made in the order of the log; those during a flush share
        the next one."""
        pending = _Pending(end, trio.current_time(), then)
        for queue in self._queues if wait else self._own:
            if queue.position.offset < end:
                pending.left += 1
                queue.pending.append(pending)
                queue.idle.unpark()
        if not pending.left:
            self._complete(pending)

    def abandon(self) -> None:
        """Answer all pending messages with a refusal, because `gate` was closed: the log may be cut."""
        pending = {id(each): each for queue in self._queues for each in queue.pending}
        for queue in self._queues:
            queue.pending.clear()
            queue.waiting.cancel()
        for each in pending.values():
            self._complete(each)

    async def settle_everything(self) -> None:
        """Wait until everything appended so far has passed all conditions. Raises ConditionLost, at once
        where the gate is closed: the end of the log may be cut."""
        end, closings = self._log.end_offset, self.gate.closings
        refusal = self.gate.closed()
        if refusal is not None:
            raise ConditionLost(ResponseCode.SERVICE_NOT_AVAILABLE, refusal)
        for queue in self._queues:
            await queue.condition.wait_passed(end)
        await trio.lowlevel.checkpoint()
        refusal = self.gate.closed()
        if refusal is not None or closings != self.gate.closings:
            raise ConditionLost(ResponseCode.SERVICE_NOT_AVAILABLE, refusal or "the log may have been cut")

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled."""
        async with trio.open_nursery() as nursery:
            for queue in self._queues:
                nursery.start_soon(self._run, queue, nursery)
            task_status.started()
            await trio.sleep_forever()

    async def _run(self, queue: _ConditionQueue, nursery: trio.Nursery) -> None:
        pending, condition, position = queue.pending, queue.condition, queue.position
        while True:
            while not pending:
                await queue.idle.park()
            first = pending[0]
            failure: ConditionLost | None = ConditionLost(
                condition.timeout_code, f"{condition.title} has not taken it within {condition.timeout_ms} ms"
            )
            with trio.move_on_at(first.since + condition.timeout_ms / 1000) as queue.waiting:
                failure = await _wait_passed(condition, first.end)
            if not pending or pending[0] is not first:
                continue
            passed = [] if failure else [pending.popleft()]
            while pending and pending[0].end <= position.offset:
                passed.append(pending.popleft())
            if passed:
                # The next wait begins before all of these are answered.
                nursery.start_soon(self._pass, passed)
            else:
                assert failure is not None
                self._fail(pending.popleft(), queue.place, failure)

    def _fail(self, pending: _Pending, place: int, failure: ConditionLost) -> None:
        if failure.code not in STORED:
            _log.error("a message before log offset %s cannot be promised: %s", pending.end, failure)
        pending.failures[place] = failure
        self._count_down(pending)

    async def _pass(self, passed: Sequence[_Pending]) -> None:
        for each in passed:
            self._count_down(each)
        await trio.lowlevel.checkpoint()

    def _count_down(self, pending: _Pending) -> None:
        pending.left -= 1
        if not pending.left:
            self._complete(pending)

    def _complete(self, pending: _Pending) -> None:
        """Answer a message that has passed the conditions, or that is abandoned."""
        if pending.is_answered:
            return
        pending.is_answered = True
        refusal = self.gate.closed()
        try:
            pending.then(
                pending.result()
                if refusal is None
                else RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, _uncertain(refusal))
            )
        except Exception:  # noqa: BLE001 - an error of one sender must not delay other senders
            _log.exception("an answer that had waited for the disk failed")


def _uncertain(reason: object) -> str:
    return f"the message may or may not be stored: {reason}"


async def _wait_passed(condition: AckCondition, offset: int) -> ConditionLost | None:
    try:
        await condition.wait_passed(offset)
    except ConditionLost as lost:
        return lost
    except Exception as error:  # noqa: BLE001 - senders need an answer to every error of a plugin
        _log.exception("waiting for %s failed", condition.title)
        return ConditionLost(ResponseCode.SERVICE_NOT_AVAILABLE, f"{type(error).__name__}: {error}")
    return None


__all__ = ["AckQueue", "LogCondition"]
