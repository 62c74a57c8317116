"""Answers every request a name server takes (Java: DefaultRequestProcessor, ClientRequestProcessor; wire-protocol sheet, section 3.9)."""

from __future__ import annotations

from collections.abc import Awaitable

from rmqkit.abc import Answer, Outcome, Peer, RequestProcessor
from rmqkit.errors import RmqError
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.remoting.serve import error_answer
from rmqkit_namesrv.broker_requests import BrokerRequests
from rmqkit_namesrv.route_requests import RouteRequests
from rmqkit_namesrv.settings_requests import SettingsRequests
from rmqkit_namesrv.state import Handler, NameServerState


class NameServerProcessor(RequestProcessor):
    """A bad request is answered with its code and what was wrong; neither `process` nor the awaitable it may return raises for one."""

    def __init__(self, state: NameServerState) -> None:
        self._handlers: dict[int, Handler] = {}
        for requests in (BrokerRequests(state), RouteRequests(state), SettingsRequests(state)):
            self._handlers.update(requests.handlers())

    @property
    def codes(self) -> tuple[int, ...]:
        """The request codes answered; any other gets REQUEST_CODE_NOT_SUPPORTED."""
        return tuple(self._handlers)

    def process(self, request: Command, peer: Peer) -> Outcome:
        handler = self._handlers.get(request.code)
        if handler is None:
            return answer(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported by a name server")
        try:
            outcome = handler(request, peer)
        except RmqError as error:
            return error_answer(request, error)
        return _settled(request, outcome) if isinstance(outcome, Awaitable) else outcome


async def _settled(request: Command, outcome: Awaitable[Answer | None]) -> Answer | None:
    try:
        return await outcome
    except RmqError as error:
        return error_answer(request, error)
