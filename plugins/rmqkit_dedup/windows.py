"""The keys of messages that were stored within the window of their topic, and where. No I/O, no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from hashlib import blake2b

import msgspec

from rmqkit.model import properties as props
from rmqkit.model.spans import span_ms
from rmqkit.plugin.store import Appended

#: The attributes of a topic: how long keys count, and the property that is the key.
WINDOW, KEY = "dedup.window", "dedup.key"
#: Longer keys are remembered by their hash, so that a client cannot fill the memory.
MAX_KEY_CHARACTERS = 64
Key = str | bytes


class Seen(msgspec.Struct, frozen=True, gc=False):
    """A stored message. A million of them are not visited by the garbage collector."""

    key: Key
    queue_id: int
    queue_offset: int
    physical_offset: int
    size_bytes: int
    stored_ms: int

    @property
    def place(self) -> Appended:
        return Appended(self.queue_offset, self.physical_offset, self.size_bytes, self.stored_ms)


def seen_at(key: Key, queue_id: int, at: Appended) -> Seen:
    """A message at its place."""
    return Seen(key, queue_id, at.queue_offset, at.physical_offset, at.size_bytes, at.store_timestamp_ms)


class Window:
    """The keys of one topic. `is_complete` when all that the log has within the window is known."""

    def __init__(self, topic: str, window_ms: int, key: str) -> None:
        self.topic = topic
        self.window_ms = window_ms
        self.is_complete = False
        #: Messages that were not stored again.
        self.repeated = 0
        #: Keys that were forgotten before their time.
        self.forgotten = 0
        self._property = key
        self._seen: dict[Key, Seen] = {}
        self._order: deque[Seen] = deque()

    def __len__(self) -> int:
        return len(self._order)

    def key_of(self, properties: Mapping[str, str]) -> Key | None:
        """The key of a message; None when it has none, and is stored however often it comes."""
        key = properties.get(self._property)
        if not key:
            return None
        return key if len(key) <= MAX_KEY_CHARACTERS else blake2b(key.encode(), digest_size=32).digest()

    def find(self, key: Key, now_ms: int) -> Seen | None:
        """The message with this key that was stored within the window."""
        self.expire(now_ms)
        return self._seen.get(key)

    def add(self, seen: Seen) -> None:
        """Remember a message that is stored. They come in the order of their times."""
        self._seen[seen.key] = seen
        self._order.append(seen)

    def fill(self, stored: Iterable[Seen], now_ms: int) -> None:
        """Begin with what the log has; of equal keys the first one within a window counts."""
        self._seen.clear()
        self._order.clear()
        for seen in sorted(stored, key=_time_of):
            if self.find(seen.key, seen.stored_ms) is None:
                self.add(seen)
        self.expire(now_ms)
        self.is_complete = True

    def expire(self, now_ms: int) -> None:
        """Forget what is older than the window."""
        order, before_ms = self._order, now_ms - self.window_ms
        while order and order[0].stored_ms <= before_ms:
            self._forget_first()

    def limit(self, most: int) -> None:
        """Forget the oldest beyond a number."""
        while len(self._order) > most:
            self._forget_first()
            self.forgotten += 1

    def _forget_first(self) -> None:
        first = self._order.popleft()
        if self._seen.get(first.key) is first:
            del self._seen[first.key]


def _time_of(seen: Seen) -> tuple[int, int]:
    return seen.stored_ms, seen.physical_offset


def window_of(topic: str, attributes: Mapping[str, str]) -> Window | None:
    """An empty window for a topic; None when its attributes ask for none."""
    window_ms = span_ms(attributes.get(WINDOW, ""))
    return Window(topic, window_ms, attributes.get(KEY, props.UNIQ_KEY)) if window_ms else None


__all__ = ["KEY", "WINDOW", "Key", "Seen", "Window", "seen_at", "window_of"]
