"""Random damage to valid input: what a fuzzer does, from a seed and without a compiler."""

from __future__ import annotations

import random
from typing import Final

# Bytes and integers that bounds are wrong for: zero, one, signs, the ends of each width, JSON's and the
# properties' marks.
BYTES: Final = b'\x00\x01\x02\x7f\x80\xff"\\{}[]:,0-+ ueE%'
NUMBERS: Final = (0, 1, -1, 127, 128, 255, 32767, 65535, 2**31 - 1, -(2**31), 2**32 - 1, 2**63 - 1, -(2**63))


def mutated(rng: random.Random, data: bytes, *, share: float = 0.7) -> bytes:
    """`data` with damage in about `share` of the calls, else as it is.

    Damage is one to three of: a cut end, a cut start, changed bytes, a length or number at its limit, a
    part that is missing, repeated or inserted.
    """
    if rng.random() >= share:
        return data
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = rng.choice(_DAMAGES)(rng, data)
    return data


def _cut_end(rng: random.Random, data: bytes) -> bytes:
    # One byte short more often than any other length.
    return data[: -rng.choice((1, 1, 2, 4, 8))] if rng.random() < 0.5 else data[: rng.randint(0, len(data))]


def _cut_start(rng: random.Random, data: bytes) -> bytes:
    return data[rng.randint(0, min(8, len(data))) :]


def _change_bytes(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4)) if data else 0):
        changed[rng.randrange(len(data))] = rng.choice(BYTES) if rng.random() < 0.5 else rng.randrange(256)
    return bytes(changed)


def _flip_bit(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    if changed:
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _change_number(rng: random.Random, data: bytes) -> bytes:
    width = rng.choice((1, 2, 4, 4, 8))
    if len(data) < width:
        return data
    # Heads hold the lengths, so numbers near the start more often than elsewhere.
    last = len(data) - width
    at = rng.randint(0, min(last, 48)) if rng.random() < 0.5 else rng.randint(0, last)
    number = rng.choice(NUMBERS) if rng.random() < 0.6 else len(data) + rng.randint(-9, 9)
    return data[:at] + (number % (1 << 8 * width)).to_bytes(width, "big") + data[at + width :]


def _remove(rng: random.Random, data: bytes) -> bytes:
    start = rng.randint(0, len(data))
    return data[:start] + data[start + rng.choice((1, 2, 4, 16)) :]


def _repeat(rng: random.Random, data: bytes) -> bytes:
    start = rng.randint(0, len(data))
    end = min(len(data), start + rng.choice((1, 4, 16, 64)))
    return data[:end] + data[start:end] + data[end:]


def _insert(rng: random.Random, data: bytes) -> bytes:
    at = rng.randint(0, len(data))
    length = rng.choice((1, 1, 2, 8))
    part = bytes(rng.choice(BYTES) for _ in range(length)) if rng.random() < 0.5 else rng.randbytes(length)
    return data[:at] + part + data[at:]


_DAMAGES: Final = (
    _cut_end,
    _cut_end,
    _cut_start,
    _change_bytes,
    _change_bytes,
    _flip_bit,
    _change_number,
    _change_number,
    _remove,
    _repeat,
    _insert,
)
