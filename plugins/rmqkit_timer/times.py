"""The time that a message asks for (store-format sheet, section 10.2; Java: HookUtils)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from rmqkit.model import properties as props

#: The properties by which a message asks for a time of delivery, of which the first counts, and the ms of
#: their units: two are delays, the last is a time.
ASKING: Final = {props.TIMER_DELAY_SEC: 1_000, props.TIMER_DELAY_MS: 1, props.TIMER_DELIVER_MS: 0}
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_MAX: Final = 2**63 - 1


def number(text: str) -> int:
    """A number of 64 bits, as Java reads it. Raises ValueError."""
    if not _NUMBER.fullmatch(text) or not -_MAX - 1 <= (value := int(text)) <= _MAX:
        raise ValueError(f"{text!r} is not a whole number")
    return value


def asked_ms(properties: Mapping[str, str], now_ms: int) -> int | None:
    """The time for which a message asks; None when it asks for none. Raises ValueError for one that cannot be
    read, naming the property."""
    for name, unit_ms in ASKING.items():
        if (text := properties.get(name)) is None:
            continue
        try:
            value = number(text)
        except ValueError as error:
            raise ValueError(f"the property {name}: {error}") from None
        return now_ms + value * unit_ms if unit_ms else value
    return None


def slot_before(time_ms: int, precision_ms: int) -> int:
    """The slot after which it is that time or later: a message in it is delivered when it is over, never
    early."""
    return (time_ms - 1) // precision_ms * precision_ms


__all__ = ["ASKING", "asked_ms", "number", "slot_before"]
