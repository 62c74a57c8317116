"""The process role `proxy`: a door for clients of gRPC before a cluster."""

from __future__ import annotations

import trio

from rmqkit.config import Config
from rmqkit.errors import MissingExtra
from rmqkit.plugin.registrations import Registrations
from rmqkit.plugin.server import Listen, Server, ServerHandle
from rmqkit_grpc.names import PLUGIN, PROTOCOL, PROXY
from rmqkit_grpc.protocol import GrpcProtocol


class Proxy(Server):
    """Serves clients of gRPC with the brokers of the name servers in the settings. It keeps nothing, so any
    number of them may stand before a cluster."""

    name = PROXY

    async def run(
        self,
        config: Config,
        registry: Registrations,
        listen: Listen,
        task_status: trio.TaskStatus[ServerHandle],
    ) -> None:
        """Run a proxy. Raises MissingExtra, ConfigError without a name server and for an address that cannot
        be bound. When cancelled, stops accepting, and answers calls in flight (at most 10 s)."""
        protocol = registry.protocols.get(PROTOCOL)
        if not isinstance(protocol, GrpcProtocol):
            raise MissingExtra("a proxy", PLUGIN)
        # Imported here so that brokers start without the client and protobuf.
        from rmqkit_grpc import proxy

        await proxy.serve(config, protocol, listen, task_status)


__all__ = ["Proxy"]
