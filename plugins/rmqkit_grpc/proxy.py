"""Serving clients of gRPC before a cluster, of rmqkit's brokers or of Apache's."""

from __future__ import annotations

import logging

import trio

from rmqkit.client import Client
from rmqkit.config import Config
from rmqkit.plugin.server import Listen, ServerHandle
from rmqkit.toolkit.system_clock import SystemClock
from rmqkit_grpc.cluster import ClusterBackend
from rmqkit_grpc.limits import DRAIN_MS
from rmqkit_grpc.members import Members
from rmqkit_grpc.passing import Passing
from rmqkit_grpc.protocol import GrpcProtocol

_log = logging.getLogger(__name__)


async def serve(
    config: Config, protocol: GrpcProtocol, listen: Listen, task_status: trio.TaskStatus[ServerHandle]
) -> None:
    """`rmqkit_grpc.role.Proxy.run`."""
    async with Client(config.namesrv_addr or None, config=config, connect=listen.connect(config)) as client:
        cluster = ClusterBackend(client, SystemClock())
        members = Members(client.relay)
        cluster.count_clients = members.counts
        passing = Passing(client.relay, cluster, members)
        protocol.begin(cluster)
        serving = await listen(dict.fromkeys(passing.codes, passing), on_closed=members.forget)
        # What is passed on goes on while `serving` drains.
        passing_on = trio.CancelScope(shield=True)
        async with trio.open_nursery() as nursery:
            await nursery.start(passing.run, passing_on)
            nursery.start_soon(members.run)
            nursery.start_soon(cluster.watch)
            try:
                async with trio.open_nursery() as doors:
                    await doors.start(serving.run, DRAIN_MS)
                    _log.info("clients of gRPC connect to %s", serving.addresses[0])
                    task_status.started(ServerHandle(serving.addresses))
            finally:
                passing_on.cancel()
                nursery.cancel_scope.cancel()


__all__ = ["serve"]
