"""Parsers for the texts of options. Each function raises ValueError with the expected form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from pyspark_rocketmq.options.table import Kind
from pyspark_rocketmq.read.source import QueueKey
from rmqkit.client.routing.discovery import name_server_source
from rmqkit.errors import ConfigError
from rmqkit.plugin.transport import Address

EARLIEST, LATEST = "earliest", "latest"
#: Numbers that represent them as the offset of one queue.
EARLIEST_OFFSET, LATEST_OFFSET = -2, -1
#: Offsets as given: one word for all queues, or a number for each.
Offsets = str | dict[QueueKey, int]

_SIZES = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "kb": 1 << 10,
    "m": 1 << 20,
    "mb": 1 << 20,
    "g": 1 << 30,
    "gb": 1 << 30,
    "t": 1 << 40,
    "tb": 1 << 40,
}
_SPANS_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_NUMBER_AND_UNIT = re.compile(r"(\d+)\s*([a-z]*)")


def _text(text: str) -> str:
    if not text:
        raise ValueError("a non-empty text is expected")
    return text


def _name_servers(text: str) -> str:
    try:
        for address in name_server_source(_text(text))[0]:
            Address.parse(address)
    except (ConfigError, ValueError) as error:
        raise ValueError(f"name servers are expected, as host:9876;host:9876: {error}") from None
    return text


def _key(text: str) -> str:
    if " " in _text(text):
        raise ValueError("a single key is expected; spaces separate the keys of a message")
    return text


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false is expected")
    return text.lower() == "true"


def _list(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise ValueError("names separated by commas are expected")
    return names


def _tags(text: str) -> tuple[str, ...]:
    if text == "*":
        return ()
    names = tuple(dict.fromkeys(part.strip() for part in text.split("||")))
    if not all(names):
        raise ValueError("tags separated by || are expected")
    return names


def _pattern(text: str) -> str:
    try:
        re.compile(_text(text))
    except re.error as error:
        raise ValueError(f"a regular expression is expected: {error}") from None
    return text


def _number(text: str, least: int) -> int:
    if not re.fullmatch(r"-?\d{1,18}", text) or int(text) < least:
        raise ValueError(f"a whole number of at least {least} is expected")
    return int(text)


def _count(text: str) -> int:
    return _number(text, 1)


def _count_or_none(text: str) -> int:
    return _number(text, 0)


def _with_unit(text: str, units: dict[str, int], expected: str) -> int:
    found = _NUMBER_AND_UNIT.fullmatch(text.lower())
    if found is None or found[2] not in units or len(found[1]) > 18:
        raise ValueError(expected)
    return int(found[1]) * units[found[2]]


def _size(text: str) -> int:
    size = _with_unit(text, _SIZES, "a number of bytes is expected, such as 1048576, 64k, 256m or 1g")
    if size < 1:
        raise ValueError("at least one byte is expected")
    return size


def _span_ms(text: str) -> int:
    return _with_unit(text, _SPANS_MS, "a time is expected, such as 500 (ms), 10s, 15m or 1h")


def _instant_ms(text: str) -> int:
    if re.fullmatch(r"\d{1,15}", text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            "milliseconds since 1970 or an ISO time such as 2026-01-01T00:00:00Z are expected"
        ) from None
    if moment.tzinfo is None:
        raise ValueError("the time zone is missing: put Z (UTC) or an offset such as +02:00 after it")
    return round(moment.timestamp() * 1000)


def _one_of(*words: str) -> Kind:
    def read(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"one of {', '.join(words)} is expected")
        return text.lower()

    return Kind(" or ".join(words), read)


def _tree(text: str, form: str) -> dict[str, Any]:
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(form) from None
    if (
        not isinstance(tree, dict)
        or not tree
        or not all(isinstance(brokers, dict) and brokers for brokers in tree.values())
    ):
        raise ValueError(form)
    return tree


_ASSIGN_FORM = 'JSON {"topic": {"broker name": [queue ids]}} is expected'
_OFFSETS_FORM = 'JSON {"topic": {"broker name": {"queue id": number}}} is expected'


def _assignment(text: str) -> tuple[QueueKey, ...]:
    queues = []
    for topic, brokers in _tree(text, _ASSIGN_FORM).items():
        for broker, ids in brokers.items():
            if (
                not isinstance(ids, list)
                or not ids
                or not all(type(number) is int and number >= 0 for number in ids)
            ):
                raise ValueError(_ASSIGN_FORM)
            queues += [QueueKey(topic, broker, number) for number in ids]
    return tuple(sorted(set(queues)))


def _queue_numbers(text: str, least: int) -> dict[QueueKey, int]:
    def each() -> Iterator[tuple[QueueKey, int]]:
        for topic, brokers in _tree(text, _OFFSETS_FORM).items():
            for broker, queues in brokers.items():
                if not isinstance(queues, dict) or not queues:
                    raise ValueError(_OFFSETS_FORM)
                for number, value in queues.items():
                    if not number.isdecimal() or type(value) is not int or not least <= value < 1 << 63:
                        raise ValueError(_OFFSETS_FORM)
                    yield QueueKey(topic, broker, int(number)), value

    return dict(sorted(each()))


def _offsets(text: str) -> Offsets:
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    try:
        return _queue_numbers(text, EARLIEST_OFFSET)
    except ValueError as error:
        raise ValueError(f"earliest, latest or {error} (-2 is the earliest, -1 the latest)") from None


def _queue_times(text: str) -> dict[QueueKey, int]:
    return _queue_numbers(text, 0)


TEXT = Kind("text", _text)
KEY = Kind("text without spaces", _key)
NAME_SERVERS = Kind("addresses", _name_servers)
FLAG = Kind("true or false", _boolean)
NAMES = Kind("names, comma separated", _list)
TAGS = Kind("tags, separated by \\|\\|", _tags)
PATTERN = Kind("regular expression", _pattern)
COUNT = Kind("number, 1 or more", _count)
COUNT_OR_NONE = Kind("number, 0 or more", _count_or_none)
SIZE = Kind("bytes, as 64k or 256m", _size)
SPAN = Kind("time, as 500ms, 10s or 15m", _span_ms)
INSTANT = Kind("ISO time or ms since 1970", _instant_ms)
ASSIGNMENT = Kind("JSON", _assignment)
OFFSETS = Kind("earliest, latest or JSON", _offsets)
QUEUE_TIMES = Kind("JSON", _queue_times)
one_of = _one_of
