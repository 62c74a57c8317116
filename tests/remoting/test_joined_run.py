"""Requests of several connections that are ready at the same time are processed together, and each
connection gets its own answers."""

from __future__ import annotations

import os
import select
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio
from attrs import Factory, define

from rmqkit.errors import RequestRefused
from rmqkit.limits import MAX_JOINED_BYTES
from rmqkit.plugin.request import JoinedProcessor, Outcome, Peer
from rmqkit.protocol import frame
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.connection import ConnectionCore
from rmqkit.protocol.frame import FrameDecoder
from rmqkit.remoting.answers import FramedAnswers
from rmqkit.remoting.hooks_by_code import NO_HOOKS
from rmqkit.remoting.joined_run import JoinedRun, Part
from rmqkit.remoting.route import Route
from rmqkit.remoting.socket_loop import socket_loop
from rmqkit.testing.peer import FakePeer
from tests.remoting.parts import ECHO, LATE, NoteRuns, echo, numbered
from tests.remoting.wire import PATIENCE_S, Client, Handler, Served, served

linux = pytest.mark.skipif(sys.platform != "linux", reason="epoll is Linux's")


class Together(JoinedProcessor):
    """Answers with the bodies of the requests, and notes the opaques of each run by connection. `breaks` is
    the opaque of a request that raises, `answer_bytes` the size of the answer to the opaque 99."""

    max_run = 16

    def __init__(self, breaks: int | None = None, answer_bytes: int = 0) -> None:
        self.runs: list[list[list[int]]] = []
        self._breaks, self._answer_bytes = breaks, answer_bytes

    def process_joined(self, requests: Sequence[Command], peers: Sequence[Peer]) -> Sequence[Outcome]:
        run: list[list[int]] = []
        for at, (request, peer) in enumerate(zip(requests, peers, strict=True)):
            if not at or peer is not peers[at - 1]:
                run.append([])
            run[-1].append(request.opaque)
        self.runs.append(run)
        if self._breaks in [request.opaque for request in requests]:
            raise RequestRefused(ResponseCode.NO_PERMISSION, "not you")
        return [
            answer(request, body=bytes(self._answer_bytes) if request.opaque == 99 else request.body)
            for request in requests
        ]


# --- over sockets -------------------------------------------------------------------------------------------


@asynccontextmanager
async def connected(there: Served, count: int, **how: Any) -> AsyncIterator[list[Client]]:
    """Clients that the server watches, each after an answer."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(there.client(**how)) for _ in range(count)]
        for client in clients:
            await client.ask(numbered(ECHO))
        yield clients


def send_at_once(there: Served, clients: Sequence[Client], *data: bytes) -> None:
    """Let the requests of all clients arrive between two passes of the loop."""
    for client, own in zip(clients, data, strict=True):
        assert os.write(client.stream.socket.fileno(), own) == len(own)
    poll = select.poll()
    for peer in there.server.peers:
        poll.register(peer._descriptor, select.POLLIN)
    while len(poll.poll(1_000 * PATIENCE_S)) < len(data):
        pass


def frames(*opaques: int) -> bytes:
    return b"".join(frame.encode(numbered(ECHO, opaque=each, body=b"%d" % each)) for each in opaques)


async def received(client: Client, count: int) -> list[tuple[int, bytes]]:
    """Opaques and bodies of the next answers."""
    return [(got.opaque, got.body) for got in [await client.receive() for _ in range(count)]]


@linux
async def test_requests_that_are_ready_together_are_one_run() -> None:
    """The run has the requests of each connection side by side; each connection gets its own answers, in
    order."""
    sent = [(11, 12), (21,), (31, 32, 33), (41,)]
    processor = Together()
    async with served({ECHO: processor}) as there, connected(there, len(sent)) as clients:
        processor.runs.clear()
        send_at_once(there, clients, *(frames(*own) for own in sent))
        for client, own in zip(clients, sent, strict=True):
            assert await received(client, len(own)) == [(each, b"%d" % each) for each in own]
    (run,) = processor.runs
    assert sorted(map(tuple, run)) == sent


@linux
async def test_one_connection_alone_is_served_at_once() -> None:
    """What arrives on one connection only is a run as it was."""
    processor = Together()
    async with served({ECHO: processor}) as there, connected(there, 2) as clients:
        processor.runs.clear()
        await clients[0].send(numbered(ECHO, opaque=1), numbered(ECHO, opaque=2))
        assert [got[0] for got in await received(clients[0], 2)] == [1, 2]
    assert [[each for part in run for each in part] for run in processor.runs] in ([[1, 2]], [[1], [2]])


@linux
async def test_requests_after_a_joined_one_keep_their_order() -> None:
    """Only the last requests that arrived on a connection wait for others: those before another processor's
    are processed before it."""
    order: list[int] = []

    class First(Together):
        def process_joined(self, requests: Sequence[Command], peers: Sequence[Peer]) -> Sequence[Outcome]:
            order.extend(request.opaque for request in requests)
            return super().process_joined(requests, peers)

    processors = {ECHO: First(), LATE: First()}
    async with served(processors) as there, connected(there, 2) as clients:
        order.clear()
        mixed = frames(1) + frame.encode(numbered(LATE, opaque=2)) + frames(3)
        send_at_once(there, clients, mixed, frames(4))
        assert [got[0] for got in await received(clients[0], 3)] == [1, 2, 3]
        assert [got[0] for got in await received(clients[1], 1)] == [4]
    assert [each for each in order if each != 4] == [1, 2, 3]


@linux
async def test_a_connection_that_does_not_read_holds_up_no_other() -> None:
    """Its large answer stays queued, the others get theirs in the meantime."""
    processor = Together(answer_bytes=8_000_000)
    async with (
        served({ECHO: processor}) as there,
        connected(there, 1, receive_buffer_bytes=4_096) as slow,
        connected(there, 3) as clients,
    ):
        send_at_once(there, [*slow, *clients], frames(99), frames(1), frames(2), frames(3))
        for at, client in enumerate(clients, 1):
            assert await received(client, 1) == [(at, b"%d" % at)]
        for client in clients:
            await client.ask(numbered(ECHO, opaque=5))
        ((opaque, body),) = await received(slow[0], 1)
        assert (opaque, len(body)) == (99, 8_000_000)


@linux
async def test_a_connection_that_breaks_the_protocol_costs_only_itself() -> None:
    """Its whole request is answered and it is closed; the others are answered and stay open."""
    processor = Together()
    async with served({ECHO: processor}) as there, connected(there, 3) as clients:
        send_at_once(there, clients, frames(1), frames(2) + b"\xff" * 16, frames(3))
        for opaque in (1, 2, 3):
            assert await received(clients[opaque - 1], 1) == [(opaque, b"%d" % opaque)]
        assert await clients[1].is_closed()
        for client in (clients[0], clients[2]):
            assert (await client.ask(numbered(ECHO, opaque=7))).opaque == 7


@linux
async def test_hooks_see_and_refuse_the_requests_of_each_connection() -> None:
    """A hook gets a run for each connection; what it refuses is not processed, the rest of the joined run
    is."""
    seen: list[str] = []
    processor = Together()
    hook = NoteRuns("hook", seen, refuses=[12, 31])
    async with served({ECHO: processor}, rpc_hooks=(hook,)) as there, connected(there, 3) as clients:
        seen.clear()
        processor.runs.clear()
        send_at_once(there, clients, frames(11, 12), frames(21), frames(31))
        codes = [
            [(await client.receive()).code for _ in range(count)]
            for client, count in zip(clients, (2, 1, 1), strict=True)
        ]
        assert codes == [[0, ResponseCode.NO_PERMISSION], [0], [ResponseCode.NO_PERMISSION]]
    (run,) = processor.runs
    assert sorted(run) == [[11], [21]]
    assert sorted(seen) == [
        "hook after [11, 12]: [0, 16]",
        "hook after [21]: [0]",
        "hook after [31]: [16]",
        "hook before [11, 12]",
        "hook before [21]",
        "hook before [31]",
    ]


@linux
async def test_the_end_of_a_turn_comes_after_all_its_sockets() -> None:
    """`at_end` calls back once, when every socket that was ready has been called back."""
    loop = socket_loop()
    assert loop is not None
    pairs = [socket.socketpair() for _ in range(3)]
    calls: list[str] = []

    def ready(at: int) -> Callable[[], None]:
        def call() -> None:
            calls.append(f"{at} {pairs[at][0].recv(1)!r}")
            if at == 0:
                loop.at_end(lambda: calls.append("end"))

        return call

    for at, (here, _) in enumerate(pairs):
        loop.watch(here.fileno(), ready(at))
    for _, there in pairs:
        there.send(b"x")
    with trio.fail_after(PATIENCE_S):
        while "end" not in calls:
            await trio.lowlevel.checkpoint()
    for here, there in pairs:
        loop.forget(here.fileno())
        here.close()
        there.close()
    assert calls[-1] == "end"
    assert sorted(calls[:-1]) == ["0 b'x'", "1 b'x'", "2 b'x'"]


# --- limits and errors --------------------------------------------------------------------------------------


@define
class Turn:
    """Collects what is called at the end of a turn."""

    ends: list[Callable[[], None]] = Factory(list)

    def at_end(self, then: Callable[[], None]) -> None:
        self.ends.append(then)

    def end(self) -> None:
        ends, self.ends = self.ends, []
        for then in ends:
            then()


class Connected(FramedAnswers, FakePeer):
    """A peer with the state of a connection; `sent` is what it has sent by `answered`."""

    def __init__(self) -> None:
        super().__init__()
        self.core = ConnectionCore("there", 0)
        self.sent: list[Command] = []

    def answered(self) -> None:
        self.sent += FrameDecoder().feed(b"".join(map(bytes, self.core.take_outgoing())))


def joined(route: Route, *parts: Sequence[Command]) -> list[list[tuple[int, int]]]:
    """Opaques and codes of the answers on each connection, after a turn with a part for each."""
    turn: Any = Turn()
    run, peers = JoinedRun(), [Connected() for _ in parts]
    for peer, requests in zip(peers, parts, strict=True):
        run.add(route, Part(peer, requests, requests, None), turn)
    turn.end()
    return [[(got.opaque, got.code) for got in peer.sent] for peer in peers]


def echoes(*opaques: int, body: bytes = b"x", oneway: bool = False) -> list[Command]:
    return [numbered(ECHO, opaque=each, body=body, oneway=oneway) for each in opaques]


def test_a_joined_run_has_no_more_requests_than_any_run() -> None:
    """What is more is another run; nothing is lost."""
    processor = Together()
    parts = [echoes(*range(4 * at, 4 * at + 4)) for at in range(5)]
    assert joined(Route.to(processor, NO_HOOKS), *parts) == [
        [(each.opaque, 0) for each in part] for part in parts
    ]
    assert [sum(map(len, run)) for run in processor.runs] == [16, 4]


def test_the_bodies_of_a_joined_run_are_bounded() -> None:
    """A run ends before its bodies exceed the limit; a part that exceeds it alone is a run."""
    processor = Together()
    half, more = bytes(MAX_JOINED_BYTES // 2), bytes(MAX_JOINED_BYTES + 1)
    parts = [echoes(1, body=half), echoes(2, body=half), echoes(3), echoes(4, body=more), echoes(5)]
    assert joined(Route.to(processor, NO_HOOKS), *parts) == [[(at, 0)] for at in range(1, 6)]
    assert processor.runs == [[[1], [2]], [[3]], [[4]], [[5]]]


def test_one_way_requests_are_runs_of_their_own() -> None:
    """They are processed and not answered."""
    processor = Together()
    parts = [echoes(1), echoes(2, oneway=True), echoes(3, oneway=True), echoes(4)]
    assert joined(Route.to(processor, NO_HOOKS), *parts) == [[(1, 0)], [], [], [(4, 0)]]
    assert processor.runs == [[[1]], [[2], [3]], [[4]]]


def test_an_exception_of_the_processor_answers_every_request() -> None:
    """Each connection gets an error for each of its requests, and the next turn is served."""
    processor = Together(breaks=2)
    route = Route.to(processor, NO_HOOKS)
    refused = ResponseCode.NO_PERMISSION
    assert joined(route, echoes(1), echoes(2, 3)) == [[(1, refused)], [(2, refused), (3, refused)]]
    assert joined(route, echoes(4), echoes(5)) == [[(4, 0)], [(5, 0)]]


def test_outcomes_of_another_number_are_errors() -> None:
    """Answers are never given to the wrong connection."""

    class Short(Together):
        def process_joined(self, requests: Sequence[Command], peers: Sequence[Peer]) -> Sequence[Outcome]:
            return super().process_joined(requests, peers)[1:]

    failed = ResponseCode.SYSTEM_ERROR
    assert joined(Route.to(Short(), NO_HOOKS), echoes(1), echoes(2)) == [[(1, failed)], [(2, failed)]]


def test_a_long_run_is_not_joined() -> None:
    """Only runs of at most a quarter of the greatest length are; other processors' runs never are."""
    assert Route.to(Together(), NO_HOOKS).max_part == 4
    assert Route.to(Handler(echo), NO_HOOKS).max_part == 0
