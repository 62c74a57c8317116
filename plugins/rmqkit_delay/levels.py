"""The table of delay levels, and when a parked message is due (store-format sheet, sections 3.2 and 10.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rmqkit.errors import ConfigError
from rmqkit.model.properties import DELAY
from rmqkit.plugin.queue_code import QueueCode, tag_code

_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_levels(text: str) -> tuple[int, ...]:
    """`1s 5s 1m 2h` -> delays in ms; index 0 is level 1. Raises ConfigError, which names the invalid word."""
    levels = []
    for word in text.split():
        number, unit = word[:-1], word[-1:]
        if not number.isascii() or not number.isdigit() or unit not in _UNITS_MS:
            raise ConfigError(f"messageDelayLevel: {word!r} is not a number followed by s, m, h or d")
        levels.append(int(number) * _UNITS_MS[unit])
    if not levels:
        raise ConfigError("messageDelayLevel names no level")
    return tuple(levels)


def delivery_time_of(levels_ms: Sequence[int]) -> QueueCode:
    """The queue code of the schedule topic: store time plus the delay of the level, in ms. A level beyond the
    table counts as its last level; a message without a level keeps the hash of its tags (Java:
    CommitLog.checkMessageAndReturnSize)."""

    def delivery_time(properties: Mapping[str, str], store_timestamp_ms: int) -> int:
        text = properties.get(DELAY, "")
        if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) <= 0:
            return tag_code(properties, store_timestamp_ms)
        return store_timestamp_ms + levels_ms[min(int(text), len(levels_ms)) - 1]

    return delivery_time
