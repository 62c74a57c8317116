"""Settings of a client and its producers, and what they default to (Java: ClientConfig, NettyClientConfig, DefaultMQProducer; behaviour
sheet, A1 to A3)."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from typing import TypedDict

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


class ClientKeywords(TypedDict, total=False):
    """Keywords that `Client` passes on to `ClientSettings`."""

    ip: str
    instance_name: str
    client_id: str
    transport: str
    connect_timeout_ms: int
    call_timeout_ms: int
    poll_name_server_interval_ms: int
    heartbeat_interval_ms: int
    serialize_type: SerializeType


@frozen(kw_only=True)
class ClientSettings:
    """Settings of one client; times in ms.

    client_id                    what brokers know it by: `ip@instance`; the instance defaults to `pid#nanoseconds`
    transport                    what plain `host:port` addresses are reached by: tcp, tls, quic, ...; default tls with the setting tls.enable, else tcp. A
                                 name server written as `tcp://host:port` is reached by TCP whatever it is
    call_timeout_ms              administration and route requests
    poll_name_server_interval_ms between two looks at the routes
    heartbeat_interval_ms        between two heartbeats to all known brokers
    serialize_type               form of the headers sent
    """

    name_servers: tuple[str, ...]
    ip: str = field(factory=local_ip)
    instance_name: str = field(factory=lambda: f"{os.getpid()}#{time.time_ns()}")
    client_id: str = ""
    transport: str = ""
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


class ProducerKeywords(TypedDict, total=False):
    """Keywords that `Client.producer` passes on to `ProducerOptions`."""

    timeout_ms: int
    retries: int
    retry_when_not_stored_everywhere: bool
    max_message_bytes: int
    compress_over_bytes: int
    compress_level: int
    default_topic_queues: int


@frozen(kw_only=True)
class ProducerOptions:
    """Settings of one producer (Java: DefaultMQProducer).

    timeout_ms                       time for one send, all attempts together
    retries                          further attempts after the first
    retry_when_not_stored_everywhere try another broker also after FLUSH_DISK_TIMEOUT and its kin; may store twice
    max_message_bytes                a body before compression, and a whole batch
    compress_over_bytes              bodies from this size on are compressed (zlib)
    default_topic_queues             queues a topic gets that the first send creates
    """

    timeout_ms: int = 3000
    retries: int = 2
    retry_when_not_stored_everywhere: bool = False
    max_message_bytes: int = 4 * 1024 * 1024
    compress_over_bytes: int = 4096
    compress_level: int = 5
    default_topic_queues: int = 4
