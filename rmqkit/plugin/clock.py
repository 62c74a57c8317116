"""Wall-clock time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    pass


class Clock(Protocol):
    """Wall-clock time, passed in wherever a decision depends on it."""

    def now_ms(self) -> int: ...
