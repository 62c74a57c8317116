"""Accepting connections, their limits, draining and the end, over real sockets."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
import trio
import trio.testing

from rmqkit.plugin.address import Address
from rmqkit.plugin.request import Outcome, Peer
from rmqkit.protocol.command import Command, answer
from rmqkit.remoting import server
from rmqkit.remoting.request_loop import Router
from rmqkit_transport_memory.memory import MemoryTransport
from tests.remoting.parts import BIG, ECHO, LATE, Gate, drained, echo, numbered, until, warnings
from tests.remoting.wire import PATIENCE_S, Handler, served


async def test_an_idle_connection_is_closed(mock_clock: trio.testing.MockClock) -> None:
    """A connection is closed after 120 s without a byte in either direction, at the next check, which runs
    every 10 s; one with traffic stays open."""
    async with served({ECHO: Handler(echo)}) as there, there.client() as idle, there.client() as busy:
        await idle.ask(numbered(ECHO))
        await busy.ask(numbered(ECHO))
        for _ in range(12):
            mock_clock.jump(10)
            await trio.testing.wait_all_tasks_blocked()
            assert (await busy.ask(numbered(ECHO))).code == 0
        assert len(there.server.peers) == 2
        mock_clock.jump(10)
        assert await idle.is_closed()
        assert (await busy.ask(numbered(ECHO))).code == 0
        assert len(there.closed) == 1


async def test_a_connection_too_many_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is closed at once with a log line; existing connections are served, and a freed place can be taken
    again."""
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 1)
    async with served({ECHO: Handler(echo)}) as there:
        async with there.client() as client:
            assert (await client.ask(numbered(ECHO))).code == 0
            async with there.client() as refused:
                assert await refused.is_closed()
            assert (await client.ask(numbered(ECHO))).code == 0
            assert len(there.server.peers) == 1
        await until(lambda: not there.server.peers)
        async with there.client() as client:
            assert (await client.ask(numbered(ECHO))).code == 0
    assert len(warnings(caplog)) == 1


async def test_connections_leave_descriptors_to_the_store(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With few descriptors left, new connections are closed at once, with one log line; existing ones are
    served."""
    left = True
    monkeypatch.setattr(server, "left_for_connections", lambda: left)
    async with served({ECHO: Handler(echo)}) as there, there.client() as client:
        assert (await client.ask(numbered(ECHO))).code == 0
        left = False
        for _ in range(3):
            async with there.client() as refused:
                assert await refused.is_closed()
        assert (await client.ask(numbered(ECHO))).code == 0
        left = True
        async with there.client() as accepted:
            assert (await accepted.ask(numbered(ECHO))).code == 0
    assert [text for text in warnings(caplog) if "file descriptors" in text] == warnings(caplog)
    assert len(warnings(caplog)) == 1


async def test_draining_finishes_what_is_in_flight_and_takes_no_more() -> None:
    """While it drains the server accepts no connection and no request; the deferred answer is still sent;
    then the connections are closed and the server ends."""
    gate = Gate()
    async with (
        served({LATE: Handler(gate), ECHO: Handler(echo)}) as there,
        there.client() as client,
        there.client() as idle,
    ):
        await idle.ask(numbered(ECHO))
        await client.send(numbered(LATE, opaque=1))
        await until(lambda: gate.waiting == 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drained, there)
            assert await idle.is_closed()
            with pytest.raises(OSError, match="connect"):
                async with there.client():
                    pass
            await client.send(numbered(ECHO, opaque=2))
            await trio.testing.wait_all_tasks_blocked()
            gate.event.set()
            assert (await client.receive()).opaque == 1
            assert await client.is_closed()
        assert len(there.closed) == 2


async def test_draining_cuts_no_answer_in_half() -> None:
    """A slow reader gets all answers whole that are being written when the server drains."""
    size, count = 500_000, 40

    def big(request: Command, peer: Peer) -> Outcome:
        return answer(request, body=bytes(size))

    async with (
        served({BIG: Handler(big), ECHO: Handler(echo)}) as there,
        there.client(receive_buffer_bytes=65_536) as client,
    ):
        await client.send(*(numbered(BIG, opaque=opaque) for opaque in range(count)))
        (await until(lambda: bool(there.server.peers)))
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drained, there)
            await trio.testing.wait_all_tasks_blocked()
            for opaque in range(count):
                got = await client.receive()
                assert (got.opaque, len(got.body)) == (opaque, size)
            assert await client.is_closed()


async def test_draining_drops_the_answers_of_peers_that_do_not_read(
    mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A slow reader gets all its answers, however long the others take; a peer that reads nothing is cut off
    after about a second, long before the time limit."""

    def big(request: Command, peer: Peer) -> Outcome:
        return answer(request, body=bytes(500_000))

    async with (
        served({BIG: Handler(big)}) as there,
        there.client(receive_buffer_bytes=65_536) as reader,
        there.client(receive_buffer_bytes=65_536) as silent,
    ):
        for client in (reader, silent):
            await client.send(*(numbered(BIG, opaque=opaque) for opaque in range(40)))
        await until(lambda: len(there.server.peers) == 2)
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drained, there)
            await trio.testing.wait_all_tasks_blocked()
            for opaque in range(40):
                if opaque % 10 == 0:
                    mock_clock.jump(0.25)
                    await trio.testing.wait_all_tasks_blocked()
                assert (await reader.receive()).opaque == opaque
            assert await reader.is_closed()
            began_s = trio.current_time()
            while not there.ended.is_set():
                mock_clock.jump(0.25)
                await trio.testing.wait_all_tasks_blocked()
            assert trio.current_time() - began_s <= 3
        assert "does not read its answers" in warnings(caplog)[-1]
        assert len(there.closed) == 2


async def test_draining_has_a_time_limit() -> None:
    """Requests that are unfinished at the time limit are cut off."""
    gate = Gate()
    async with served({LATE: Handler(gate)}) as there, there.client() as client:
        await client.send(numbered(LATE))
        await until(lambda: gate.waiting == 1)
        await drained(there, 1)
        assert await client.is_closed()
        assert gate.cancelled == 1


async def test_draining_an_idle_server_ends_it() -> None:
    """Without connections draining ends at once."""
    async with served({}) as there:
        await drained(there)


async def test_cancelling_cuts_the_connections() -> None:
    """A cancelled server waits for nothing and leaves no connection open."""
    gate = Gate()
    async with served({LATE: Handler(gate)}) as there, there.client() as client:
        await client.send(numbered(LATE))
        await until(lambda: gate.waiting == 1)
        there.scope.cancel()
        with trio.fail_after(PATIENCE_S):
            await there.ended.wait()
        assert await client.is_closed()
        assert gate.cancelled == 1
        assert len(there.closed) == 1


@pytest.mark.parametrize("rude", [False, True])
async def test_connections_that_end_at_once_are_taken_down_a_few_in_a_turn(rude: bool) -> None:
    """Whether connections are closed or reset, only a few are taken down between two steps of another
    task."""
    most = 0
    async with served({ECHO: Handler(echo)}) as at, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(at.client()) for _ in range(200)]
        for client in clients:
            await client.ask(numbered(ECHO))
        for client in clients:
            if rude:
                client.reset()
            else:
                client.stream.socket.close()
        with trio.fail_after(PATIENCE_S):
            while len(at.closed) < 200:
                before = len(at.closed)
                await trio.lowlevel.checkpoint()
                most = max(most, len(at.closed) - before)
    assert 0 < most <= 40


async def test_a_server_that_has_ended_follows_its_router_no_longer() -> None:
    """Servers that a service opens again and again for the same processors leave nothing behind."""
    router, transport, where = Router({}), MemoryTransport(), Address.parse("memory://followed")
    for _ in range(3):
        made = server.RequestServer(router, name="test")
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(made.serve, await transport.listen(where))
                assert len(router.on_change) == 1
                scope.cancel()
    assert router.on_change == []
