"""Texts as numbers, by the rules of Java's Integer.valueOf, Long.valueOf and Double.valueOf."""

from __future__ import annotations

import re
from math import copysign, inf, isnan

from rmqkit_filter.limits import MAX_FILTER_NUMBER_LENGTH

INT_MIN, INT_MAX = -(2**31), 2**31 - 1
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1

_DECIMAL = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_HEX = r"0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+"
_DOUBLE = re.compile(
    rf"[\x00-\x20]*(?P<sign>[+-]?)(?:(?P<nan>NaN)|(?P<inf>Infinity)|(?:(?P<decimal>{_DECIMAL})"
    rf"|(?P<hex>{_HEX}))[fFdD]?)[\x00-\x20]*"
)


def to_int(text: str) -> int:
    """A 32-bit integer. Raises ValueError."""
    number = _to_integer(text)
    if INT_MIN <= number <= INT_MAX:
        return number
    raise ValueError("the number does not fit 32 bits")


def to_long(text: str) -> int:
    """A 64-bit integer. Raises ValueError."""
    number = _to_integer(text)
    if LONG_MIN <= number <= LONG_MAX:
        return number
    raise ValueError("the number does not fit 64 bits")


def _to_integer(text: str) -> int:
    """Digits with an optional sign, no blanks and no underscores; decimal digits of any script of the basic
    plane."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if len(text) > MAX_FILTER_NUMBER_LENGTH or not digits.isdecimal():
        raise ValueError("the text is not an integer")
    if not text.isascii() and max(text) > "\uffff":
        raise ValueError("the text is not an integer")
    return int(text)


def to_double(text: str) -> float:
    """A double; the text may have blanks around it, be hexadecimal, and end with f or d. Raises
    ValueError."""
    found = _DOUBLE.fullmatch(text) if len(text) <= MAX_FILTER_NUMBER_LENGTH else None
    if found is None:
        raise ValueError("the text is not a number")
    if found["nan"]:
        return float("nan")
    if found["decimal"]:
        number = float(found["decimal"])
    elif found["hex"]:
        try:
            number = float.fromhex(found["hex"])
        except OverflowError:
            number = inf
    else:
        number = inf
    return -number if found["sign"] == "-" else number


def compare_doubles(left: float, right: float) -> int:
    """Below 0, 0 or above 0 (Java: Double.compareTo): NaN equals itself and is the greatest, -0.0 is less
    than 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    if isnan(left) or isnan(right):
        return isnan(left) - isnan(right)
    return int(copysign(1, left) - copysign(1, right))
