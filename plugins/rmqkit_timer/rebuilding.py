"""Makes wheel and log anew from the records of the timer topic, when there are none that can be used: after
the loss of a file, with another precision, on a new master."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

from rmqkit.model import names
from rmqkit.plugin.store import Boundary, MessageStore
from rmqkit.toolkit.cold_reads import read_when_cached
from rmqkit_timer.checkpoint import Checkpoint
from rmqkit_timer.messages import due_ms

#: How much later than it was stored a message was entered, at most. One that was stored anew in this time may
#: be delivered twice.
_MARGIN_MS: Final = 60_000


class Rebuilding(NamedTuple):
    """Which of the records before `until`, a queue offset, still wait at `read_time_ms`. Window and
    precision are in ms; messages beyond the window are stored anew, at the latest after one."""

    until: int
    read_time_ms: int
    window_ms: int
    precision_ms: int

    async def begin(self, store: MessageStore) -> int:
        """The queue offset of the first record that may wait."""
        if not self.read_time_ms:
            return store.min_offset(names.TIMER_TOPIC, 0)
        since_ms = self.read_time_ms - self.window_ms - _MARGIN_MS
        return await read_when_cached(
            store, partial(store.offset_by_time, names.TIMER_TOPIC, 0, since_ms, Boundary.LOWER)
        )

    def waits(self, properties: Mapping[str, str], stored_ms: int) -> bool:
        """Whether a record still waits: it was not due when it was stored, nor before the slot that is read
        next, and it has not been stored anew. Raises DecodeError."""
        slot_ms = due_ms(properties)
        beyond_ms = slot_ms - stored_ms - self.window_ms
        if beyond_ms >= 0:
            waited_ms = self.window_ms // 2 if beyond_ms < self.window_ms // 3 else self.window_ms
            return stored_ms + waited_ms + _MARGIN_MS >= self.read_time_ms
        return slot_ms >= self.read_time_ms and slot_ms + self.precision_ms > stored_ms

    @classmethod
    def of(cls, checkpoint: Checkpoint, window_slots: int, precision_ms: int) -> Rebuilding:
        """What a checkpoint says of the records before it."""
        window_ms = window_slots * precision_ms
        return cls(checkpoint.queue_offset, checkpoint.read_time_ms, window_ms, precision_ms)


__all__ = ["Rebuilding"]
