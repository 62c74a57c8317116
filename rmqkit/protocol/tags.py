"""Java's String.hashCode: tag codes and index keys stand on it (wire-protocol sheet, section 5.7)."""

from __future__ import annotations

from functools import lru_cache
from operator import mul

_MASK = 0xFFFFFFFF
_CHUNK = 64
#: 31^n modulo 2^32, and for each length n the factors of its units, first unit first.
_POWERS = [pow(31, n, 1 << 32) for n in range(_CHUNK + 1)]
_FACTORS = [tuple(reversed(_POWERS[:n])) for n in range(_CHUNK + 1)]


def java_hash(text: str) -> int:
    """h = 31 h + unit over UTF-16 code units, wrapped to a signed 32-bit number."""
    code = 0
    if text.isascii():
        for unit in text.encode():
            code = 31 * code + unit & 0xFFFFFFFF
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        for at in range(0, len(units), 2):
            code = 31 * code + (units[at] << 8 | units[at + 1]) & 0xFFFFFFFF
    return code - 0x100000000 if code & 0x80000000 else code


@lru_cache(maxsize=4096)
def tags_code(tags: str | None) -> int:
    """The consume-queue code of a message: the hash of its whole TAGS text, 0 when it has none. Tags are
    few, so the answers are kept."""
    return java_hash(tags) if tags else 0


def index_hash(topic: str, key: str) -> int:
    """Hash of an index entry: absolute value of the hash of `topic#key`, 0 for the one number that has
    none."""
    code = abs(java_hash(f"{topic}#{key}"))
    return 0 if code == 0x80000000 else code


def extend_hash(code: int, text: str) -> int:
    """The hash, as an unsigned 32-bit number, of a text whose beginning has the hash `code` and that goes on
    with `text`.

    hash(a + b) = hash(a) * 31^len(b) + hash(b), so that the hash of a common beginning is worked out once:
    `extend_hash(extend_hash(0, a), b)` is `java_hash(a + b)` but for the sign.
    """
    if not text.isascii():
        units: bytes | list[int] = text.encode("utf-16-be", "surrogatepass")
        units = [units[at] << 8 | units[at + 1] for at in range(0, len(units), 2)]
    else:
        units = text.encode()
    while len(units) > _CHUNK:
        code = code * _POWERS[_CHUNK] + sum(map(mul, units, _FACTORS[_CHUNK])) & _MASK
        units = units[_CHUNK:]
    length = len(units)
    last: int = code * _POWERS[length] + sum(map(mul, units, _FACTORS[length])) & _MASK
    return last


def absolute_hash(code: int) -> int:
    """An unsigned 32-bit hash as index files keep it: the absolute value of the signed number, 0 for the
    one that has none."""
    if code < 0x80000000:
        return code
    return 0 if code == 0x80000000 else 0x100000000 - code
