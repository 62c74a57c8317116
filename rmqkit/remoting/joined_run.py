"""Joins short runs of requests of connections that are ready at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqkit.limits import MAX_JOINED_BYTES

if TYPE_CHECKING:
    from rmqkit.remoting.request_loop import Part, Route
    from rmqkit.remoting.socket_loop import SocketLoop


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
        if self._route is not None and parts:
            self._route.answer(parts)
            for part in parts:
                part.peer.answered()


__all__ = ["JoinedRun"]
