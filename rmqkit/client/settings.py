"""Settings of a client and what they default to (Java: ClientConfig, NettyClientConfig; behaviour sheet, A1 to A3)."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable

from attrs import field, frozen

from rmqkit.errors import ConfigError
from rmqkit.protocol.codes import SerializeType
from rmqkit.protocol.message_id import pack_host

NAMESRV_VARIABLE = "NAMESRV_ADDR"
SERIALIZE_VARIABLE = "ROCKETMQ_SERIALIZE_TYPE"


def local_ip() -> str:
    """This machine's address on its default route, 127.0.0.1 when it has none. Sends nothing: a UDP connect only picks the interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def parse_name_servers(namesrv: str | Iterable[str] | None) -> tuple[str, ...]:
    """`host:port;host:port`, or several such texts, or None for the environment's NAMESRV_ADDR. Raises ConfigError when nothing is named."""
    given = os.environ.get(NAMESRV_VARIABLE, "") if namesrv is None else namesrv
    texts = [given] if isinstance(given, str) else list(given)
    addresses = [part.strip() for text in texts for part in text.replace(",", ";").split(";") if part.strip()]
    if not addresses:
        raise ConfigError(f"no name server is named: give Client('host:9876') one, or set {NAMESRV_VARIABLE}=host:9876")
    return tuple(dict.fromkeys(addresses))


def serialize_type_of_environment() -> SerializeType:
    """ROCKETMQ_SERIALIZE_TYPE, default JSON. Raises ConfigError for another value than JSON and ROCKETMQ."""
    name = os.environ.get(SERIALIZE_VARIABLE, "JSON")
    try:
        return SerializeType[name.upper()]
    except KeyError:
        raise ConfigError(f"{SERIALIZE_VARIABLE}={name!r}: JSON and ROCKETMQ are known") from None


@frozen(kw_only=True)
class ClientSettings:
    """Settings of one client; times in ms.

    client_id                    what brokers know it by: `ip@instance`; the instance defaults to `pid#nanoseconds`
    call_timeout_ms              administration and route requests
    poll_name_server_interval_ms between two looks at the routes
    heartbeat_interval_ms        between two heartbeats to all known brokers
    serialize_type               form of the headers sent
    """

    name_servers: tuple[str, ...]
    ip: str = field(factory=local_ip)
    instance_name: str = field(factory=lambda: f"{os.getpid()}#{time.time_ns()}")
    client_id: str = ""
    connect_timeout_ms: int = 3000
    call_timeout_ms: int = 3000
    poll_name_server_interval_ms: int = 30_000
    heartbeat_interval_ms: int = 30_000
    serialize_type: SerializeType = field(factory=serialize_type_of_environment)

    @property
    def effective_client_id(self) -> str:
        return self.client_id or f"{self.ip}@{self.instance_name}"

    @property
    def packed_ip(self) -> bytes:
        return pack_host(self.ip, 0)[:-4]
