"""Batch reading: what to read is worked out in the driver, and read in the workers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_rocketmq.columns import Projection
from pyspark_rocketmq.opening import open_source
from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.planning import Part, plan
from pyspark_rocketmq.pushdown import TIME_PADDING_MS, Pushed, PushingMixin, filters_are_pushed
from pyspark_rocketmq.ranges import again, batch_ranges
from pyspark_rocketmq.reading import rows_of_part
from pyspark_rocketmq.schemas import arrow_schema, fitted, projection_of_schema
from pyspark_rocketmq.source import Bounds, QueueKey, QueueRange, Selection, Source

#: Fewer records than this are planned without asking how long they are.
WORTH_A_PROBE = 10_000
MAX_PROBES = 16
#: Brokers' clocks may be ahead of this one's.
_DAY_MS = 86_400_000


def read_part(options: ReadOptions, projection: Projection, part: Part, selection: Selection) -> Iterator[pa.RecordBatch]:
    """The rows of a part from the source that the options name, which stays open for the next part; see `rows_of_part`."""
    return rows_of_part(open_source(options), options, projection, part, selection)


class BatchReader(DataSourceReader):
    """Reads what is there when it is planned. Goes to the workers with what the filters left."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._projection = projection_of_schema(schema)
        self._schema = schema
        self.pushed = Pushed()

    def partitions(self) -> Sequence[InputPartition]:
        """Raises SourceError; DataLoss as `batch_ranges`."""
        selection = self._selection()
        if selection is None:
            return []
        return list(again(lambda: plan_batch(open_source(self._options), self._options, self.pushed), self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raises SourceError, DataLoss. Spark makes one empty partition where there is none."""
        selection = self._selection()
        if not isinstance(partition, Part) or selection is None:
            return
        wanted = arrow_schema(self._schema)
        for batch in read_part(self._options, self._projection, partition, selection):
            yield fitted(batch, wanted)

    def _selection(self) -> Selection | None:
        """What the source may leave out; None when nothing is left."""
        tags = self._options.tags
        if self.pushed.tags is not None:
            tags = tuple(sorted(self.pushed.tags & set(tags) if tags else self.pushed.tags))
            if not tags:
                return None
        return Selection(tags=tags, sql92=self._options.sql92 or "")


class PushingBatchReader(PushingMixin, BatchReader):
    """The same for when Spark hands filters down."""


def batch_reader(options: ReadOptions, schema: StructType) -> BatchReader:
    """The reader for where this is called. Raises OptionError for a schema that messages do not have."""
    return PushingBatchReader(options, schema) if filters_are_pushed() else BatchReader(options, schema)


def plan_batch(source: Source, options: ReadOptions, pushed: Pushed) -> list[Part]:
    """The parts of a batch read. Raises SourceError, DataLoss."""
    ranges, bounds = batch_ranges(source, options, pushed)
    key = options.key or pushed.key
    if key is None:
        return plan(ranges, _mean_bytes(source, ranges, bounds), options)
    # Looked up where the index can answer, once here to see that it can, and read through where not.
    parts = []
    stored = _stored(options, pushed)
    for topic in sorted({each.queue.topic for each in ranges}):
        of_topic = tuple(each for each in ranges if each.queue.topic == topic)
        if source.with_key(topic, key, *stored) is not None:
            parts.append(Part(of_topic, key, stored))
        else:
            parts += plan(of_topic, _mean_bytes(source, of_topic, bounds), options, key)
    return parts


def _stored(options: ReadOptions, pushed: Pushed) -> tuple[int, int]:
    """When messages were stored that the read covers, as far as that is known, with room on both sides for what the index rounds."""
    starts = [each for each in (options.starting_timestamp_ms, pushed.start_ms) if each is not None]
    stops = [each for each in (options.ending_timestamp_ms, pushed.stop_ms) if each is not None]
    latest = min(stops) if stops else time.time_ns() // 1_000_000 + _DAY_MS
    return max(0, max(starts, default=0) - TIME_PADDING_MS), latest + TIME_PADDING_MS


def _mean_bytes(source: Source, ranges: Sequence[QueueRange], bounds: Mapping[QueueKey, Bounds]) -> Mapping[QueueKey, int]:
    """About how long the records of the largest queues are; the others are taken to be like them."""
    if sum(each.stop - each.start for each in ranges) < WORTH_A_PROBE:
        return {}
    largest = sorted(ranges, key=lambda each: each.start - each.stop)[:MAX_PROBES]
    return {each.queue: source.mean_record_bytes(each.queue, bounds[each.queue]) for each in largest}
