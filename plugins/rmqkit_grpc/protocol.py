"""gRPC as a protocol of the ports of brokers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

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
        self._connection: Callable[[ProtocolConnection, RequestBroker | None], GrpcConnection] | None = None

    def begin(self, broker: RequestBroker) -> None:
        """The broker is assembled."""
        self._broker = broker

    def load(self) -> None:
        """Load protobuf and the definitions of the messages, which brokers without clients of gRPC do
        without; the first connection does otherwise."""
        from rmqkit_grpc.connection import GrpcConnection
        from rmqkit_grpc.unfinished import Unfinished

        self._connection = partial(GrpcConnection, Unfinished())

    async def serve(self, connection: ProtocolConnection) -> None:
        if self._connection is None:
            self.load()
        assert self._connection is not None, "it was loaded"
        await self._connection(connection, self._broker).serve()


__all__ = ["GrpcProtocol"]
