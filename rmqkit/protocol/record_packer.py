"""Packing runs of messages into records (drawn in `rmqkit.protocol.record`): one packer for all stores.

What records of a topic have in common is prepared once, in a `TopicHead`. The packer checks messages, assigns
offsets and packs, and changes nothing of the store: that takes the result when the records are written.
"""

from __future__ import annotations

from rmqkit.protocol.packed import NewPacker
from rmqkit.protocol.value_packer import ValuePacker
from rmqkit.speedups import IN_USE

if IN_USE:
    from rmqkit.protocol import _packing

RecordPacker: NewPacker = _packing.ColumnPacker if IN_USE else ValuePacker

__all__ = ["RecordPacker"]
