"""The name servers of a broker: those of its settings, or those that a plugin has found."""

from __future__ import annotations

from collections.abc import Callable, Iterable


class NameServers:
    """The addresses with which the broker registers, and which it asks for routes.

    on_change  functions that are called, without arguments, after each change; they must not block
    """

    def __init__(self, addresses: Iterable[str] = ()) -> None:
        self._addresses = tuple(dict.fromkeys(addresses))
        self.on_change: list[Callable[[], None]] = []

    @property
    def addresses(self) -> tuple[str, ...]:
        """`host:port` of each, each once."""
        return self._addresses

    def replace(self, addresses: Iterable[str]) -> None:
        """Set the addresses."""
        found = tuple(dict.fromkeys(addresses))
        if found != self._addresses:
            self._addresses = found
            for listener in list(self.on_change):
                listener()
