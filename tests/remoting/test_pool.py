"""Connections by address: single flight, reconnect, GO_AWAY, time-outs."""

from __future__ import annotations

import anyio
import pytest

from rmqkit.errors import ClientError, ConnectFailed, ConnectionLost, RequestTimeout
from rmqkit.plugin.transport import Address
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command, answer, request
from rmqkit.protocol.frame import encode
from rmqkit.remoting.pool import ConnectionPool, parse_address
from rmqkit.toolkit.connect import connect_tcp
from tests.client.fakes import FakeServer, Network, on_both_backends, run, settled

A = "10.0.0.1:10911"


@pytest.mark.row("S326")
@on_both_backends
def test_many_first_calls_share_one_connect(backend: str) -> None:
    """Fifty tasks that call at once share a single connect and one connection."""

    async def body() -> None:
        async with Network() as network, ConnectionPool(connect=network.connect) as pool:
            server = network.add(A, answer)
            async with anyio.create_task_group() as group:
                for _ in range(50):
                    group.start_soon(pool.call, A, request(10), 1000)
            assert network.connects == [A]
            assert len(server.requests) == 50
            assert pool.addresses() == [A]

    run(backend, body)


@pytest.mark.row("S326")
@on_both_backends
def test_a_dead_connection_is_replaced_by_the_next_call(backend: str) -> None:
    """Pending calls fail; the pool resends nothing by itself."""

    async def body() -> None:
        async with Network() as network, ConnectionPool(connect=network.connect) as pool:
            server = network.add(A, lambda command: None if command.code == 11 else answer(command))

            async def lose() -> None:
                with pytest.raises(ConnectionLost, match=A):
                    await pool.call(A, request(11), 60_000)

            async with anyio.create_task_group() as group:
                group.start_soon(lose)
                await settled()
                await server.hang_up()
            assert pool.addresses() == []
            assert (await pool.call(A, request(10), 1000)).code == 0
            assert network.connects == [A, A]
            assert len(server.seen(11)) == 1

    run(backend, body)


@on_both_backends
def test_an_unreachable_address_says_why_to_everyone(backend: str) -> None:
    """Each caller gets a ConnectFailed of its own with address and reason; the next call tries again."""

    async def body() -> None:
        async with Network() as network, ConnectionPool(connect=network.connect) as pool:
            errors: list[ConnectFailed] = []

            async def fail() -> None:
                try:
                    await pool.call(A, request(10), 1000)
                except ConnectFailed as error:
                    errors.append(error)

            async with anyio.create_task_group() as group:
                group.start_soon(fail)
                group.start_soon(fail)
            assert [str(error) for error in errors] == [f"cannot connect to {A}: connection refused"] * 2
            assert errors[0] is not errors[1]
            network.add(A, answer)
            await pool.call(A, request(10), 1000)
            assert network.connects == [A, A]

    run(backend, body)


@on_both_backends
def test_a_connect_that_takes_too_long_fails(backend: str) -> None:
    """A call whose connect takes longer than the connect time-out raises ConnectFailed."""

    async def body() -> None:
        async with (
            Network() as network,
            ConnectionPool(connect=network.connect, connect_timeout_ms=40) as pool,
        ):
            network.add(A, answer)
            network.gate = anyio.Event()
            with pytest.raises(ConnectFailed, match="no connection within 40 ms"):
                await pool.call(A, request(10), 60_000)

    run(backend, body)


@on_both_backends
def test_a_connect_outlives_the_call_that_began_it(backend: str) -> None:
    """A call whose time-out is shorter than the connect raises RequestTimeout; the next call uses that
    connect."""

    async def body() -> None:
        async with (
            Network() as network,
            ConnectionPool(connect=network.connect, connect_timeout_ms=60_000) as pool,
        ):
            network.add(A, answer)
            network.gate = anyio.Event()
            with pytest.raises(RequestTimeout):
                await pool.call(A, request(10), 10)
            network.gate.set()
            assert (await pool.call(A, request(10), 60_000)).code == 0
            assert network.connects == [A]

    run(backend, body)


@on_both_backends
def test_go_away_reconnects_once_and_resends(backend: str) -> None:
    """After the first GO_AWAY the request is sent again over a new connection; a second GO_AWAY is returned
    to the caller (wire-protocol sheet, section 9). Other calls on the old connection finish."""

    async def body() -> None:
        async with Network() as network, ConnectionPool(connect=network.connect) as pool:
            release = anyio.Event()

            async def script(command: Command) -> Command:
                if command.code == 11:
                    await release.wait()
                    return answer(command)
                return answer(command, ResponseCode.GO_AWAY if len(server.seen(10)) in (1, 3, 4) else 0)

            server = network.add(A, script)
            async with anyio.create_task_group() as group:
                group.start_soon(pool.call, A, request(11), 60_000)
                await settled()
                assert (await pool.call(A, request(10), 1000)).code == 0
                assert network.connects == [A, A]
                release.set()
            assert (await pool.call(A, request(10), 1000)).code == ResponseCode.GO_AWAY
            assert len(server.seen(10)) == 4

    run(backend, body)


def test_a_resend_after_go_away_has_the_rest_of_the_time_out() -> None:
    """A slow GO_AWAY and a connection that does not answer end within the one time-out of the call."""

    async def body() -> None:
        async with Network() as network, ConnectionPool(connect=network.connect) as pool:

            async def script(command: Command) -> Command | None:
                if len(server.seen(10)) > 1:
                    return None
                await anyio.sleep(0.75)
                return answer(command, ResponseCode.GO_AWAY)

            server = network.add(A, script)
            began_s = anyio.current_time()
            with pytest.raises(RequestTimeout):
                await pool.call(A, request(10), 1000)
            assert anyio.current_time() - began_s == pytest.approx(1.0, abs=0.01)
            assert len(server.seen(10)) == 2

    run("trio", body)


def test_a_silent_connection_is_dropped_after_a_long_time_out() -> None:
    """A peer that sends nothing for a whole time-out may be half open: the next call makes a new connection.
    A peer that sends data keeps its connection."""

    async def body() -> None:
        async with Network() as network, ConnectionPool(connect=network.connect) as pool:
            network.add(A, lambda command: None if command.code == 11 else answer(command))
            with pytest.raises(RequestTimeout):
                await pool.call(A, request(11), 3000)
            assert pool.addresses() == []

            async def stalled() -> None:
                with pytest.raises(RequestTimeout):
                    await pool.call(A, request(11), 3000)

            async with anyio.create_task_group() as group:
                group.start_soon(stalled)
                await settled()
                await anyio.sleep(1)
                await pool.call(A, request(10), 1000)
            assert pool.addresses() == [A]
            assert network.connects == [A, A]

    run("trio", body)


@on_both_backends
def test_oneway_requests_leave_before_the_pool_closes(backend: str) -> None:
    """One-way requests handed over just before the pool closes are still sent."""

    async def body() -> None:
        async with Network() as network:
            server = network.add(A, lambda command: None)
            async with ConnectionPool(connect=network.connect) as pool:
                for _ in range(10):
                    await pool.oneway(A, request(35), 1000)
            await settled()
            assert [command.is_oneway for command in server.requests] == [True] * 10

    run(backend, body)


@on_both_backends
def test_close_drops_one_address(backend: str) -> None:
    """`close` ends one connection; unknown addresses are ignored."""

    async def body() -> None:
        async with Network() as network, ConnectionPool(connect=network.connect) as pool:
            network.add(A, answer)
            await pool.ensure(A)
            pool.close(A)
            pool.close("nobody:1")
            await settled()
            assert pool.addresses() == []
            await pool.ensure(A)
            assert network.connects == [A, A]

    run(backend, body)


@on_both_backends
def test_an_error_of_the_body_is_not_wrapped(backend: str) -> None:
    """An error in the body of the block is raised as it is, so that `except NoSuch` around the block works;
    it is not put into an exception group."""

    async def body() -> None:
        async with Network() as network:
            network.add(A, answer)

            async def stumble() -> None:
                async with ConnectionPool(connect=network.connect) as pool:
                    await pool.call(A, request(10), 1000)
                    raise LookupError("mine")

            with pytest.raises(LookupError, match="mine"):
                await stumble()
            with anyio.CancelScope() as scope:
                async with ConnectionPool(connect=network.connect) as pool:
                    await pool.call(A, request(10), 1000)
                    scope.cancel()
                    await anyio.lowlevel.checkpoint()
            assert scope.cancelled_caught

    run(backend, body)


@on_both_backends
def test_a_pool_that_is_not_open_says_so(backend: str) -> None:
    """Use outside of the block raises an error with a clear text instead of waiting for ever."""

    async def body() -> None:
        pool = ConnectionPool()
        with pytest.raises(ConnectFailed, match="not open"):
            await pool.call(A, request(10), 1000)
        async with pool:
            with pytest.raises(ClientError, match="open already"):
                await pool.__aenter__()

    run(backend, body)


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":1", "host:x", "host:0", "host:65536", "host:-1", "host:１"]
)
def test_a_malformed_address_is_no_traceback(text: str) -> None:
    """The error quotes the address and the form it should have."""
    with pytest.raises(ConnectFailed, match=r"(?i)host:port"):
        parse_address(text)


def test_addresses() -> None:
    """Names, IPv4, bracketed IPv6 and addresses with other schemes are parsed."""
    assert parse_address("broker-a:10911") == Address("tcp", "broker-a", 10911)
    assert parse_address("[::1]:9876") == Address("tcp", "::1", 9876)
    assert parse_address("unix:///run/s") == Address("unix", name="/run/s")


@pytest.mark.row("S305")
@on_both_backends
def test_tcp(backend: str) -> None:
    """Calls work over a real loopback socket; requests of the server are answered and name the address they
    came from."""

    async def body() -> None:
        asked: list[tuple[int, str]] = []

        def serve(command: Command, address: str) -> Command:
            asked.append((command.code, address))
            return answer(command, body=b"here")

        server = FakeServer(
            lambda command: answer(command, body=command.body) if not command.is_response else None
        )
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        async with anyio.create_task_group() as group:
            group.start_soon(listener.serve, server.serve)
            address = f"127.0.0.1:{port}"
            async with ConnectionPool(on_request=serve) as pool:
                assert (
                    await pool.call(address, request(10, body=b"x" * 1_000_000), 5000)
                ).body == b"x" * 1_000_000
                await server.streams[0].send(encode(request(40, oneway=True)))
                await pool.call(address, request(10), 5000)
                assert asked == [(40, address)]
            group.cancel_scope.cancel()
        await listener.aclose()
        with pytest.raises(OSError, match=r".+"):
            await connect_tcp(Address("tcp", "127.0.0.1", port), 1000)

    run(backend, body)
