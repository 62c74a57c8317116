"""Lanes of a connection: which requests share one, when they are opened, and how they end together."""

from __future__ import annotations

import anyio
import pytest
from anyio.abc import ByteStream, TaskGroup
from attrs import define, field

from rmqkit.errors import ConnectionLost, RequestTimeout
from rmqkit.plugin.transport import Address, LanedStream
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer, request
from rmqkit.protocol.frame import encode
from rmqkit.remoting.lanes import LANE_OF_CODE, MESSAGES, SENDS
from rmqkit.remoting.pool import ConnectionPool
from tests.client.fakes import FakeServer, Script, on_both_backends, pipe, run, settled

A = "10.0.0.1:10911"
HEARTBEAT, SEND, PULL = RequestCode.HEART_BEAT, RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE


@define
class Laned(LanedStream):
    """A lane in memory; further lanes lead to the same server, each over a connection of its own."""

    stream: ByteStream
    network: LanedNetwork

    async def receive(self, max_bytes: int = 65536) -> bytes:
        return await self.stream.receive(max_bytes)

    async def send(self, item: bytes) -> None:
        await self.stream.send(item)

    async def send_eof(self) -> None:
        await self.stream.send_eof()

    async def aclose(self) -> None:
        await self.stream.aclose()

    async def open_lane(self) -> LanedStream:
        await anyio.lowlevel.checkpoint()
        if self.network.broken:
            raise anyio.BrokenResourceError("the connection is gone")
        return self.network.lane()


@define
class LanedNetwork:
    """A server whose every lane has a number: 0, 1, ... over all connections."""

    group: TaskGroup
    script: Script
    servers: list[FakeServer] = field(factory=list)
    connects: int = 0
    broken: bool = False

    async def connect(self, where: Address, timeout_ms: int) -> ByteStream:
        self.connects += 1
        return self.lane()

    def lane(self) -> Laned:
        near, far = pipe()
        self.servers.append(FakeServer(self.script))
        self.group.start_soon(self.servers[-1].serve, far)
        return Laned(near, self)

    @property
    def codes(self) -> list[list[int]]:
        """What came over each lane."""
        return [[each.code for each in server.requests] for server in self.servers]


def test_every_request_has_its_lane() -> None:
    """Sends of messages and requests answered with messages have one lane each; small requests that must not
    wait use the first lane."""
    assert {code for code, lane in LANE_OF_CODE.items() if lane == SENDS} == {10, 310, 320, 324, 325, 36}
    assert {code for code, lane in LANE_OF_CODE.items() if lane == MESSAGES} == {
        11,
        361,
        200050,
        200052,
        200070,
        12,
        33,
    }
    small = {
        RequestCode.HEART_BEAT,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.END_TRANSACTION,
    }
    assert not small & LANE_OF_CODE.keys()


@on_both_backends
def test_lanes_are_opened_when_first_needed(backend: str) -> None:
    """All lanes belong to one connection; all sends use one lane in order, including one-way sends and
    concurrent sends."""

    async def body() -> None:
        async with anyio.create_task_group() as group:
            network = LanedNetwork(group, answer)
            async with ConnectionPool(connect=network.connect) as pool:
                await pool.call(A, request(HEARTBEAT), 1000)
                assert network.codes == [[HEARTBEAT]]
                async with anyio.create_task_group() as calls:
                    for _ in range(20):
                        calls.start_soon(pool.call, A, request(SEND), 1000)
                await pool.oneway(A, request(SEND), 1000)
                await pool.call(A, request(PULL), 1000)
                await pool.call(A, request(SEND), 1000)
                assert network.codes == [[HEARTBEAT], [SEND] * 22, [PULL]]
                assert network.connects == 1
                assert pool.addresses() == [A]
            group.cancel_scope.cancel()

    run(backend, body)


@on_both_backends
def test_servers_may_ask_on_every_lane(backend: str) -> None:
    """A request of the server is answered on the lane it came by."""

    async def body() -> None:
        async with anyio.create_task_group() as group:
            network = LanedNetwork(group, answer)

            def on_request(command: Command, address: str) -> Command:
                return answer(command, body=address.encode())

            async with ConnectionPool(connect=network.connect, on_request=on_request) as pool:
                await pool.call(A, request(PULL), 1000)
                (stream,) = network.servers[1].streams
                await stream.send(encode(request(40)))
                await network.servers[1].await_requests(2)
                assert network.servers[1].requests[1].body == A.encode()
            group.cancel_scope.cancel()

    run(backend, body)


@on_both_backends
def test_a_lane_that_the_server_closed_is_opened_anew(backend: str) -> None:
    """The lane is opened again over the same connection, because servers close idle lanes. Calls that waited
    on it fail; the other lanes are not affected."""

    async def body() -> None:
        async with anyio.create_task_group() as group:
            network = LanedNetwork(group, lambda command: None if command.code == PULL else answer(command))
            async with ConnectionPool(connect=network.connect) as pool:

                async def lose() -> None:
                    with pytest.raises(ConnectionLost, match=A):
                        await pool.call(A, request(PULL), 60_000)

                await pool.call(A, request(SEND), 1000)
                async with anyio.create_task_group() as calls:
                    calls.start_soon(lose)
                    await settled()
                    await network.servers[2].hang_up()
                await network.servers[1].hang_up()
                await settled()
                await pool.call(A, request(SEND), 1000)
                assert network.codes == [[], [SEND], [PULL], [SEND]]
                assert network.connects == 1
            group.cancel_scope.cancel()

    run(backend, body)


@on_both_backends
def test_when_the_first_lane_ends_the_others_answer_what_they_owe(backend: str) -> None:
    """The next request makes a new connection; calls on the old lanes are still answered, and then the old
    lanes are closed."""

    async def body() -> None:
        async with anyio.create_task_group() as group:
            slow = anyio.Event()

            async def script(command: Command) -> Command:
                if command.code == PULL:
                    await slow.wait()
                return answer(command)

            network = LanedNetwork(group, script)
            async with ConnectionPool(connect=network.connect) as pool:
                codes: list[int] = []

                async def pull() -> None:
                    codes.append((await pool.call(A, request(PULL), 60_000)).code)

                async with anyio.create_task_group() as calls:
                    calls.start_soon(pull)
                    await settled()
                    await network.servers[0].hang_up()
                    await settled()
                    await pool.call(A, request(SEND), 1000)
                    assert network.connects == 2
                    slow.set()
                assert codes == [ResponseCode.SUCCESS]
                await settled()
                assert [len(server.streams) for server in network.servers] == [0, 1, 1, 1]
                with pytest.raises((anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError)):
                    await network.servers[1].streams[0].receive()
            group.cancel_scope.cancel()

    run(backend, body)


@on_both_backends
def test_a_pool_that_closes_an_address_closes_all_lanes(backend: str) -> None:
    """All calls that wait on any lane of the address fail."""

    async def body() -> None:
        async with anyio.create_task_group() as group:
            network = LanedNetwork(group, lambda command: None)
            async with ConnectionPool(connect=network.connect) as pool:

                async def lose(code: int) -> None:
                    with pytest.raises(ConnectionLost, match=A):
                        await pool.call(A, request(code), 60_000)

                async with anyio.create_task_group() as calls:
                    for code in (HEARTBEAT, SEND, PULL):
                        calls.start_soon(lose, code)
                    await settled()
                    pool.close(A)
                assert pool.addresses() == []
            group.cancel_scope.cancel()

    run(backend, body)


@on_both_backends
def test_a_server_that_goes_away_is_left_on_all_lanes(backend: str) -> None:
    """After GO_AWAY on one lane, that request and all later ones use a new connection."""

    async def body() -> None:
        async with anyio.create_task_group() as group:
            left: list[int] = []

            def script(command: Command) -> Command:
                if command.code == SEND and not left:
                    left.append(command.opaque)
                    return answer(command, ResponseCode.GO_AWAY)
                return answer(command)

            network = LanedNetwork(group, script)
            async with ConnectionPool(connect=network.connect) as pool:
                await pool.call(A, request(HEARTBEAT), 1000)
                await pool.call(A, request(PULL), 1000)
                assert (await pool.call(A, request(SEND), 1000)).code == ResponseCode.SUCCESS
                await pool.call(A, request(HEARTBEAT), 1000)
                await settled()
                assert network.connects == 2
                assert network.codes == [[HEARTBEAT], [PULL], [SEND], [HEARTBEAT], [SEND]]
                for server in network.servers[:3]:
                    with pytest.raises(
                        (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError)
                    ):
                        await server.streams[0].receive()
            group.cancel_scope.cancel()

    run(backend, body)


def test_silence_is_suspicious_when_no_lane_hears_anything() -> None:
    """A call that times out while another lane receives data closes nothing; when all lanes are silent the
    connection is closed."""

    async def body() -> None:
        async with anyio.create_task_group() as group:
            network = LanedNetwork(
                group, lambda command: answer(command) if command.code == HEARTBEAT else None
            )
            async with ConnectionPool(connect=network.connect) as pool:
                await pool.call(A, request(HEARTBEAT), 1000)

                async def beat() -> None:
                    for _ in range(5):
                        await anyio.sleep(0.5)
                        await pool.call(A, request(HEARTBEAT), 1000)

                async with anyio.create_task_group() as calls:
                    calls.start_soon(beat)
                    with pytest.raises(RequestTimeout):
                        await pool.call(A, request(PULL), 2000)
                    assert pool.addresses() == [A]
                with pytest.raises(RequestTimeout):
                    await pool.call(A, request(PULL), 2000)
                await settled()
                assert pool.addresses() == []
            group.cancel_scope.cancel()

    run("trio", body)


@on_both_backends
def test_a_connection_that_is_gone_cannot_be_given_lanes(backend: str) -> None:
    """Opening a lane on it raises ConnectionLost with the reason; the next request makes a new connection."""

    async def body() -> None:
        async with anyio.create_task_group() as group:
            network = LanedNetwork(group, answer)
            async with ConnectionPool(connect=network.connect) as pool:
                await pool.call(A, request(HEARTBEAT), 1000)
                network.broken = True
                with pytest.raises(ConnectionLost, match="the connection is gone"):
                    await pool.call(A, request(SEND), 1000)
                network.broken = False
                await network.servers[0].hang_up()
                await settled()
                await pool.call(A, request(SEND), 1000)
                assert network.connects == 2
            group.cancel_scope.cancel()

    run(backend, body)
