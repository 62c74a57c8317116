"""Messages on their way in (`PutMessage`), at rest (`StoredMessage`) and as users write them (`Message`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec
from attrs import field, frozen

from rmqkit.model import properties as props
from rmqkit.protocol.tags import tags_code

_NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


class PutMessage(msgspec.Struct, kw_only=True, gc=False):
    """A message a broker is about to store (Java: MessageExtBrokerInner). Mutable: put-message hooks rewrite its destination.

    born_host        packed address and port, 8 or 20 bytes; `sys_flag` says which
    properties       what the hooks and dispatchers read; change it through `set_properties`, which keeps `properties_bytes` equal
    properties_bytes what goes to disk
    tags_code        what the consume queue keeps: the hash of TAGS, or a delivery time in the schedule topic
    wait             whether the sender wants to wait for flush and replicas (property WAIT)
    """

    topic: str
    queue_id: int
    body: bytes
    properties: dict[str, str]
    properties_bytes: bytes
    flag: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: bytes = b"\x7f\x00\x00\x01\x00\x00\x00\x00"
    reconsume_times: int = 0
    prepared_offset: int = 0
    tags_code: int = 0
    wait: bool = True

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Replace the properties and what derives from them. Raises DecodeError when a separator is inside."""
        self.properties = dict(properties)
        self.properties_bytes = props.encode(self.properties).encode()
        self.tags_code = tags_code(self.properties.get(props.TAGS))


class StoredMessage(msgspec.Struct, kw_only=True, gc=False, frozen=True):
    """A record read back (Java: MessageExt before decompression). Times in ms; `size_bytes` is the whole record."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    body: bytes
    properties: dict[str, str]
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: bytes
    store_timestamp_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    body_crc: int
    size_bytes: int


def _keys(value: Iterable[str] | str) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


@frozen
class Message:
    """A message as an application writes it. Never changed by sending.

    topic         where to
    body          bytes, at least one
    tag           one tag, for cheap filtering at the broker
    keys          index keys to look it up by; no blanks inside
    properties    further properties
    ordering_key  messages of equal key go to the same queue, in order
    delay_level   1..18: deliver after 1s 5s 10s 30s 1m .. 10m 20m 30m 1h 2h
    flag          a number for the application, passed through
    wait_store    wait for flush and replicas as the broker is set (property WAIT)
    """

    topic: str
    body: bytes
    tag: str | None = field(default=None, kw_only=True)
    keys: Sequence[str] = field(default=(), converter=_keys, kw_only=True)
    properties: Mapping[str, str] = field(default=_NO_PROPERTIES, kw_only=True)
    ordering_key: str | None = field(default=None, kw_only=True)
    delay_level: int | None = field(default=None, kw_only=True)
    flag: int = field(default=0, kw_only=True)
    wait_store: bool = field(default=True, kw_only=True)

    def all_properties(self) -> dict[str, str]:
        """Everything that travels as properties, own ones first."""
        result = dict(self.properties)
        if self.tag:
            result[props.TAGS] = self.tag
        if self.keys:
            result[props.KEYS] = " ".join(self.keys)
        if self.ordering_key:
            result[props.SHARDING_KEY] = self.ordering_key
        if self.delay_level:
            result[props.DELAY] = str(self.delay_level)
        result.setdefault(props.WAIT, "true" if self.wait_store else "false")
        return result
