"""Which half messages of a queue have ended: a byte for each one behind the progress."""

from __future__ import annotations


class Ended:
    """`base` is the progress: every half message before it has ended, or was stored anew behind it."""

    def __init__(self, base: int = 0) -> None:
        self.base = base
        self._ended = bytearray()
        self._count = 0

    def has_ended(self, offset: int) -> bool:
        at = offset - self.base
        return at < 0 or (at < len(self._ended) and self._ended[at] != 0)

    def add(self, offset: int) -> None:
        """Note the end of the half message at a queue offset, which must exist: the memory grows up to it."""
        at = offset - self.base
        if at < 0:
            return
        if at >= len(self._ended):
            self._ended += bytes(at + 1 - len(self._ended))
        self._count += 1 - self._ended[at]
        self._ended[at] = 1

    def next_open(self, offset: int) -> int:
        """The first offset from this one on that has not ended; it need not exist yet."""
        at = max(offset - self.base, 0)
        found = self._ended.find(0, at)
        return self.base + (found if found >= 0 else max(at, len(self._ended)))

    def advance(self, base: int) -> None:
        """Move the progress, and forget what is before it."""
        gone = self._ended[: base - self.base]
        self._count -= gone.count(1)
        del self._ended[: len(gone)]
        self.base = base

    def open_before(self, end: int) -> int:
        """The number of open half messages before a queue offset."""
        return max(end - self.base, 0) - self._count
