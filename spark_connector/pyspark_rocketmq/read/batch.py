"""Batch reading: the driver plans what to read, the workers read it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_rocketmq.decode.columns import Projection
from pyspark_rocketmq.decode.schemas import arrow_schema, fitted, projection_of_schema
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.read.partition_reader import rows_of_part
from pyspark_rocketmq.read.planning import Part, plan
from pyspark_rocketmq.read.pushdown import TIME_PADDING_MS, Pushed, PushingMixin, filters_are_pushed
from pyspark_rocketmq.read.ranges import again, batch_ranges
from pyspark_rocketmq.read.source import Bounds, QueueKey, QueueRange, Selection, Source
from pyspark_rocketmq.read.source_cache import open_source

#: Fewer records than this are planned without a query for their mean length.
WORTH_A_PROBE = 10_000
MAX_PROBES = 16
#: Brokers' clocks may be ahead of this machine's clock.
_DAY_MS = 86_400_000


def read_part(
    options: ReadOptions, projection: Projection, part: Part, selection: Selection
) -> Iterator[pa.RecordBatch]:
    """The rows of a part from the source given by the options, which stays open for the next part; see
    `rows_of_part`."""
    return rows_of_part(open_source(options), options, projection, part, selection)


class BatchReader(DataSourceReader):
    """Reads the messages that exist when it is planned. It is sent to the workers together with the pushed
    filters."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._projection = projection_of_schema(schema)
        self._schema = schema
        self.pushed = Pushed()

    def partitions(self) -> Sequence[InputPartition]:
        """The parts to read. Raises SourceError, and DataLoss as `batch_ranges`."""
        selection = self._selection()
        if selection is None:
            return []
        return list(
            again(lambda: plan_batch(open_source(self._options), self._options, self.pushed), self._options)
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a part. Raises SourceError, DataLoss. Spark creates one empty partition when there is
        none."""
        selection = self._selection()
        if not isinstance(partition, Part) or selection is None:
            return
        wanted = arrow_schema(self._schema)
        for batch in read_part(self._options, self._projection, partition, selection):
            yield fitted(batch, wanted)

    def _selection(self) -> Selection | None:
        """What the source may leave out; None when nothing remains."""
        tags = self._options.tags
        if self.pushed.tags is not None:
            tags = tuple(sorted(self.pushed.tags & set(tags) if tags else self.pushed.tags))
            if not tags:
                return None
        return Selection(tags=tags, sql92=self._options.sql92 or "")


class PushingBatchReader(PushingMixin, BatchReader):
    """A batch reader to which Spark pushes filters."""


def batch_reader(options: ReadOptions, schema: StructType) -> BatchReader:
    """The reader for the current process. Raises OptionError for a schema that does not match messages."""
    pushing = options.filter_pushdown and filters_are_pushed()
    return PushingBatchReader(options, schema) if pushing else BatchReader(options, schema)


def plan_batch(source: Source, options: ReadOptions, pushed: Pushed) -> list[Part]:
    """The parts of a batch read. Raises SourceError, DataLoss."""
    ranges, bounds = batch_ranges(source, options, pushed)
    key = options.key or pushed.key
    if key is None:
        return plan(ranges, _mean_bytes(source, ranges, bounds), options)
    # Parts are looked up where the index can answer, which is tried once here, and read completely elsewhere.
    # A broker evaluates sql92 only for pulls.
    parts = []
    stored = _stored(options, pushed)
    for topic in sorted({each.queue.topic for each in ranges}):
        of_topic = tuple(each for each in ranges if each.queue.topic == topic)
        held_by = {each.queue.broker for each in of_topic}
        if not options.sql92 and source.with_key(topic, held_by, key, *stored) is not None:
            parts.append(Part(of_topic, key, stored))
        else:
            parts += plan(of_topic, _mean_bytes(source, of_topic, bounds), options, key)
    return parts


def _stored(options: ReadOptions, pushed: Pushed) -> tuple[int, int]:
    """The range of store times that the read covers, as far as it is known, with a margin for the rounding of
    the index."""
    starts = [each for each in (options.starting_timestamp_ms, pushed.start_ms) if each is not None]
    stops = [each for each in (options.ending_timestamp_ms, pushed.stop_ms) if each is not None]
    latest = min(stops) if stops else time.time_ns() // 1_000_000 + _DAY_MS
    return max(0, max(starts, default=0) - TIME_PADDING_MS), latest + TIME_PADDING_MS


def _mean_bytes(
    source: Source, ranges: Sequence[QueueRange], bounds: Mapping[QueueKey, Bounds]
) -> Mapping[QueueKey, int]:
    """Approximate record lengths of the largest queues; the others are assumed to be similar."""
    if sum(each.stop - each.start for each in ranges) < WORTH_A_PROBE:
        return {}
    largest = sorted(ranges, key=lambda each: each.start - each.stop)[:MAX_PROBES]
    return {each.queue: source.mean_record_bytes(each.queue, bounds[each.queue]) for each in largest}
