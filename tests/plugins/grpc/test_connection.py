"""Connections and their calls, over a broker."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio.abc
import pytest
import trio
import trio.testing
from attrs import evolve

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.errors import RequestRefused
from rmqkit.limits import MAX_PEERS_PER_CONNECTION
from rmqkit.plugin.hooks import Refusals
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.request import Peer
from rmqkit.plugin.request_hooks import RpcHook
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.testing.broker import dialer, running_broker
from rmqkit.testing.listening import CONNECT_TIMEOUT_MS, ENDED
from rmqkit_grpc.framing import GrpcStatus, framed
from rmqkit_grpc.limits import MAX_MESSAGE_BYTES, MAX_STALL_MS
from rmqkit_grpc.methods import METHODS
from rmqkit_grpc.session import Exchange, Steps
from tests.plugins.grpc import frames as f
from tests.plugins.grpc.client import CODES, PATIENCE_S, M, connected, consuming, message, producing, sending

ROUTE = M["QueryRouteRequest"](topic=M["Resource"](name="T"))


class Watching(RpcHook):
    """Notes what passes, and refuses sends when told so."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, str, str | None]] = []
        self.peers: set[Peer] = set()
        self.refuses = False

    @hookimpl
    def rmqkit_register_rpc_hooks(self, register: Register[RpcHook], config: Config) -> None:
        register("watching", self)

    def before(self, requests: Sequence[Command], peer: Peer) -> Refusals | None:
        self.seen += [(each.code, peer.protocol, each.language) for each in requests]
        self.peers.add(peer)
        if not self.refuses:
            return None
        refusal = RequestRefused(ResponseCode.NO_PERMISSION, "not you")
        return {at: refusal for at, each in enumerate(requests) if each.code == RequestCode.SEND_MESSAGE_V2}


async def test_every_call_passes_the_hooks(tmp_path: Path) -> None:
    """Hooks see the requests which calls become, with the client's language, and refuse them as they refuse
    those of other clients."""
    hook = Watching()
    async with running_broker(tmp_path, extra=[("watching", hook)]) as running, connected(running) as client:
        await client.settle(producing("T"))
        await client.call("QueryRoute", ROUTE)
        assert (await client.call("SendMessage", sending(message("T")))).status.code == CODES["OK"]
        hook.refuses = True
        refused = await client.call("SendMessage", sending(message("T")))
        assert (refused.status.code, refused.status.message) == (CODES["FORBIDDEN"], "not you")
        codes = [
            RequestCode.HEART_BEAT,
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            *[RequestCode.SEND_MESSAGE_V2] * 2,
        ]
        assert hook.seen == [(int(code), "grpc", "PYTHON") for code in codes]
        assert len(hook.peers) == 1


async def test_clients_of_one_connection_are_peers_of_their_own(tmp_path: Path) -> None:
    """A proxy may bring several clients over one connection; each is known by its id, and ends alone."""
    hook = Watching()
    async with running_broker(tmp_path, extra=[("watching", hook)]) as running, connected(running) as client:
        await client.settle(consuming("G", "A"))
        client.client_id = "client-2"
        await client.settle(consuming("G", "A"))
        assert len(hook.peers) == 2
        members = running.context.clients.consumers["G"].members
        assert {member.client_id for member in members.values()} == {"client-1", "client-2"}
        await client.call("NotifyClientTermination", M["NotifyClientTerminationRequest"]())
        assert running.context.clients.consumers["G"].client_ids() == ["client-1"]


async def test_many_clients_of_one_connection(tmp_path: Path) -> None:
    """A proxy may bring any number of clients, one after the other; those that are there stay."""
    async with running_broker(tmp_path) as running, connected(running, "stays") as client:
        await client.settle(producing("A"))
        for number in range(MAX_PEERS_PER_CONNECTION + 10):
            client.client_id = f"client-{number}"
            await client.begin("NotifyClientTermination", M["NotifyClientTerminationRequest"]())
            if number % 100 == 0:
                await client.call("QueryRoute", ROUTE)
        await client.call("QueryRoute", ROUTE)
        assert set(running.context.clients.producers) == {"A"}


async def test_clients_end_with_their_connection(tmp_path: Path) -> None:
    """A client that is killed leaves its groups at once."""
    async with running_broker(tmp_path) as running:
        async with connected(running) as client:
            await client.settle(consuming("G", "A"))
            assert "G" in running.context.clients.consumers
        with trio.fail_after(PATIENCE_S):
            while "G" in running.context.clients.consumers:
                await trio.lowlevel.checkpoint()


async def test_a_client_without_an_id(tmp_path: Path) -> None:
    """It is told that it needs one; Telemetry works without."""
    async with running_broker(tmp_path) as running, connected(running, "") as client:
        answer = await client.call("QueryRoute", ROUTE)
        assert answer.status.code == CODES["CLIENT_ID_REQUIRED"]
        await client.settle(producing("T"))


async def test_methods_and_encodings_that_do_not_exist(tmp_path: Path) -> None:
    """They are answered with UNIMPLEMENTED, and the connection goes on."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        wrong: list[tuple[str, dict[str, Any]]] = [
            ("Nothing", {}),
            ("/other.Service/QueryRoute", {}),
            ("QueryRoute", {"grpc_encoding": "gzip"}),
        ]
        for path, metadata in wrong:
            reply = await client.until_ended(await client.begin(path, ROUTE, **metadata))
            assert reply.status == GrpcStatus.UNIMPLEMENTED
            assert reply.text
        assert (await client.call("QueryRoute", ROUTE)).status.code == CODES["OK"]


def _same(headers: list[tuple[str, str]], path: str, **metadata: str) -> list[tuple[str, str]]:
    return headers


async def test_requests_that_are_no_grpc(tmp_path: Path) -> None:
    """A browser gets the status of HTTP that says so."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        made = client.headers
        for name, value in ((":method", "GET"), ("content-type", "text/html")):
            changed = [(key, value if key == name else old) for key, old in made("/")]
            client.headers = partial(_same, changed)  # type: ignore[method-assign]
            reply = await client.until_ended(await client.begin("/"))
            assert reply.headers[":status"] == "415"
        client.headers = made  # type: ignore[method-assign]
        assert (await client.call("QueryRoute", ROUTE)).status.code == CODES["OK"]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", GrpcStatus.INVALID_ARGUMENT),
        (b"\0\0\0\0\5abc", GrpcStatus.INVALID_ARGUMENT),
        (framed(b"\xff\xff\xff"), GrpcStatus.INVALID_ARGUMENT),
        (framed(b"") * 2, GrpcStatus.INVALID_ARGUMENT),
        (b"\1\0\0\0\0", GrpcStatus.UNIMPLEMENTED),
        (b"\0" + (MAX_MESSAGE_BYTES + 1).to_bytes(4), GrpcStatus.RESOURCE_EXHAUSTED),
    ],
)
async def test_messages_that_cannot_be_read(tmp_path: Path, data: bytes, status: int) -> None:
    """The call ends with a status, and the connection goes on."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        stream = await client.begin("QueryRoute", end=False)
        await client.send_data(stream, data, end=True)
        reply = await client.until_ended(stream)
        assert reply.status == status
        assert reply.text
        assert (await client.call("QueryRoute", ROUTE)).status.code == CODES["OK"]


async def test_a_large_message_in_many_frames(tmp_path: Path) -> None:
    """A body of the largest size arrives, and its call does not hold up others."""
    size = 4 * 1024 * 1024
    async with running_broker(tmp_path, maxMessageSize=size) as running, connected(running) as client:
        data = framed(sending(message("T", bytes(size))).SerializeToString())
        stream = await client.begin("SendMessage", end=False)
        await client.send_data(stream, data[: size // 2])
        assert (await client.call("QueryRoute", ROUTE)).status.code == CODES["OK"]
        await client.send_data(stream, data[size // 2 :], end=True)
        (answer,) = (await client.until_ended(stream)).data
        assert M["SendMessageResponse"].FromString(answer).status.code == CODES["OK"]


async def test_a_call_that_is_given_up(tmp_path: Path) -> None:
    """Its answer is dropped, and the connection goes on."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        for _ in range(5):
            stream = await client.begin("SendMessage", sending(message("T")))
            client.h2.reset_stream(stream, 8)
        await client.flush()
        assert (await client.call("QueryRoute", ROUTE)).status.code == CODES["OK"]


async def test_a_fault_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A call that fails inside ends with INTERNAL and one line of the log; others work."""

    def broken(exchange: Exchange, asked: object) -> Steps:
        yield []
        raise ZeroDivisionError

    path = "/apache.rocketmq.v2.MessagingService/Heartbeat"
    monkeypatch.setitem(METHODS, path, evolve(METHODS[path], handler=broken))
    async with running_broker(tmp_path) as running, connected(running) as client:
        stream = await client.begin("Heartbeat", M["HeartbeatRequest"]())
        assert (await client.until_ended(stream)).status == GrpcStatus.INTERNAL
        assert (await client.call("QueryRoute", ROUTE)).status.code == CODES["OK"]
    assert [each.levelno for each in caplog.records if "Heartbeat" in each.getMessage()] == [logging.ERROR]


async def test_a_broker_that_stops(tmp_path: Path) -> None:
    """Clients that listen are told to dial again, streams end with UNAVAILABLE, the client is told that the
    server goes, and the connection closes."""
    async with trio.open_nursery() as nursery:
        async with running_broker(tmp_path) as running, connected(running) as client:
            stream, _ = await client.settle(producing("T"))
            running.stop.set()
            reply = await client.until_ended(stream)
            assert reply.status == GrpcStatus.UNAVAILABLE
            said = M["TelemetryCommand"].FromString(reply.data[-1])
            assert said.reconnect_endpoints_command.nonce
            assert await client.ends()
            assert client.went_away
        nursery.cancel_scope.cancel()


async def _ends(stream: anyio.abc.ByteStream) -> bool:
    """Read until the server closes."""
    while True:
        try:
            await stream.receive()
        except ENDED:
            return True


async def test_a_client_that_takes_no_answers(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its connection ends after a minute, with a line of the log; one that takes a byte at a time stays."""
    closed = f.begun() + f.frame(f.SETTINGS, 0, 0, b"\0\4" + bytes(4))
    async with (
        running_broker(tmp_path, scheme="memory") as running,
        await dialer("memory")(running.address, CONNECT_TIMEOUT_MS) as slow,
        await dialer("memory")(running.address, CONNECT_TIMEOUT_MS) as stuck,
    ):
        for stream in (slow, stuck):
            await stream.send(closed + f.call(1, "QueryRoute", ROUTE))
        for _ in range(9):
            await slow.send(f.frame(f.WINDOW_UPDATE, 0, 1, (1).to_bytes(4)))
            await trio.sleep(MAX_STALL_MS / 6_000)
        with trio.fail_after(10):
            assert await _ends(stuck)
        await slow.send(f.frame(f.PING, 0, 0, bytes(8)))
        said = [each for each in caplog.records if "windows stay closed" in each.getMessage()]
        assert len(said) == 1


async def test_texts_of_statuses_are_short(tmp_path: Path) -> None:
    """What a client sends does not come back as a whole."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        sent = message("T")
        sent.user_properties["\x00" * 100_000] = "x"
        answer = await client.call("SendMessage", sending(sent))
        assert answer.status.code == CODES["ILLEGAL_MESSAGE_PROPERTY_KEY"]
        assert len(answer.status.message) <= 1_000


async def test_many_calls_at_once(tmp_path: Path) -> None:
    """Sends that arrive together are all stored, and each call gets its own answer."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        await client.call("QueryRoute", ROUTE)
        streams = [
            await client.begin("SendMessage", sending(message("T", b"x", f"{number:032X}")))
            for number in range(300)
        ]
        for number, stream in enumerate(streams):
            (data,) = (await client.until_ended(stream)).data
            (entry,) = M["SendMessageResponse"].FromString(data).entries
            assert (entry.status.code, entry.message_id) == (CODES["OK"], f"{number:032X}")
