"""gRPC at the ports of a broker keeps the contract of protocols."""

from __future__ import annotations

from rmqkit.plugin.protocols import WireProtocol
from rmqkit.testing.protocol import ProtocolContract
from rmqkit_grpc.messages import V2
from rmqkit_grpc.protocol import GrpcProtocol
from tests.plugins.grpc import frames as f

_HEARTBEAT = V2.messages["HeartbeatRequest"](client_type=V2.enums["ClientType"]["PRODUCER"])


class TestGrpc(ProtocolContract):
    def make_protocol(self) -> WireProtocol:
        return GrpcProtocol()

    def asked(self, number: int) -> bytes:
        return (b"" if number else f.begun()) + f.call(2 * number + 1, "Heartbeat", _HEARTBEAT)

    def count(self, data: bytes) -> int:
        return len(f.ended(data))
