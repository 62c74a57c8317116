r"""Bulk parsing of the properties of many records (`name 0x01 value 0x02 ...`, with the rules of
rmqkit.model.properties.decode).

numpy finds the separators of all texts together; names and values are the ranges between them. In UTF-8, 0x01
and 0x02 are never part of another character.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pyspark_rocketmq.decode.scalar_decoder import json_text
from pyspark_rocketmq.decode.slices import every, numbers, stretches, text_bytes

_NAME_END = 1
_PROPERTY_END = 2
#: Bits of an integer used as the set of names of a record.
_BITS = 62


class PropertyColumns:
    """The properties of `count` records.

    names, values  of all properties, record after record, without those that lack a name or a value
    offsets        int32, count + 1: index of the first property of each record
    """

    def __init__(self, texts: pa.Array) -> None:
        """`texts` are the property texts as an array of valid strings that starts at the beginning of its
        buffer."""
        self.count = len(texts)
        borders, content, buffer = text_bytes(texts)
        content = content[: borders[-1]]
        ends, rows, counts = _item_ends(content, borders)
        firsts = np.cumsum(counts) - counts
        starts = np.empty(len(ends), np.int64)
        starts[1:] = ends[:-1] + 1
        begun = counts > 0
        starts[firsts[begun]] = borders[:-1][begun]
        middles = _name_ends(content, starts)
        good = (middles > starts) & (middles + 1 < ends)
        if not good.all():
            starts, middles, ends, rows = starts[good], middles[good], ends[good], rows[good]
            counts = np.bincount(rows, minlength=self.count)
        self._rows = rows
        self.offsets = np.zeros(self.count + 1, np.int32)
        np.cumsum(counts, out=self.offsets[1:])
        found = stretches(buffer, (starts, middles, middles + 1, ends), pa.string())
        self.names = every(found, 4, 0)
        self.values = every(found, 4, 2)

    def value_of(self, name: str) -> pa.Array:
        """The value of one property for each record, null where it is missing. If a record has the name
        twice, the last value counts."""
        known, codes = self._encoded
        if name not in known:
            return pa.nulls(self.count, pa.string())
        at = np.flatnonzero(codes == known.index(name))
        places = np.full(self.count, -1, np.int64)
        places[self._rows[at]] = at
        return self.values.take(numbers(places, pa.int64(), places < 0))

    def repeated(self) -> NDArray[np.bool_]:
        """Which records have a name twice."""
        result = np.zeros(self.count, np.bool_)
        if not len(self.names):
            return result
        known, codes = self._encoded
        some = np.flatnonzero(np.diff(self.offsets))
        if len(known) > _BITS:
            pairs, times = np.unique(self._rows * len(known) + codes, return_counts=True)
            result[pairs[times > 1] // len(known)] = True
            return result
        bits = np.left_shift(np.int64(1), codes.astype(np.int64))
        at = self.offsets[some]
        result[some] = np.add.reduceat(bits, at) != np.bitwise_or.reduceat(bits, at)
        return result

    @cached_property
    def _encoded(self) -> tuple[list[str], NDArray[np.int32]]:
        """The distinct names, and the index of each property's name among them."""
        encoded = self.names.dictionary_encode()
        return encoded.dictionary.to_pylist(), np.frombuffer(
            encoded.indices.buffers()[1], np.int32, len(self.names)
        )


def json_column(offsets: pa.Buffer, names: pa.Array, values: pa.Array, count: int) -> pa.Array:
    """The properties of each of `count` records as a JSON object; see PropertyColumns."""
    keys, texts = names.to_pylist(), values.to_pylist()
    borders = np.frombuffer(offsets, np.int32)[: count + 1].tolist()
    objects = [
        json_text(dict(zip(keys[start:stop], texts[start:stop], strict=True)))
        for start, stop in pairwise(borders)
    ]
    return pa.array(objects, pa.string())


def _item_ends(
    content: NDArray[np.uint8], borders: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The end of each property (the position of its 0x02, or the end of a text without a final 0x02), its
    record, and the number of properties per record."""
    ends = np.flatnonzero(content == _PROPERTY_END)
    upto = np.searchsorted(ends, borders)
    counts = np.diff(upto)
    starts, stops = borders[:-1], borders[1:]
    filled = stops > starts
    open_ended = np.flatnonzero(filled)[content[stops[filled] - 1] != _PROPERTY_END]
    if len(open_ended):
        ends = np.insert(ends, upto[1:][open_ended], stops[open_ended])
        counts[open_ended] += 1
    return ends, np.repeat(np.arange(len(counts)), counts), counts


def _name_ends(content: NDArray[np.uint8], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first 0x01 at or after each start; past the end where there is none."""
    marks = np.append(np.flatnonzero(content == _NAME_END), len(content) + 1)
    if len(marks) == len(starts) + 1 and (marks[:-1] >= starts).all() and (marks[:-2] < starts[1:]).all():
        return marks[:-1]
    return marks[np.searchsorted(marks, starts)]
