"""The time for which a half message is left alone, which its sender may set (property
CHECK_IMMUNITY_TIME_IN_SECONDS).

Java reads it in two ways. A round takes any number of seconds, and the setting for -1 and for what is no
number (TransactionalMessageServiceImpl.getImmunityTime). An outcome that a producer reports by itself is late
only after the setting's time, too (TransactionalMessageUtil.getImmunityTime).
"""

from __future__ import annotations

from collections.abc import Mapping

from rmqkit.model.properties import CHECK_IMMUNITY_SECONDS

#: Java reads a 64-bit number.
_MAX = (1 << 63) - 1


def immunity_ms(properties: Mapping[str, str], time_out_ms: int) -> int | None:
    """The time before the first question, as a round reads it; None for a message that sets none."""
    text = properties.get(CHECK_IMMUNITY_SECONDS)
    if text is None:
        return None
    seconds = _long(text)
    return time_out_ms if seconds is None or seconds == -1 else seconds * 1000


def is_late(properties: Mapping[str, str], age_ms: int, time_out_ms: int) -> bool:
    """Whether a producer may no longer report the outcome of a message of this age by itself: it is asked
    then."""
    text = properties.get(CHECK_IMMUNITY_SECONDS)
    return text is not None and age_ms > max((_long(text) or 0) * 1000, time_out_ms)


def _long(text: str) -> int | None:
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not digits.isascii() or not digits.isdigit() or len(digits) > 19:
        return None
    number = int(text)
    return number if -_MAX - 1 <= number <= _MAX else None
