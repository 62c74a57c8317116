"""Java's String.hashCode: tag codes and index keys stand on it (wire-protocol sheet, section 5.7)."""

from __future__ import annotations

from functools import lru_cache


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
    """The consume-queue code of a message: the hash of its whole TAGS text, 0 when it has none. Tags are few, so the answers are kept."""
    return java_hash(tags) if tags else 0


def index_hash(topic: str, key: str) -> int:
    """Hash of an index entry: absolute value of the hash of `topic#key`, 0 for the one number that has none."""
    code = abs(java_hash(f"{topic}#{key}"))
    return 0 if code == 0x80000000 else code
