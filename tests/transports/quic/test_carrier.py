"""The life of QUIC connections: lanes, idle time-outs, pings, vanished peers, address changes, closing. Times
are virtual."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from rmqkit.plugin.transport import Address
from rmqkit_transport_quic import dialer
from rmqkit_transport_quic.limits import (
    MAX_LANES_PER_QUIC_CONNECTION,
    QUIC_EMPTY_TIMEOUT_MS,
    QUIC_HANDSHAKE_TIMEOUT_MS,
    QUIC_LANE_WINDOW_BYTES,
    QUIC_LINGER_MS,
)
from rmqkit_transport_quic.settings import QuicSettings
from tests.transports.quic import kit
from tests.transports.quic.network import FakeNetwork

IDLE_S = 5
IDLE = QuicSettings(idle_timeout_ms=IDLE_S * 1000)


# --- lanes --------------------------------------------------------------------------------------------------


async def test_lanes_are_connections_to_the_server(tmp_path: Path, autojump_clock: MockClock) -> None:
    """One QUIC connection has one stream per lane; lanes end separately, the connection with the last one."""
    async with kit.served(tmp_path) as pair:
        first = await pair.connect()
        second = await first.open_lane()
        first_end, second_end = await pair.accepted(first), await pair.accepted(second)
        assert len(pair.listener.routes) == 1
        assert first_end.remote == second_end.remote == ("10.0.0.1", 40_000)
        assert first_end.local == ("10.0.0.9", 10911)
        await first.aclose()
        assert await first_end.receive_some() == b""
        await first_end.aclose()
        await second.send(b"still here")
        assert await kit.read(second_end, 10) == b"still here"
        await second.aclose()
        assert await second_end.receive_some() == b""
        await trio.sleep(1)
        assert not pair.listener.routes
        with pytest.raises(anyio.BrokenResourceError, match="closed"):
            await second.open_lane()


async def test_lanes_can_be_opened_for_ever_but_not_too_many_at_a_time(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A closed lane makes room for another one; above the limit a new lane waits."""
    async with kit.served(tmp_path) as pair:
        first = await pair.connect()
        await pair.accepted(first)
        for _ in range(4 * MAX_LANES_PER_QUIC_CONNECTION):
            lane = await first.open_lane()
            end = await pair.accepted(lane)
            await lane.aclose()
            await end.aclose()
        lanes = [await first.open_lane() for _ in range(MAX_LANES_PER_QUIC_CONNECTION)]
        ends = [await pair.accepted(lane) for lane in lanes[:-1]]
        with trio.move_on_after(3) as waited:
            await pair.accepted(lanes[-1])
        assert waited.cancelled_caught
        await lanes[0].aclose()
        await ends[0].aclose()
        with trio.fail_after(3):
            assert await (await pair.listener.accept()).receive_some(1) == b"!"


async def test_a_lane_that_nobody_reads_stops_its_sender_only(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A window is the number of bytes read plus a fixed size, at any time."""
    async with kit.served(tmp_path) as pair, trio.open_nursery() as nursery:
        lane = await pair.connect()
        other = await lane.open_lane()
        end, other_end = await pair.accepted(lane), await pair.accepted(other)
        nursery.start_soon(lane.send, bytes(5_000_000))
        await kit.read(end, 5_000_000)
        unread = bytes(4 * QUIC_LANE_WINDOW_BYTES)
        nursery.start_soon(lane.send, unread)
        await trio.sleep(5)
        (carrier,) = pair.listener.routes
        assert QUIC_LANE_WINDOW_BYTES // 2 < carrier.machine.unread_bytes <= QUIC_LANE_WINDOW_BYTES
        await other.send(bytes(500_000))
        await kit.read(other_end, 500_000)
        await kit.read(end, len(unread))
        assert carrier.machine.unread_bytes == 0


async def test_what_was_not_read_of_a_closed_lane_is_no_burden_to_the_others(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The connection's window gets the unread bytes back: lanes that are filled and closed repeatedly do not
    use it up."""
    async with kit.served(tmp_path) as pair:
        first = await pair.connect()
        first_end = await pair.accepted(first)
        for _ in range(8):
            lane = await first.open_lane()
            end = await pair.accepted(lane)
            with trio.move_on_after(2):
                await lane.send(bytes(2 * QUIC_LANE_WINDOW_BYTES))
            await end.aclose()
            await lane.aclose()
        with trio.fail_after(5):
            await first.send(bytes(500_000))
            await kit.read(first_end, 500_000)


async def test_one_task_at_a_time_reads_and_writes(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Concurrent reads or writes are refused, as with trio's and anyio's own streams."""
    async with kit.served(tmp_path) as pair, trio.open_nursery() as nursery:
        client = await pair.connect()
        server = await pair.accepted(client)
        for end, error in (
            (server.receive_some, trio.BusyResourceError),
            (client.receive, anyio.BusyResourceError),
        ):
            nursery.start_soon(end)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(error):
                await end()
        nursery.start_soon(server.send_all, bytes(10_000_000))
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await server.send_all(b"x")
        with pytest.raises(trio.BusyResourceError):
            await server.wait_send_all_might_not_block()
        nursery.cancel_scope.cancel()


# --- time ---------------------------------------------------------------------------------------------------


async def test_pings_keep_a_silent_connection(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The lane works after many idle time-outs without data, with few datagrams."""
    async with kit.served(tmp_path, quic=IDLE) as pair:
        client = await pair.connect()
        server = await pair.accepted(client)
        await trio.sleep(1)
        before = len(pair.network.sent)
        await trio.sleep(20 * IDLE_S)
        assert 60 <= len(pair.network.sent) - before <= 150
        await client.send(b"still here")
        assert await kit.read(server, 10) == b"still here"


async def test_a_client_that_vanishes_is_forgotten(tmp_path: Path, autojump_clock: MockClock) -> None:
    """After the idle time-out its lanes end with an error, and no state remains."""
    async with kit.served(tmp_path, quic=IDLE) as pair:
        client = await pair.connect()
        server = await pair.accepted(client)
        pair.network.down = True
        began_s = trio.current_time()
        with pytest.raises(trio.BrokenResourceError, match="Idle timeout"):
            await server.receive_some()
        assert trio.current_time() - began_s == pytest.approx(IDLE_S, abs=0.5)
        with pytest.raises(trio.BrokenResourceError, match="Idle timeout"):
            await server.send_all(b"x")
        assert not pair.listener.routes


async def test_a_server_that_vanishes_is_noticed(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A silent server is detected after the idle time-out, a closed port earlier, after a short time for an
    answer. A blocked send ends, too."""
    for port_is_closed, patience_s in ((False, IDLE_S + 0.5), (True, IDLE_S - 1)):
        async with kit.served(tmp_path, quic=IDLE) as pair:
            client = await pair.connect()
            await pair.accepted(client)
            pair.network.down = not port_is_closed
            if port_is_closed:
                del pair.network.sockets[(kit.SERVER.host, kit.SERVER.port)]
            with trio.fail_after(patience_s), pytest.raises(anyio.BrokenResourceError):
                await client.send(bytes(10_000_000))
            with pytest.raises(anyio.BrokenResourceError):
                await client.receive()


async def test_a_lie_about_a_closed_port_harms_nobody(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Such a message may be forged, so the connection stays if the peer answers the following query."""
    async with kit.served(tmp_path, quic=IDLE) as pair:
        client = await pair.connect()
        server = await pair.accepted(client)
        for _ in range(3):
            pair.network.client().refused = True
            pair.network.client().wake()
            await trio.sleep(2)
        await client.send(b"still here")
        assert await kit.read(server, 10) == b"still here"


async def test_a_connection_without_lanes_is_closed(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The server closes it after a while: pings do not count as use."""
    async with kit.served(tmp_path, quic=IDLE) as pair:
        client = await pair.connect()
        await trio.sleep(0.9 * QUIC_EMPTY_TIMEOUT_MS / 1000)
        assert len(pair.listener.routes) == 1
        await trio.sleep(0.2 * QUIC_EMPTY_TIMEOUT_MS / 1000)
        assert not pair.listener.routes
        with pytest.raises(anyio.EndOfStream):
            await client.receive()


async def test_a_handshake_has_a_time_limit(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The state of a client that is silent after its first datagram is removed."""
    async with kit.served(tmp_path) as pair, trio.open_nursery() as nursery:
        nursery.start_soon(_connect_in_vain, pair)
        await trio.sleep(0.5 * pair.network.delay_s)
        pair.network.down = True
        await trio.sleep(pair.network.delay_s)
        assert len(pair.listener.handshakes) == len(pair.listener.routes) == 1
        await trio.sleep(QUIC_HANDSHAKE_TIMEOUT_MS / 1000)
        assert not pair.listener.handshakes
        assert not pair.listener.routes


async def _connect_in_vain(pair: kit.Pair) -> None:
    with pytest.raises(TimeoutError):
        await pair.transport.connect(kit.SERVER, 3_000)


# --- addresses ----------------------------------------------------------------------------------------------


async def test_a_client_whose_address_changes_stays_connected(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """An address translation assigns new ports several times during transfers in both directions."""
    network = FakeNetwork(delay_s=0.01)
    async with kit.served(tmp_path, network) as pair:
        client = await pair.connect()
        server = await pair.accepted(client)
        with trio.fail_after(60):
            for _ in range(3):
                seen = network.rebind(network.client())
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(client.send, b"c" * 300_000)
                    assert await kit.read(server, 300_000) == b"c" * 300_000
                    nursery.start_soon(server.send_all, b"s" * 300_000)
                    assert await kit.read(client, 300_000) == b"s" * 300_000
                (carrier,) = pair.listener.routes
                assert carrier.machine.get_peer_address() == seen
        assert server.remote == ("10.0.0.1", 40_000)


async def test_each_address_of_a_host_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """Addresses are tried in turn; if none works, the first one's error is raised. A host without addresses
    is an error."""
    dead, live = ("10.0.0.8", 1), (kit.SERVER.host, kit.SERVER.port)
    async with kit.served(tmp_path) as pair:
        for targets, reason in (
            ([dead, live], ""),
            ([dead, dead], "the port is not in use"),
            ([], "no address of 10.0.0.9 is known"),
        ):

            async def find(
                address: Address, targets: list[tuple[str, int]] = targets
            ) -> list[tuple[str, int]]:
                return targets

            monkeypatch.setattr(pair.network, "find", find)
            if reason:
                with pytest.raises(OSError, match=reason):
                    await pair.connect()
            else:
                await pair.accepted(await pair.connect())
        assert not [where for where in pair.network.sockets if where[0] == "10.0.0.1"][1:]


# --- goodbyes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [0.0, 0.3])
async def test_what_was_sent_before_a_close_arrives(
    loss: float, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Closing does not wait, but lost data is retransmitted until the peer has it."""
    network = FakeNetwork(delay_s=0.02)
    async with kit.served(tmp_path, network) as pair:
        client = await pair.connect()
        server = await pair.accepted(client)
        network.loss = loss
        await client.send(b"c" * 10_000)
        began_s = trio.current_time()
        await anyio.aclose_forcefully(client)
        assert trio.current_time() == began_s
        assert await kit.read(server, 10_000) == b"c" * 10_000
        assert await server.receive_some() == b""


async def test_a_listener_that_ends_says_goodbye(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Sent data arrives, then the end; connections without lanes end at once."""
    network = FakeNetwork(delay_s=0.02)
    async with kit.served(tmp_path, network) as pair:
        idle, client = await pair.connect(), await pair.connect()
        server = await pair.accepted(client)
        await server.send_all(b"s" * 10_000)
        await pair.listener.aclose()
        with pytest.raises(anyio.EndOfStream):
            await idle.receive()
        with pytest.raises(TimeoutError):
            await pair.transport.connect(kit.SERVER, 100)
        late = await client.open_lane()
        await late.send(b"too late")
        with pytest.raises(anyio.BrokenResourceError):
            await late.receive()
        await server.aclose()
        assert await kit.read(client, 10_000) == b"s" * 10_000
        with pytest.raises(anyio.EndOfStream):
            await client.receive()


async def test_a_listener_can_end_at_any_moment(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A listener closed and cancelled in either order, before and after it starts, ends, and its address is
    free."""
    for moments in range(6):
        for closed in (False, True):
            network = FakeNetwork()
            with trio.fail_after(10):
                async with trio.open_nursery() as nursery:
                    (listener,) = await kit.transport(tmp_path, network=network).listen(kit.SERVER)
                    nursery.start_soon(listener.run)  # type: ignore[attr-defined]
                    for _ in range(moments):
                        await trio.lowlevel.checkpoint()
                    if closed:
                        await listener.aclose()
                    nursery.cancel_scope.cancel()
                await listener.aclose()
            assert not network.sockets


async def test_a_listener_does_not_wait_long_for_those_who_vanished(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Acknowledgements are waited for at most QUIC_LINGER_MS."""
    async with kit.served(tmp_path) as pair:
        client = await pair.connect()
        server = await pair.accepted(client)
        pair.network.down = True
        await server.send_all(b"s" * 1_000)
        await server.aclose()
        began_s = trio.current_time()
    assert trio.current_time() - began_s == pytest.approx(QUIC_LINGER_MS / 1000, abs=0.1)


async def test_what_a_client_sent_last_arrives_when_its_loop_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """trio waits for the connection's task, and the task for the peer's acknowledgement, although the program
    did not."""
    network = FakeNetwork(delay_s=0.02)
    async with kit.served(tmp_path, network) as pair:
        async with trio.open_nursery() as loop:
            monkeypatch.setattr(dialer, "spawn", loop.start_soon)
            client = await pair.connect()
            server = await pair.accepted(client)
            network.loss = 0.3
            await client.send(b"c" * 10_000)
            loop.cancel_scope.cancel()
        network.down = True
        assert await kit.read(server, 10_000) == b"c" * 10_000
        with pytest.raises(anyio.ClosedResourceError):
            await client.send(b"x")
