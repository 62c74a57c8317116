"""The table of delay levels, and when a parked message is due (store-format sheet, sections 3.2 and 10.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rmqkit.errors import ConfigError
from rmqkit.model.properties import DELAY

_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_levels(text: str) -> tuple[int, ...]:
    """`1s 5s 1m 2h` -> delays in ms; index 0 is level 1. Raises ConfigError that names the bad word."""
    levels = []
    for word in text.split():
        number, unit = word[:-1], word[-1:]
        if not number.isascii() or not number.isdigit() or unit not in _UNITS_MS:
            raise ConfigError(f"messageDelayLevel: {word!r} is not a number followed by s, m, h or d")
        levels.append(int(number) * _UNITS_MS[unit])
    if not levels:
        raise ConfigError("messageDelayLevel names no level")
    return tuple(levels)


def delay_ms(levels: Sequence[int], level: int) -> int:
    """Delay of a level from 1 on; numbers above the table count as its last."""
    return levels[min(level, len(levels)) - 1]


def deliver_time_ms(properties: Mapping[str, str], store_timestamp_ms: int, levels: Sequence[int]) -> int | None:
    """What the consume queue of the schedule topic keeps in place of a tags code: the time of delivery. None when there is no delay level."""
    text = properties.get(DELAY, "")
    if not text.isascii() or not text.isdigit() or int(text) <= 0:
        return None
    return store_timestamp_ms + delay_ms(levels, int(text))
