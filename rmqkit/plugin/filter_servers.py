"""The filter servers of a broker: processes beside it that consumers pull from, which filter (behaviour
sheet, C13).

A plugin accepts their registrations and sets the addresses here. The plugin that registers the broker gives
them to name servers, which give them to consumers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence


class FilterServers:
    """The registered filter servers.

    on_change  functions that are called, without arguments, after each change; they must not block
    """

    def __init__(self) -> None:
        self._addresses: tuple[str, ...] = ()
        self.on_change: list[Callable[[], None]] = []

    @property
    def addresses(self) -> Sequence[str]:
        """`host:port` of each."""
        return self._addresses

    def announce(self, addresses: Iterable[str]) -> None:
        """Set the addresses."""
        found = tuple(addresses)
        if found != self._addresses:
            self._addresses = found
            for listener in list(self.on_change):
                listener()
