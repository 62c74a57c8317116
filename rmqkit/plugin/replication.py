"""The replicas of a broker: the addresses by which they find each other, and their progress.

A plugin that replicates the log sets its part, `registration` tells name servers and learns the rest from
their answers, and hooks read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import frozen


@frozen
class ReplicaProgress:
    """A connected replica of this broker's log. `acknowledged` is a physical offset; `lag_ms` is the age of
    the oldest message that the replica does not have, 0 without one."""

    address: str
    acknowledged: int
    lag_bytes: int
    lag_ms: int
    in_sync: bool


class Replication:
    """The replication of one broker. Addresses are `host:port`, empty while unknown.

    own         where replicas connect to this broker, for name servers
    master      the address for clients of the broker with this name and id 0, as a name server says
    master_ha   where replicas connect to that broker, as a name server says
    on_change   functions that are called after each change of an address
    on_wanted   functions that are called when somebody needs the present addresses of the master
    replicas    returns the connected replicas
    """

    def __init__(self) -> None:
        self.own = ""
        self.master = ""
        self.master_ha = ""
        self.on_change: list[Callable[[], None]] = []
        self.on_wanted: list[Callable[[], None]] = []
        self.replicas: Callable[[], Sequence[ReplicaProgress]] = lambda: ()

    def announce(self, own: str) -> None:
        """Set `own`."""
        if own != self.own:
            self.own = own
            self._call(self.on_change)

    def learned(self, master: str, master_ha: str) -> None:
        """Set what a name server says of the master; empty texts say nothing."""
        found = master or self.master, master_ha or self.master_ha
        if found != (self.master, self.master_ha):
            self.master, self.master_ha = found
            self._call(self.on_change)

    def want_master(self) -> None:
        """Ask the name servers soon."""
        self._call(self.on_wanted)

    @staticmethod
    def _call(listeners: Sequence[Callable[[], None]]) -> None:
        for listener in list(listeners):
            listener()
