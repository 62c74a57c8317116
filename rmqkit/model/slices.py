"""Records as slices of a log."""

from __future__ import annotations

from collections.abc import Sequence

from rmqkit.model.buffer import Buffer
from rmqkit.speedups import IN_USE


def joined_values(head: bytes, slices: Sequence[Buffer], total_bytes: int) -> bytes:
    """A frame: its head, then the records of `slices`, which have `total_bytes`."""
    return b"".join((head, *slices))


if IN_USE:
    from rmqkit.model import _slices

joined = _slices.joined if IN_USE else joined_values

__all__ = ["joined", "joined_values"]
