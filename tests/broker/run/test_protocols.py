"""A plugin's protocol at the ports of a broker: shared and of its own, over every transport."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio
from anyio.streams.tls import TLSStream

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.errors import RequestRefused
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.hooks import EachSendHook, SendContext, SendMessageHook
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.request import Peer
from rmqkit.plugin.request_hooks import EachRequestHook, RpcHook
from rmqkit.plugin.service import Service
from rmqkit.plugin.transport import Address
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.remoting.dial import Dialer
from rmqkit.testing.broker import running_broker
from rmqkit.testing.calls import calling_broker
from tests.broker.run.test_running_broker import send
from tests.line_protocol import ALPN, HELLO, LinePlugin

TIMEOUT_MS = 60_000


class Watching:
    """Notes the requests and the sends that hooks see; refuses messages for the topic `Forbidden`."""

    def __init__(self) -> None:
        self.requests: list[Peer] = []
        self.sent: list[tuple[str, bool]] = []

    @hookimpl
    def rmqkit_register_rpc_hooks(self, register: Register[RpcHook], config: Config) -> None:
        watching = self

        class Notes(EachRequestHook):
            def before_each(self, request: Command, peer: Peer) -> None:
                watching.requests.append(peer)
                if request.fields().get("b") == "Forbidden":
                    raise RequestRefused(ResponseCode.NO_PERMISSION, "not this topic")

        register("watching", Notes())

    @hookimpl
    def rmqkit_register_send_message_hooks(self, register: Register[SendMessageHook], config: Config) -> None:
        watching = self

        class Audits(EachSendHook):
            def after_each(self, context: SendContext) -> None:
                watching.sent.append((context.topic, context.success))

        register("watching", Audits())


async def lines(stream: anyio.abc.ByteStream, count: int) -> list[bytes]:
    """The next lines from the server."""
    data = b""
    with trio.fail_after(TIMEOUT_MS / 1_000):
        while data.count(b"\n") < count:
            data += await stream.receive()
    return data.splitlines()


@pytest.mark.parametrize("scheme", ["tcp", "tls", "unix", "memory"])
async def test_lines_share_the_port_of_a_broker(tmp_path: Path, scheme: str) -> None:
    """Messages that come as lines are stored, in the order of the lines; request and send hooks see them with
    the peer of the connection, refuse them, and the port still takes remoting."""
    plugin, watching = LinePlugin(), Watching()
    async with running_broker(
        tmp_path, extra=[("lines", plugin), ("watching", watching)], scheme=scheme
    ) as broker:
        context = broker.context
        dial = Dialer(context.config, context.registry)
        async with await dial(broker.address, TIMEOUT_MS) as stream:
            await stream.send(HELLO + b"Orders one\nOrders two\nForbidden three\n")
            answers = await lines(stream, 3)
        assert answers[:2] == [b"OK 0", b"OK 1"]
        assert answers[2].startswith(b"ERR 16 not this topic")
        (peer,) = plugin.protocol.peers
        assert watching.requests == [peer] * 3
        assert (peer.protocol, peer.server, peer.transport.listener.scheme) == ("line", "broker", scheme)
        assert peer.transport.is_encrypted == (scheme == "tls")
        assert watching.sent == [("Orders", True), ("Orders", True)]
        assert context.store.max_offset("Orders", 0) == 2
        async with calling_broker(broker) as call:
            assert (await call(send("Orders"))).code == 0
        assert watching.requests[-1].protocol == "remoting"


@pytest.mark.parametrize("offered", [[ALPN], ["other", ALPN], ["other"], []])
async def test_tls_negotiates_the_protocol(tmp_path: Path, offered: Sequence[str]) -> None:
    """The port offers the protocol's name in the handshake, hooks read what was chosen, and a client without
    that name is served by its first bytes."""
    plugin = LinePlugin()
    async with running_broker(tmp_path, extra=[("lines", plugin)], scheme="tls") as broker:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if offered:
            context.set_alpn_protocols(list(offered))
        tcp = await anyio.connect_tcp("127.0.0.1", broker.address.port)
        async with await TLSStream.wrap(
            tcp, ssl_context=context, server_side=False, standard_compatible=False
        ) as stream:
            await stream.send(HELLO + b"Orders one\n")
            assert await lines(stream, 1) == [b"OK 0"]
        (peer,) = plugin.protocol.peers
        assert peer.transport.alpn == (ALPN if ALPN in offered else None)


class LineService(Service):
    """Serves lines on addresses of its own. `addresses` says where."""

    name = "lines"

    def __init__(self, *wanted: Address) -> None:
        self.plugin = LinePlugin()
        self.addresses: Sequence[Address] = ()
        self._wanted = wanted

    async def run(self, broker: Broker, task_status: trio.TaskStatus[None]) -> None:
        serving = await broker.listen(self.plugin.protocol, self._wanted)
        self.addresses = serving.addresses
        await serving.run(1_000, task_status=task_status)

    @hookimpl
    def rmqkit_register_services(self, register: Register[Service], config: Config) -> None:
        register(self.name, self)


async def test_a_service_listens_for_its_protocol(tmp_path: Path) -> None:
    """Its addresses, of any transport, take the protocol alone; messages go where those of the normal port
    go, and the addresses are free when the broker has stopped."""
    wanted = [
        Address.parse("tcp://127.0.0.1:0"),
        Address.parse("memory://lines"),
        Address("unix", name=str(tmp_path / "s")),
    ]
    service, watching = LineService(*wanted), Watching()
    extra: list[tuple[str, Any]] = [("lines", service), ("watching", watching)]
    async with running_broker(tmp_path / "store", extra=extra, scheme="memory") as broker:
        dial = Dialer(broker.context.config, broker.context.registry)
        for at, address in enumerate(service.addresses):
            async with await dial(address, TIMEOUT_MS) as stream:
                await stream.send(HELLO + b"Orders one\n")
                assert await lines(stream, 1) == [b"OK %d" % at]
        assert [each.protocol for each in watching.requests] == ["line"] * 3
        async with await dial(broker.address, TIMEOUT_MS) as stream:
            await stream.send(HELLO + HELLO)
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await lines(stream, 1)
    with pytest.raises(OSError, match=r".+"):
        await dial(service.addresses[0], TIMEOUT_MS)


async def test_an_address_of_a_service_that_is_taken(tmp_path: Path) -> None:
    """The broker does not start, and says which address it is."""
    wanted = Address.parse("memory://twice")
    with pytest.RaisesGroup(
        pytest.RaisesExc(Exception, match="cannot listen on memory://twice"),
        allow_unwrapped=True,
        flatten_subgroups=True,
    ):
        async with running_broker(tmp_path, extra=[("lines", LineService(wanted, wanted))], scheme="memory"):
            pass
