"""Attributes of topics and groups: their names, legal values, and changes by requests (Java: AttributeParser,
AttributeUtil, TopicAttributes, SubscriptionGroupAttributes; wire-protocol sheet, section 3.7)."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from rmqkit.model.message_type import MESSAGE_TYPE, TopicMessageType
from rmqkit.model.spans import span_ms
from rmqkit.model.subscription import BROADCASTING, CLUSTERING

_LONG_MAX = (1 << 63) - 1


class AttributeFault(ValueError):
    """An illegal change of attributes; the text is Java's."""


@frozen
class Attribute:
    """The legal values of an attribute: one of `values`, or without them a number from `minimum` to
    `maximum`. An `unsupported` value is legal in Java, but refused by this broker because it would have no
    effect."""

    values: tuple[str, ...] = ()
    minimum: int = 0
    maximum: int = _LONG_MAX
    changeable: bool = True
    unsupported: tuple[str, ...] = ()

    def check(self, name: str, value: str) -> None:
        """Check a value. Raises AttributeFault."""
        if self.values:
            if value not in self.values:
                raise AttributeFault(f"value is not in set: [{', '.join(self.values)}]")
            if value in self.unsupported:
                allowed = ", ".join(each for each in self.values if each not in self.unsupported)
                raise AttributeFault(f"{name}={value} is not supported by this broker, only {allowed}")
            return
        try:
            number = int(value)
        except ValueError:
            raise AttributeFault(f'For input string: "{value}"') from None
        if not self.minimum <= number <= self.maximum:
            raise AttributeFault(f"value is not in range({self.minimum}, {self.maximum})")


@frozen(kw_only=True)
class Span(Attribute):
    """An attribute whose value is a span such as `10m`, from `least_ms` to `most_ms`."""

    least_ms: int
    most_ms: int

    def check(self, name: str, value: str) -> None:
        found_ms = span_ms(value)
        if found_ms is None or not self.least_ms <= found_ms <= self.most_ms:
            bounds = f"{self.least_ms} ms to {self.most_ms} ms"
            raise AttributeFault(f"{name} is a span from {bounds}, such as 10m, not {value[:30]!r}")


@frozen
class Text(Attribute):
    """An attribute whose value is any text."""

    def check(self, name: str, value: str) -> None:
        return


#: `reserve.time` is enforced only by RocketMQ's tiered store.
#: Plugins bring others.
TOPIC_ATTRIBUTES: Mapping[str, Attribute] = {
    "queue.type": Attribute(("BatchCQ", "SimpleCQ"), changeable=False, unsupported=("BatchCQ",)),
    "cleanup.policy": Attribute(("COMPACTION", "DELETE"), changeable=False, unsupported=("COMPACTION",)),
    MESSAGE_TYPE: Attribute(tuple(sorted(kind.value for kind in TopicMessageType))),
    "reserve.time": Attribute(minimum=-1),
}
#: Of this project: the group's members wait. Apache's brokers know none.
PAUSED = "paused"
#: How many of a hundred pops take the messages of the highest priority first.
PRIORITY_FACTOR = "priority.factor"
#: Of this project: whether every client of gRPC in the group gets every message. Clients of remoting say it
#: themselves.
MESSAGE_MODEL = "message.model"
#: Of groups that read lite topics: the topic whose they are, whether several clients may have one, whether a
#: client that gets another one's begins at the first message, whether one that gives one up forgets its
#: place, and how many a client may have. `client.max.event.cnt` and `wildcard` change nothing here.
LITE_BIND_TOPIC = "lite.bind.topic"
LITE_SUB_MODEL = "lite.sub.model"
SHARED, EXCLUSIVE = "Shared", "Exclusive"
LITE_SUB_RESET_EXCLUSIVE = "lite.sub.reset.offset.exclusive"
LITE_SUB_RESET_UNSUBSCRIBE = "lite.sub.reset.offset.unsubscribe"
LITE_SUB_QUOTA = "lite.sub.client.quota"
GROUP_ATTRIBUTES: Mapping[str, Attribute] = {
    PAUSED: Attribute(("true", "false")),
    PRIORITY_FACTOR: Attribute(maximum=100),
    MESSAGE_MODEL: Attribute((BROADCASTING, CLUSTERING)),
    LITE_BIND_TOPIC: Text(),
    LITE_SUB_MODEL: Attribute((SHARED, EXCLUSIVE)),
    LITE_SUB_RESET_EXCLUSIVE: Attribute(("true", "false")),
    LITE_SUB_RESET_UNSUBSCRIBE: Attribute(("true", "false")),
    LITE_SUB_QUOTA: Attribute(minimum=-1),
    "lite.sub.client.max.event.cnt": Attribute(minimum=10),
    "lite.sub.wildcard": Text(),
}


def parse(text: str | None) -> dict[str, str]:
    """Parse `+key=value,-key` into signed key -> value, with "" for a deletion. Raises AttributeFault."""
    changes: dict[str, str] = {}
    for item in text.split(",") if text else ():
        key, equals, rest = item.partition("=")
        value = rest.partition("=")[0]
        if equals and ("+" not in key or not value):
            raise AttributeFault(f"add/alter attribute format is wrong: {key}")
        if not equals and "-" not in key:
            raise AttributeFault(f"delete attribute format is wrong: {key}")
        if key in changes:
            raise AttributeFault(f"key duplication: {key}")
        changes[key] = value
    return changes


def altered(
    known: Mapping[str, Attribute], current: Mapping[str, str] | None, changes: Mapping[str, str]
) -> dict[str, str]:
    """The attributes after changes under signed keys; `current` is None for a new topic or group. Raises
    AttributeFault."""
    result = dict(current or {})
    seen: set[str] = set()
    for signed in changes:
        sign, key = signed[:1], signed[1:]
        if not key or "+" in key or "-" in key:
            raise AttributeFault("kv string format wrong.")
        if key in seen:
            raise AttributeFault(f"alter duplication key. key: {key}")
        seen.add(key)
        if current is None and sign != "+":
            raise AttributeFault(f"only add attribute is supported while creating topic. key: {key}")
        if sign not in ("+", "-"):
            raise AttributeFault(f"wrong format key: {key}")
        if sign == "-" and key not in result:
            raise AttributeFault(f"attempt to delete a nonexistent key: {key}")
    for signed, value in changes.items():
        sign, key = signed[:1], signed[1:]
        attribute = known.get(key)
        if attribute is None:
            raise AttributeFault(f"unsupported key: {key}")
        if current is not None and not attribute.changeable:
            raise AttributeFault(f"attempt to update an unchangeable attribute. key: {key}")
        if sign == "-":
            del result[key]
        else:
            attribute.check(key, value)
            result[key] = value
    return result
