"""Certificates for the tests of QUIC, transports with them, and a server on a network in memory."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import trio
import trustme
from attrs import define
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from rmqkit import config as settings
from rmqkit.config import Config
from rmqkit.plugin.transport import Address, LanedStream, ServerStream
from rmqkit.remoting.connection import Connection
from rmqkit_transport_quic.dialer import QuicStream
from rmqkit_transport_quic.listener import QuicListener
from rmqkit_transport_quic.settings import QuicSettings
from rmqkit_transport_quic.transport import QuicTransport
from tests.transports.quic.network import FakeNetwork

_numbers = count()
NAMES = ("localhost", "127.0.0.1", "::1", "10.0.0.9")


@cache
def authority(name: str) -> trustme.CA:
    """An authority for the whole run, because creating keys takes time."""
    return trustme.CA(organization_name=name)


@cache
def leaf(signer: str, names: tuple[str, ...], *, expired: bool = False) -> trustme.LeafCert:
    if not expired:
        return authority(signer).issue_cert(*names)
    first, last = (datetime.datetime(year, 1, 1, tzinfo=datetime.UTC) for year in (2000, 2001))
    return authority(signer).issue_cert(*names, not_before=first, not_after=last)


def identity(
    directory: Path, side: str, signer: str = "good", names: tuple[str, ...] = NAMES, *, expired: bool = False
) -> dict[str, Any]:
    """A certificate and its key as files, and the settings that name them."""
    cert = leaf(signer, names, expired=expired)
    # A new name each time, so that changes by a test do not affect others.
    stem = directory / f"{side}-{next(_numbers)}"
    paths = {"certPath": stem.with_suffix(".pem"), "keyPath": stem.with_suffix(".key")}
    paths["certPath"].write_bytes(cert.cert_chain_pems[0].bytes())
    paths["keyPath"].write_bytes(cert.private_key_pem.bytes())
    return {f"tls.{side}.{key}": str(path) for key, path in paths.items()}


def trust(directory: Path, side: str, signer: str = "good") -> dict[str, Any]:
    """The authorities trusted by one side."""
    path = directory / f"{side}-trusts.pem"
    path.write_bytes(authority(signer).cert_pem.bytes())
    return {f"tls.{side}.trustCertPath": str(path)}


def config(directory: Path, **keys: Any) -> Config:
    """A server with a certificate that clients trust; `keys` are further settings."""
    return settings.load(environ={}, flags=identity(directory, "server") | trust(directory, "client") | keys)


def transport(
    directory: Path, quic: QuicSettings | None = None, network: FakeNetwork | None = None, **keys: Any
) -> QuicTransport:
    """A transport for both sides."""
    return QuicTransport(config(directory, **keys), quic or QuicSettings(), network)


SERVER = Address("quic", "10.0.0.9", 10911)
CONNECT_TIMEOUT_MS = 20_000


@define
class Pair:
    """A server and a client on an in-memory network."""

    network: FakeNetwork
    transport: QuicTransport
    listener: QuicListener

    async def connect(self) -> QuicStream:
        stream = await self.transport.connect(SERVER, CONNECT_TIMEOUT_MS)
        assert isinstance(stream, QuicStream)
        return stream

    async def accepted(self, client: LanedStream) -> ServerStream:
        """The server's end of a lane, after the first byte."""
        await client.send(b"!")
        server = await self.listener.accept()
        assert await server.receive_some(1) == b"!"
        return server


@asynccontextmanager
async def served(
    directory: Path, network: FakeNetwork | None = None, quic: QuicSettings | None = None, **keys: Any
) -> AsyncIterator[Pair]:
    """A running listener."""
    network = network or FakeNetwork()
    made = QuicTransport(config(directory, **keys), quic or QuicSettings(), network)
    (listener,) = await made.listen(SERVER)
    assert isinstance(listener, QuicListener)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.run)
        yield Pair(network, made, listener)
        nursery.cancel_scope.cancel()


async def read(end: ServerStream | LanedStream, count: int) -> bytes:
    """Read `count` bytes from either kind of stream."""
    data = bytearray()
    while len(data) < count:
        piece = await end.receive_some(65_536) if isinstance(end, ServerStream) else await end.receive()
        assert piece, f"ended after {len(data)} of {count} bytes"
        data += piece
    return bytes(data)


@asynccontextmanager
async def calling(stream: LanedStream) -> AsyncIterator[Connection]:
    """The client's side of remoting over a lane."""
    connection = Connection(stream, str(SERVER))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        yield connection
        connection.close()


def server_only(directory: Path) -> dict[str, Any]:
    """A client's identity whose certificate is restricted to servers."""
    made = identity(directory, "client")
    path = Path(made["tls.client.certPath"])
    cert = x509.load_pem_x509_certificate(path.read_bytes())
    signer = load_pem_private_key(authority("good").private_key_pem.bytes(), None)
    builder = x509.CertificateBuilder(
        cert.issuer,
        cert.subject,
        cert.public_key(),
        cert.serial_number,
        cert.not_valid_before_utc,
        cert.not_valid_after_utc,
    ).add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    path.write_bytes(builder.sign(signer, SHA256()).public_bytes(Encoding.PEM))  # type: ignore[arg-type]
    return made
