"""Connecting to an address, by its scheme. Runs under trio and asyncio."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterable

import anyio
from anyio.abc import ByteStream, SocketAttribute
from attrs import evolve

from rmqkit import config as settings
from rmqkit import plugins
from rmqkit.abc import Address, Transport
from rmqkit.config import Config
from rmqkit.plugins import Registry

#: `(address, timeout_ms) -> stream`; raises OSError, TimeoutError or ConfigError. Cancelled: nothing stays open.
Connect = Callable[[Address, int], Awaitable[ByteStream]]

TCP, TLS = "tcp", "tls"
_TCP_PREFIX = f"{TCP}://"


async def connect_tcp(address: Address, timeout_ms: int) -> ByteStream:
    """A TCP stream with TCP_NODELAY. Raises OSError that says why, TimeoutError. Cancelled: nothing stays open."""
    with anyio.fail_after(timeout_ms / 1000):
        try:
            stream = await anyio.connect_tcp(address.host, address.port)
        except OSError as error:
            raise _reason(error) from error
    try:
        stream.extra(SocketAttribute.raw_socket).setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:
        await anyio.aclose_forcefully(stream)
        raise
    return stream


def _reason(error: OSError) -> OSError:
    """anyio wraps what the sockets said, one of them or several; the inner text is the useful one."""
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):
        return OSError("; ".join(dict.fromkeys(str(inner) for inner in cause.exceptions)))
    return cause if isinstance(cause, OSError) else error


class Dialer:
    """Connects by the transports of plugins; TCP needs none.

    config    what the transports go by (`tls.*`), default: the environment's; given together with a registry it is the registry's
    registry  where the transports are, default: the installed plugins, which are loaded when the first address needs one
    plain     the scheme of addresses that have none, such as those in routes; default `tls` with the setting tls.enable, else `tcp`
    written   addresses as the user wrote them: those with `tcp://` stay TCP. What a server tells never does that: it could take the encryption away

    Raises ConfigError for settings of the environment that are wrong.
    """

    def __init__(
        self, config: Config | None = None, registry: Registry | None = None, plain: str | None = None, written: Iterable[str] = ()
    ) -> None:
        self._config = config if config is not None else settings.load()
        self._registry = registry
        self._plain = plain or (TLS if self._config.tls_enable else TCP)
        self._tcp = frozenset(text.removeprefix(_TCP_PREFIX) for text in written if text.startswith(_TCP_PREFIX))

    async def __call__(self, address: Address, timeout_ms: int) -> ByteStream:
        """Raises as `Transport.connect`, and PluginError when no plugin brings the scheme."""
        if address.scheme == TCP and str(address) not in self._tcp:
            address = evolve(address, scheme=self._plain)
        if address.scheme == TCP:
            return await connect_tcp(address, timeout_ms)
        if self._registry is None:
            self._registry = plugins.load(self._config)
        transport: Transport = self._registry.chosen("transports", address.scheme)
        return await transport.connect(address, timeout_ms)
