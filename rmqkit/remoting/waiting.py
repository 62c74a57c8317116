"""Requests that have arrived and wait until the loop has processed others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from rmqkit.plugin.request import Waiting
from rmqkit.protocol.codes import FLAG_RESPONSE
from rmqkit.protocol.command import Command


class MayWait(ABC):
    """A connection whose requests wait."""

    @property
    @abstractmethod
    def left(self) -> tuple[Sequence[Command], float]:
        """The commands that are not processed yet, and when they arrived (trio's clock)."""


class WaitingRequests:
    """The waiting requests of all servers that share this. A connection is here only while it waits: requests
    that are processed in the turn in which they arrive cost nothing."""

    def __init__(self) -> None:
        self._connections: set[MayWait] = set()

    def add(self, connection: MayWait) -> None:
        self._connections.add(connection)

    def remove(self, connection: MayWait) -> None:
        self._connections.discard(connection)

    def by(self, kind_of: Callable[[int], str], now: float) -> Mapping[str, Waiting]:
        """Kind of the request code -> how many wait, and how long the first of them has at `now` (trio's
        clock). Kinds of which none waits are left out."""
        found: dict[str, Waiting] = {}
        for connection in self._connections:
            commands, since = connection.left
            for command in commands:
                if not command.flag & FLAG_RESPONSE:
                    kind = kind_of(command.code)
                    before = found.get(kind, _NONE)
                    found[kind] = Waiting(before.count + 1, max(before.longest_s, now - since))
        return found


_NONE = Waiting(0, 0.0)

__all__ = ["MayWait", "WaitingRequests"]
