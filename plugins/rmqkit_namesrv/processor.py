"""Dispatches the requests of a name server (Java: DefaultRequestProcessor, ClientRequestProcessor;
wire-protocol sheet, section 3.9)."""

from __future__ import annotations

from rmqkit.plugin.request import EachRequest, Outcome, Peer
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit_namesrv.broker_requests import BrokerRequests
from rmqkit_namesrv.changes import Change
from rmqkit_namesrv.route_requests import RouteRequests
from rmqkit_namesrv.settings_requests import SettingsRequests
from rmqkit_namesrv.state import Handler, NameServerState


class NameServerProcessor(EachRequest):
    """Hands each request to the handler of its code."""

    def __init__(self, state: NameServerState) -> None:
        brokers, routes = BrokerRequests(state), RouteRequests(state)
        self._state = state
        self._changes: dict[int, Change] = {**brokers.changes(), **routes.changes()}
        self._handlers: dict[int, Handler] = {}
        for requests in (brokers, routes, SettingsRequests(state)):
            self._handlers.update(requests.handlers())

    @property
    def codes(self) -> tuple[int, ...]:
        """The supported request codes; any other gets REQUEST_CODE_NOT_SUPPORTED."""
        return (*self._handlers, *self._changes)

    def handle(self, request: Command, peer: Peer) -> Outcome:
        change = self._changes.get(request.code)
        if change is not None:
            return self._state.changes.submit(request, peer, change(request, peer))
        handler = self._handlers.get(request.code)
        if handler is None:
            return answer(
                request,
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {request.code} not supported by a name server",
            )
        return handler(request, peer)
