"""Delivers the messages of slots that are over (store-format sheet, section 10.5; Java:
TimerDequeueGetService and the services behind it)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from math import inf
from typing import Final, NamedTuple

import trio

from rmqkit.errors import DecodeError, MessageIllegal, RequestRefused, StoreError
from rmqkit.log_limit import limited_logger
from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.buffer import Buffer
from rmqkit.model.message import PutMessage, StoredMessage
from rmqkit.model.run import MessageRun
from rmqkit.protocol.codes import is_temporary
from rmqkit.protocol.record import unpack
from rmqkit.toolkit.cold_reads import all_of, read_when_cached
from rmqkit.toolkit.set_aside import Origin, set_aside
from rmqkit_timer.messages import AT_ONCE, delete_key, delivered, due_ms, rolled, victim_key
from rmqkit_timer.repeating import Firing
from rmqkit_timer.session import Session
from rmqkit_timer.units import NOWHERE, Unit
from rmqkit_timer.wheel import Slot

_log: Final[logging.Logger] = limited_logger(__name__)
#: Units of a chain that are in memory at a time.
CHUNK: Final = 2_048
#: Messages that are read and appended together.
BATCH: Final = 128
#: The longest pause, so that a clock that was set is noticed.
_PAUSE_S: Final = 1.0
RETRY_S: Final = 1.0


class _Due(NamedTuple):
    """What is put for a message that has waited: its delivery; of a repeating one, what `firing` says."""

    messages: Sequence[PutMessage]
    firing: Firing | None


class Delivering:
    """Reads slots in the order of their times, and a slot in the order in which its messages were entered.

    on_progress called when something has to be noted in the checkpoint, `on_pause` before each pause
    before_slot called before a slot is read
    """

    def __init__(self, session: Session) -> None:
        self.broker = session.broker
        self.timers = session.timers
        self._session = session
        self._figures = session.figures
        self.on_progress: Callable[[], None] = _nothing
        self.on_pause: Callable[[], None] = _nothing
        self.before_slot: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        self._repeats = session.repeats
        self._deletions = session.deletions
        self._repeating = session.repeating
        self._stopped = False
        #: Before this time `look_ahead` has looked.
        self._looked_ms = 0
        self._wake_ms: float = -inf
        self._wake = trio.Event()

    def stop(self) -> None:
        """Deliver nothing any more."""
        self._stopped = True

    def entered(self, slot_ms: int) -> None:
        """A message waits for a slot; the pause ends in time for it."""
        if slot_ms + self.timers.wheel.precision_ms < self._wake_ms:
            self._wake.set()

    async def look_ahead(self, ago_ms: int = 0) -> None:
        """Note the deletions that wait for their next step in slots that have been over for so long, but are
        not read: what they delete may be overdue and come first. Raises OSError."""
        timers = self.timers
        now_ms = timers.wheel.floor(self.broker.clock.now_ms())
        timers.advance(now_ms)
        end_ms = now_ms - ago_ms
        # Slots that were opened again, because the clock was set back, may take others.
        time_ms = max(timers.read_time_ms, min(self._looked_ms, now_ms))
        while (time_ms := timers.wheel.next_used(time_ms, end_ms)) < end_ms:
            slot = timers.wheel.slot(time_ms)
            following = NOWHERE if slot is None else slot.last
            while following != NOWHERE:
                units, _, following = await timers.log.chain(following, CHUNK)
                waiting = [unit for unit in units if unit.rolls and unit.weight < 0]
                for record in await self._records(waiting):
                    if record is not None:
                        self._deletions.note(record)
            time_ms += timers.wheel.precision_ms
            # Another task may look as well, from here on.
            self._looked_ms = time_ms
        self._looked_ms = time_ms

    async def run(self) -> None:
        """Deliver until `stop`. Cancelled: what was delivered since the last checkpoint is recognised after
        the next start."""
        timers = self.timers
        while not self._stopped:
            timers.follow_clock(self.broker.clock.now_ms())
            if not self._session.settings.timer_stop_dequeue:
                await self._read_slots()
            self.on_pause()
            await self._pause()

    async def _pause(self) -> None:
        timers, now_ms = self.timers, self.broker.clock.now_ms()
        precision_ms = timers.wheel.precision_ms
        start_ms = timers.write_time_ms
        following = timers.wheel.next_used(start_ms, start_ms + 1_000 + precision_ms)
        self._wake = trio.Event()
        self._wake_ms = following + precision_ms
        with trio.move_on_after(min(_PAUSE_S, max(0.001, (self._wake_ms - now_ms) / 1000))):
            await self._wake.wait()
        self._wake_ms = -inf

    async def _read_slots(self) -> None:
        timers = self.timers
        while timers.read_time_ms < timers.write_time_ms and not self._stopped:
            slot = timers.next_slot()
            if slot is None:
                await trio.lowlevel.checkpoint()
                continue
            try:
                await self.before_slot()
                await self._read(slot)
            except (OSError, StoreError) as error:
                _log.error("a slot of the timers cannot be read, trying again: %s", error)
                await trio.sleep(RETRY_S)

    async def _read(self, slot: Slot) -> None:
        """Deliver the messages of a slot. Raises OSError."""
        log = self.timers.log
        start, starts = slot.last, list[int]()
        units, positions, following = await log.chain(start, CHUNK)
        deleting = [unit for unit in units if unit.deletes]
        while following != NOWHERE:
            starts.append(start)
            start = following
            units, positions, following = await log.chain(start, CHUNK)
            deleting += [unit for unit in units if unit.deletes]
        deleted = await self._keys(deleting)
        while True:
            units.reverse()
            positions.reverse()
            await self._deliver(units, positions, deleted)
            if self._stopped:
                return
            if not starts:
                break
            units, positions, _ = await log.chain(starts.pop(), CHUNK)
        now_ms = self.broker.clock.now_ms()
        for key, left in deleted.items():
            # What deletes nothing was taken off the count of its topic.
            self.timers.counts.add(key.partition("+")[0], max(left, 0), now_ms)
        self.timers.finish(slot)
        self.on_progress()

    async def _keys(self, deleting: Sequence[Unit]) -> Counter[str]:
        """What these units delete, and how often."""
        keys: Counter[str] = Counter()
        for at in range(0, len(deleting), BATCH):
            for record in await self._records(deleting[at : at + BATCH]):
                if record is None:
                    continue
                try:
                    properties = unpack(record).properties
                except DecodeError:
                    continue
                key = delete_key(properties, properties.get(props.REAL_TOPIC, ""))
                if key is not None:
                    keys[key] += 1
        return keys

    async def _records(self, units: Sequence[Unit]) -> list[Buffer | None]:
        store = self.broker.store
        reads = [partial(store.read_record, unit.physical_offset) for unit in units]
        return await read_when_cached(store, lambda: all_of(reads))

    async def _deliver(self, units: Sequence[Unit], positions: Sequence[int], deleted: Counter[str]) -> None:
        """Deliver units in their order, except what was delivered or deleted."""
        timers = self.timers
        begin = next((at for at, each in enumerate(positions) if each > timers.unit_position), len(units))
        if timers.unit_position == NOWHERE:
            timers.slot_from = self.broker.store.end_offset
        for at in range(begin, len(units), BATCH):
            batch = units[at : at + BATCH]
            records = await self._records(batch)
            if self._stopped:
                return
            timers.batch_from = self.broker.store.end_offset
            waiting = self._put(zip(batch, records, strict=True), deleted)
            while waiting:
                await trio.sleep(RETRY_S)
                if self._stopped:
                    return
                waiting = self._put(waiting, deleted)
            timers.unit_position = positions[min(at + BATCH, len(units)) - 1]
            timers.batch_from = None
            self.on_progress()
            await trio.lowlevel.checkpoint()

    def _put(
        self, pairs: Iterable[tuple[Unit, Buffer | None]], deleted: Counter[str]
    ) -> list[tuple[Unit, Buffer | None]]:
        """Put the messages of units; returns those that have to be put again later."""
        waiting: list[tuple[Unit, Buffer | None]] = []
        due: list[_Due] = []
        sources: list[tuple[Unit, Buffer, StoredMessage]] = []
        now_ms = self.broker.clock.now_ms()
        for unit, record in pairs:
            if unit.deletes:
                continue
            stored: StoredMessage | None = None
            try:
                if record is None:
                    raise DecodeError("no record begins at its offset")
                stored = unpack(record)
                if not self._is_of(unit, stored):
                    continue
                message = (rolled if unit.rolls else delivered)(stored, unit.write_ms, now_ms)
                firing = None if unit.rolls else self._firing(stored, message, now_ms)
            except Exception as error:  # noqa: BLE001 - one message stops neither the others nor the broker
                if not isinstance(error, (DecodeError, MessageIllegal)):
                    _log.error("a timed message cannot be delivered", exc_info=True)
                if not self._set_aside(unit.physical_offset, stored, record, str(error)):
                    waiting.append((unit, record))
                continue
            topic = stored.properties.get(props.REAL_TOPIC, "")
            key = victim_key(stored.properties, topic)
            if not unit.rolls and key in deleted:
                deleted[key] -= 1
                if firing is not None:
                    self._repeating.end(key, firing.due_ms, now_ms)
                continue
            self.timers.counts.add(topic, -1, now_ms)
            if not unit.rolls and self._deletions.has(stored.properties):
                if firing is not None:
                    self._repeating.end(key, firing.due_ms, now_ms)
                continue
            messages = [message] if firing is None else firing.messages
            if messages and not self._repeats.has(message, stored.body_crc):
                due.append(_Due(messages, firing))
                sources.append((unit, record, stored))
        for at, refused in self._append(due, now_ms).items():
            unit, record, stored = sources[at]
            if is_temporary(refused.code) or not self._set_aside(
                unit.physical_offset, stored, record, str(refused)
            ):
                topic = stored.properties.get(props.REAL_TOPIC, "")
                _log.error("a timed message of %s is not delivered, trying again: %s", topic, refused)
                self.timers.counts.add(topic, 1, now_ms)
                waiting.append((unit, record))
        return waiting

    def _firing(self, stored: StoredMessage, message: PutMessage, now_ms: int) -> Firing | None:
        """What becomes of a repeating message; None of another one. Raises DecodeError, MessageIllegal."""
        if props.REPEAT not in stored.properties:
            return None
        return self._repeating.fire(stored, message, self.timers.wheel.precision_ms, now_ms)

    def _append(self, due: Sequence[_Due], now_ms: int) -> dict[int, RequestRefused]:
        """Put what is due, the messages of each together or not at all; returns the refusals by index."""
        messages = [message for each in due for message in each.messages]
        if not messages:
            return {}
        numbers = [at for at, each in enumerate(due) for _ in each.messages]
        run = MessageRun(messages, None if len(messages) == len(due) else numbers)
        results = iter(self.broker.appender.append(run))
        refused: dict[int, RequestRefused] = {}
        for at, (own, firing) in enumerate(due):
            result, *_ = islice(results, len(own))
            if isinstance(result, RequestRefused):
                refused[at] = result
                continue
            self._figures.delivered += 1
            self.broker.stats.delivered(names.TIMER_TOPIC, own[0].topic, result)
            if firing is not None:
                self._repeating.fired(firing, now_ms)
        return refused

    def _is_of(self, unit: Unit, stored: StoredMessage) -> bool:
        """Whether a record is the one of which a unit was made: after a loss of the log's end another message
        may be in its place, which has a unit of its own."""
        floor = self.timers.wheel.floor
        if unit.rolls or floor(due_ms(stored.properties)) == floor(unit.slot_ms):
            return True
        _log.error("%s leads to another message at %s", unit, stored.physical_offset)
        return False

    def deliver_now(self, record: Buffer) -> RequestRefused | None:
        """Deliver a message that is overdue when it is taken. Raises DecodeError, MessageIllegal."""
        stored = unpack(record)
        if props.TIMER_DEL_UNIQKEY in stored.properties:
            # What it deletes is delivered, or finds it among the deletions.
            return None
        now_ms = self.broker.clock.now_ms()
        message = delivered(stored, AT_ONCE, now_ms)
        firing = self._firing(stored, message, now_ms)
        messages = [message] if firing is None else firing.messages
        if not messages or self._repeats.has(message, stored.body_crc):
            return None
        return self._append([_Due(messages, firing)], now_ms).get(0)

    def _set_aside(
        self, physical_offset: int, stored: StoredMessage | None, record: Buffer | None, why: str
    ) -> bool:
        queue_offset = -1 if stored is None else stored.queue_offset
        origin = Origin("timer", names.TIMER_TOPIC, 0, queue_offset, physical_offset)
        return set_aside(self.broker, origin, record, why)


def _nothing() -> None:
    """Is told and does nothing."""
