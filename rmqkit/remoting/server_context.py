"""What the connections of one server share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import define, field

from rmqkit.limits import MAX_UNFINISHED_BYTES
from rmqkit.log_limit import limited_logger
from rmqkit.plugin.request import Peer
from rmqkit.protocol.command import Command
from rmqkit.protocol.connection import ConnectionCore
from rmqkit.remoting.admission import Admission
from rmqkit.remoting.hooks_by_code import HooksByCode
from rmqkit.remoting.other_protocols import PortProtocols
from rmqkit.remoting.read_fairness import Paced, Turns
from rmqkit.remoting.served import Served
from rmqkit.remoting.unfinished import OLD, UnfinishedFrames
from rmqkit.remoting.waiting import WaitingRequests

_log = limited_logger(__name__)
#: Connections that are taken down in one turn of the loop: each costs some tenths of a millisecond, and
#: thousands may end at once.
_CLOSED_PER_TURN = 8


@define(eq=False)
class ServerContext:
    """What the connections of one server share.

    name       of the server, for log lines
    kind       the server, as hooks name it
    admission  decides whether a connection may stay
    handle     serves commands of a connection, from a number on, and returns how far it came
    shed       lets hooks refuse commands of a connection that have waited for so many seconds, and returns
               those that are left
    waiting    the requests that wait
    protocols  what its connections may speak
    on_closed  called for each peer that ends
    """

    name: str
    kind: str
    admission: Admission
    hooks: HooksByCode
    handle: Callable[[Served, Sequence[Command], int], int]
    shed: Callable[[Served, Sequence[Command], float], Sequence[Command]]
    waiting: WaitingRequests
    protocols: PortProtocols
    on_closed: Callable[[Peer], None] | None
    turns: Turns = field(factory=Turns)
    leaving: Paced = field(factory=lambda: Paced(_CLOSED_PER_TURN))
    unfinished: UnfinishedFrames[Served] = field(factory=UnfinishedFrames)

    def note_unfinished(self, peer: Served, core: ConnectionCore, begun_anew: bool) -> None:
        """Keep account of a frame that is not whole yet; close connections when there are too many such bytes
        nevertheless."""
        self.unfinished.note(peer, core.pending_bytes, core.missing_bytes, begun_anew)
        while (oldest := self.unfinished.surplus()) is not None:
            self.unfinished.forget(oldest)
            self.close_unfinished(oldest, OLD)

    def close_unfinished(self, peer: Served, why: str) -> None:
        """Close a connection whose frame takes memory that others need."""
        _log.warning(
            "%s: connection from %s closed: unfinished frames of all connections take all of the %s bytes for"
            " them, and %s",
            self.name,
            peer.remote_text,
            MAX_UNFINISHED_BYTES,
            why,
        )
        peer.close()


__all__ = ["ServerContext"]
