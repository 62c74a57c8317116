"""What the request loop needs of the connections that it serves."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from rmqkit.log_limit import limited_logger
from rmqkit.plugin.request import Outcome, Peer
from rmqkit.protocol.command import Command
from rmqkit.protocol.connection import ConnectionCore
from rmqkit.remoting.admission import Entries
from rmqkit.remoting.socket_loop import SocketLoop

_log = limited_logger(__name__)


class Served(Peer):
    """A peer whose requests the request loop serves.

    core       the state of its connection
    loop_pass  the pass of the socket loop at whose end the last requests that arrived are processed, joined
               with those of others; None while they are not joined
    """

    core: ConnectionCore
    loop_pass: SocketLoop | None = None

    @abstractmethod
    def queue(self, requests: Sequence[Command], outcomes: Sequence[Outcome], hooks: Entries) -> None:
        """Queue the answers to requests of a run, as many as there are outcomes, and show them to the hooks
        of these requests. One-way requests, which are in runs of their own, have no answer, and postponed
        ones not yet."""

    @abstractmethod
    def answered(self) -> None:
        """Send what was queued at the end of a turn."""

    def respond(self, answer: Command) -> None:
        """Hand an answer of the peer to the call that awaits it."""
        if not self.core.respond(answer):
            _log.debug("%s answered the unknown request %s", self.remote_text, answer.opaque)


__all__ = ["Served"]
