"""Spark's writers: the rows of a frame become messages, in batch jobs and in micro-batches.

A task succeeds when brokers have acknowledged every row, so a successful job has lost none. Rows may be
written twice after a failure: by a task that ran again, or by a replayed micro-batch. `SinkMark` lets the
replay of a completely written batch be skipped; `Identity` lets readers recognise the other duplicates. A
batch is skipped only with proof that it is the one that was written; without it, its rows are written again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from uuid import uuid4

import pyarrow as pa
from attrs import Factory, define
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_rocketmq.options.table import OptionError
from pyspark_rocketmq.options.write import CHECKPOINT, WriteOptions
from pyspark_rocketmq.write.checkpoint import BatchId, newest_batch, warn_once
from pyspark_rocketmq.write.columns import checked_columns
from pyspark_rocketmq.write.packing import Identity
from pyspark_rocketmq.write.sending import Tally
from pyspark_rocketmq.write.sink_mark import SinkMark
from pyspark_rocketmq.write.task import WriteJob, connect, write_rows
from rmqkit.client import RmqError

log = logging.getLogger(__name__)

#: Local properties of a job that Spark passes to its tasks (JVM: StreamExecution.QUERY_ID_KEY,
#: MicroBatchExecution.BATCH_ID_KEY).
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
#: Those of a query execution, and of the one that began it (JVM: SQLExecution).
EXECUTION_ID, ROOT_EXECUTION_ID = "spark.sql.execution.id", "spark.sql.execution.root.id"


class SinkError(Exception):
    """Rows could not be written. The text contains the broker's reason."""


@define
class TaskWritten(WriterCommitMessage):
    """What a task has written; `skipped` when its batch had already been written. `query` is the stream's id,
    empty in a batch job."""

    tally: Tally = Factory(Tally)
    skipped: bool = False
    query: str = ""


class Writer(DataSourceArrowWriter):
    """Writer of a batch job. Raises OptionError and SchemaError before any task runs."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._job = write_job(options, schema, overwrite)
        # Within foreachBatch, rows are identified by the micro-batch; otherwise by the job, with the same id
        # for all tries of a task.
        self._own_id = str(uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        """Send the rows of a partition. Raises SinkError."""
        context = _task()
        query, batch = _stream_of(context)
        identity = Identity(
            query=query or self._own_id,
            batch=batch,
            partition=context.partitionId(),
            write="" if batch is None else self._job.options.write_name or _number_of_write(context),
        )
        with _explained(self._job), connect(self._job.options) as client:
            return TaskWritten(
                write_rows(
                    self._job, client, iterator, identity if self._job.options.replay_identity else None
                )
            )

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _tell_written(messages, "the job")

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _tell_aborted(messages, "the job")


class StreamWriter(DataSourceStreamArrowWriter):
    """Writer of a micro-batch. Spark creates one in the driver for each batch, for its tasks, and one more
    for its commit. Raises OptionError and SchemaError before any task runs."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._job = write_job(options, schema, overwrite)
        self._batch = planned_batch(
            self._job.options, {name.lower(): text for name, text in options.items()}.get(CHECKPOINT)
        )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        """Send the rows of a partition, or only consume them when the batch was written before. Raises
        SinkError."""
        context = _task()
        query, batch = _stream_of(context)
        if batch is None:
            raise SinkError(
                f"Spark does not say which micro-batch this is ({QUERY_ID} and {BATCH_ID} are not set)"
            )
        identity = Identity(query=query, batch=batch, partition=context.partitionId())
        with _explained(self._job), connect(self._job.options) as client:
            mark = sink_mark(self._job.options, query)
            if (
                mark is not None
                and self._batch is not None
                and self._batch.number == batch
                and mark.is_on(client, self._batch)
            ):
                for _ in iterator:
                    pass
                return TaskWritten(skipped=True, query=query)
            tally = write_rows(
                self._job, client, iterator, identity if self._job.options.replay_identity else None
            )
            return TaskWritten(tally, query=query)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Mark the batch as written. Raises SinkError; the batch is then replayed."""
        written = [message for message in messages if isinstance(message, TaskWritten)]
        _tell_written(messages, f"batch {batchId}")
        # An empty batch may precede the creation of the topic, and a skipped one is already marked.
        mark = (
            sink_mark(self._job.options, written[0].query)
            if any(message.tally.messages for message in written)
            else None
        )
        if mark is not None and self._batch is not None and self._batch.number == batchId:
            with _explained(self._job), connect(self._job.options) as client:
                mark.put(client, self._batch)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _tell_aborted(messages, f"batch {batchId}")


def write_job(given: Mapping[str, str], schema: StructType, overwrite: bool) -> WriteJob:
    """Check options and schema of a write, and describe it. Raises OptionError and SchemaError."""
    if overwrite:
        raise OptionError(
            "messages cannot be overwritten: write with mode append, and as a stream with output mode append"
            " or through foreachBatch"
        )
    options = WriteOptions.parse(given)
    columns = checked_columns(
        [(each.name, each.dataType.simpleString()) for each in schema.fields], options.topic
    )
    return WriteJob(options, columns)


def planned_batch(options: WriteOptions, location: str | None) -> BatchId | None:
    """The batch that is about to be written; None when it is not marked, or cannot be distinguished from
    another batch with its number."""
    if not options.skip_committed_batches or not options.topic:
        return None
    if not location:
        warn_once("without the option checkpointLocation a repeated batch is written again")
        return None
    return newest_batch(location)


def sink_mark(options: WriteOptions, query: str) -> SinkMark | None:
    """Where a query marks its last batch; None when it does not mark batches."""
    if not options.skip_committed_batches or not options.topic:
        return None
    return SinkMark(query, options.topic_name(options.topic), options.sink_group or f"spark-sink-{query}")


def _task() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise SinkError("this must be called in a Spark task")
    return context


def _stream_of(context: TaskContext) -> tuple[str, int | None]:
    """Id of the query and number of the micro-batch of the task; empty and None in a batch job."""
    query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    return (query, int(batch)) if query and batch else ("", None)


def _number_of_write(context: TaskContext) -> str:
    """Which execution of its micro-batch this is, counting from 1: each action in foreachBatch is one, and so
    is each of other queries meanwhile."""
    own, batch = context.getLocalProperty(EXECUTION_ID), context.getLocalProperty(ROOT_EXECUTION_ID)
    if own is None or batch is None:
        raise SinkError(
            f"Spark does not say which write of the micro-batch this is ({EXECUTION_ID} and"
            f" {ROOT_EXECUTION_ID} are not set); set the option writeName"
        )
    return str(int(own) - int(batch))


@contextmanager
def _explained(job: WriteJob) -> Iterator[None]:
    try:
        yield
    except RmqError as error:
        options = job.options
        where = f"topic {options.topic!r}" if options.topic else "the topics of the column"
        raise SinkError(f"writing to {where} through {options.name_server} failed: {error}") from error


def _tell_written(messages: Sequence[WriterCommitMessage | None], what: str) -> None:
    tallies = [message.tally for message in messages if isinstance(message, TaskWritten)]
    rows, requests = sum(tally.messages for tally in tallies), sum(tally.requests for tally in tallies)
    if any(isinstance(message, TaskWritten) and message.skipped for message in messages):
        log.warning("%s was written before and is not written again", what)
    log.info(
        "%s: %d messages in %d requests of %d tasks are acknowledged", what, rows, requests, len(tallies)
    )
    not_settled = sum(tally.not_settled for tally in tallies)
    if not_settled:
        log.warning(
            "%s: for %d messages, brokers did not confirm flush or replication in time", what, not_settled
        )


def _tell_aborted(messages: Sequence[WriterCommitMessage | None], what: str) -> None:
    tallies = [message.tally for message in messages if isinstance(message, TaskWritten)]
    log.warning(
        "%s failed; %d messages of the %d tasks that did not fail remain in their topics, with those sent by"
        " the failed tasks",
        what,
        sum(tally.messages for tally in tallies),
        len(tallies),
    )
