"""Deletions that stand behind their messages in the timer topic: a message that is overdue when it is taken,
after a time without a broker, must not be delivered if it was deleted in time; nor one whose slot is read
while the topic is not, because the device is slow for example."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from rmqkit.errors import DecodeError
from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.buffer import Buffer
from rmqkit.plugin.store import MessageStore
from rmqkit.protocol.record import peek_properties
from rmqkit.toolkit.cold_reads import all_of, read_when_cached
from rmqkit_timer.messages import delete_key, due_ms, victim_key

_MARK: Final = f"\x02{props.TIMER_DEL_UNIQKEY}\x01".encode()
_RUN: Final = 256


class Deletions:
    """What the records delete that are in the topic and not, or not yet, in the slots of their times."""

    def __init__(self) -> None:
        #: Topic and unique key, and the slot.
        self._found: set[tuple[str, int]] = set()
        #: Up to this queue offset the topic was read.
        self._read = 0

    async def load(self, store: MessageStore, offset: int) -> None:
        """Read the topic from a queue offset to its end, but nothing twice."""
        end = store.max_offset(names.TIMER_TOPIC, 0)
        offset = max(offset, self._read)
        while offset < end:
            units = await read_when_cached(
                store, partial(store.read_units, names.TIMER_TOPIC, 0, offset, _RUN)
            )
            if not units:
                return
            reads = [partial(store.read_record, unit.physical_offset) for unit in units]
            for record in await read_when_cached(store, partial(all_of, reads)):
                if record is not None:
                    self.note(record)
            offset = self._read = units[-1].queue_offset + 1

    def note(self, record: Buffer) -> None:
        """Take a record in, if it deletes one."""
        # What cannot be read deletes nothing.
        with suppress(DecodeError):
            stored = peek_properties(record)
            if _MARK in stored:
                self._found.add(_deleted_by(props.decode_bytes(stored)))

    def forget(self, properties: Mapping[str, str]) -> None:
        """The record with these properties, which deletes one, is in the slot of its time or of its next
        step. Raises DecodeError."""
        self._found.discard(_deleted_by(properties))

    def has(self, properties: Mapping[str, str]) -> bool:
        """Whether one of them deletes the message with these properties. Raises DecodeError."""
        if not self._found:
            return False
        key = victim_key(properties, properties.get(props.REAL_TOPIC, ""))
        return (key, due_ms(properties)) in self._found

    def clear(self) -> None:
        """All messages of these records have been looked at."""
        self._found.clear()


def _deleted_by(properties: Mapping[str, str]) -> tuple[str, int]:
    key = delete_key(properties, properties.get(props.REAL_TOPIC, ""))
    return key or "", due_ms(properties)
