"""The console of the cluster to which a broker belongs, in the broker's process."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec
import trio

from rmqkit.errors import MissingExtra
from rmqkit.plugin.address import Address
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.service import Service
from rmqkit_console.settings import PLUGIN, ConsoleSettings, has_libraries


@runtime_checkable
class HasFile(Protocol):
    """What the broker's audit tells of itself."""

    @property
    def file(self) -> Path | None:
        """Where it writes; None without a file."""


class ConsoleService(Service):
    """Serves the console where the settings say, as `rmqkit console` does, before the broker's name servers.
    It signs what it asks with `accessKey` and `secretKey`, as any client. Cancellation closes its
    connections."""

    name = PLUGIN

    def __init__(self, settings: ConsoleSettings) -> None:
        self._settings = settings
        self.door: Address | None = None

    async def run(self, broker: Broker, task_status: trio.TaskStatus[None]) -> None:
        """Until cancelled. Raises MissingExtra, ConfigError for an address that cannot be bound."""
        if not has_libraries():
            raise MissingExtra("the console", PLUGIN)
        # Imported here so that brokers start without the client and the web libraries.
        from rmqkit_console.clients import Clients
        from rmqkit_console.serving import serve

        config = broker.config
        clients = Clients(
            namesrv=config.namesrv_addr or broker.address, config=config, connect=broker.connect
        )
        settings = self._settings
        audit = broker.registry.services.get("audit")
        if isinstance(audit, HasFile) and audit.file is not None and not settings.audit_file:
            settings = msgspec.structs.replace(settings, audit_file=str(audit.file))
        async with trio.open_nursery() as nursery:
            self.door = await nursery.start(serve, clients, settings)
            try:
                task_status.started()
                await trio.sleep_forever()
            finally:
                self.door = None


__all__ = ["ConsoleService"]
