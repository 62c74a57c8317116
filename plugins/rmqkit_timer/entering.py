"""Takes the messages of the timer topic into the wheel, in order, and writes how far that has come
(store-format sheet, section 10.5; Java: TimerEnqueueGetService, TimerFlushService)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec
import trio

from rmqkit.errors import RequestRefused
from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.buffer import Buffer
from rmqkit.plugin.store import QueueUnit
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.record import peek_properties, peek_store_timestamp
from rmqkit.protocol.tags import tags_code
from rmqkit.toolkit.internal_queue import InternalQueueFollower
from rmqkit_timer.checkpoint import Checkpoint
from rmqkit_timer.messages import delete_key, due_ms
from rmqkit_timer.opening import Opened
from rmqkit_timer.rebuilding import Rebuilding
from rmqkit_timer.session import Session
from rmqkit_timer.timers import Place, Snapshot

#: How far the log grows before the checkpoint follows.
_REFRESH_BYTES: Final = 64 << 20
#: What becomes of a message whose slot is closed: it is delivered at once.
DeliverNow = Callable[[Buffer], RequestRefused | None]


class Entering(InternalQueueFollower):
    """Follows the timer topic. What waits is in the wheel; what is due already is delivered at once.

    on_entered  called with the slot of each message that waits
    look_ahead  called before messages are taken and before a slot is read, to note further deletions
    """

    service = "timer"
    is_woken = True

    def __init__(self, session: Session, deliver_now: DeliverNow) -> None:
        super().__init__(session.broker, names.TIMER_TOPIC)
        self.timers = session.timers
        self.on_entered: Callable[[int], None] | None = None
        self.look_ahead: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        self._kept = session.kept
        self._deliver_now = deliver_now
        self._repeats = session.repeats
        self._session = session
        self._figures = session.figures
        self._stored_ms = self.broker.clock.now_ms()
        self._deletions = session.deletions
        self._known = session.opened.known
        self._rebuilding: Rebuilding | None = None
        #: The end of the log at the last checkpoint; None while there is none.
        self._noted: int | None = None if session.opened.checkpoint == Checkpoint() else 0
        self._snapshot: Snapshot | None = None
        self._counted = self.timers.counts.data_version.counter

    async def start(self, opened: Opened, rebuilding: Rebuilding) -> None:
        """Go on where the files end, or make them anew."""
        offset = opened.queue_offset
        if offset is None:
            self._rebuilding = rebuilding
            offset = await rebuilding.begin(self.broker.store)
        self.begin({0: offset}, [0])

    async def prepare(self) -> None:
        """Note what the messages delete that are not taken yet, before one that is overdue is delivered.
        Raises OSError, StoreError."""
        if self.behind:
            await self._deletions.load(self.broker.store, self.offsets[0])
        await self.look_ahead()

    @property
    def behind(self) -> int:
        """Messages of the topic that are not taken yet."""
        return self.broker.store.max_offset(self.topic, 0) - self.offsets[0]

    @property
    def behind_ms(self) -> int:
        """How long ago the last message that is taken was stored, while others are not; 0 without these."""
        return max(0, self.broker.clock.now_ms() - self._stored_ms) if self.behind else 0

    def due(self, queue_id: int, units: Sequence[QueueUnit]) -> int:
        stopped = self._session.settings.timer_stop_enqueue or self.timers.log.is_full
        return 0 if stopped else len(units)

    def take(self, queue_id: int, unit: QueueUnit, record: Buffer) -> RequestRefused | None:
        """Let a message wait, or deliver it. Raises DecodeError."""
        if unit.physical_offset in self._known:
            return None
        properties = props.decode_bytes(peek_properties(record))
        if self._is_over(unit, properties, record):
            return None
        slot_ms, now_ms, timers = due_ms(properties), self.broker.clock.now_ms(), self.timers
        timers.advance(now_ms)
        topic = properties.get(props.REAL_TOPIC, "")
        self._figures.entered += 1
        self._stored_ms = peek_store_timestamp(record)
        if slot_ms < timers.write_time_ms:
            if slot_ms >= timers.wheel.floor(now_ms):
                return _later("the clock was set back while its slot was read")
            if self._deletions.has(properties):
                return None
            self._deletions.note(record)
            return self._deliver_now(record)
        deletes = delete_key(properties, topic) is not None
        if not timers.enter(slot_ms, Place(unit.physical_offset, unit.size_bytes, tags_code(topic), deletes)):
            return _later("its slot holds messages that are overdue")
        if deletes:
            # The wheel has it.
            self._deletions.forget(properties)
        timers.counts.add(topic, -1 if deletes else 1, now_ms)
        if self.on_entered is not None:
            self.on_entered(slot_ms)
        return None

    def _is_over(self, unit: QueueUnit, properties: Mapping[str, str], record: Buffer) -> bool:
        """Whether a message was delivered before wheel and log were made anew."""
        found = self._rebuilding
        if found is None or unit.queue_offset >= found.until:
            return False
        return not found.waits(properties, peek_store_timestamp(record))

    async def close(self) -> None:
        """Close the files, after the last write."""
        with trio.CancelScope(shield=True):
            async with self._saving:
                self.timers.log.close()

    def captured(self) -> None:
        """One moment: what is written belongs to the offsets that are saved."""
        timers = self.timers
        version = timers.counts.data_version.counter
        counts = msgspec.json.encode(timers.counts) if version != self._counted else b""
        self._counted = version
        if not self.behind and timers.read_time_ms >= timers.write_time_ms:
            self._repeats.clear()
            self._deletions.clear()
        self._snapshot = timers.snapshot(self.checkpoint(), counts)
        self._noted = self.broker.store.end_offset

    def checkpoint(self) -> Checkpoint:
        """How far timers have come, now."""
        end, now_ms = self.broker.store.end_offset, self.broker.clock.now_ms()
        return self.timers.checkpoint(self.offsets[0], end, now_ms, self._repeats.start)

    def refresh(self) -> None:
        """Have a checkpoint written although no timer has come further: the next start reads the log behind
        it."""
        if self._noted is not None and self.broker.store.end_offset - self._noted > _REFRESH_BYTES:
            self.mark_changed()

    async def save(self, offsets: Mapping[int, int]) -> None:
        """Write what `captured` has kept; deliveries before it are on the device then, whatever senders wait
        for. Raises OSError, StoreError."""
        snapshot, timers = self._snapshot, self.timers
        assert snapshot is not None
        await self.broker.store.flush()
        await trio.to_thread.run_sync(self._kept.write, timers, snapshot)
        timers.wrote(snapshot)

    def dropped(self) -> None:
        assert self._snapshot is not None
        self.timers.failed(self._snapshot)


def _later(why: str) -> RequestRefused:
    return RequestRefused(ResponseCode.SYSTEM_BUSY, why)
