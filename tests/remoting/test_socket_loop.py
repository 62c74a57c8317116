"""Sockets served between two passes of trio's loop. The clients are in threads, so that no task of theirs
keeps the loop awake."""

from __future__ import annotations

import socket
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
import trio
import trio.testing

from rmqkit.plugin.request import Outcome, Peer
from rmqkit.protocol import frame
from rmqkit.protocol.command import Command, answer
from rmqkit.remoting import peer as peer_module
from rmqkit.remoting import socket_loop
from tests.remoting.parts import ECHO, LATE, PUSH, Gate, echo, numbered, until
from tests.remoting.wire import PATIENCE_S, Handler, Served, served

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="epoll is Linux's")


class Steps(trio.abc.Instrument):
    """Counts the steps of tasks by their names."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.of[task.name.rpartition(".")[2]] += 1


def ask(sock: socket.socket, *commands: Command) -> list[Command]:
    """Send and wait for as many answers, in a thread."""
    decoder = frame.FrameDecoder()
    found: list[Command] = []
    sock.sendall(b"".join(map(frame.encode, commands)))
    while len(found) < len(commands):
        data = sock.recv(65_536)
        if not data:
            raise EOFError
        found += decoder.feed(data)
    return found


async def in_thread(there: Served, use: Callable[[socket.socket], None]) -> None:
    """Give a connected, blocking socket to a function in a thread."""

    def run() -> None:
        with socket.create_connection((there.address.host, there.address.port), PATIENCE_S) as sock:
            use(sock)

    await trio.to_thread.run_sync(run)


def test_trio_is_as_the_loop_expects() -> None:
    """The running trio has what is used of it beyond its public interface; outside of it there is no loop."""

    async def inside() -> None:
        assert socket_loop.trio_events() is not None
        assert socket_loop.socket_loop() is socket_loop.socket_loop() is not None

    trio.run(inside)
    assert socket_loop.trio_events() is None


async def test_requests_one_at_a_time_take_no_step_of_a_task() -> None:
    """However many requests follow each other on one connection, its task runs only at its begin and end."""

    async def steps(count: int) -> int:
        seen = Steps()
        trio.lowlevel.add_instrument(seen)

        def use(sock: socket.socket) -> None:
            for opaque in range(count):
                (got,) = ask(sock, numbered(ECHO, opaque=opaque))
                assert got.opaque == opaque

        async with served({ECHO: Handler(echo)}) as there:
            await in_thread(there, use)
        trio.lowlevel.remove_instrument(seen)
        return seen.of["_connection"]

    assert await steps(500) < await steps(1) + 10


async def test_what_a_request_starts_runs_at_once() -> None:
    """A task started by a request, and a task woken by one, run although no further event comes."""
    gate = Gate()

    def open_gate(request: Command, peer: Peer) -> Outcome:
        gate.event.set()
        return answer(request)

    def use(sock: socket.socket) -> None:
        assert {got.opaque for got in ask(sock, numbered(LATE, opaque=1), numbered(PUSH, opaque=2))} == {1, 2}

    async with served({LATE: Handler(gate), PUSH: Handler(open_gate)}) as there:
        await in_thread(there, use)


async def test_tasks_and_threads_go_on_while_sockets_are_busy() -> None:
    """Deadlines are kept, and calls from threads run, while a client sends one request after another."""
    done = False

    def use(sock: socket.socket) -> None:
        while not done:
            ask(sock, numbered(ECHO))

    async with served({ECHO: Handler(echo)}) as there, trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(in_thread, there, use)
        for _ in range(20):
            await trio.sleep(0.001)
            await trio.to_thread.run_sync(lambda: trio.from_thread.run_sync(trio.current_time))
        done = True


async def test_a_deadline_is_kept_while_connections_are_idle() -> None:
    """The wait in trio's place ends with the next deadline."""
    async with served({ECHO: Handler(echo)}) as there, there.client() as client:
        await client.ask(numbered(ECHO))
        with trio.move_on_after(0.01) as scope:
            await client.receive()
        assert scope.cancelled_caught


async def test_idle_connections_count_as_idle() -> None:
    """wait_all_tasks_blocked returns while connections are open, with and without a request before it."""
    async with served({ECHO: Handler(echo)}) as there, there.client() as client:
        with trio.fail_after(PATIENCE_S):
            await trio.testing.wait_all_tasks_blocked(0.01)
            await client.ask(numbered(ECHO))
            await trio.testing.wait_all_tasks_blocked()


def test_a_clock_of_tests_jumps_while_connections_are_open() -> None:
    """With autojump, hours pass at once, and requests are answered before and after."""

    async def inside() -> None:
        async with served({ECHO: Handler(echo)}) as there, there.client() as client:
            sent = numbered(ECHO)
            await client.ask(sent)
            await trio.sleep(50)
            await client.ask(sent)

    trio.run(inside, clock=trio.testing.MockClock(autojump_threshold=0.01))


async def test_many_connections_are_served_in_one_pass() -> None:
    """Requests that are ready together are all answered, more than one pass takes as well."""
    count = 3 * 64

    async with served({ECHO: Handler(echo)}) as there:

        def run() -> None:
            place = there.address.host, there.address.port
            socks = [socket.create_connection(place, PATIENCE_S) for _ in range(count)]
            for _ in range(3):
                for sock in socks:
                    sock.sendall(frame.encode(numbered(ECHO)))
                for sock in socks:
                    assert sock.recv(65_536)
            for sock in socks:
                sock.close()

        await trio.to_thread.run_sync(run)
        await until(lambda: not there.server.peers)


async def test_without_the_loop_connections_read_in_their_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where trio's epoll cannot be used, requests are answered all the same."""
    monkeypatch.setattr(peer_module, "socket_loop", lambda: None)

    def use(sock: socket.socket) -> None:
        for opaque in range(10):
            assert ask(sock, numbered(ECHO, opaque=opaque))[0].opaque == opaque

    async with served({ECHO: Handler(echo)}) as there:
        await in_thread(there, use)


def test_a_guest_of_another_loop_has_no_socket_loop() -> None:
    """A trio that runs inside another loop must not wait by itself."""
    todo: list[Callable[[], object]] = []
    found: list[object] = []

    async def inside() -> None:
        found.append(socket_loop.trio_events())

    done: list[object] = []
    trio.lowlevel.start_guest_run(
        inside,
        run_sync_soon_threadsafe=todo.append,
        done_callback=done.append,
        host_uses_signal_set_wakeup_fd=False,
    )
    while not done:
        while todo:
            todo.pop(0)()
    assert found == [None]


async def test_a_watch_ends() -> None:
    """A forgotten descriptor is not called back; forgetting it twice does nothing."""
    loop = socket_loop.socket_loop()
    assert loop is not None
    here, there = socket.socketpair()
    with here, there:
        calls: list[int] = []

        def ready() -> None:
            calls.append(here.recv(1)[0])
            if calls[-1] == 2:
                loop.forget(here.fileno())

        loop.watch(here.fileno(), ready)
        there.send(b"\x01\x02\x03")
        with trio.fail_after(PATIENCE_S):
            while len(calls) < 2:
                await trio.lowlevel.checkpoint()
        loop.forget(here.fileno())
        for _ in range(5):
            await trio.lowlevel.checkpoint()
        assert calls == [1, 2]


async def test_sockets_whose_peers_have_ended_are_served_after_the_others() -> None:
    """When many peers end at once, a few of them are served in each turn, and one that still talks is served
    in the first; what those that ended had sent before is read, to the last byte."""
    loop = socket_loop.socket_loop()
    assert loop is not None
    served_in_order: list[str] = []
    pairs = [socket.socketpair() for _ in range(60)]
    talker, other = socket.socketpair()
    got: list[bytes] = []

    def ended(number: int) -> None:
        data = pairs[number][0].recv(2)
        got.append(data)
        if not data:
            served_in_order.append(f"{number}")
            loop.forget(pairs[number][0].fileno())

    def talked() -> None:
        served_in_order.append(talker.recv(10).decode())

    try:
        for number, (here, there) in enumerate(pairs):
            there.send(b"abc")
            there.close()
            loop.watch(here.fileno(), partial(ended, number))
        loop.watch(talker.fileno(), talked)
        other.send(b"talks")
        await until(lambda: len(served_in_order) == 61)
        assert served_in_order[0] == "talks"
        assert sorted(served_in_order[1:], key=int) == [f"{number}" for number in range(60)]
        assert got.count(b"ab") == got.count(b"c") == got.count(b"") == 60
    finally:
        loop.forget(talker.fileno())
        for sock in (talker, other, *(here for here, _ in pairs)):
            sock.close()
