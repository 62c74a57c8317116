"""TLS streams over TCP: the accepted end on trio, the connected end on anyio.

The first byte of a connection decides: 0x16 begins a TLS handshake. A frame never begins with it, because its
length would be 369 MB (wire-protocol sheet, section 9).
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio
import anyio.abc
import trio

from rmqkit.limits import READ_CHUNK_BYTES
from rmqkit.log_limit import limited_logger
from rmqkit.model.buffer import CHUNK_BYTES, Buffer, chunks
from rmqkit.plugin.transport import Address, ServerStream, TransportInfo
from rmqkit.toolkit.certificate_files import CertificateFiles
from rmqkit.toolkit.sockets import SocketStream, translated
from rmqkit_transport_tcp.channel import TlsChannel
from rmqkit_transport_tcp.handshakes import HandshakeTurns
from rmqkit_transport_tcp.limits import TLS_HANDSHAKE_TIMEOUT_MS

_log = limited_logger(__name__)
_HANDSHAKE = b"\x16"
_FAREWELL_TIMEOUT_S = 1.0
_CUT_OFF = "an earlier send was cut off, or is still under way: nothing more can be sent"


class TlsSniffingStream(SocketStream):
    """An accepted socket before it is known whether the peer uses TLS. With `plain` false it must."""

    def __init__(
        self,
        sock: socket.socket,
        remote: tuple[str, int],
        local: tuple[str, int],
        certificates: CertificateFiles[ssl.SSLContext],
        turns: HandshakeTurns,
        *,
        plain: bool,
        scheme: str,
    ) -> None:
        super().__init__(sock, remote, local, scheme)
        self._certificates = certificates
        self._turns = turns
        self._plain = plain

    async def opened(self) -> ServerStream:
        first = await self._first_byte()
        if first == _HANDSHAKE:
            return await self._handshake()
        if not self._plain and first:
            _log.warning(
                "a plain connection from %s was closed: this port takes only TLS (tls.server.mode)",
                self.remote[0],
            )
            # With unread bytes, closing would reset the connection, and the peer would not learn the reason.
            await self.receive_some()
            raise trio.BrokenResourceError("a plain connection to a port that takes only TLS")
        # From here on a plain connection costs no more than without TLS.
        return SocketStream(self.socket, self.remote, self.local, self.scheme)

    async def _first_byte(self) -> bytes:
        while True:
            await trio.lowlevel.wait_readable(self.socket)
            try:
                return self.socket.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                continue
            except OSError as error:
                raise translated(error) from error

    async def _handshake(self) -> ServerStream:
        channel = TlsChannel(self._certificates.made, server_side=True)
        try:
            with trio.fail_after(TLS_HANDSHAKE_TIMEOUT_MS / 1000):
                while not await self._step(channel):
                    await self.send_all(channel.take())
                    data = await self.receive_some()
                    if not data:
                        raise trio.BrokenResourceError("ended by the peer in the middle")
                    channel.feed(data)
                await self.send_all(channel.take())
        except (ssl.SSLError, trio.TooSlowError, trio.BrokenResourceError) as error:
            why = (
                f"not within {TLS_HANDSHAKE_TIMEOUT_MS} ms"
                if isinstance(error, trio.TooSlowError)
                else _said(error)
            )
            _log.warning("TLS handshake with %s failed: %s", self.remote[0], why)
            _send_now(self.socket, channel.take())
            raise trio.BrokenResourceError(f"TLS handshake failed: {why}") from error
        return TlsServerStream(self, channel)

    async def _step(self, channel: TlsChannel) -> bool:
        async with self._turns.turn():
            return channel.handshake()


class TlsServerStream(ServerStream):
    """An accepted connection after its handshake. One task at a time may send."""

    def __init__(self, below: SocketStream, channel: TlsChannel) -> None:
        self._below = below
        self._channel = channel
        self.remote = below.remote
        self.local = below.local
        self.scheme = below.scheme
        # OpenSSL tells neither once the connection has been closed.
        self._transport = TransportInfo(
            Address(self.scheme, *self.local), True, channel.certificate, channel.alpn
        )
        self._sending = False

    @property
    def transport(self) -> TransportInfo:
        return self._transport

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        wanted = max_bytes or READ_CHUNK_BYTES
        try:
            # Data that arrived with the end of the handshake, or did not fit into the last read, is available
            # already.
            while (data := self._channel.read(wanted)) is None:
                self._channel.feed(await self._below.receive_some(READ_CHUNK_BYTES))
        except ssl.SSLError as error:
            raise trio.BrokenResourceError(f"TLS: {_said(error)}") from error
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._send([data])

    async def send_parts(self, parts: Sequence[Buffer]) -> None:
        await self._send(parts)

    async def _send(self, parts: Sequence[Buffer | bytearray]) -> None:
        if self._below.socket.fileno() < 0:
            raise trio.ClosedResourceError("this socket was already closed")
        if self._sending:
            raise trio.BrokenResourceError(_CUT_OFF)
        self._sending = True
        try:
            for chunk in chunks(parts):
                await self._below.send_all(self._channel.write(chunk))
        except ssl.SSLError as error:
            raise trio.BrokenResourceError(f"TLS: {_said(error)}") from error
        # Not reached after an interrupted send: nothing may follow half a record.
        self._sending = False

    async def wait_send_all_might_not_block(self) -> None:
        await self._below.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Sends the closing message if that is possible without waiting."""
        if self._below.socket.fileno() >= 0 and not self._sending:
            _send_now(self._below.socket, self._channel.farewell())
        await self._below.aclose()


class TlsClientStream(anyio.abc.ByteStream):
    """A connection made by this side. One `receive` and one `send` may run at the same time."""

    def __init__(self, below: anyio.abc.ByteStream, channel: TlsChannel) -> None:
        self._below = below
        self._channel = channel
        self._sending = False
        self._closed = False

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """The attributes of the TCP connection."""
        return self._below.extra_attributes

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        if self._closed:
            raise anyio.ClosedResourceError
        await anyio.lowlevel.checkpoint()
        try:
            while (data := self._channel.read(max_bytes)) is None:
                try:
                    ciphertext = await self._below.receive(READ_CHUNK_BYTES)
                except anyio.EndOfStream:
                    ciphertext = b""
                self._channel.feed(ciphertext)
        except ssl.SSLError as error:
            raise anyio.BrokenResourceError(refusal(error)) from error
        if not data:
            raise anyio.EndOfStream
        return data

    async def send(self, item: bytes) -> None:
        if self._closed:
            raise anyio.ClosedResourceError
        if self._sending:
            raise anyio.BrokenResourceError(_CUT_OFF)
        self._sending = True
        try:
            for at in range(0, len(item), CHUNK_BYTES):
                await self._below.send(self._channel.write(memoryview(item)[at : at + CHUNK_BYTES]))
        except ssl.SSLError as error:
            raise anyio.BrokenResourceError(refusal(error)) from error
        # As in TlsServerStream.
        self._sending = False

    async def send_eof(self) -> None:
        raise NotImplementedError("TLS has no half-closed connections")

    async def aclose(self) -> None:
        """Sends the closing message with a time limit of one second; the connection is closed even when
        cancelled."""
        try:
            if not self._closed and not self._sending:
                with anyio.move_on_after(_FAREWELL_TIMEOUT_S):
                    await self._below.send(self._channel.farewell())
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            _log.debug("the server was gone before the farewell")
        finally:
            self._closed = True
            await self._below.aclose()


def refusal(error: ssl.SSLError) -> str:
    """The error text for a server that rejects the client."""
    said = _said(error)
    if "certificate required" in said:
        return (
            "the server wants a certificate of this client: name its file in tls.client.certPath (TLS:"
            f" {said})"
        )
    if "alert" in said and ("certificate" in said or "unknown ca" in said):
        return f"the server does not accept the certificate of this client, tls.client.certPath (TLS: {said})"
    return f"TLS: {said}"


def _said(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return str(error)


def _send_now(sock: socket.socket, data: bytes) -> None:
    """Send a closing message or an alert without waiting."""
    try:
        sock.send(data)
    except OSError as error:
        _log.debug("the peer was gone before the farewell: %s", error)
