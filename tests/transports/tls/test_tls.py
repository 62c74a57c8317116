"""TLS on the TCP port: acceptance by mode and certificate, and the errors of rejected clients."""

from __future__ import annotations

import logging
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest
import trio
import trio.testing

from rmqkit.errors import ConfigError, ConnectFailed
from rmqkit.plugin.transport import Address, Transport
from rmqkit.protocol.command import request
from rmqkit.protocol.frame import encode
from rmqkit.remoting.dial import Dialer
from rmqkit.remoting.pool import ConnectionPool
from rmqkit.testing.listening import (
    Listening,
    caller,
    echoing,
    has_ended,
    listening,
    received,
    request_server,
    until,
)
from rmqkit.toolkit.connect import connect_tcp
from rmqkit_transport_tcp.channel import TlsChannel
from rmqkit_transport_tcp.limits import MAX_TLS_ANSWER_BYTES
from rmqkit_transport_tcp.tcp import TcpTransport
from rmqkit_transport_tcp.tls import TlsTransport
from tests.transports.tls import certs

ANY = Address("tcp", "127.0.0.1", 0)
TIMEOUT_MS = 30_000


@asynccontextmanager
async def serving(*tables: dict[str, Any], tls: bool = False) -> AsyncIterator[Listening]:
    """A listening port with these settings."""
    config = certs.config(*tables)
    transport: Transport = TlsTransport(config) if tls else TcpTransport(config)
    async with listening(transport, Address(transport.scheme, "127.0.0.1", 0)) as at:
        yield at


async def connect(at: Listening, *tables: dict[str, Any], host: str = "127.0.0.1") -> anyio.abc.ByteStream:
    """A TLS connection with the client's settings."""
    return await TlsTransport(certs.config(*tables)).connect(
        Address("tls", host, at.address.port), TIMEOUT_MS
    )


async def echo(client: anyio.abc.ByteStream) -> None:
    """Check that the connection works, and close it."""
    async with client:
        await client.send(b"x" * 70_000)
        assert await received(client, 70_000) == b"x" * 70_000


# --- modes --------------------------------------------------------------------------------------------------


async def test_permissive_takes_both(tmp_path: Path) -> None:
    """One port serves both at the same time, distinguished by the first byte."""
    async with (
        serving(certs.write(tmp_path)) as at,
        request_server(at),
        caller(await connect(at, certs.trust(tmp_path))) as safe,
        caller(await connect_tcp(at.address, TIMEOUT_MS)) as plain,
    ):
        for _ in range(3):
            assert (await safe.call(request(1, body=b"safe"), TIMEOUT_MS)).body == b"safe"
            assert (await plain.call(request(1, body=b"plain"), TIMEOUT_MS)).body == b"plain"


async def test_a_plain_connection_is_not_wrapped(tmp_path: Path) -> None:
    """In permissive mode a plain connection has the same stream type as without TLS, at no extra cost per
    byte."""
    async with (
        serving(certs.write(tmp_path)) as at,
        at.pair() as (permissive, _),
        serving({}) as off,
        off.pair() as (disabled, _),
    ):
        assert type(permissive) is type(disabled)


@pytest.mark.parametrize("tls", [True, False], ids=["scheme tls", "enforcing"])
async def test_enforcing_closes_plain_connections(
    tmp_path: Path, tls: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """One log line names the setting; TLS connections are served."""
    mode = {} if tls else {"tls.server.mode": "enforcing"}
    async with serving(certs.write(tmp_path), mode, tls=tls) as at, request_server(at):
        async with await connect_tcp(Address("tcp", "127.0.0.1", at.address.port), TIMEOUT_MS) as plain:
            await plain.send(encode(request(1, body=b"plain")))
            with pytest.raises(anyio.EndOfStream):
                await plain.receive()
        assert [record.levelno for record in caplog.records if "tls.server.mode" in record.message] == [
            logging.WARNING
        ]
        async with caller(await connect(at, certs.trust(tmp_path))) as safe:
            assert (await safe.call(request(1, body=b"safe"), TIMEOUT_MS)).body == b"safe"


async def test_disabled_closes_handshakes(tmp_path: Path) -> None:
    """The client's error says what to check, and plain connections are served."""
    async with serving(certs.write(tmp_path), {"tls.server.mode": "disabled"}) as at, request_server(at):
        with pytest.raises(
            ConnectionError, match=r"closed the connection in the TLS handshake.*tls\.server\.mode"
        ):
            await connect(at, certs.trust(tmp_path))
        async with caller(await connect_tcp(at.address, TIMEOUT_MS)) as plain:
            await plain.call(request(1), TIMEOUT_MS)


async def test_something_that_speaks_no_tls(tmp_path: Path) -> None:
    """The error differs from that of a bad certificate."""
    async with serving({}) as at, trio.open_nursery() as nursery:

        async def answer_in_plain() -> None:
            async with await at.listener.accept() as stream:
                await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                await stream.receive_some()

        nursery.start_soon(answer_in_plain)
        with pytest.raises(ConnectionError, match="does not speak TLS"):
            await connect(at, certs.trust(tmp_path))


# --- the server's certificate -------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_trusted_certificate(tmp_path: Path, host: str) -> None:
    """The server is accepted by address and by name."""
    async with serving(certs.write(tmp_path)) as at, echoing(at):
        await echo(await connect(at, certs.trust(tmp_path), host=host))


@pytest.mark.parametrize(
    ("certificate", "said"),
    [
        ({"trusted": False}, r"tls\.client\.trustCertPath"),
        ({"days": -1}, "has expired; the server needs a new one"),
        ({"names": ("elsewhere.example",)}, "reach it by a name that its certificate carries"),
        ({"names": ("127.0.0.2",)}, "reach it by a name that its certificate carries"),
    ],
    ids=["unknown authority", "expired", "another name", "another address"],
)
async def test_certificates_that_will_not_do(tmp_path: Path, certificate: dict[str, Any], said: str) -> None:
    """The error names the server, the fault and the remedy; without checks (authServer false, test mode) the
    client connects."""
    async with serving(certs.write(tmp_path, **certificate)) as at, echoing(at):
        with pytest.raises(
            ConnectionError,
            match=f"the certificate of tls://127.0.0.1:{at.address.port} is not accepted: .*{said}",
        ):
            await connect(at, certs.trust(tmp_path))
        await echo(await connect(at, {"tls.client.authServer": False}))
        await echo(await connect(at, {"tls.test.mode.enable": True}))


async def test_nobody_is_trusted_by_default(tmp_path: Path) -> None:
    """Without a trust file the system's authorities apply, which do not include that of the tests."""
    async with serving(certs.write(tmp_path)) as at, echoing(at):
        with pytest.raises(ConnectionError, match=r"tls\.client\.trustCertPath"):
            await connect(at)


async def test_the_test_mode(tmp_path: Path) -> None:
    """A server without files presents a self-signed certificate, which only a client in test mode accepts."""
    async with serving({"tls.test.mode.enable": True}) as at, echoing(at):
        await echo(await connect(at, {"tls.test.mode.enable": True}))
        with pytest.raises(ConnectionError, match="is not accepted"):
            await connect(at, certs.trust(tmp_path))


async def test_the_test_mode_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the package to install and the alternative."""
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[tls\]' .*name one in tls\.server\.certPath"):
        await TcpTransport(certs.config({"tls.test.mode.enable": True})).listen(ANY)


async def test_old_versions_are_refused(tmp_path: Path) -> None:
    """Only TLS 1.2 and 1.3 are accepted."""
    async with serving(certs.write(tmp_path)) as at, echoing(at):

        def spoken(version: ssl.TLSVersion) -> str | None:
            context = ssl.create_default_context(cafile=certs.trust(tmp_path)["tls.client.trustCertPath"])
            with (
                pytest.warns(DeprecationWarning, match="TLS")
                if version < ssl.TLSVersion.TLSv1_2
                else nullcontext()
            ):
                context.minimum_version = context.maximum_version = version
            context.set_ciphers("ALL:@SECLEVEL=0")
            with (
                socket.create_connection(("127.0.0.1", at.address.port), timeout=10) as sock,
                context.wrap_socket(sock, server_hostname="localhost") as tls,
            ):
                return tls.version()

        assert await trio.to_thread.run_sync(spoken, ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
        assert await trio.to_thread.run_sync(spoken, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
        with pytest.raises(ssl.SSLError):
            await trio.to_thread.run_sync(spoken, ssl.TLSVersion.TLSv1_1)


# --- the client's certificate -------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", ["require", "required", "optional"])
async def test_client_certificates(tmp_path: Path, wanted: str, caplog: pytest.LogCaptureFixture) -> None:
    """A valid certificate is always accepted, an invalid one never, none only if it is optional. The client
    gets an error, and the server logs it."""
    demand = {"tls.server.need.client.auth": wanted, "tls.server.mode": "enforcing"} | certs.trust(
        tmp_path, "server"
    )
    async with serving(certs.write(tmp_path), demand) as at, echoing(at):
        trust = certs.trust(tmp_path)
        await echo(await connect(at, trust, certs.write(tmp_path, "client")))
        for bad in ({"trusted": False}, {"days": -1}):
            assert "does not accept the certificate of this client" in await told(
                at, trust, certs.write(tmp_path, "client", **bad)
            )
        if wanted == "optional":
            await echo(await connect(at, trust))
        else:
            assert (
                "the server wants a certificate of this client: name its file in tls.client.certPath"
                in await told(at, trust)
            )
        assert (
            "TLS handshake with 127.0.0.1 failed: certificate not accepted: certificate has expired"
            in caplog.messages
        )


async def test_the_door_shows_the_clients_certificate(tmp_path: Path) -> None:
    """The accepted stream has the checked certificate of the client, the bytes of its file."""
    demand = {"tls.server.need.client.auth": "require", "tls.server.mode": "enforcing"} | certs.trust(
        tmp_path, "server"
    )
    own = certs.write(tmp_path, "client")
    async with serving(certs.write(tmp_path), demand) as at, trio.open_nursery() as nursery:
        nursery.start_soon(_stay, at, certs.trust(tmp_path), own)
        async with await (await at.listener.accept()).opened() as stream:
            shown = stream.transport
    assert shown.is_encrypted
    assert shown.certificate is not None
    pem = await trio.Path(own["tls.client.certPath"]).read_text(encoding="ascii")
    assert ssl.DER_cert_to_PEM_cert(shown.certificate).split() == pem.split()


async def _stay(at: Listening, *tables: dict[str, Any]) -> None:
    """Connect, and wait for the server's end."""
    async with await connect(at, *tables) as client:
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            await client.receive()


async def told(at: Listening, *tables: dict[str, Any]) -> str:
    """The error read by a rejected client, while connecting or with the first bytes: in TLS 1.3 the server's
    rejection follows the client's completion."""
    try:
        async with await connect(at, *tables) as client:
            await client.receive()
    except (anyio.BrokenResourceError, OSError) as error:
        return str(error)
    raise AssertionError("the server let the client in")


# --- files that are invalid ---------------------------------------------------------------------------------


async def test_an_encrypted_key(tmp_path: Path) -> None:
    """The password is in the settings, and does not appear in the error when it is wrong or missing."""
    async with serving(certs.write_encrypted(tmp_path)) as at, echoing(at):
        await echo(await connect(at, certs.trust(tmp_path)))
    for password in ("wrong-secret", ""):
        with pytest.raises(
            ConfigError, match=r"tls\.server\.keyPath = .*password in tls\.server\.keyPassword"
        ) as error:
            await TcpTransport(
                certs.config(certs.write_encrypted(tmp_path), {"tls.server.keyPassword": password})
            ).listen(ANY)
        assert certs.PASSWORD not in str(error.value)
        assert "wrong-secret" not in str(error.value)


async def test_certificate_and_key_in_one_file(tmp_path: Path) -> None:
    """keyPath is then omitted."""
    settings = certs.write(tmp_path)
    path, key = certs.files(settings)
    path.write_bytes(key.read_bytes() + path.read_bytes())
    async with serving({"tls.server.certPath": str(path)}) as at, echoing(at):
        await echo(await connect(at, certs.trust(tmp_path)))


@pytest.mark.parametrize("side", ["server", "client"])
@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("certPath", None, "No such file"),
        ("keyPath", None, "No such file"),
        ("trustCertPath", None, "No such file"),
        ("certPath", "no certificate", "certPath"),
        ("keyPath", "no key", "keyPath"),
        ("trustCertPath", "no certificate", "a PEM file of certificates"),
        ("keyPath", "another", "key values mismatch"),
    ],
)
async def test_bad_files(tmp_path: Path, side: str, file: str, content: str | None, said: str) -> None:
    """ConfigError names the setting and the file; no listener or connection remains."""
    settings: dict[str, Any] = certs.write(tmp_path, side) | certs.trust(tmp_path, side)
    if side == "server":
        settings |= {"tls.server.need.client.auth": "require", "tls.server.mode": "enforcing"}
    (path,) = certs.files(settings, f"tls.{side}.{file}")
    path.unlink()
    if content == "another":
        (tmp_path / "another").mkdir()
        settings[f"tls.{side}.{file}"] = certs.write(tmp_path / "another", side, days=31)[
            f"tls.{side}.{file}"
        ]
    elif content is not None:
        path.write_text(content)
    config = certs.config(settings)
    use = (
        TcpTransport(config).listen
        if side == "server"
        else partial(TlsTransport(config).connect, timeout_ms=TIMEOUT_MS)
    )
    with pytest.raises(ConfigError, match=rf"tls\.{side}\.{file} = (.|\n)*{said}"):
        await use(ANY)


async def test_no_certificate_at_all() -> None:
    """The scheme requires a certificate."""
    with pytest.raises(ConfigError, match=r"name its file in tls\.server\.certPath"):
        await TlsTransport(certs.config()).listen(Address("tls", "127.0.0.1", 0))


# --- peers that misbehave -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "garbage",
    [b"\x16" + b"\xff" * 100, b"\x16\x03\x01\x00\x05hello", b"\x16\x03\x03\xff\xff" + bytes(70_000)],
)
async def test_garbage_that_begins_like_a_handshake(
    tmp_path: Path, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Garbage ends its own connection with a log line, and no other one."""
    async with (
        serving(certs.write(tmp_path)) as at,
        request_server(at) as server,
        caller(await connect(at, certs.trust(tmp_path))) as safe,
    ):
        await safe.call(request(1), TIMEOUT_MS)
        async with await connect_tcp(at.address, TIMEOUT_MS) as bad:
            await bad.send(garbage)
            while not await has_ended(bad):
                pass
        await until(lambda: len(server.peers) == 1)
        assert (await safe.call(request(1, body=b"alive"), TIMEOUT_MS)).body == b"alive"
    assert any(message.startswith("TLS handshake with 127.0.0.1 failed: ") for message in caplog.messages)


async def test_a_handshake_that_stops_in_the_middle(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """An incomplete handshake has a limit of ten seconds; others are served meanwhile. A closed connection is
    removed at once."""
    async with serving(certs.write(tmp_path)) as at, request_server(at) as server:
        async with await connect_tcp(at.address, TIMEOUT_MS) as slow:
            await slow.send(b"\x16\x03\x01")
            await until(lambda: len(server.peers) == 1)
            async with caller(await connect(at, certs.trust(tmp_path))) as safe:
                await safe.call(request(1), TIMEOUT_MS)
            mock_clock.jump(9.9)
            await until(lambda: len(server.peers) == 1)
            mock_clock.jump(0.2)
            await until(lambda: not server.peers)
            assert await has_ended(slow)
        async with await connect_tcp(at.address, TIMEOUT_MS) as gone:
            await gone.send(b"\x16\x03\x01")
            await until(lambda: len(server.peers) == 1)
        await until(lambda: not server.peers)


async def test_an_end_without_farewell(tmp_path: Path) -> None:
    """An end without a closing message is a normal end, because frames contain their length. A broken record
    is an error."""
    async with serving(certs.write(tmp_path)) as at:
        for last, end in ((b"", None), (b"\x17\x03\x03\x00\x20" + bytes(32), trio.BrokenResourceError)):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(trio.to_thread.run_sync, _rude_client, at.address.port, last))
                async with await at.listener.accept() as raw:
                    server = await raw.opened()
                    assert await received(server, 5) == b"hello"
                    if end is None:
                        assert await server.receive_some() == b""
                    else:
                        with pytest.raises(end):
                            await server.receive_some()


def _rude_client(port: int, last: bytes) -> None:
    """Send a TLS hello and raw bytes, then disconnect."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        channel = TlsChannel(context, server_side=False)
        while not channel.handshake():
            sock.sendall(channel.take())
            channel.feed(sock.recv(65_536))
        sock.sendall(channel.take() + channel.write(b"hello") + last)


async def test_nothing_follows_half_a_record(tmp_path: Path) -> None:
    """After a cancelled send both ends refuse to send, because later data would be taken for the rest of the
    record."""
    config = certs.config(certs.both(tmp_path))
    async with (
        listening(TlsTransport(config), Address("tls", "127.0.0.1", 0)) as at,
        at.pair() as (server, client),
    ):
        for send in (server.send_all, client.send):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send, bytes(50_000_000))
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
        with pytest.raises(trio.BrokenResourceError, match="cut off"):
            await server.send_all(b"x")
        with pytest.raises(anyio.BrokenResourceError, match="cut off"):
            await client.send(b"x")


async def test_the_socket_can_be_asked_for(tmp_path: Path) -> None:
    """TCP_NODELAY is set below TLS, too."""
    config = certs.config(certs.both(tmp_path))
    async with (
        listening(TlsTransport(config), Address("tls", "127.0.0.1", 0)) as at,
        at.pair() as (_, client),
    ):
        sock = client.extra(anyio.abc.SocketAttribute.raw_socket)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_key_updates_for_ever_are_an_error() -> None:
    """Data produced by OpenSSL itself waits for the next write; a peer cannot fill the memory with it."""
    channel = TlsChannel(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), server_side=True)
    channel._outgoing.write(bytes(MAX_TLS_ANSWER_BYTES + 1))
    with pytest.raises(ssl.SSLError, match="new keys again and again"):
        channel.read(10)
    fresh = TlsChannel(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), server_side=True)
    assert fresh.read(10) is None


# --- the client's settings ----------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
async def test_plain_addresses_go_by_the_setting(tmp_path: Path, backend: str) -> None:
    """`host:port` uses TLS with tls.enable and is plain without; `tls://` always uses TLS, under both
    loops."""
    enforcing = certs.write(tmp_path) | {"tls.server.mode": "enforcing"}
    async with serving(enforcing) as at, request_server(at):
        address, trust = f"127.0.0.1:{at.address.port}", certs.trust(tmp_path)

        async def ask(address: str, settings: dict[str, Any]) -> bytes | None:
            async with ConnectionPool(connect=Dialer(certs.config(settings))) as pool:
                return (await pool.call(address, request(1, body=b"x" * 300_000), TIMEOUT_MS)).body

        async def asked(where: str, settings: dict[str, Any]) -> bytes | None:
            return await trio.to_thread.run_sync(partial(anyio.run, ask, where, settings, backend=backend))

        assert await asked(address, trust | {"tls.enable": "true"}) == b"x" * 300_000
        assert await asked(f"tls://{address}", trust) == b"x" * 300_000
        with pytest.raises(ConnectFailed, match=r"tls\.client\.trustCertPath"):
            await asked(address, {"tls.enable": "true"})
        with pytest.raises(ConfigError, match=r"tls\.client\.trustCertPath = nowhere: No such file"):
            await asked(address, {"tls.enable": "true", "tls.client.trustCertPath": "nowhere"})
