"""The transport `quic`. aioquic is imported, and the files of `tls.*` are read, when it is first used."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

import anyio
import anyio.abc
import trio

from rmqkit.config import Config
from rmqkit.errors import ConfigError, how_to_install
from rmqkit.plugin.transport import Address, ServerStream, Transport
from rmqkit.toolkit.certificate_files import CertificateFiles
from rmqkit_transport_quic.settings import QuicSettings
from rmqkit_transport_quic.udp import Network, UdpNetwork

if TYPE_CHECKING:
    from aioquic.quic.configuration import QuicConfiguration


class QuicTransport(Transport):
    """Scheme `quic`: QUIC version 1 (RFC 9000) with the application protocol `rocketmq`. The streams of
    listeners and clients are lanes.

    `network` carries the datagrams: the operating system, or a replacement in tests.
    """

    scheme = "quic"
    needs_port = True

    def __init__(self, config: Config, settings: QuicSettings, network: Network | None = None) -> None:
        self._config = config
        self._settings = settings
        self._network = network or UdpNetwork()
        self._credentials: CertificateFiles[QuicConfiguration] | None = None

    async def listen(
        self, address: Address, alpn: Sequence[str] = ()
    ) -> Sequence[trio.abc.Listener[ServerStream]]:
        _need_library()
        from rmqkit_transport_quic.listener import listen

        return [await listen(address, self._config, self._settings, self._network)]

    async def connect(self, address: Address, timeout_ms: int) -> anyio.abc.ByteStream:
        """A LanedStream."""
        _need_library()
        from rmqkit_transport_quic.dialer import client_credentials, dial

        if self._credentials is None:
            self._credentials = client_credentials(self._config, self._settings)
        with anyio.fail_after(timeout_ms / 1000):
            return await dial(address, self._credentials, self._settings, self._network)

    def bound_address(self, listener: trio.abc.Listener[ServerStream]) -> Address:
        local = getattr(listener, "local", None)
        if local is None:
            raise TypeError(f"{listener!r} is not a QUIC listener")
        return Address(self.scheme, *local)


def _need_library() -> None:
    if find_spec("aioquic") is None:
        raise ConfigError(f"the scheme quic needs the library aioquic: {how_to_install('quic')}")
