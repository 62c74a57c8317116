"""Reads a part into record batches in a worker, for batch and streaming reads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from attrs import evolve

from pyspark_rocketmq.decode.columns import Projection
from pyspark_rocketmq.decode.records import MAX_TOLD, Decoder
from pyspark_rocketmq.decode.schemas import arrow_schema, struct_of
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.read.planning import Part
from pyspark_rocketmq.read.ranges import again
from pyspark_rocketmq.read.source import Block, DataLoss, QueueKey, QueueRange, Selection, Source
from rmqkit.model import properties as props

log = logging.getLogger(__name__)

#: The first batch is small, so that a reader that stops early (show(), LIMIT) is cheap.
FIRST_RECORDS = 256
#: Smaller batches are merged before they go to Spark, where each batch costs as much as hundreds of rows.
MIN_ROWS = 500


def rows_of_part(
    source: Source, options: ReadOptions, projection: Projection, part: Part, selection: Selection
) -> Iterator[pa.RecordBatch]:
    """The rows of a part, as record batches of the projection's schema. The first batch is small; later ones
    have up to batchRows rows and about batchBytes bytes.

    Raises SourceError; BadRecord unless the options ask for nulls or for leaving it out; DataLoss when
    messages expired since the part was planned, unless the options ask for a warning.
    """
    wanted = evolve(projection, check_crc=options.check_crc, bad_records=options.bad_records)
    decode = _Decoding(wanted, selection, part.key)
    batches = _looked_up(source, options, part, decode)
    if batches is None:
        batches = (
            batch for each in part.ranges for batch in _scanned(source, options, each, selection, decode)
        )
    yield from _sized(batches, options)
    if decode.bad > MAX_TOLD:
        log.warning("%s: %d bad records in this task (badRecords)", part, decode.bad)


class _Decoding:
    """Decodes blocks and drops messages that do not match tags and key, because sources compare only
    hashes."""

    def __init__(self, projection: Projection, selection: Selection, key: str | None) -> None:
        self._tests: list[Callable[[pa.RecordBatch], pa.Array]] = []
        needed: list[str] = []
        if selection.tags:
            wanted = pa.array(selection.tags)
            self._tests.append(lambda batch: pc.is_in(batch.column("tags"), wanted))
            needed.append("tags")
        if key is not None:
            self._tests.append(_key_test(key))
            needed += ["keys", "msgId"]
        self._names = list(projection.names)
        wide = evolve(
            projection, names=(*projection.names, *(name for name in needed if name not in projection.names))
        )
        self._extra = len(wide.names) > len(projection.names)
        self._decoder = Decoder(wide, arrow_schema(struct_of(wide)))

    @property
    def bad(self) -> int:
        """How many bad records became nulls or were left out."""
        return self._decoder.bad

    def __call__(self, block: Block, lo: int, hi: int) -> Iterator[pa.RecordBatch]:
        for batch in self._decoder.batches(block, lo, hi):
            for test in self._tests:
                batch = batch.filter(test(batch))
            yield batch.select(self._names) if self._extra else batch


def _key_test(key: str) -> Callable[[pa.RecordBatch], pa.Array]:
    """A test whether a message has the key, or has it as its unique key."""

    def test(batch: pa.RecordBatch) -> pa.Array:
        known_by = pc.equal(batch.column("msgId"), key)
        keys = batch.column("keys")
        near = pc.fill_null(pc.match_substring(keys, key), False)
        has = [
            bool(maybe) and key in props.split_keys(text)
            for maybe, text in zip(near.to_pylist(), keys.to_pylist(), strict=True)
        ]
        return pc.or_(known_by, pa.array(has, pa.bool_()))

    return test


def _scanned(
    source: Source, options: ReadOptions, part: QueueRange, selection: Selection, decode: _Decoding
) -> Iterator[pa.RecordBatch]:
    at = part.start
    while at < part.stop:
        try:
            for block in source.blocks(part._replace(start=at), selection, FIRST_RECORDS):
                yield from decode(block, at, part.stop)
            return
        except DataLoss as loss:
            if options.fail_on_data_loss:
                raise
            log.warning("data loss, continuing without (failOnDataLoss=false): %s", loss)
            at = max(loss.first, at + 1)


def _looked_up(
    source: Source, options: ReadOptions, part: Part, decode: _Decoding
) -> Iterator[pa.RecordBatch] | None:
    """The rows found through the index; None when the index cannot answer."""
    if part.key is None or part.stored is None:
        return None
    topic, brokers = part.ranges[0].queue.topic, {each.queue.broker for each in part.ranges}
    query = partial(source.with_key, topic, brokers, part.key, *part.stored)
    blocks = again(query, options)
    if blocks is None:
        return None
    ranges: Mapping[QueueKey, Sequence[QueueRange]] = {
        queue: [each for each in part.ranges if each.queue == queue]
        for queue in {each.queue for each in part.ranges}
    }
    return (
        batch
        for block in blocks
        for each in ranges.get(block.queue, ())
        for batch in decode(block, each.start, each.stop)
    )


def _sized(batches: Iterator[pa.RecordBatch], options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Divide rows into batches of suitable size: the first one unchanged, small ones merged, large ones
    split."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    first = True
    for batch in batches:
        if not batch.num_rows:
            continue
        if not waiting and (first or batch.num_rows >= MIN_ROWS or batch.nbytes >= options.batch_bytes):
            yield from _cut(batch, options)
            first = False
            continue
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= MIN_ROWS or sum(each.nbytes for each in waiting) >= options.batch_bytes:
            yield from _cut(pa.concat_batches(waiting), options)
            waiting, rows = [], 0
    if waiting:
        yield from _cut(pa.concat_batches(waiting), options)


def _cut(batch: pa.RecordBatch, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    pieces = max(-(-batch.nbytes // options.batch_bytes), 1)
    step = max(1, min(options.batch_rows, -(-batch.num_rows // pieces)))
    if step >= batch.num_rows:
        yield batch
        return
    for at in range(0, batch.num_rows, step):
        yield batch.slice(at, step)
