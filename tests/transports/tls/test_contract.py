"""The contract of transports over TLS, and over the port that accepts both."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rmqkit.plugin.transport import Address, Transport
from rmqkit.testing.listening import Listening
from rmqkit.testing.transport import TransportContract
from rmqkit_transport_tcp.tcp import TcpTransport
from rmqkit_transport_tcp.tls import TlsTransport
from tests.transports.tcp.test_tcp import full_queue
from tests.transports.tls import certs


class TestTls(TransportContract):
    """Scheme `tls`."""

    half_close = False

    def make_transport(self, directory: Path) -> Transport:
        return TlsTransport(certs.config(certs.both(directory)))

    def where(self, directory: Path) -> Address:
        return Address("tls", "127.0.0.1", 0)


class TestPlainWhereTlsIsAllowed(TransportContract):
    """Scheme `tcp` in permissive mode."""

    def make_transport(self, directory: Path) -> Transport:
        return TcpTransport(certs.config(certs.write(directory)))

    def where(self, directory: Path) -> Address:
        return Address("tcp", "127.0.0.1", 0)

    @asynccontextmanager
    async def silent(self, at: Listening) -> AsyncIterator[Address]:
        with full_queue() as address:
            yield address
