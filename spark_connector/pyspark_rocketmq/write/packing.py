"""Packs rows in Arrow columns as the records of batch sends (`rmqkit.protocol.batch`), column by column,
without a Python object per row.

    total i32 | magic i32 = 0 | crc i32 = 0 | flag i32 | body length i32 | body | properties length i16 |
    properties
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from attrs import frozen
from numpy.typing import NDArray

from rmqkit.client import MessageIllegal
from rmqkit.limits import MAX_PROPERTIES_BYTES
from rmqkit.model import properties as props
from rmqkit.protocol.message_id import UniqueKeys

_BYTES = pa.large_binary()
_EMPTY = pa.scalar(b"", _BYTES)
_NAME_END, _PROPERTY_END = props.NAME_END.encode(), props.PROPERTY_END.encode()
_HEAD = np.dtype([("total", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body", ">i4")])
_FRAME_BYTES = 22
#: Unique keys count to 65 536 within a millisecond, see `UniqueKeys`.
_KEYS_PER_MS = 65_536
SPARK_QUERY, SPARK_BATCH, SPARK_PART, SPARK_SEQ = "SPARK_QUERY", "SPARK_BATCH", "SPARK_PART", "SPARK_SEQ"
#: Subscriptions are split at ||, blanks around each of their tags are dropped, and * is all tags.
_UNFIT_TAG = r"^\*$|\|\||^[\x00-\x20\p{Z}]|[\x00-\x20\p{Z}]$"
#: Property -> the column that sets it. With such a column, the entry of the map with that name is dropped.
_COLUMN_OF = {props.TAGS: "tags", props.KEYS: "keys", props.SHARDING_KEY: "shardingKey"}
#: Properties set by the client, the broker or a column, never by the map: rows that were read can be written,
#: and the new message gets its own values.
OWN_PROPERTIES = (
    props.UNIQ_KEY,
    props.WAIT,
    props.DELAY,
    *props.TIMER_INPUTS,
    props.REAL_TOPIC,
    props.REAL_QUEUE_ID,
    props.TRANSACTION_PREPARED,
    props.PRODUCER_GROUP,
    props.MSG_REGION,
    props.TRACE_ON,
    props.CLUSTER,
    props.MIN_OFFSET,
    props.MAX_OFFSET,
    props.INNER_NUM,
    props.INNER_BASE,
    SPARK_QUERY,
    SPARK_BATCH,
    SPARK_PART,
    SPARK_SEQ,
)


@frozen(kw_only=True)
class Identity:
    """The origin of a message, which is the same when the row is written again.

    query      the query's id, stored in its checkpoint; for a batch job an id of the job
    batch      the micro-batch; None for a batch job
    partition  of the frame
    write      which of the writes of one micro-batch (foreachBatch); empty where there is only one. It is
               part of SPARK_SEQ, with a digest of the row's content: if the number is another one when the
               batch is repeated, no row is taken for a different one
    """

    query: str
    batch: int | None
    partition: int
    write: str = ""

    def properties(self) -> bytes:
        """All properties except the number of the row, which is appended directly."""
        named = {SPARK_QUERY: self.query} | ({} if self.batch is None else {SPARK_BATCH: str(self.batch)})
        named |= {SPARK_PART: str(self.partition)}
        return f"{props.encode(named)}{props.PROPERTY_END}{SPARK_SEQ}{props.NAME_END}".encode()


@lru_cache(maxsize=1)
def _hex_of_16_bits() -> NDArray[np.uint8]:
    """Four hexadecimal digits for each number below 65 536."""
    return np.frombuffer(b"".join(b"%04X" % number for number in range(_KEYS_PER_MS)), np.uint8).reshape(
        -1, 4
    )


class Packer:
    """Packs the rows of one partition, batch after batch, and counts them.

    columns    column of the connector -> column of the frame
    identity   None to leave the SPARK_ properties out
    """

    def __init__(
        self, columns: Mapping[str, str], identity: Identity | None, unique_keys: UniqueKeys
    ) -> None:
        self.rows = 0
        self._columns = columns
        self._identity = b"" if identity is None else identity.properties()
        self._write = "" if identity is None else identity.write
        self._where = "" if identity is None else f" of partition {identity.partition}"
        self._unique_keys = unique_keys
        self._left_out = pa.array(
            [*OWN_PROPERTIES, *(name for name, column in _COLUMN_OF.items() if column in columns)],
            pa.string(),
        )
        self._last_ms = 0

    def pack(self, rows: pa.RecordBatch, now_ms: int) -> pa.LargeBinaryArray:
        """A record for each row, in order. Raises MessageIllegal for the first row that cannot become a
        message."""
        body = self.column(rows, "body").cast(_BYTES)
        lengths = _lengths(body)
        self._refuse(
            pc.or_kleene(body.is_null(), pc.equal(lengths, 0)),
            "has no body, and RocketMQ accepts no empty message; filter such rows",
        )
        properties = self._properties(rows, body, now_ms)
        properties_lengths = _lengths(properties)
        self._refuse(
            pc.greater(properties_lengths, MAX_PROPERTIES_BYTES),
            f"has more than {MAX_PROPERTIES_BYTES} bytes of properties, keys and tags",
        )
        head = np.zeros(rows.num_rows, _HEAD)
        head["body"] = lengths.to_numpy()
        head["total"] = head["body"] + properties_lengths.to_numpy() + _FRAME_BYTES
        if "flag" in self._columns:
            head["flag"] = pc.fill_null(self.column(rows, "flag"), 0).to_numpy(zero_copy_only=False)
        sizes = properties_lengths.to_numpy().astype(">i2")
        self.rows += rows.num_rows
        return pc.binary_join_element_wise(
            _fixed(head.view(np.uint8), 20), body, _fixed(sizes.view(np.uint8), 2), properties, _EMPTY
        )

    def column(self, rows: pa.RecordBatch, name: str) -> pa.Array:
        return rows.column(self._columns[name])

    # --- properties -----------------------------------------------------------------------------------------

    def _properties(self, rows: pa.RecordBatch, body: pa.Array, now_ms: int) -> pa.LargeBinaryArray:
        pieces = []
        if "properties" in self._columns:
            pieces.append(self._mapped(self.column(rows, "properties")))
        for name, column in _COLUMN_OF.items():
            if column in self._columns:
                pieces.append(self._named(name, self._text(rows, column)))
        content = [body, *pieces]
        pieces.append(self._unique(rows.num_rows, now_ms))
        if self._identity:
            pieces.append(
                pa.array(np.arange(self.rows, self.rows + rows.num_rows)).cast(pa.string()).cast(_BYTES)
            )
            if self._write:
                pieces += [pa.scalar(f".{self._write}-".encode(), _BYTES), _digests(content)]
            pieces.append(pa.scalar(_PROPERTY_END, _BYTES))
        return pc.binary_join_element_wise(*pieces, _EMPTY, null_handling="skip")

    def _text(self, rows: pa.RecordBatch, column: str) -> pa.Array:
        """The text of tags, keys or sharding key; null where there is none."""
        values = self.column(rows, column)
        if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
            blank = pc.match_substring_regex(values.flatten(), r"\s")
            if pc.any(blank).as_py():
                raise MessageIllegal(
                    f"column {column}: {values.flatten().filter(blank)[0].as_py()!r} contains a space; keys"
                    " are stored separated by spaces"
                )
            values = pc.binary_join(_present(values), " ")
        elif column == "tags":
            self._refuse(
                pc.match_substring_regex(values, _UNFIT_TAG),
                "has a tag that is *, contains ||, or begins or ends with a blank: no consumer could"
                " subscribe to it; change the column tags",
            )
        return pc.if_else(pc.equal(values, ""), pa.scalar(None, values.type), values)

    def _named(self, name: str, values: pa.Array) -> pa.Array:
        self._refuse(_separated(values), f"has a separator of properties (0x01, 0x02) in what becomes {name}")
        parts = (
            pa.scalar(name.encode() + _NAME_END, _BYTES),
            values.cast(_BYTES),
            pa.scalar(_PROPERTY_END, _BYTES),
        )
        return pc.binary_join_element_wise(*parts, _EMPTY)

    def _mapped(self, maps: pa.MapArray) -> pa.Array:
        """The entries of each map as text, without null entries, empty names, and names set by a column or
        the connector."""
        names, values = maps.keys, maps.items
        separated = pc.or_kleene(_separated(names), _separated(values))
        if pc.any(separated).as_py():
            name = names.filter(pc.fill_null(separated, False))[0].as_py()
            raise MessageIllegal(
                f"property {name!r} has a separator of properties (0x01, 0x02) in its name or value"
            )
        parts = (
            names.cast(_BYTES),
            pa.scalar(_NAME_END, _BYTES),
            values.cast(_BYTES),
            pa.scalar(_PROPERTY_END, _BYTES),
        )
        entries = pc.binary_join_element_wise(*parts, _EMPTY)
        unwanted = pc.or_kleene(
            pc.is_in(names, self._left_out), pc.or_kleene(pc.equal(names, ""), entries.is_null())
        )
        entries = pc.if_else(unwanted, _EMPTY, entries)
        return pc.binary_join(pa.LargeListArray.from_arrays(maps.offsets.cast(pa.int64()), entries), _EMPTY)

    def _unique(self, count: int, now_ms: int) -> pa.Array:
        """The unique keys, and the part of the identity that is the same for all rows."""
        if count > _KEYS_PER_MS:
            raise MessageIllegal(
                f"{count} rows in one Arrow batch, at most {_KEYS_PER_MS} can have unique ids; see"
                " spark.sql.execution.arrow.maxRecordsPerBatch"
            )
        self._last_ms = max(now_ms, self._last_ms + 1)
        begin = props.UNIQ_KEY.encode() + _NAME_END + self._unique_keys.make(self._last_ms)[:-4].encode()
        end = _PROPERTY_END + self._identity
        table = np.empty((count, len(begin) + 4 + len(end)), np.uint8)
        table[:, : len(begin)] = np.frombuffer(begin, np.uint8)
        table[:, len(begin) : len(begin) + 4] = _hex_of_16_bits()[:count]
        table[:, len(begin) + 4 :] = np.frombuffer(end, np.uint8)
        return _fixed(table, table.shape[1])

    def _refuse(self, wrong: pa.Array, why: str) -> None:
        if pc.any(wrong).as_py():
            row = self.rows + pc.index(pc.fill_null(wrong, False), True).as_py()
            raise MessageIllegal(f"row {row}{self._where} {why}")


def _present(lists: pa.Array) -> pa.Array:
    """The lists without null and empty elements; a null list becomes an empty one."""
    values, rows = lists.flatten(), pc.list_parent_indices(lists)
    kept = pc.fill_null(pc.not_equal(values, ""), False)
    counts = np.bincount(rows.filter(kept).to_numpy(), minlength=len(lists))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values.filter(kept))


def _digests(pieces: list[pa.Array]) -> pa.Array:
    """A digest of 64 bits for each row of the pieces, in hexadecimal."""
    joined = pc.binary_join_element_wise(*pieces, _EMPTY, null_handling="skip")
    hashes = (blake2b(each, digest_size=8) for each in joined.to_pylist())
    return pa.array([each.hexdigest().encode() for each in hashes], _BYTES)


def _lengths(values: pa.LargeBinaryArray) -> pa.Array:
    return pc.fill_null(pc.binary_length(values), 0)


def _separated(values: pa.Array) -> pa.Array:
    """Rows in which a text contains a separator of names or properties."""
    return pc.or_kleene(
        pc.match_substring(values, props.NAME_END), pc.match_substring(values, props.PROPERTY_END)
    )


def _fixed(table: NDArray[Any], width: int) -> pa.Array:
    """`width` bytes for each row as a binary array."""
    count = table.size // width
    offsets = np.arange(count + 1, dtype=np.int64) * width
    return pa.LargeBinaryArray.from_buffers(
        _BYTES, count, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(table))]
    )
