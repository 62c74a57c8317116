"""The timers of one master in memory: wheel, log and how far both have come. No I/O and no clock.

Two times divide the slots: those before `read_time_ms` are delivered, those before `write_time_ms` take no
more messages. The delivery reads a slot between them, oldest message first.
"""

from __future__ import annotations

from typing import NamedTuple

from rmqkit_timer.checkpoint import Checkpoint, Moment
from rmqkit_timer.counts import Counts
from rmqkit_timer.timer_log import TimerLog
from rmqkit_timer.units import DEFAULT, DELETE, NOWHERE, ROLL, Unit
from rmqkit_timer.wheel import SLOTS, Slot, Wheel


class Place(NamedTuple):
    """A record of the timer topic, and what has to be known of it to let it wait."""

    physical_offset: int
    size_bytes: int
    topic_hash: int
    deletes: bool


class Snapshot(NamedTuple):
    """What has to be written together."""

    checkpoint: Checkpoint
    log_position: int
    log_data: bytes
    pages: list[tuple[int, bytes]]
    counts: bytes


class Timers:
    """The messages that wait.

    waiting        their number: units in slots that are not read yet, less those that delete one; below zero
                   while deletions are stored anew after what they delete
    unit_position  the last unit of the slot being read whose message was delivered; NOWHERE at its start
    slot_from      offset of the broker's log from which all deliveries of that slot are
    batch_from     offset from which those are that `unit_position` does not cover; None without one
    """

    def __init__(
        self, wheel: Wheel, log: TimerLog, counts: Counts, window_slots: int, read_time_ms: int
    ) -> None:
        self.wheel = wheel
        self.log = log
        self.counts = counts
        self.read_time_ms = self.write_time_ms = wheel.floor(read_time_ms)
        self.unit_position = NOWHERE
        self.slot_from = 0
        self.batch_from: int | None = None
        self.waiting = sum(each.number for each in wheel.slots() if each.time_ms >= self.read_time_ms)
        self._window_slots = window_slots
        self._version = 0

    # Time.

    def advance(self, now_ms: int) -> None:
        """Close the slots that are over."""
        self.write_time_ms = max(self.write_time_ms, self.wheel.floor(now_ms))

    def follow_clock(self, now_ms: int) -> None:
        """Between two slots: close those that are over, and open those again that are not because the clock
        was set back. What was delivered in these is forgotten; they may be used once more."""
        now_ms = self.wheel.floor(now_ms)
        if now_ms < self.read_time_ms:
            # The wheel ends before any further slot.
            end_ms = min(self.read_time_ms, now_ms + SLOTS * self.wheel.precision_ms)
            time_ms = self.wheel.next_used(now_ms, end_ms)
            while time_ms < end_ms:
                self.wheel.clear(time_ms)
                time_ms = self.wheel.next_used(time_ms, end_ms)
            self.read_time_ms, self.unit_position = now_ms, NOWHERE
        self.write_time_ms = now_ms

    def next_slot(self) -> Slot | None:
        """The slot to be read now, after all empty ones before it; None when none is over."""
        self.read_time_ms = max(
            self.read_time_ms, self.wheel.next_used(self.read_time_ms, self.write_time_ms)
        )
        return self.wheel.slot(self.read_time_ms) if self.read_time_ms < self.write_time_ms else None

    def finish(self, slot: Slot) -> None:
        """A slot was read to its end."""
        self.waiting -= slot.number
        self.read_time_ms = slot.time_ms + self.wheel.precision_ms
        self.unit_position = NOWHERE

    # Messages.

    @property
    def step_ms(self) -> int:
        """How long before its time a message beyond the window is stored anew, at least: a third of a window,
        as in Java."""
        return self._window_slots // 3 * self.wheel.precision_ms

    def enter(self, due_ms: int, place: Place) -> bool:
        """Let a message wait in the slot of its time, which is not closed. False when the place of the slot
        in the wheel is taken by one that is still to be read, after a long time without a broker."""
        slot_ms, rolls = self._slot_for(due_ms)
        occupant = self.wheel.occupant(slot_ms)
        if occupant is not None and self.read_time_ms <= occupant.time_ms < self.wheel.floor(slot_ms):
            return False
        magic = DEFAULT | (ROLL if rolls else 0) | (DELETE if place.deletes else 0)
        found = self.wheel.slot(slot_ms)
        unit = Unit(
            NOWHERE if found is None else found.last,
            magic,
            self.write_time_ms,
            slot_ms - self.write_time_ms,
            place.physical_offset,
            place.size_bytes,
            place.topic_hash,
        )
        self.wheel.add(slot_ms, self.log.append(unit), unit.weight)
        self.waiting += unit.weight
        return True

    def _slot_for(self, due_ms: int) -> tuple[int, bool]:
        """The slot of a time, and whether that is before the time: beyond the window a message is stored anew
        later."""
        precision_ms, slots = self.wheel.precision_ms, self._window_slots
        beyond_ms = due_ms - self.write_time_ms - slots * precision_ms
        if beyond_ms < 0:
            return due_ms, False
        if beyond_ms < self.step_ms:
            return self.write_time_ms + slots // 2 * precision_ms, True
        return self.write_time_ms + slots * precision_ms, True

    # What is written.

    def checkpoint(
        self, queue_offset: int, broker_end: int, now_ms: int, repeats_from: int | None = None
    ) -> Checkpoint:
        """How far timers have come; the next delivery is at the given end of the broker's log or later.
        `repeats_from` is the offset of deliveries of an earlier run that have not been met yet."""
        self._version += 1
        unknown = (each for each in (repeats_from, self.batch_from) if each is not None)
        deliveries_from = min(unknown, default=broker_end)
        is_begun = self.unit_position != NOWHERE
        return Checkpoint(
            read_time_ms=self.read_time_ms,
            log_position=self.log.end,
            queue_offset=queue_offset,
            master_queue_offset=queue_offset,
            timestamp_ms=now_ms,
            counter=self._version,
            moment=Moment(
                unit_position=self.unit_position,
                deliveries_from=deliveries_from,
                slot_from=min(self.slot_from, deliveries_from) if is_begun else deliveries_from,
                broker_end=broker_end,
                precision_ms=self.wheel.precision_ms,
                log_end=self.log.end,
            ),
        )

    def snapshot(self, checkpoint: Checkpoint, counts: bytes) -> Snapshot:
        """What has changed since the last snapshot that was written."""
        position, data = self.log.take_unwritten()
        return Snapshot(checkpoint, position, data, self.wheel.take_changed(), counts)

    def wrote(self, snapshot: Snapshot) -> None:
        self.log.wrote(snapshot.log_position, snapshot.log_data)

    def failed(self, snapshot: Snapshot) -> None:
        """A snapshot was not written, or only a part of it."""
        self.wheel.put_back(snapshot.pages)
