"""Recognises deliveries that the log has already, after an end without a last checkpoint: each message is
delivered once, also when a broker was killed between its delivery and the note of it."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import partial

from rmqkit.errors import DecodeError
from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage, StoredMessage
from rmqkit.plugin.store import MessageStore
from rmqkit.protocol.record import MAGIC_BLANK, peek_size_and_magic, unpack
from rmqkit.toolkit.cold_reads import read_when_cached

_READ_BYTES = 1 << 20
_MARK = f"{props.TIMER_DEQUEUE_MS}\x01".encode()
_OF_TIMER = (props.TIMER_OUT_MS, props.TIMER_ROLL_TIMES, props.UNIQ_KEY)
_Key = tuple[object, ...]


def _key(topic: str, queue_id: int, stored: StoredMessage | PutMessage, body_crc: int) -> _Key:
    """What a delivery has in common with its record in the log, and with no other message."""
    values = (stored.properties.get(name) for name in _OF_TIMER)
    return topic, queue_id, stored.born_timestamp_ms, stored.born_host, body_crc, *values


class Repeats:
    """Deliveries in the log that no checkpoint knows of, each to be left out once. While some may not have
    been met, checkpoints go on to name their beginning."""

    def __init__(self) -> None:
        #: The offset of the log from which they are; None once they were all met.
        self.start: int | None = None
        self._found: Counter[_Key] = Counter()

    async def load(self, store: MessageStore, start: int) -> None:
        """Find them in the log from a physical offset on."""
        self.start = start
        at, end = max(start, store.start_offset), store.end_offset
        while at < end and (data := await read_when_cached(store, partial(store.read_log, at, _READ_BYTES))):
            self._note(bytes(data))
            at += len(data)

    async def load_all(self, store: MessageStore) -> None:
        """Find all that the log has, which are behind the first record of the timer topic."""
        first = store.min_offset(names.TIMER_TOPIC, 0)
        read = partial(store.read_units, names.TIMER_TOPIC, 0, first, 1)
        for unit in await read_when_cached(store, read):
            await self.load(store, unit.physical_offset)

    def _note(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            size, magic = peek_size_and_magic(data, at)
            if magic != MAGIC_BLANK and data.find(_MARK, at, at + size) >= 0:
                # What is damaged is delivered once more.
                with suppress(DecodeError):
                    stored = unpack(data, at, check_crc=False)
                    self._found[_key(stored.topic, stored.queue_id, stored, stored.body_crc)] += 1
            at += size

    def has(self, message: PutMessage, body_crc: int) -> bool:
        """Whether the log has this delivery; it is then taken off."""
        if not self._found:
            return False
        key = _key(message.topic, message.queue_id, message, body_crc)
        if not self._found[key]:
            return False
        self._found[key] -= 1
        return True

    def clear(self) -> None:
        """Everything that was due before the start has been looked at."""
        self.start = None
        self._found.clear()
