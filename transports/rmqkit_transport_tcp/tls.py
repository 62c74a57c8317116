"""Scheme `tls`: TCP connections that must be TLS, in both roles."""

from __future__ import annotations

import ssl
from collections.abc import Sequence

import anyio
import anyio.abc
import trio
from attrs import evolve

from rmqkit.config import Config
from rmqkit.config.tls import has_certificate
from rmqkit.errors import ConfigError
from rmqkit.plugin.transport import Address, ServerStream, Transport
from rmqkit.toolkit.certificate_files import CertificateFiles, client_files
from rmqkit.toolkit.connect import connect_tcp
from rmqkit_transport_tcp.channel import TlsChannel
from rmqkit_transport_tcp.contexts import client_context
from rmqkit_transport_tcp.secure import TlsClientStream, refusal
from rmqkit_transport_tcp.tcp import SecureListener, bound_at, secure_listener


class TlsTransport(Transport):
    """The configured files are read at the first use (for the server when it listens, for the client when it
    connects), and again when they have changed."""

    scheme = "tls"
    needs_port = True

    def __init__(self, config: Config) -> None:
        self._config = config
        self._client: CertificateFiles[ssl.SSLContext] | None = None

    async def listen(
        self, address: Address, alpn: Sequence[str] = ()
    ) -> Sequence[trio.abc.Listener[ServerStream]]:
        if not has_certificate(self._config):
            raise ConfigError(
                f"{address} needs a certificate: name its file in tls.server.certPath, and that of its key in"
                " tls.server.keyPath"
            )
        return [await secure_listener(address, self._config, alpn, plain=False)]

    async def connect(self, address: Address, timeout_ms: int) -> anyio.abc.ByteStream:
        """Connect by TLS. Raises OSError with a remedy when the server's certificate is not accepted, or when
        the server does not use TLS."""
        if self._client is None:
            self._client = CertificateFiles(
                self._config, "TLS client", client_context, client_files(self._config)
            )
        with anyio.fail_after(timeout_ms / 1000):
            await self._client.look()
            below = await connect_tcp(evolve(address, scheme="tcp"), timeout_ms)
            try:
                return await _shaken(below, self._client.made, address)
            except BaseException:
                await anyio.aclose_forcefully(below)
                raise

    def bound_address(self, listener: trio.abc.Listener[ServerStream]) -> Address:
        if not isinstance(listener, SecureListener):
            raise TypeError(f"{listener!r} is not a TLS listener")
        return bound_at(listener.socket, self.scheme)


async def _shaken(below: anyio.abc.ByteStream, context: ssl.SSLContext, address: Address) -> TlsClientStream:
    channel = TlsChannel(context, server_side=False, server_hostname=address.host.partition("%")[0])
    try:
        while not channel.handshake():
            await below.send(channel.take())
            channel.feed(await below.receive())
        await below.send(channel.take())
    except ssl.SSLError as error:
        raise ConnectionError(_explained(error, address)) from error
    except (anyio.EndOfStream, anyio.BrokenResourceError) as error:
        raise ConnectionError(
            f"{address} closed the connection in the TLS handshake: it may take no TLS there"
            " (tls.server.mode), or not this client's certificate"
        ) from error
    return TlsClientStream(below, channel)


#: OpenSSL's X509_V_ERR_ codes for wrong names: of a host, of an IP address.
_WRONG_NAME = (62, 64)
_EXPIRED = 10


def _explained(error: ssl.SSLError, address: Address) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _WRONG_NAME:
            step = "reach it by a name that its certificate carries, or give it one that carries this name"
        elif error.verify_code == _EXPIRED:
            step = "the server needs a new one"
        else:
            step = "name the certificate that signed it in tls.client.trustCertPath"
        return f"the certificate of {address} is not accepted: {error.verify_message}; {step}"
    if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_MESSAGE"):
        return f"{address} does not speak TLS"
    return f"{address}: {refusal(error)}"
