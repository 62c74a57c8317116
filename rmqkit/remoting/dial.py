"""Connecting to an address, by its scheme. Runs under trio and asyncio."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from anyio.abc import ByteStream
from attrs import evolve

from rmqkit import config as settings
from rmqkit.config import Config
from rmqkit.plugin.address import Address
from rmqkit.toolkit.connect import connect_tcp

if TYPE_CHECKING:
    from rmqkit.plugin.registrations import Registrations

TCP, TLS = "tcp", "tls"
_TCP_PREFIX = f"{TCP}://"


class Dialer:
    """Connects by the transports of plugins; TCP needs none.

    config    settings of the transports (`tls.*`), default: the environment's; must be the registry's if one
              is given
    registry  the transports, default: those of the installed plugins, which are loaded when an address first
              needs one
    plain     the scheme of addresses that have none, such as those in routes; default `tls` with the setting
              tls.enable, else `tcp`
    written   addresses written by the user: those with `tcp://` stay TCP. Addresses from servers never do,
              because they could disable encryption

    Raises ConfigError for wrong settings of the environment.
    """

    def __init__(
        self,
        config: Config | None = None,
        registry: Registrations | None = None,
        plain: str | None = None,
        written: Iterable[str] = (),
    ) -> None:
        self._config = config if config is not None else settings.load()
        self._registry = registry
        self._plain = plain or (TLS if self._config.tls_enable else TCP)
        self._tcp = frozenset(
            text.removeprefix(_TCP_PREFIX) for text in written if text.startswith(_TCP_PREFIX)
        )

    async def __call__(self, address: Address, timeout_ms: int) -> ByteStream:
        """Connect by the transport of the address's scheme. Raises what `Transport.connect` raises, and
        PluginError when no plugin registers the scheme."""
        if address.scheme == TCP and str(address) not in self._tcp:
            address = evolve(address, scheme=self._plain)
        if address.scheme == TCP:
            return await connect_tcp(address, timeout_ms)
        if self._registry is None:
            # Plain TCP needs no plugins, and finding them takes as long as the rest of the client's imports.
            from rmqkit.plugin import loader

            self._registry = loader.load(self._config)
        return await self._registry.transport(address).connect(address, timeout_ms)
