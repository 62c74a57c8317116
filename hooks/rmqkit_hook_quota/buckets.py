"""How much has passed, and how long the next one waits.

A bucket is one number, the time up to which what has passed is paid for: a message moves it by the time that
the rate gives to it. A second that was not used may be made up for, so that a client that was silent may send
for a second at once."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

#: How much of the past may be made up for.
_BURST_S = 1.0
#: Buckets beyond this number are dropped, those first that are paid for.
_MAX_BUCKETS = 10_000


class Rate(NamedTuple):
    """Messages and bytes a second; 0 means no limit."""

    messages: int
    size_bytes: int

    @property
    def limits(self) -> bool:
        return bool(self.messages or self.size_bytes)

    def span_s(self, messages: int, size_bytes: int) -> float:
        """The time for which so much lasts."""
        return max(
            messages / self.messages if self.messages else 0.0,
            size_bytes / self.size_bytes if self.size_bytes else 0.0,
        )

    def __str__(self) -> str:
        parts = [
            f"{count} {unit}/s"
            for count, unit in ((self.messages, "messages"), (self.size_bytes, "bytes"))
            if count
        ]
        return ", ".join(parts)


class Buckets:
    """A bucket for each of any number of names. Times are in seconds of one clock."""

    def __init__(self) -> None:
        self._paid_until: dict[str, float] = {}

    def wait_s(self, name: str, now: float) -> float:
        """How long the next message of this name waits; 0 when it need not."""
        return max(0.0, self._paid_until.get(name, now) - now)

    def charge(self, name: str, span_s: float, now: float) -> None:
        """Something has passed that lasts for so long."""
        paid_until = self._paid_until
        if name not in paid_until and len(paid_until) >= _MAX_BUCKETS:
            self._make_room(now)
        paid_until[name] = max(paid_until.get(name, -inf), now - _BURST_S) + span_s

    def _make_room(self, now: float) -> None:
        left = {name: until for name, until in self._paid_until.items() if until > now}
        if len(left) >= _MAX_BUCKETS:
            left = dict(sorted(left.items(), key=lambda item: -item[1])[: _MAX_BUCKETS // 2])
        self._paid_until = left


__all__ = ["Buckets", "Rate"]
