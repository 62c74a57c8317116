"""The streaming side of the data source: passes Spark's calls to a `Follower`.

One instance lives in a Python process beside the driver while the query runs and provides offsets and parts.
Other instances are created in the workers, where only `read` is called.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyspark_rocketmq.decode.schemas import arrow_schema, fitted, projection_of_schema
from pyspark_rocketmq.options.read import OptionError, ReadOptions
from pyspark_rocketmq.read.batch import read_part
from pyspark_rocketmq.read.planning import Part, plan
from pyspark_rocketmq.read.source import QueueKey, Selection, SourceError
from pyspark_rocketmq.read.source_cache import close_source, open_source
from pyspark_rocketmq.stream.lag import Lag, distances
from pyspark_rocketmq.stream.offset_tracker import Follower, Rules
from pyspark_rocketmq.stream.rate import Limits
from pyspark_rocketmq.stream.starting_offsets import chooser, first_positions, topics_of
from pyspark_rocketmq.stream.stream_offsets import StreamOffset

logger = logging.getLogger(__name__)

#: Seconds between two log lines about the lag.
_LAG_LOG_EVERY_S = 10.0
#: Seconds before offsets that could not be committed are committed again.
_COMMIT_AGAIN_S = 10.0


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as a stream. Offsets are those of `stream_offsets`. Every call may raise SourceError,
    which fails the query.

    A micro-batch is a pure function of the offsets in the checkpoint: repeated after a failure, it reads the
    same messages, as long as they are kept.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Make a reader for the columns of a schema. Raises OptionError for a schema that does not match
        messages."""
        self._options = options
        self._projection = projection_of_schema(schema)
        self._schema = schema
        self._follower: Follower | None = None
        self._lag_logged: float | None = None
        self._committed: dict[str, Any] | None = None
        self._commit_after_s = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """Only what to read is pickled for a worker, not the state of this instance."""
        return self.__dict__ | {"_follower": None}

    # Methods called in the process beside the driver.

    def initialOffset(self) -> dict[str, Any]:
        return self._following().initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark accepts one limit only; whatever it is, `latestOffset` applies the limits of the options."""
        limits = limits_of(self._options)
        if limits.max_records is not None:
            return ReadMaxRows(limits.max_records)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        if limits.min_records is not None:
            return ReadMinRows(limits.min_records)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch. Spark has finished everything before `start`: it asks after each batch,
        also after the last one of a run, and while nothing is new."""
        if self._options.commit_to_group:
            self._commit(start)
        return self._following().latest(start, limited=not isinstance(limit, ReadAllAvailable))

    def prepareForTriggerAvailableNow(self) -> None:
        self._following().freeze()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._following().reported()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        follower = self._following()
        batch = follower.batch(start, end)
        if batch and self._options.emit_lag_logs:
            self._log_lag(end)
        return plan(batch, follower.mean_bytes(batch), self._options)

    def _commit(self, start: dict[str, Any]) -> None:
        """Commit positions as offsets of the group when they have changed. A failure is logged, and repeated
        later: the query continues from its checkpoint in any case."""
        now = time.monotonic()
        if start == self._committed or now < self._commit_after_s:
            return
        requested = chooser(self._options)
        positions = StreamOffset.from_json(start).positions
        try:
            self._commit_to_group({queue: at for queue, at in positions.items() if requested(queue)})
            self._committed = start
        except SourceError as error:
            self._commit_after_s = now + _COMMIT_AGAIN_S
            logger.warning("the offsets of group %s were not committed: %s", self._options.group_id, error)

    def _commit_to_group(self, positions: Mapping[QueueKey, int]) -> None:
        from pyspark_rocketmq.read.cluster import ClusterSource

        source = open_source(self._options)
        assert isinstance(source, ClusterSource)
        source.commit(self._options.group_id, positions)

    def stop(self) -> None:
        """Stop the instance, which may never have been used."""
        if self._follower is not None:
            self._follower = None
            close_source(self._options)

    # Methods called in the workers.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a part. Raises DataLoss when messages expired since the part was planned, unless the
        options ask for a warning."""
        assert isinstance(partition, Part)
        selection = Selection(tags=self._options.tags, sql92=self._options.sql92 or "")
        wanted = arrow_schema(self._schema)
        for batch in read_part(self._options, self._projection, partition, selection):
            yield fitted(batch, wanted)

    def _following(self) -> Follower:
        if self._follower is None:
            self._follower = Follower(open_source(self._options), rules_of(self._options))
        return self._follower

    def _log_lag(self, end: dict[str, Any]) -> None:
        """Log at intervals that batches cannot keep up. The level is warning, because this process logs
        nothing below it and Spark does not keep the logs of streaming workers."""
        reported, now = self._following().reported(), time.monotonic()
        if reported is None or (self._lag_logged is not None and now - self._lag_logged < _LAG_LOG_EVERY_S):
            return
        behind = Lag(
            distances(StreamOffset.from_json(end).positions, StreamOffset.from_json(reported).positions)
        )
        if behind.total:
            self._lag_logged = now
            logger.warning(
                "after this batch %d messages are left, at most %d in a queue; by topic: %s",
                behind.total,
                behind.most,
                behind.of_topics(),
            )


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream whose options are wrong: it raises the error where Spark reports it. An error of
    `DataSource.streamReader` itself is hidden by one of Spark's runner (python_streaming_source_runner.py
    stops a reader that it does not have)."""

    def __init__(self, error: OptionError) -> None:
        self._error = error

    def getDefaultReadLimit(self) -> ReadLimit:
        raise self._error

    def prepareForTriggerAvailableNow(self) -> None:
        raise self._error

    def initialOffset(self) -> dict[str, Any]:
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """The reader of a stream; one that raises OptionError when it is used, if the options or the schema are
    wrong."""
    try:
        return StreamReader(ReadOptions.parse(options, streaming=True), schema)
    except OptionError as error:
        return RefusedReader(error)


def limits_of(options: ReadOptions) -> Limits:
    """The limits of a micro-batch."""
    return Limits(
        max_records=options.max_offsets_per_trigger,
        max_bytes=options.max_bytes_per_trigger,
        min_records=options.min_offsets_per_trigger,
        max_delay_ms=options.max_trigger_delay_ms,
    )


def rules_of(options: ReadOptions) -> Rules:
    """The rules of following given by the options."""
    return Rules(
        topics=lambda source: topics_of(source, options),
        includes=chooser(options),
        brokers=options.brokers,
        begin=lambda source, bounds: first_positions(source, options, bounds),
        limits=limits_of(options),
        poll_interval_ms=options.poll_interval_ms,
        fail_on_data_loss=options.fail_on_data_loss,
        retries=options.fetch_num_retries,
        retry_interval_ms=options.fetch_retry_interval_ms,
        outage_ms=options.outage_timeout_ms,
    )
