"""The options for reading, and their combined meaning."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, cast

from attrs import frozen

from pyspark_rocketmq.decode.columns import DEFAULT_COLUMNS, METADATA_COLUMNS, Projection
from pyspark_rocketmq.options.connection import HINTS, ConnectionOptions, check_connection
from pyspark_rocketmq.options.kinds import (
    ASSIGNMENT,
    COUNT,
    COUNT_OR_NONE,
    EARLIEST,
    FLAG,
    INSTANT,
    KEY,
    LATEST,
    NAMES,
    OFFSETS,
    PATTERN,
    QUEUE_TIMES,
    SIZE,
    SPAN,
    TAGS,
    TEXT,
    Offsets,
    one_of,
)
from pyspark_rocketmq.options.table import BATCH, READ, STREAM, OptionError, option, options_of, read_options
from pyspark_rocketmq.read.source import QueueKey

__all__ = ["OPTIONS", "OptionError", "ReadOptions", "projection_of"]

MISSING_TOPIC = (
    "no topic is given: set the option topic, topicPattern or assign, or use load('NAME'). If they were given"
    " in CREATE TABLE ... USING rocketmq OPTIONS (...): Spark does not pass the options of catalog tables to"
    " Python sources; use CREATE TEMPORARY VIEW ... USING rocketmq OPTIONS (...), or SELECT ... FROM t WITH"
    " (...)"
)


@frozen(kw_only=True)
class ReadOptions(ConnectionOptions):
    """What to read, from where and how; see OPTIONS. Times in ms since 1970, durations in ms, sizes in bytes.

    starting_offsets  a word, or an offset for each queue (-2 earliest, -1 latest); timestamps, where given,
                      take precedence
    topics            empty with topic_pattern and assign
    """

    streaming: bool = False
    store_path: str | None = option(
        "storePath",
        TEXT,
        where=READ,
        meaning=(
            "Read the files of a store instead of a cluster: a directory with commitlog and "
            "consumequeue in it, visible to every worker."
        ),
    )
    topics: tuple[str, ...] = option(
        "topic",
        NAMES,
        absent=(),
        where=READ,
        aliases=("path", "subscribe", "topics"),
        meaning="Topics; also the argument of load().",
    )
    topic_pattern: str | None = option(
        "topicPattern",
        PATTERN,
        where=READ,
        aliases=("subscribePattern",),
        meaning="All topics whose complete name matches, including later ones.",
    )
    assign: tuple[QueueKey, ...] = option(
        "assign",
        ASSIGNMENT,
        absent=(),
        where=READ,
        meaning='Only these queues: `{"orders": {"broker-a": [0, 1]}}`.',
    )
    brokers: tuple[str, ...] = option(
        "brokers",
        NAMES,
        absent=(),
        where=READ,
        meaning=(
            "Names of brokers, `broker-a,broker-b`, that must be known for each topic: while one is not, a "
            "batch fails, and a stream waits. See When brokers are down. Not with storePath."
        ),
    )
    group_id: str = option(
        "groupId",
        TEXT,
        "pyspark-rocketmq",
        where=READ,
        aliases=("kafka.group.id", "group", "consumerGroup"),
        meaning=(
            "The consumer group shown by brokers. Its offsets are not read; commitToGroup decides "
            "whether they are written."
        ),
    )
    starting_offsets: Offsets = option(
        "startingOffsets",
        OFFSETS,
        absent=EARLIEST,
        where=READ,
        meaning=(
            'First offset to read: `{"orders": {"broker-a": {"0": 23, "1": -2}}}` names every queue. '
            "Default earliest, of a stream latest."
        ),
    )
    ending_offsets: Offsets = option(
        "endingOffsets",
        OFFSETS,
        absent=LATEST,
        where=(BATCH,),
        meaning="One past the last offset to read. Default latest.",
    )
    starting_timestamp_ms: int | None = option(
        "startingTimestamp", INSTANT, where=READ, meaning="Read messages stored at this time or later."
    )
    ending_timestamp_ms: int | None = option(
        "endingTimestamp", INSTANT, where=(BATCH,), meaning="Read messages stored before this time."
    )
    starting_offsets_by_timestamp: dict[QueueKey, int] | None = option(
        "startingOffsetsByTimestamp",
        QUEUE_TIMES,
        where=READ,
        meaning=(
            'A timestamp for each queue, in ms since 1970: `{"orders": {"broker-a": {"0": 1767225600000}}}`.'
        ),
    )
    ending_offsets_by_timestamp: dict[QueueKey, int] | None = option(
        "endingOffsetsByTimestamp", QUEUE_TIMES, where=(BATCH,), meaning="The same for the end."
    )
    offsets_by_timestamp_strategy: str = option(
        "offsetsByTimestampStrategy",
        one_of("latest", "error"),
        "latest",
        where=READ,
        aliases=("startingOffsetsByTimestampStrategy",),
        meaning="When no message was stored at a starting timestamp or later: begin at the end, or fail.",
    )
    tags: tuple[str, ...] = option(
        "tags",
        TAGS,
        "*",
        where=READ,
        aliases=("subExpression",),
        meaning="Only messages with one of these tags: `new || paid`.",
    )
    sql92: str | None = option(
        "sql92",
        TEXT,
        where=READ,
        meaning=(
            "Only messages whose properties meet this condition, evaluated by the brokers, which need "
            "enablePropertyFilter. Not with storePath."
        ),
    )
    key: str | None = option(
        "key",
        KEY,
        where=(BATCH,),
        meaning="Only messages with this key or unique key, found through the index where possible.",
    )
    filter_pushdown: bool = option(
        "filterPushdown",
        FLAG,
        "false",
        where=(BATCH,),
        meaning=(
            "Restrict reading by the conditions of the query. Only for a frame used once, see Filters "
            "that Spark pushes down."
        ),
    )
    columns: tuple[str, ...] | None = option(
        "columns",
        NAMES,
        where=READ,
        meaning="The columns to produce, in this order; nothing else is decoded.",
    )
    body: Literal["binary", "string"] = option(
        "body", one_of("binary", "string"), "binary", where=READ, meaning="Type of the column body."
    )
    properties: Literal["map", "json"] = option(
        "properties", one_of("map", "json"), "map", where=READ, meaning="Type of the column properties."
    )
    include_metadata: bool = option(
        "includeMetadata",
        FLAG,
        "false",
        where=READ,
        meaning="Add the columns that describe how a message is stored.",
    )
    min_partitions: int | None = option(
        "minPartitions",
        COUNT,
        where=READ,
        meaning=(
            "Split queues until there are at least this many partitions; small queues share one only "
            "above this number."
        ),
    )
    max_records_per_partition: int | None = option(
        "maxRecordsPerPartition",
        COUNT,
        where=READ,
        meaning="Split queues so that no partition has more messages than this.",
    )
    max_bytes_per_partition: int = option(
        "maxBytesPerPartition",
        SIZE,
        "256m",
        where=READ,
        meaning="Split queues so that no partition has much more than this size.",
    )
    max_offsets_per_trigger: int | None = option(
        "maxOffsetsPerTrigger",
        COUNT,
        where=(STREAM,),
        meaning="Maximum number of messages in a micro-batch, divided among the queues.",
    )
    max_bytes_per_trigger: int | None = option(
        "maxBytesPerTrigger", SIZE, where=(STREAM,), meaning="Approximate maximum size of a micro-batch."
    )
    min_offsets_per_trigger: int | None = option(
        "minOffsetsPerTrigger", COUNT, where=(STREAM,), meaning="Minimum number of messages to wait for."
    )
    max_trigger_delay_ms: int = option(
        "maxTriggerDelay",
        SPAN,
        "15m",
        where=(STREAM,),
        meaning="Maximum time to wait for them since the last micro-batch.",
    )
    poll_interval_ms: int = option(
        "pollIntervalMs",
        COUNT_OR_NONE,
        "100",
        where=(STREAM,),
        meaning="Interval at which an idle stream checks for new messages.",
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        FLAG,
        "true",
        where=READ,
        meaning=(
            "Fail when messages to be read no longer exist; with false, log a warning and continue "
            "with the existing ones."
        ),
    )
    outage_timeout_ms: int = option(
        "outageTimeout",
        SPAN,
        "5m",
        where=(STREAM,),
        meaning=(
            "How long a stream waits for name servers and brokers that do not answer, before it fails "
            "without losing messages."
        ),
    )
    fetch_num_retries: int = option(
        "fetchOffset.numRetries",
        COUNT_OR_NONE,
        "3",
        where=READ,
        meaning=(
            "Retries of a failed request. For a running stream, outageTimeout applies instead when "
            "there is no answer."
        ),
    )
    fetch_retry_interval_ms: int = option(
        "fetchOffset.retryIntervalMs",
        COUNT_OR_NONE,
        "1000",
        where=READ,
        meaning="The time between two attempts.",
    )
    pull_timeout_ms: int = option(
        "pullTimeoutMs",
        COUNT,
        "10000",
        where=READ,
        aliases=("kafkaConsumer.pollTimeoutMs",),
        meaning="Time limit for the answer to one request.",
    )
    pull_pipelining: int = option(
        "pullPipelining", COUNT, "8", where=READ, meaning="Maximum number of concurrent pulls of a queue."
    )
    pull_batch_size: int = option(
        "pullBatchSize",
        COUNT,
        "4096",
        where=READ,
        meaning=(
            "Maximum number of messages per pull. RocketMQ's brokers return fewer "
            "(maxTransferCountOnMessageInMemory, 32 unless set), rmqkit's up to 4096."
        ),
    )
    batch_bytes: int = option(
        "batchBytes", SIZE, "4m", where=READ, meaning="Approximate size of a batch passed to Spark."
    )
    batch_rows: int = option(
        "batchRows", COUNT, "10000", where=READ, meaning="Maximum number of rows passed to Spark at a time."
    )
    check_crc: bool = option(
        "checkCrc",
        FLAG,
        "true",
        where=READ,
        meaning="Verify the checksums of bodies; half of the work of decoding without the compiled part.",
    )
    bad_records: Literal["fail", "null", "skip"] = option(
        "badRecords",
        one_of("fail", "null", "skip"),
        "fail",
        where=READ,
        meaning=(
            "A record that cannot be decoded (damaged, or a compressed body that is none) is an error with "
            "its offset, a row with null in the columns that cannot be read, or left out; the latter two "
            "are logged."
        ),
    )
    commit_to_group: bool = option(
        "commitToGroup",
        FLAG,
        "false",
        where=(STREAM,),
        meaning="Commit the read positions as offsets of groupId, for dashboards.",
    )
    emit_lag_logs: bool = option(
        "emitLagLogs",
        FLAG,
        "true",
        where=(STREAM,),
        meaning=("Log the remaining messages when limits keep a batch from reading all, at most every 10 s."),
    )

    @classmethod
    def parse(cls, mapping: Mapping[str, str], streaming: bool) -> ReadOptions:
        """Parse the options of spark.read or spark.readStream, whose names are case-insensitive. Raises
        OptionError."""
        given = read_options(OPTIONS, mapping, STREAM if streaming else BATCH, hints=HINTS)
        _check(given)
        if streaming:
            given.setdefault("starting_offsets", LATEST)
        space = given.get("namespace")
        if space is not None:
            given |= _wrapped(given, space)
        options = cls(streaming=streaming, **given)
        projection_of(mapping)
        return options

    @property
    def start_is_timestamp(self) -> bool:
        """Whether the start is given as timestamps."""
        return self.starting_timestamp_ms is not None or self.starting_offsets_by_timestamp is not None

    @property
    def end_is_timestamp(self) -> bool:
        """Whether the end is given as timestamps."""
        return self.ending_timestamp_ms is not None or self.ending_offsets_by_timestamp is not None


#: All options for reading.
OPTIONS = options_of(ReadOptions)


def projection_of(mapping: Mapping[str, str]) -> Projection:
    """The columns requested by the options, for batch and streaming reads. Raises OptionError."""
    given = read_options(OPTIONS, mapping, None, hints=HINTS)
    known = {**DEFAULT_COLUMNS, **METADATA_COLUMNS}
    names = given.get("columns")
    if names is None:
        names = tuple(known if given.get("include_metadata") else DEFAULT_COLUMNS)
    canonical = {name.lower(): name for name in known}
    for name in names:
        if name.lower() not in canonical:
            raise OptionError(f"option columns: there is no column {name}; there are {', '.join(known)}")
    return Projection(
        tuple(dict.fromkeys(canonical[name.lower()] for name in names)),
        cast(Literal["binary", "string"], given.get("body", "binary")),
        cast(Literal["map", "json"], given.get("properties", "map")),
    )


#: At most one option of each row may be given.
_EXCLUSIVE: tuple[tuple[str, ...], ...] = (
    ("nameServer", "storePath"),
    ("topic", "topicPattern", "assign"),
    ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
    ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
    ("tags", "sql92"),
    ("storePath", "sql92"),
    ("storePath", "tls"),
    ("storePath", "commitToGroup"),
    ("storePath", "brokers"),
    ("columns", "includeMetadata"),
)


def _check(given: Mapping[str, Any]) -> None:
    check_connection(given)
    fields = {option.name: option.field for option in OPTIONS}
    for row in _EXCLUSIVE:
        both = [name for name in row if given.get(fields[name])]
        if len(both) > 1:
            raise OptionError(f"options {' and '.join(both)} exclude each other: choose one")
    if not any(given.get(name) for name in ("topics", "topic_pattern", "assign")):
        raise OptionError(MISSING_TOPIC)
    if not any(given.get(name) for name in ("name_server", "store_path")):
        raise OptionError(
            "no source is given: set nameServer = host:9876 for a cluster, or storePath = a directory"
            " for the files of a store"
        )
    starting, ending = given.get("starting_timestamp_ms"), given.get("ending_timestamp_ms")
    if starting is not None and ending is not None and ending < starting:
        raise OptionError("endingTimestamp is before startingTimestamp")


def _wrapped(given: Mapping[str, Any], space: str) -> dict[str, Any]:
    """The names of topics and group with their namespace."""

    def queues(value: Any) -> Any:
        return (
            {key._replace(topic=f"{space}%{key.topic}"): number for key, number in value.items()}
            if isinstance(value, dict)
            else value
        )

    changed: dict[str, Any] = {"group_id": f"{space}%{given.get('group_id', 'pyspark-rocketmq')}"}
    for name in (
        "starting_offsets",
        "ending_offsets",
        "starting_offsets_by_timestamp",
        "ending_offsets_by_timestamp",
    ):
        if name in given:
            changed[name] = queues(given[name])
    if "topics" in given:
        changed["topics"] = tuple(f"{space}%{topic}" for topic in given["topics"])
    if "assign" in given:
        changed["assign"] = tuple(key._replace(topic=f"{space}%{key.topic}") for key in given["assign"])
    if "topic_pattern" in given:
        changed["topic_pattern"] = f"{re.escape(space)}%(?:{given['topic_pattern']})"
    return changed
