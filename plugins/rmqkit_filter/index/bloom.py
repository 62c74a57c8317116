"""Bloom filter positions of consumer groups (behaviour sheet, E5; Java: BloomFilter, Guava's murmur3_128).

The broker keeps them with the filters of groups, and sets them in the bit maps of messages; an Apache broker
that takes over the directory uses both.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, e, log
from struct import Struct

_MASK = (1 << 64) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
_BLOCK = Struct("<QQ")


class BloomFilter:
    """Positions for about `expected` groups with an error rate of `error_percent`.

    bits    its number of bits, a multiple of 8
    hashes  number of positions of a group
    """

    def __init__(self, error_percent: int, expected: int) -> None:
        rate = error_percent / 100
        self.hashes = ceil(log(rate) / log(0.5))
        self.bits = 8 * ceil(ceil(expected * log(1 / rate) / log(2) * (log(e) / log(2))) / 8)

    def positions(self, text: str) -> list[int]:
        """The bits of a text, double hashed."""
        low = murmur3_low(text.encode())
        first, second = low & 0xFFFFFFFF, low >> 32
        found = []
        for number in range(1, self.hashes + 1):
            combined = (first + number * second) & 0xFFFFFFFF
            if combined >= 1 << 31:
                combined ^= 0xFFFFFFFF
            found.append(combined % self.bits)
        return found


def mask_of(positions: Iterable[int]) -> int:
    """Bits as a number; its little-endian bytes are the bit map of Java's BitsArray."""
    mask = 0
    for position in positions:
        mask |= 1 << position
    return mask


def murmur3_low(data: bytes) -> int:
    """The low 64 bits of the 128-bit hash for 64-bit machines, seed 0."""
    first = second = 0
    whole = len(data) // 16 * 16
    for low, high in _BLOCK.iter_unpack(data[:whole]):
        first = (_rotated(first ^ _mixed_low(low), 27) + second) * 5 + 0x52DCE729 & _MASK
        second = (_rotated(second ^ _mixed_high(high), 31) + first) * 5 + 0x38495AB5 & _MASK
    low, high = _BLOCK.unpack(data[whole:].ljust(16, b"\0"))
    first ^= _mixed_low(low) ^ len(data)
    second ^= _mixed_high(high) ^ len(data)
    first = (first + second) & _MASK
    second = (second + first) & _MASK
    return (_final(first) + _final(second)) & _MASK


def _mixed_low(block: int) -> int:
    return _rotated(block * _C1 & _MASK, 31) * _C2 & _MASK


def _mixed_high(block: int) -> int:
    return _rotated(block * _C2 & _MASK, 33) * _C1 & _MASK


def _rotated(number: int, bits: int) -> int:
    return (number << bits | number >> 64 - bits) & _MASK


def _final(number: int) -> int:
    number = (number ^ number >> 33) * 0xFF51AFD7ED558CCD & _MASK
    number = (number ^ number >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return number ^ number >> 33
