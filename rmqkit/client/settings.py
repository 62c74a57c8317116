"""Settings of a client and its producers, with their defaults (Java: ClientConfig, NettyClientConfig,
DefaultMQProducer; behaviour sheet, A1 to A3)."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import TypedDict

from attrs import field, frozen

from rmqkit.client.producing.latency_faults import LatencySteps
from rmqkit.client.routing.discovery import Discovery
from rmqkit.config import Config
from rmqkit.errors import ClientError, ConfigError
from rmqkit.protocol.codes import SerializeType
from rmqkit.protocol.message_id import pack_host
from rmqkit.toolkit.signing import Credentials

SERIALIZE_VARIABLE = "ROCKETMQ_SERIALIZE_TYPE"
#: Java: ProduceAccumulator.batchMaxDelayMs.
MAX_LINGER_MS = 30_000


def local_ip() -> str:
    """This machine's address on its default route, or 127.0.0.1. Nothing is sent: connecting a UDP socket
    only selects the interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def serialize_type_of_environment() -> SerializeType:
    """The value of ROCKETMQ_SERIALIZE_TYPE, default JSON. Raises ConfigError for any other value than JSON
    and ROCKETMQ."""
    name = os.environ.get(SERIALIZE_VARIABLE, "JSON")
    try:
        return SerializeType[name.upper()]
    except KeyError:
        raise ConfigError(f"{SERIALIZE_VARIABLE}={name!r}: must be JSON or ROCKETMQ") from None


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
    namespace: str
    filter_modules: Mapping[str, bytes]
    access_key: str
    secret_key: str
    security_token: str


@frozen(kw_only=True)
class ClientSettings:
    """Settings of one client; times in ms.

    name_servers                 their addresses; empty if `discovery` finds them
    client_id                    id under which brokers know it, `ip@instance`; the instance defaults to
                                 `pid#nanoseconds`
    transport                    how plain `host:port` addresses are reached: tcp, tls, quic, ...; default
                                 tls with the setting tls.enable, else tcp. A
                                 name server written as `tcp://host:port` is always reached by TCP
    call_timeout_ms              time limit of administration and route requests
    poll_name_server_interval_ms interval between refreshes of the routes
    heartbeat_interval_ms        interval between heartbeats
    serialize_type               encoding of sent headers
    namespace                    prefix of the names of topics and groups at the brokers, `ns%Orders`; the
                                 application reads and writes the names without it. Clients of one namespace
                                 do not see the topics and groups of another. Names that have the prefix
                                 already, and those of the system, stay as they are
    filter_modules               modules of WebAssembly for filter servers, by the names that subscriptions
                                 with `filter_class` give them
    access_key, secret_key       name and password of the user that signs each request; default accessKey and
                                 secretKey of the client's configuration
    security_token               sent, and signed, with each request; default securityToken
    """

    name_servers: tuple[str, ...]
    discovery: Discovery | None = None
    ip: str = field(factory=local_ip)
    instance_name: str = field(factory=lambda: f"{os.getpid()}#{time.time_ns()}")
    client_id: str = ""
    transport: str = ""
    connect_timeout_ms: int = 3000
    call_timeout_ms: int = 3000
    poll_name_server_interval_ms: int = 30_000
    heartbeat_interval_ms: int = 30_000
    serialize_type: SerializeType = field(factory=serialize_type_of_environment)
    namespace: str = ""
    filter_modules: Mapping[str, bytes] = field(factory=dict)
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    security_token: str = field(default="", repr=False)

    def credentials(self, config: Config) -> Credentials:
        """With what the client signs: what it was given, else what the configuration says. Raises
        ConfigError."""
        given = Credentials(self.access_key, self.secret_key, self.security_token)
        return given or Credentials(config.access_key, config.secret_key, config.security_token)

    @property
    def effective_client_id(self) -> str:
        """The id under which brokers know the client: `client_id`, else `ip@instance`."""
        return self.client_id or f"{self.ip}@{self.instance_name}"

    @property
    def stable_client_id(self) -> str:
        """The id under which a broadcast consumer keeps its offsets: `client_id`, else the one of Java's
        broadcast consumers, which does not change with the process."""
        return self.client_id or f"{self.ip}@DEFAULT"

    @property
    def packed_ip(self) -> bytes:
        """The address in the packed form used by message ids."""
        return pack_host(self.ip, 0)[:-4]


class ProducerKeywords(TypedDict, total=False):
    """Keywords that `Client.producer` passes on to `ProducerOptions`."""

    timeout_ms: int
    retries: int
    retry_when_not_stored_everywhere: bool
    max_message_bytes: int
    compression: str
    compress_over_bytes: int
    compress_level: int
    default_topic_queues: int
    latency_faults: LatencySteps | None
    linger_ms: float | None
    batch_bytes: int
    max_in_flight: int
    max_in_flight_bytes: int


@frozen(kw_only=True)
class ProducerOptions:
    """Settings of one producer (Java: DefaultMQProducer). Raises ClientError for a value out of range.

    timeout_ms                       time limit of one send with all its attempts
    retries                          further attempts after the first; 0 also means that a refused connection
                                     is not retried
    retry_when_not_stored_everywhere also retry after FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT and
                                     SLAVE_NOT_AVAILABLE; may store a message twice
    max_message_bytes                limit of a body before compression, and of a batch
    compression                      zlib, or with the extra `compression` also lz4 and zstd
    compress_over_bytes              minimum size of a body to be compressed; batches are not
    compress_level                   level of zlib and zstd; lz4 has none
    default_topic_queues             number of queues of a topic created by its first send
    latency_faults                   also avoid slow and failed brokers in later sends, for the durations of
                                     `LatencySteps` (Java: sendLatencyFaultEnable); default off
    linger_ms                        gather the sends of concurrent tasks into batches (Java: autoBatch): how
                                     long the first message of a batch waits for others. 0: only sends of
                                     tasks that run at the same time are gathered. Default: every send is a
                                     request
    batch_bytes                      size of a batch that departs at once; `max_message_bytes` if that is less
    max_in_flight                    messages that are sent and not answered yet; further sends wait
    max_in_flight_bytes              the same in bytes of their bodies
    """

    timeout_ms: int = 3000
    retries: int = 2
    retry_when_not_stored_everywhere: bool = False
    max_message_bytes: int = 4 * 1024 * 1024
    compression: str = "zlib"
    compress_over_bytes: int = 4096
    compress_level: int = 5
    default_topic_queues: int = 4
    latency_faults: LatencySteps | None = None
    linger_ms: float | None = None
    batch_bytes: int = 40 * 1024
    max_in_flight: int = 10_000
    max_in_flight_bytes: int = 100 * 1024 * 1024

    def __attrs_post_init__(self) -> None:
        if self.linger_ms is not None and not 0 <= self.linger_ms <= MAX_LINGER_MS:
            raise ClientError(f"linger_ms={self.linger_ms}: 0 to {MAX_LINGER_MS} are allowed")
        if self.batch_bytes < 1:
            raise ClientError(f"batch_bytes={self.batch_bytes}: must be positive")
        if self.max_in_flight < 1 or self.max_in_flight_bytes < 1:
            raise ClientError(
                f"max_in_flight={self.max_in_flight}, max_in_flight_bytes={self.max_in_flight_bytes}: a send"
                " needs room for at least one message"
            )
