"""The port for gRPC."""

from __future__ import annotations

import logging

import trio

from rmqkit.errors import ConfigError, MissingExtra
from rmqkit.plugin.address import Address
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.listen import Serving
from rmqkit.plugin.service import Service
from rmqkit_grpc.limits import DRAIN_MS
from rmqkit_grpc.names import PLUGIN, PROTOCOL
from rmqkit_grpc.protocol import GrpcProtocol
from rmqkit_grpc.settings import AUTO, GrpcSettings

_log = logging.getLogger(__name__)


class GrpcService(Service):
    """Listens on the address of the settings. `door` is set while it does."""

    name = PLUGIN

    async def run(self, broker: Broker, task_status: trio.TaskStatus[None]) -> None:
        settings = broker.config.plugin_settings(PLUGIN, GrpcSettings)
        wanted = settings.address
        if wanted is None:
            task_status.started()
            return
        protocol = broker.registry.protocols.get(PROTOCOL)
        if not isinstance(protocol, GrpcProtocol):
            raise MissingExtra(f"plugins.grpc.listen = {settings.listen}", PLUGIN)
        serving = await self._listen(broker, protocol, wanted, settings.listen == AUTO)
        self.door = serving.addresses[0]
        _log.info("clients of gRPC connect to %s", self.door)
        try:
            await serving.run(DRAIN_MS, task_status=task_status)
        finally:
            self.door = None

    async def _listen(
        self, broker: Broker, protocol: GrpcProtocol, wanted: Address, or_another: bool
    ) -> Serving:
        try:
            return await broker.listen(protocol, [wanted])
        except ConfigError as error:
            if not or_another:
                raise ConfigError(f"gRPC: {error}; choose one with --grpc HOST:PORT") from error
            _log.warning("gRPC: %s is taken, a free port is used instead", wanted)
            return await broker.listen(protocol, [Address(wanted.scheme, wanted.host, 0)])


__all__ = ["GrpcService"]
