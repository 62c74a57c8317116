"""Joins short runs of requests of connections that are ready at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rmqkit.limits import MAX_JOINED_BYTES
from rmqkit.plugin.request import Outcome
from rmqkit.protocol.command import Command

if TYPE_CHECKING:
    from rmqkit.remoting.route import Route
    from rmqkit.remoting.served import Served
    from rmqkit.remoting.socket_loop import SocketLoop


class Part(NamedTuple):
    """The requests of one connection in a run. `left` are those that hooks did not refuse, `refused` the
    outcomes of the others by the ids of the requests."""

    peer: Served
    run: Sequence[Command]
    left: Sequence[Command]
    refused: Mapping[int, Outcome] | None


class JoinedRun:
    """Joins the requests for one route that all sockets of a turn of the socket loop have received, so that
    the work for a run is done once for them. At most `Route.max_run` requests and MAX_JOINED_BYTES of bodies
    are joined; a longer run of one connection is a run of its own."""

    def __init__(self) -> None:
        self._route: Route | None = None
        self._flag = 0
        self._parts: list[Part] = []
        self._count = self._bytes = 0

    def add(self, route: Route, part: Part, turn: SocketLoop) -> None:
        """Process a part of a run at the end of this turn, or before. The requests of one run are all or none
        one-way."""
        count, flag = len(part.run), part.run[0].flag
        size = sum([len(request.body) for request in part.run])
        if self._parts:
            if (
                route is not self._route
                or flag != self._flag
                or self._count + count > route.max_run
                or self._bytes + size > MAX_JOINED_BYTES
            ):
                self.finish()
        else:
            turn.at_end(self.finish)
        self._route, self._flag = route, flag
        self._parts.append(part)
        self._count += count
        self._bytes += size

    def finish(self) -> None:
        """Process what was added, and send the answers."""
        parts, self._parts = self._parts, []
        self._count = self._bytes = 0
        if self._route is None or not parts:
            return
        requests = [request for part in parts for request in part.left]
        outcomes = self._route.outcomes(requests, [part.peer for part in parts for _ in part.left])
        start = 0
        for part in parts:
            stop = start + len(part.left)
            self._route.answer(part.peer, part.run, part.refused, outcomes[start:stop])
            part.peer.answered()
            start = stop


__all__ = ["JoinedRun", "Part"]
