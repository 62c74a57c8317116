"""gRPC as a protocol of ports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import trio

from rmqkit.plugin.protocols import ProtocolConnection, WireProtocol
from rmqkit.plugin.request import BROKER
from rmqkit_grpc.names import ALPN, PREFACE, PROTOCOL, PROXY

if TYPE_CHECKING:
    from rmqkit_grpc.backend import Backend
    from rmqkit_grpc.connection import GrpcConnection


class GrpcProtocol(WireProtocol):
    """Clients of gRPC, at the ports of a broker or before a cluster."""

    name = PROTOCOL
    prefixes: Sequence[bytes] = (PREFACE,)
    alpn: Sequence[str] = (ALPN,)
    servers = frozenset({BROKER, PROXY})

    def __init__(self) -> None:
        self._backend: Backend | None = None
        self._loading = trio.Lock()
        self._connection: Callable[[ProtocolConnection, Backend | None], GrpcConnection] | None = None

    def begin(self, backend: Backend) -> None:
        """The servers behind the door are there."""
        self._backend = backend

    async def serve(self, connection: ProtocolConnection) -> None:
        async with self._loading:
            if self._connection is None:
                self._connection = await trio.to_thread.run_sync(_loaded)
        await self._connection(connection, self._backend).serve()


def _loaded() -> Callable[[ProtocolConnection, Backend | None], GrpcConnection]:
    """Import protobuf and the definitions of the messages: brokers without clients of gRPC do without, and
    others go on serving meanwhile."""
    from rmqkit_grpc.connection import GrpcConnection
    from rmqkit_grpc.unfinished import Unfinished

    return partial(GrpcConnection, Unfinished())


__all__ = ["GrpcProtocol"]
