"""Faults of servers in a test, by request: error codes, delays, lost answers, cut connections.

Every server of the test has a request hook (`FaultPlugin`) over one table of faults (`Faults`). The kernel
knows nothing about it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypedDict
from weakref import WeakSet

import trio
from attrs import define, field

from rmqkit.errors import HeaderError, RequestDelayed, RequestRefused
from rmqkit.model.queue import MessageQueue
from rmqkit.plugin.hooks import STORED_CODES, Refusals
from rmqkit.plugin.hookspecs import Register, hookimpl
from rmqkit.plugin.request import Answers, Peer
from rmqkit.plugin.request_hooks import RpcHook
from rmqkit.protocol.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers import RegisterBrokerRequestHeader, SendMessageRequestHeaderV2

#: The name server among the servers of a test.
NAME_SERVER = "namesrv"
#: Before the hooks of other plugins, which then see only what arrives.
_ORDER = -1_000
#: Attribute of a name server's connection: the broker that registers over it.
_BROKER = "rmqkit-faults.broker"
_SEND_V2 = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
_KINDS = {
    "send": (RequestCode.SEND_MESSAGE, *_SEND_V2),
    "pull": (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE),
    "route": (RequestCode.GET_ROUTEINFO_BY_TOPIC,),
    "commit": (RequestCode.UPDATE_CONSUMER_OFFSET,),
    "send-back": (RequestCode.CONSUMER_SEND_MSG_BACK,),
    "lock": (RequestCode.LOCK_BATCH_MQ,),
    "heartbeat": (RequestCode.HEART_BEAT,),
}
#: A kind of request ("send", "pull", "route", "commit", "send-back", "lock", "heartbeat", or "any"), a code,
#: or several of them.
Wanted = str | int | Iterable[str | int]


class WhichRequests(TypedDict, total=False):
    """Which requests a fault strikes: sends at all servers, unless it says otherwise.

    request  "send", "pull", "route", "commit", "send-back", "lock", "heartbeat", "any", a RequestCode, or
             several of these
    queue    only requests for this queue, or for the queues with this id
    topic    only requests for this topic
    server   only at this broker, or at "namesrv"
    """

    request: Wanted
    queue: MessageQueue | int | None
    topic: str | None
    server: str | None


#: What a fault does to a request: returns the refusal, or None to let it pass.
Strike = Callable[[Command, Peer], Exception | None]


@define(eq=False)
class Fault:
    """One fault. It strikes the next `times` matching requests; None means until `remove` is called.

    struck  number of requests it has struck so far
    """

    _strike: Strike
    _table: Faults
    _codes: frozenset[int] | None
    times: int | None = None
    _server: str | None = None
    _topic: str | None = None
    _queue_id: int | None = None
    struck: int = 0

    def remove(self) -> None:
        """End the fault. May be called twice."""
        self._table.remove(self)

    def matches(self, server: str, request: Command) -> bool:
        """Whether it strikes this request to this server."""
        if self._codes is not None and request.code not in self._codes:
            return False
        if self._server is not None and self._server != server:
            return False
        if self._topic is None and self._queue_id is None:
            return True
        topic, queue_id = _destination(request)
        return self._topic in (None, topic) and self._queue_id in (None, queue_id)

    def strike(self, request: Command, peer: Peer) -> Exception | None:
        """Strike one matching request."""
        self.struck += 1
        if self.times is not None and self.struck >= self.times:
            self.remove()
        return self._strike(request, peer)


@define(eq=False)
class Faults:
    """The faults of all servers of one test. May be changed from any thread."""

    _faults: list[Fault] = field(factory=list)
    _lock: threading.Lock = field(factory=threading.Lock)
    _peers: dict[str, WeakSet[Peer]] = field(factory=dict)
    _awaited: dict[str, trio.Event] = field(factory=dict)

    def add(
        self,
        strike: Strike,
        *,
        times: int | None,
        request: Wanted = "send",
        server: str | None = None,
        topic: str | None = None,
        queue: MessageQueue | int | None = None,
    ) -> Fault:
        """Add a fault for some requests (`WhichRequests`). Of several that match a request the oldest
        strikes.

        Raises ValueError for an unknown kind of request and for `times` below 1.
        """
        if times is not None and times < 1:
            raise ValueError(f"times={times}: at least 1, or None for every time")
        queue_id = queue
        if isinstance(queue, MessageQueue):
            server, topic, queue_id = queue.broker_name, queue.topic, queue.queue_id
        assert not isinstance(queue_id, MessageQueue)
        fault = Fault(strike, self, codes_of(request), times, server, topic, queue_id)
        with self._lock:
            self._faults = [*self._faults, fault]
        return fault

    def remove(self, fault: Fault) -> None:
        """End a fault; does nothing when it has ended."""
        with self._lock:
            self._faults = [each for each in self._faults if each is not fault]

    def clear(self) -> None:
        """End all faults."""
        with self._lock:
            self._faults = []

    def strike(self, server: str, requests: Sequence[Command], peer: Peer) -> Refusals | None:
        """What becomes of requests that have arrived at a server."""
        self._peers.setdefault(server, WeakSet()).add(peer)
        if server == NAME_SERVER:
            _note_broker(requests, peer)
        if not self._faults:
            return None
        refusals: dict[int, Exception] = {}
        for at, request in enumerate(requests):
            fault = next((each for each in self._faults if each.matches(server, request)), None)
            refusal = fault.strike(request, peer) if fault is not None else None
            if refusal is not None:
                refusals[at] = refusal
        return refusals

    def registration(self, broker: str) -> trio.Event:
        """An event that is set when the broker has next registered with the name server. For the servers'
        loop."""
        return self._awaited.setdefault(broker, trio.Event())

    def note_registration(self, broker: str) -> None:
        """The name server has answered a registration."""
        awaited = self._awaited.pop(broker, None)
        if awaited is not None:
            awaited.set()

    def cut(self, servers: Iterable[str]) -> None:
        """Close the connections of these servers over which a request has arrived. For the servers' loop."""
        for server in servers:
            for peer in list(self._peers.get(server, ())):
                peer.close()

    @contextmanager
    def away(self, server: str) -> Iterator[None]:
        """The network without one server: its connections are cut, and every new one at its first request.
        Name servers drop the routes of an absent broker. For the servers' loop."""
        faults = [self.add(_cut, request="any", times=None, server=server)]
        if server != NAME_SERVER:
            faults.append(self.add(_cut_broker(server), request="any", times=None, server=NAME_SERVER))
            for peer in list(self._peers.get(NAME_SERVER, ())):
                if peer.attributes.get(_BROKER) == server:
                    peer.close()
        self.cut([server])
        try:
            yield
        finally:
            for fault in faults:
                fault.remove()


def failing(code: int, remark: str) -> Strike:
    """Answer with an error code. Raises ValueError for a code that is not an error of a request."""
    if code in STORED_CODES:
        raise ValueError(
            f"{ResponseCode(code).name} means that a message is stored, which a refused request cannot say"
        )
    return lambda request, peer: RequestRefused(code, remark)


def delaying(seconds: float) -> Strike:
    """Process requests later."""
    return lambda request, peer: RequestDelayed(seconds)


def losing_answers() -> Strike:
    """Process requests without answering them."""

    def strike(request: Command, peer: Peer) -> None:
        request.flag |= FLAG_ONEWAY

    return strike


def cutting() -> Strike:
    """Close the connection instead of processing a request."""
    return _cut


def codes_of(wanted: Wanted) -> frozenset[int] | None:
    """The request codes of a kind of request; None for any. Raises ValueError for an unknown kind."""
    if isinstance(wanted, int):
        return frozenset((int(wanted),))
    if not isinstance(wanted, str):
        several = [codes_of(each) for each in wanted]
        return None if None in several else frozenset().union(*(each for each in several if each))
    if wanted == "any":
        return None
    if wanted not in _KINDS:
        known = ", ".join([*_KINDS, "any"])
        raise ValueError(f"request={wanted!r}: must be one of {known}, or a RequestCode")
    return frozenset(map(int, _KINDS[wanted]))


class FaultPlugin:
    """A plugin for one server of a test, over the table of all."""

    def __init__(self, faults: Faults, server: str) -> None:
        self._hook = _FaultHook(faults, server)

    @hookimpl
    def rmqkit_register_rpc_hooks(self, register: Register[RpcHook]) -> None:
        register("faults", self._hook, order=_ORDER)


class _FaultHook(RpcHook):
    def __init__(self, faults: Faults, server: str) -> None:
        self._faults = faults
        self._server = server

    def before(self, requests: Sequence[Command], peer: Peer) -> Refusals | None:
        return self._faults.strike(self._server, requests, peer)

    def after(self, requests: Sequence[Command], answers: Answers, peer: Peer) -> None:
        if self._server == NAME_SERVER:
            for request, code in zip(requests, answers.codes, strict=True):
                if request.code == RequestCode.REGISTER_BROKER and code == ResponseCode.SUCCESS:
                    self._faults.note_registration(str(peer.attributes.get(_BROKER)))


def _cut(request: Command, peer: Peer) -> Exception:
    # Nothing may be answered before the connection ends.
    request.flag |= FLAG_ONEWAY
    peer.close()
    return RequestRefused(ResponseCode.SYSTEM_BUSY, "the connection is cut")


def _cut_broker(broker: str) -> Strike:
    """Cut the connection of one broker to its name server."""

    def strike(request: Command, peer: Peer) -> Exception | None:
        return _cut(request, peer) if peer.attributes.get(_BROKER) == broker else None

    return strike


def _note_broker(requests: Sequence[Command], peer: Peer) -> None:
    for request in requests:
        if request.code == RequestCode.REGISTER_BROKER:
            try:
                peer.attributes[_BROKER] = request.header(RegisterBrokerRequestHeader).broker_name
            except HeaderError:
                # The name server answers what is wrong with it.
                continue


def _destination(request: Command) -> tuple[str | None, int | None]:
    """Topic and queue id that a request names."""
    try:
        if request.code in _SEND_V2:
            header = request.header(SendMessageRequestHeaderV2)
            return header.topic, header.queue_id
        fields = request.fields()
        topic, number = fields.get("topic"), fields.get("queueId")
        return topic, int(number) if number is not None else None
    except (HeaderError, ValueError):
        return None, None
