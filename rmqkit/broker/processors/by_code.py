"""A processor of several request codes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from rmqkit.plugin.request import Answer, EachRequest, Outcome, Peer
from rmqkit.plugin.request_broker import RequestBroker
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command
from rmqkit.toolkit.cold_reads import read_cached
from rmqkit.toolkit.unsaved import when_saved


class ProcessorByCode(EachRequest):
    """Answers each code with a separate method. A subclass sets the tables.

    _handlers  run at once, and again after data that they need has been written
    _readers   read the store, and run again after data that they need has been brought into memory
    _tasks     coroutine functions, each run in a task of the connection
    """

    _broker: RequestBroker
    _handlers: Mapping[RequestCode, Callable[[Command], Outcome]]
    _readers: Mapping[RequestCode, Callable[[Command], Command]] = {}
    _tasks: Mapping[RequestCode, Callable[[Command], Awaitable[Answer]]] = {}

    def codes(self) -> list[int]:
        return [*self._handlers, *self._readers, *self._tasks]

    def handle(self, request: Command, peer: Peer) -> Outcome:
        code = RequestCode(request.code)
        if code in self._tasks:
            return peer.answer_async(request, partial(self._tasks[code], request))
        if code in self._readers:
            return read_cached(self._broker.store, partial(self._readers[code], request), request, peer)
        return when_saved(partial(self._handlers[code], request), request, peer)
