"""gRPC as a protocol of the ports of brokers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import trio

from rmqkit.plugin.protocols import ProtocolConnection, WireProtocol
from rmqkit_grpc.names import ALPN, PREFACE, PROTOCOL

if TYPE_CHECKING:
    from rmqkit.plugin.request_broker import RequestBroker
    from rmqkit_grpc.connection import GrpcConnection


class GrpcProtocol(WireProtocol):
    """Clients of gRPC at the ports of a broker."""

    name = PROTOCOL
    prefixes: Sequence[bytes] = (PREFACE,)
    alpn: Sequence[str] = (ALPN,)

    def __init__(self) -> None:
        self._broker: RequestBroker | None = None
        self._loading = trio.Lock()
        self._connection: Callable[[ProtocolConnection, RequestBroker | None], GrpcConnection] | None = None

    def begin(self, broker: RequestBroker) -> None:
        """The broker is assembled."""
        self._broker = broker

    async def serve(self, connection: ProtocolConnection) -> None:
        async with self._loading:
            if self._connection is None:
                self._connection = await trio.to_thread.run_sync(_loaded)
        await self._connection(connection, self._broker).serve()


def _loaded() -> Callable[[ProtocolConnection, RequestBroker | None], GrpcConnection]:
    """Import protobuf and the definitions of the messages: brokers without clients of gRPC do without, and
    others go on serving meanwhile."""
    from rmqkit_grpc.connection import GrpcConnection
    from rmqkit_grpc.unfinished import Unfinished

    return partial(GrpcConnection, Unfinished())


__all__ = ["GrpcProtocol"]
