"""Messages before the append (`PutMessage`), as stored (`StoredMessage`) and as applications write them
(`Message`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from rmqkit.model import properties as props
from rmqkit.protocol.tags import tags_code

_NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


class Appended(NamedTuple):
    """The place of one appended message."""

    queue_offset: int
    physical_offset: int
    size_bytes: int
    store_timestamp_ms: int


class PutMessage(msgspec.Struct, gc=False):
    """A message that a broker is about to store (Java: MessageExtBrokerInner). Mutable: put-message hooks
    rewrite its destination.

    born_host        packed address and port, 8 or 20 bytes, according to `sys_flag`
    properties       for hooks and dispatchers; change it through `set_properties`, which keeps
                     `properties_bytes` equal
    properties_bytes the stored form
    tags_code        the code in the consume queue: the hash of TAGS, or a delivery time in the schedule topic
    wait             whether the sender wants to wait for flush and replicas (property WAIT)
    unqueued_offset  what a record without a place in a queue, prepared or rolled back, has instead of a queue
                     offset
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
    unqueued_offset: int = 0

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Replace the properties and everything derived from them. Properties that stay keep their stored
        bytes. Raises MessageIllegal for one that cannot be stored (`rmqkit.model.properties.encode`)."""
        self.properties_bytes = props.changed(self.properties_bytes, properties)
        self.properties = dict(properties)
        self.tags_code = tags_code(self.properties.get(props.TAGS))


class StoredMessage(msgspec.Struct, kw_only=True, gc=False, frozen=True):
    """A record as read from the store (Java: MessageExt before decompression). Times in ms.

    topic             what is not UTF-8 is replaced, as in the properties
    properties_bytes  the stored form of the properties, for who stores the message again
    size_bytes        the size of the whole record
    """

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    body: bytes
    properties: dict[str, str]
    properties_bytes: bytes
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
    if isinstance(value, str):
        return (value,)
    try:
        return tuple(value)
    except TypeError:
        raise TypeError(f"the keys of a message are strings, not {type(value).__name__}") from None


class _Destined(msgspec.Struct, frozen=True, gc=False):
    topic: str
    body: bytes


class Message(_Destined, frozen=True, kw_only=True, gc=False):
    """A message as an application writes it. Sending does not change it; `msgspec.structs.replace` makes a
    changed copy.

    topic         the destination
    body          bytes, at least one
    tag           one tag, for cheap filtering at the broker
    keys          index keys for look-ups, kept as a tuple; must not contain spaces. A text is one key
    properties    further properties
    ordering_key  messages with equal keys go to the same queue, in order
    delay_level   1..18: deliver after 1s 5s 10s 30s 1m .. 10m 20m 30m 1h 2h
    priority      0 or more, higher ones are popped first; for topics of the type PRIORITY
    flag          a number for the application, passed through
    wait_store    wait for flush and replicas as configured at the broker (property WAIT)

    Raises TypeError for a value of a wrong type, naming it.
    """

    tag: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = _NO_PROPERTIES
    ordering_key: str | None = None
    delay_level: int | None = None
    priority: int | None = None
    flag: int = 0
    wait_store: bool = True

    def __post_init__(self) -> None:
        if (
            type(self.body) is bytes
            and type(self.topic) is str
            and self.tag is None
            and self.ordering_key is None
            and self.delay_level is None
            and self.priority is None
            and self.properties is _NO_PROPERTIES
            and not self.keys
        ):
            return
        msgspec.structs.force_setattr(self, "keys", _keys(self.keys))
        if not isinstance(self.topic, str):
            raise TypeError(f"the topic of a message is a str, not {type(self.topic).__name__}")
        if not isinstance(self.body, (bytes, bytearray, memoryview)):
            raise TypeError(
                f"the body of a message is bytes, not {type(self.body).__name__}; encode it first"
            )
        if self.tag is not None and not isinstance(self.tag, str):
            raise TypeError(f"the tag of a message is a str, not {type(self.tag).__name__}")
        if self.ordering_key is not None and not isinstance(self.ordering_key, str):
            raise TypeError(f"the ordering key of a message is a str, not {type(self.ordering_key).__name__}")
        if self.delay_level is not None and not isinstance(self.delay_level, int):
            raise TypeError(f"the delay level of a message is an int, not {type(self.delay_level).__name__}")
        if self.priority is not None and not isinstance(self.priority, int):
            raise TypeError(f"the priority of a message is an int, not {type(self.priority).__name__}")
        for key in self.keys:
            if not isinstance(key, str):
                raise TypeError(f"the keys of a message are strings; {key!r} is of type {type(key).__name__}")
        if self.properties is _NO_PROPERTIES:
            return
        if not isinstance(self.properties, Mapping):
            raise TypeError(
                f"the properties of a message are a mapping of strings, not {type(self.properties).__name__}"
            )
        for name, value in self.properties.items():
            if not isinstance(name, str):
                raise TypeError(
                    f"the names of properties are strings; {name!r} is of type {type(name).__name__}"
                )
            if not isinstance(value, str):
                raise TypeError(
                    f"the property {name!r} of a message is a str, not {type(value).__name__}; write"
                    f" {str(value)!r}"
                )

    def all_properties(self) -> dict[str, str]:
        """All properties that are sent, the own ones first."""
        result = dict(self.properties)
        if self.tag:
            result[props.TAGS] = self.tag
        if self.keys:
            result[props.KEYS] = props.KEY_SEPARATOR.join(self.keys)
        if self.ordering_key:
            result[props.SHARDING_KEY] = self.ordering_key
        if self.delay_level:
            result[props.DELAY] = str(self.delay_level)
        if self.priority is not None:
            result[props.PRIORITY] = str(self.priority)
        result.setdefault(props.WAIT, "true" if self.wait_store else props.NO_WAIT)
        return result
