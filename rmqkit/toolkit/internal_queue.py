"""Walks the queues of an internal topic with saved progress: the base of delay levels, transactions, timers
and the revival of POP messages."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import trio

from rmqkit.errors import DecodeError, MessageIllegal, RequestRefused, StoreError
from rmqkit.log_limit import limited_logger
from rmqkit.model.buffer import Buffer
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.store import NotInMemory, QueueUnit
from rmqkit.protocol.codes import is_temporary
from rmqkit.toolkit.cold_reads import all_of, retry_when_cached
from rmqkit.toolkit.interval import sleep_interval
from rmqkit.toolkit.set_aside import Origin, set_aside

_log: Final[logging.Logger] = limited_logger(__name__)
#: Maximum number of units per read of a queue.
MAX_RUN: Final = 64
#: Pause of a queue without new messages.
POLL_S: Final = 0.1
#: The same of a follower that is woken: a queue may also end earlier, or begin later.
IDLE_S: Final = 10.0
#: Pause of a queue after a message that could not be handled.
RETRY_S: Final = 10.0
#: A unit that is due in less is looked at after this time.
_LEAST_WAIT_S = 0.001


class InternalQueueFollower(ABC):
    """Passes on the messages of some queues of one topic, in order within each queue, at least once.

    A subclass decides which units are due, handles their messages, and saves offsets. Life cycle: `begin`,
    `run` with `persist_regularly` beside it, `stop`. A queue whose messages are no longer in memory is read
    in a separate task while the other queues continue. A message that cannot be read or handled is set aside
    (`rmqkit.toolkit.set_aside`), and those behind it follow.
    """

    #: The name of the service, for what is set aside.
    service: str

    #: The longest pause between two looks at a queue, in seconds.
    pause_s: float = POLL_S
    #: Whether the messages of the topic come through put hooks or from services: `broker.appender` then tells
    #: of them, in place of short pauses.
    is_woken: bool = False

    def __init__(self, broker: Broker, topic: str) -> None:
        self.broker = broker
        self.topic = topic
        #: Queue id -> offset of the next unit.
        self.offsets: dict[int, int] = {}
        #: Queue id -> time of trio's clock, which is never set back, before which the queue is not looked at.
        self._not_before_s: dict[int, float] = {}
        self._fetching: set[int] = set()
        #: Set when a queue may be looked at again: it was fetched, or has grown.
        self._fetched = trio.Event()
        #: Queues that had no message at the last look.
        self._empty: set[int] = set()
        self._dirty = False
        self._stopped = False
        self._saving = trio.Lock()

    def due(self, queue_id: int, units: Sequence[QueueUnit]) -> int:
        """The number of units, from the first on, that may be passed on now. Must not block."""
        return len(units)

    def due_in_s(self, queue_id: int, unit: QueueUnit) -> float:
        """Seconds until this unit will be due, the first one that `due` left. It is looked at then, or after
        `pause_s` if that is earlier. Must not block."""
        return self.pause_s

    async def prepare(self) -> None:
        """Called before each look at a queue: whatever `take` needs and may wait for. Raises OSError,
        StoreError."""
        return

    @abstractmethod
    def take(self, queue_id: int, unit: QueueUnit, record: Buffer) -> RequestRefused | None:
        """Handle one message that is due. Returns the refusal if it was not taken: after a temporary one the
        message is passed again in `RETRY_S`, before those behind it; after another one, and after an
        exception, it is set aside; OSError and StoreError, but MessageIllegal, count as temporary. Must not
        block."""

    def captured(self) -> None:
        """The present offsets are going to be saved, once what was appended before is safe: keep what has to
        be saved with them."""
        return

    def dropped(self) -> None:
        """What `captured` has kept is not saved, or only a part of it."""
        return

    @abstractmethod
    async def save(self, offsets: Mapping[int, int]) -> None:
        """Write the offsets through to the device. Raises OSError."""

    def begin(self, saved: Mapping[int, int], queue_ids: Sequence[int]) -> None:
        """Continue at the saved offsets, 0 for queues without one. An offset outside its queue, as after a
        lost or older file, is moved to the nearest end."""
        store = self.broker.store
        self._not_before_s.clear()
        self._fetching.clear()
        for queue_id in queue_ids:
            first, end = store.min_offset(self.topic, queue_id), store.max_offset(self.topic, queue_id)
            self.offsets[queue_id] = max(first, min(saved.get(queue_id, 0), end))

    def _wake(self) -> None:
        self._not_before_s.update(dict.fromkeys(self._empty, 0.0))
        self._empty.clear()
        self._fetched.set()

    async def run(self) -> None:
        """Pass on messages until `stop`. Cancelled: messages whose offsets were not saved are passed on again
        after the next start."""
        if self.is_woken:
            self.broker.appender.listen(self.topic, self._wake)
        try:
            await self._pass_on_all()
        finally:
            if self.is_woken:
                self.broker.appender.unlisten(self.topic, self._wake)

    async def _pass_on_all(self) -> None:
        async with trio.open_nursery() as nursery:
            while not self._stopped:
                waiting = [queue_id for queue_id in self.offsets if queue_id not in self._fetching]
                looks = [self._not_before_s.get(queue_id, 0.0) for queue_id in waiting]
                self._fetched = trio.Event()
                with trio.move_on_at(min(looks, default=trio.current_time() + self.pause_s)):
                    await self._fetched.wait()
                for queue_id in waiting:
                    if self._stopped or self._not_before_s.get(queue_id, 0.0) > trio.current_time():
                        continue
                    try:
                        await self.prepare()
                        if self._step(queue_id):
                            await trio.lowlevel.checkpoint()
                    except NotInMemory as missed:
                        self._fetching.add(queue_id)
                        nursery.start_soon(self._step_when_cached, queue_id, missed)
                    except (OSError, StoreError) as error:
                        self._put_off(queue_id, error)

    async def _step_when_cached(self, queue_id: int, missed: NotInMemory) -> None:
        try:
            await retry_when_cached(self.broker.store, partial(self._step, queue_id), missed)
        finally:
            self._fetching.discard(queue_id)
            self._fetched.set()

    def _step(self, queue_id: int) -> bool:
        """Pass on one run; False when there was nothing to do. Raises NotInMemory before anything is passed
        on."""
        if self._stopped:
            return False
        self._not_before_s[queue_id] = trio.current_time() + self.pause_s
        try:
            return self._run_of(queue_id)
        except (OSError, StoreError) as error:
            self._put_off(queue_id, error)
            return False

    def _put_off(self, queue_id: int, error: Exception) -> None:
        _log.error("queue %s of %s cannot be read, trying again: %s", queue_id, self.topic, error)
        self._not_before_s[queue_id] = trio.current_time() + RETRY_S

    def _run_of(self, queue_id: int) -> bool:
        """Pass on the next run of a queue; the result is that of `_step`. Raises OSError and StoreError,
        too."""
        store, offset = self.broker.store, self.offsets[queue_id]
        end = store.max_offset(self.topic, queue_id)
        units = store.read_units(self.topic, queue_id, offset, MAX_RUN) if offset < end else []
        if not units:
            # The front of the queue may have been removed, or its end truncated.
            self._move(queue_id, max(store.min_offset(self.topic, queue_id), min(offset, end)))
            if self.is_woken and store.written_by_append and not store.positions.is_gated:
                # Otherwise a message that was told of may be readable later.
                self._empty.add(queue_id)
                self._not_before_s[queue_id] = trio.current_time() + IDLE_S
            return False
        due = self.due(queue_id, units)
        if due < len(units):
            wait_s = min(self.pause_s, max(_LEAST_WAIT_S, self.due_in_s(queue_id, units[due])))
            self._not_before_s[queue_id] = trio.current_time() + wait_s
        else:
            self._not_before_s[queue_id] = 0.0
        units = units[:due]
        if not units:
            return False
        records = all_of(partial(store.read_record, unit.physical_offset) for unit in units)
        for unit, record in zip(units, records, strict=True):
            if not self._pass_on(queue_id, unit, record):
                self._not_before_s[queue_id] = trio.current_time() + RETRY_S
                break
            self._move(queue_id, unit.queue_offset + 1)
        return True

    def _pass_on(self, queue_id: int, unit: QueueUnit, record: Buffer | None) -> bool:
        """Have a message handled, or set it aside. False when it has to come again. Raises OSError and
        StoreError for a fault that is not the message's."""
        origin = Origin(self.service, self.topic, queue_id, unit.queue_offset, unit.physical_offset)
        if record is None:
            return set_aside(self.broker, origin, None, "no record begins at its offset")
        try:
            refused = self.take(queue_id, unit, record)
        except (DecodeError, MessageIllegal) as error:
            return set_aside(self.broker, origin, record, str(error))
        except (OSError, StoreError):
            raise
        except Exception as error:  # noqa: BLE001 - one message stops neither the others nor the broker
            _log.error("%s cannot be handled", origin, exc_info=True)
            return set_aside(self.broker, origin, record, f"{type(error).__name__}: {error}")
        if refused is None:
            return True
        if is_temporary(refused.code):
            _log.error("%s is not passed on, trying again: %s", origin, refused)
            return False
        return set_aside(self.broker, origin, record, str(refused))

    def _move(self, queue_id: int, offset: int) -> None:
        self._dirty |= offset != self.offsets[queue_id]
        self.offsets[queue_id] = offset

    def mark_changed(self) -> None:
        """Something else than an offset is to be saved."""
        self._dirty = True

    async def persist(self) -> None:
        """Save the offsets if they have changed, or something else has, once everything appended before is as
        safe as an acknowledged message. Raises OSError, StoreError."""
        async with self._saving:
            if not self._dirty:
                return
            self._dirty = False
            offsets = dict(self.offsets)
            self.captured()
            try:
                await self.broker.appender.settle_everything()
                await self.save(offsets)
            except BaseException:
                self._dirty = True
                self.dropped()
                raise

    async def persist_regularly(self, interval_ms: Callable[[], int]) -> None:
        """Call `persist` at an interval until cancelled; a failure is logged and retried."""
        while True:
            await sleep_interval(self.broker.on_config_change, interval_ms)
            try:
                await self.persist()
            except (OSError, StoreError) as error:
                _log.error("the progress in %s cannot be saved, trying again: %s", self.topic, error)

    async def stop(self) -> None:
        """Stop passing on messages, and save, so that a restart repeats nothing. Raises OSError,
        StoreError."""
        self._stopped = True
        await self.persist()
