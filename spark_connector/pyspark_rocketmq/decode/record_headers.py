"""The fixed-position fields of many records, gathered by numpy (layout: rmqkit.protocol.record), and the
positions of their other parts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyspark_rocketmq.read.source import Block, ByteBuffer
from rmqkit.model.sysflag import BORN_HOST_V6, STORE_HOST_V6
from rmqkit.protocol.record import MAGIC_V1, MAGIC_V2

Numbers = NDArray[np.int64]
Bools = NDArray[np.bool_]

_V4_HOST_BYTES = 8
_MORE_BYTES = 12
_BORN_HOST_AT = 48
_START = [
    ("size", ">i4"),
    ("magic", ">u4"),
    ("crc", ">i4"),
    ("queueId", ">i4"),
    ("flag", ">i4"),
    ("queueOffset", ">i8"),
    ("physicalOffset", ">i8"),
    ("sysFlag", ">i4"),
    ("born", ">i8"),
]
_TIME = [("store", ">i8")]
_END = [("reconsume", ">i4"), ("prepared", ">i8"), ("bodyBytes", ">i4")]
#: The layout with both hosts as IPv4, which nearly all records have.
_HEAD = np.dtype([*_START, ("bornHost", "V8"), *_TIME, ("storeHost", "V8"), *_END])


def gather(data: ByteBuffer, places: Numbers, kind: np.dtype[np.void]) -> NDArray[np.void]:
    """Copy the structure at each position."""
    everywhere = np.ndarray(
        (len(data) - kind.itemsize + 1,), np.dtype(("V", kind.itemsize)), buffer=data, strides=(1,)
    )
    return everywhere[places].view(kind)


class Heads:
    """Headers of the records of a block that lie within its data, in order, and have at least 91 bytes.
    `heads[name]` is a field as native numbers.

    `short` are records that are too short for their hosts; their other fields are invalid.
    """

    def __init__(self, block: Block) -> None:
        self._fields = gather(block.data, block.starts, _HEAD)
        self._native: dict[str, Numbers] = {}
        self.starts = block.starts
        self.stops = block.starts + block.sizes
        flags = self["sysFlag"]
        self.time_at = self.starts + (_BORN_HOST_AT + _V4_HOST_BYTES)
        self.end_at = self.time_at + 8 + _V4_HOST_BYTES
        self.short: Bools = np.zeros(len(self.starts), np.bool_)
        if (flags & (BORN_HOST_V6 | STORE_HOST_V6)).any():
            self.time_at += np.where(flags & BORN_HOST_V6, _MORE_BYTES, 0)
            self.end_at = (
                self.time_at
                + 8
                + np.where(flags & STORE_HOST_V6, _V4_HOST_BYTES + _MORE_BYTES, _V4_HOST_BYTES)
            )
            self.short = self.end_at + np.dtype(_END).itemsize > self.stops
            for places, kind in ((self.time_at, np.dtype(_TIME)), (self.end_at, np.dtype(_END))):
                found = gather(block.data, np.where(self.short, self.starts, places), kind)
                for name in kind.names or ():
                    self._fields[name] = found[name]
        self.body_at = self.end_at + np.dtype(_END).itemsize

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, name: str) -> Numbers:
        found = self._native.get(name)
        if found is None:
            stored = self._fields[name]
            found = self._native[name] = stored.astype(stored.dtype.newbyteorder("="))
        return found

    def chosen(self, wanted: Bools) -> Heads:
        """The headers of some of the records."""
        part: Heads = Heads.__new__(Heads)
        part._native = {}
        part._fields = self._fields[wanted]
        for name in ("starts", "stops", "time_at", "end_at", "body_at", "short"):
            setattr(part, name, getattr(self, name)[wanted])
        return part

    def faulty(self, block: Block) -> Bools:
        """The records that are invalid, or differ from what the source expects."""
        magic = self["magic"]
        bad: Bools = self.short | ((magic != MAGIC_V1) & (magic != MAGIC_V2))
        bad |= (self["size"] != block.sizes) | (self["queueId"] != block.queue.queue_id)
        if block.base >= 0:
            bad |= self["physicalOffset"] != block.base + self.starts
        if block.offsets is not None:
            bad |= self["queueOffset"] != block.offsets
        return bad


class Parts:
    """Positions where the body ends and the properties begin. `faulty` are records with inconsistent lengths,
    for which the positions are invalid."""

    def __init__(self, data: ByteBuffer, heads: Heads) -> None:
        body_bytes = heads["bodyBytes"]
        second = (heads["magic"] == MAGIC_V2).astype(np.int64)
        self.body_end = heads.body_at + body_bytes
        self.faulty: Bools = (body_bytes < 0) | (self.body_end + second + 3 > heads.stops)
        octets = np.frombuffer(data, np.uint8)
        at = np.where(self.faulty, heads.starts, self.body_end)
        topic_bytes = octets[at].astype(np.int64)
        if second.any():
            both = gather(data, at, np.dtype([("length", ">i2")]))["length"]
            topic_bytes = np.where(second == 1, both, topic_bytes)
        self.properties_at = self.body_end + 1 + second + topic_bytes + 2
        self.faulty |= (topic_bytes < 0) | (self.properties_at > heads.stops)
        at = np.where(self.faulty, heads.starts, self.properties_at - 2)
        properties_bytes = gather(data, at, np.dtype([("length", ">i2")]))["length"]
        self.faulty |= properties_bytes != heads.stops - self.properties_at
