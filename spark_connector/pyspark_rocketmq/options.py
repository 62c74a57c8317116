"""The options of reading: one table, and what they mean together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, cast

from attrs import field, frozen

from pyspark_rocketmq.columns import DEFAULT_COLUMNS, METADATA_COLUMNS, Projection
from pyspark_rocketmq.option_kinds import (
    ASSIGNMENT,
    COUNT,
    COUNT_OR_NONE,
    EARLIEST,
    FLAG,
    INSTANT,
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
from pyspark_rocketmq.option_table import BATCH, STREAM, WRITE, Option, OptionError, read_options
from pyspark_rocketmq.source import QueueKey

__all__ = ["CONNECTION", "HINTS", "OPTIONS", "OptionError", "ReadOptions", "projection_of"]

_READ = (BATCH, STREAM)
_ALL = (BATCH, STREAM, WRITE)

#: How a cluster is reached: also options of writing.
CONNECTION: tuple[Option, ...] = (
    Option(
        name="nameServer",
        kind=TEXT,
        where=_ALL,
        aliases=("nameServerAddress", "namesrvAddr"),
        meaning="Name servers, `host:9876;host:9876`.",
    ),
    Option(name="accessKey", kind=TEXT, where=_ALL, secret=True, meaning="Refused: requests cannot be signed yet."),
    Option(name="secretKey", kind=TEXT, where=_ALL, secret=True, meaning="Refused: requests cannot be signed yet."),
    Option(name="credentialsFile", kind=TEXT, where=_ALL, meaning="Refused: requests cannot be signed yet."),
    Option(
        name="tls",
        kind=FLAG,
        default="false",
        where=_ALL,
        meaning="Speak TLS. Certificates are named by the environment, as RMQKIT_TLS_CLIENT_TRUST_CERT_PATH, of the driver and of every worker.",
    ),
    Option(
        name="namespace",
        kind=TEXT,
        where=_ALL,
        meaning="Put before the names of topics and group, as `namespace%topic`, also in the column topic.",
    ),
    Option(
        name="vipChannel", kind=one_of("false"), default="false", where=_ALL, meaning="The second port of old brokers; only false is taken."
    ),
)

#: Everything about reading.
OPTIONS: tuple[Option, ...] = (
    *CONNECTION,
    Option(
        name="storePath",
        kind=TEXT,
        where=_READ,
        meaning="Read the files of a store instead of a cluster: a directory with commitlog and consumequeue in it, visible to every worker.",
    ),
    Option(
        name="topic",
        kind=NAMES,
        field="topics",
        where=_READ,
        aliases=("path", "subscribe", "topics"),
        meaning="Topics; also the argument of load().",
    ),
    Option(
        name="topicPattern",
        kind=PATTERN,
        where=_READ,
        aliases=("subscribePattern",),
        meaning="All topics whose whole name matches, also later ones.",
    ),
    Option(name="assign", kind=ASSIGNMENT, where=_READ, meaning='Only these queues: `{"orders": {"broker-a": [0, 1]}}`.'),
    Option(
        name="groupId",
        kind=TEXT,
        default="pyspark-rocketmq",
        where=_READ,
        aliases=("kafka.group.id", "group", "consumerGroup"),
        meaning="The consumer group brokers see. No offset of it is read; commitToGroup says whether any is written.",
    ),
    Option(
        name="startingOffsets",
        kind=OFFSETS,
        where=_READ,
        meaning='First offset to read: `{"orders": {"broker-a": {"0": 23, "1": -2}}}` names every queue. Default earliest, of a stream latest.',
    ),
    Option(name="endingOffsets", kind=OFFSETS, where=(BATCH,), meaning="One past the last offset to read. Default latest."),
    Option(
        name="startingTimestamp",
        kind=INSTANT,
        field="starting_timestamp_ms",
        where=_READ,
        meaning="Read what was stored from this moment on.",
    ),
    Option(
        name="endingTimestamp",
        kind=INSTANT,
        field="ending_timestamp_ms",
        where=(BATCH,),
        meaning="Read what was stored before this moment.",
    ),
    Option(
        name="startingOffsetsByTimestamp",
        kind=QUEUE_TIMES,
        where=_READ,
        meaning='A moment for each queue, in ms since 1970: `{"orders": {"broker-a": {"0": 1767225600000}}}`.',
    ),
    Option(name="endingOffsetsByTimestamp", kind=QUEUE_TIMES, where=(BATCH,), meaning="The same for the end."),
    Option(
        name="offsetsByTimestampStrategy",
        kind=one_of("latest", "error"),
        default="latest",
        where=_READ,
        aliases=("startingOffsetsByTimestampStrategy",),
        meaning="When nothing was stored from a starting moment on: begin at the end, or fail.",
    ),
    Option(
        name="tags",
        kind=TAGS,
        default="*",
        where=_READ,
        aliases=("subExpression",),
        meaning="Only messages with one of these tags: `new || paid`.",
    ),
    Option(
        name="sql92",
        kind=TEXT,
        where=_READ,
        meaning="Only messages whose properties meet this condition, worked out by the brokers, which must have enablePropertyFilter. Not with storePath.",
    ),
    Option(
        name="key",
        kind=TEXT,
        where=(BATCH,),
        meaning="Only messages with this key or this unique key, looked up through the index where that can be.",
    ),
    Option(name="columns", kind=NAMES, where=_READ, meaning="The columns to make, in this order; nothing else is decoded."),
    Option(name="body", kind=one_of("binary", "string"), default="binary", where=_READ, meaning="Type of the column body."),
    Option(name="properties", kind=one_of("map", "json"), default="map", where=_READ, meaning="Type of the column properties."),
    Option(
        name="includeMetadata", kind=FLAG, default="false", where=_READ, meaning="Add the columns about where and how a message is stored."
    ),
    Option(
        name="minPartitions",
        kind=COUNT,
        where=_READ,
        meaning="Split queues until there are at least so many partitions; small queues share one only as long.",
    ),
    Option(name="maxRecordsPerPartition", kind=COUNT, where=_READ, meaning="Split queues so that no partition has more messages."),
    Option(
        name="maxBytesPerPartition",
        kind=SIZE,
        default="256m",
        where=_READ,
        meaning="Split queues so that no partition has many more bytes.",
    ),
    Option(
        name="maxOffsetsPerTrigger",
        kind=COUNT,
        where=(STREAM,),
        meaning="At most so many messages in a micro-batch, shared out over the queues.",
    ),
    Option(name="maxBytesPerTrigger", kind=SIZE, where=(STREAM,), meaning="At most about so many bytes in a micro-batch."),
    Option(name="minOffsetsPerTrigger", kind=COUNT, where=(STREAM,), meaning="Wait until so many messages are there."),
    Option(
        name="maxTriggerDelay",
        kind=SPAN,
        field="max_trigger_delay_ms",
        default="15m",
        where=(STREAM,),
        meaning="But not longer than this since the last micro-batch.",
    ),
    Option(
        name="pollIntervalMs",
        kind=COUNT_OR_NONE,
        default="100",
        where=(STREAM,),
        meaning="How often an idle stream looks for new messages.",
    ),
    Option(
        name="failOnDataLoss",
        kind=FLAG,
        default="true",
        where=_READ,
        meaning="Fail when messages that were to be read are no longer there; false warns and goes on with what there is.",
    ),
    Option(
        name="fetchOffset.numRetries",
        field="fetch_num_retries",
        kind=COUNT_OR_NONE,
        default="3",
        where=_READ,
        meaning="Further attempts of a request to a broker that could not be answered.",
    ),
    Option(
        name="fetchOffset.retryIntervalMs",
        field="fetch_retry_interval_ms",
        kind=COUNT_OR_NONE,
        default="1000",
        where=_READ,
        meaning="The time between two attempts.",
    ),
    Option(
        name="pullTimeoutMs",
        kind=COUNT,
        default="10000",
        where=_READ,
        aliases=("kafkaConsumer.pollTimeoutMs",),
        meaning="How long the answer to one request may take.",
    ),
    Option(name="pullPipelining", kind=COUNT, default="8", where=_READ, meaning="How many pulls of a queue are under way at a time."),
    Option(
        name="pullBatchSize",
        kind=COUNT,
        default="1024",
        where=_READ,
        meaning="How many messages one pull asks for; brokers give fewer (maxTransferCountOnMessageInMemory, 32 unless set).",
    ),
    Option(name="batchBytes", kind=SIZE, default="4m", where=_READ, meaning="About how many bytes go to Spark at a time."),
    Option(name="batchRows", kind=COUNT, default="10000", where=_READ, meaning="At most so many rows go to Spark at a time."),
    Option(
        name="checkCrc",
        kind=FLAG,
        default="true",
        where=_READ,
        meaning="Hold bodies that are read against their checksums; half of the work of decoding 1 KiB.",
    ),
    Option(
        name="commitToGroup",
        kind=FLAG,
        default="false",
        where=(STREAM,),
        meaning="Tell the brokers what was read, as offsets of groupId, for dashboards.",
    ),
    Option(
        name="emitLagLogs",
        kind=FLAG,
        default="true",
        where=(STREAM,),
        meaning="Log how much is left when a limited batch does not take all, every 10 s at most.",
    ),
)

#: Lower-cased names of other connectors that mean nothing here.
HINTS: dict[str, str] = {
    "kafka.bootstrap.servers": "RocketMQ's clients ask name servers; give nameServer = host:9876",
    "includeheaders": "the column properties is there unless `columns` leaves it out",
    "groupidprefix": "groups need no unique names here; give groupId",
}

MISSING_TOPIC = (
    "no topic is named: give the option topic, topicPattern or assign, or load('NAME'). "
    "If they were given in CREATE TABLE ... USING rocketmq OPTIONS (...): Spark does not hand the options of catalog tables to Python sources; "
    "use CREATE TEMPORARY VIEW ... USING rocketmq OPTIONS (...), or SELECT ... FROM t WITH (...)"
)


@frozen(kw_only=True)
class ReadOptions:
    """What to read, from where and how; see OPTIONS. Times in ms since 1970, spans in ms, sizes in bytes.

    starting_offsets  a word, or an offset for each queue (-2 earliest, -1 latest); the timestamps, where given, come first
    topics            empty with topic_pattern and assign
    """

    streaming: bool = False
    name_server: str | None = None
    store_path: str | None = None
    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    assign: tuple[QueueKey, ...] = ()
    group_id: str = "pyspark-rocketmq"
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    credentials_file: str | None = None
    tls: bool = False
    namespace: str | None = None
    vip_channel: str = "false"
    starting_offsets: Offsets = EARLIEST
    ending_offsets: Offsets = LATEST
    starting_timestamp_ms: int | None = None
    ending_timestamp_ms: int | None = None
    starting_offsets_by_timestamp: dict[QueueKey, int] | None = None
    ending_offsets_by_timestamp: dict[QueueKey, int] | None = None
    offsets_by_timestamp_strategy: str = LATEST
    tags: tuple[str, ...] = ()
    sql92: str | None = None
    key: str | None = None
    columns: tuple[str, ...] | None = None
    body: Literal["binary", "string"] = "binary"
    properties: Literal["map", "json"] = "map"
    include_metadata: bool = False
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_bytes_per_partition: int = 256 << 20
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 900_000
    poll_interval_ms: int = 100
    fail_on_data_loss: bool = True
    fetch_num_retries: int = 3
    fetch_retry_interval_ms: int = 1000
    pull_timeout_ms: int = 10_000
    pull_pipelining: int = 8
    pull_batch_size: int = 1024
    batch_bytes: int = 4 << 20
    batch_rows: int = 10_000
    check_crc: bool = True
    commit_to_group: bool = False
    emit_lag_logs: bool = True

    @classmethod
    def parse(cls, mapping: Mapping[str, str], streaming: bool) -> ReadOptions:
        """Read the options of spark.read or spark.readStream, whatever the case of their names. Raises OptionError."""
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
        """The start is given as moments."""
        return self.starting_timestamp_ms is not None or self.starting_offsets_by_timestamp is not None

    @property
    def end_is_timestamp(self) -> bool:
        """The end is given as moments."""
        return self.ending_timestamp_ms is not None or self.ending_offsets_by_timestamp is not None


def projection_of(mapping: Mapping[str, str]) -> Projection:
    """The columns that the options ask for, of a read of either kind. Raises OptionError."""
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


def check_connection(given: Mapping[str, Any]) -> None:
    """What no connection can be made with. Raises OptionError."""
    for name, shown in (("access_key", "accessKey"), ("secret_key", "secretKey"), ("credentials_file", "credentialsFile")):
        if given.get(name) is not None:
            raise OptionError(
                f"option {shown}: requests cannot be signed yet, so a cluster with access control cannot be used. Leave it out, "
                "and let the brokers take requests from this network (globalWhiteRemoteAddresses)"
            )


#: At most one of each row may be given.
_EXCLUSIVE: tuple[tuple[str, ...], ...] = (
    ("nameServer", "storePath"),
    ("topic", "topicPattern", "assign"),
    ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
    ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
    ("tags", "sql92"),
    ("storePath", "sql92"),
    ("storePath", "tls"),
    ("storePath", "commitToGroup"),
    ("columns", "includeMetadata"),
)


def _check(given: Mapping[str, Any]) -> None:
    check_connection(given)
    fields = {option.name: option.field for option in OPTIONS}
    for row in _EXCLUSIVE:
        both = [name for name in row if given.get(fields[name])]
        if len(both) > 1:
            raise OptionError(f"options {' and '.join(both)} cannot be given together: choose one")
    if not any(given.get(name) for name in ("topics", "topic_pattern", "assign")):
        raise OptionError(MISSING_TOPIC)
    if not any(given.get(name) for name in ("name_server", "store_path")):
        raise OptionError(
            "it is not said where to read: give nameServer = host:9876 for a cluster, or storePath = a directory for the files of a store"
        )
    starting, ending = given.get("starting_timestamp_ms"), given.get("ending_timestamp_ms")
    if starting is not None and ending is not None and ending < starting:
        raise OptionError("endingTimestamp lies before startingTimestamp")


def _wrapped(given: Mapping[str, Any], space: str) -> dict[str, Any]:
    """The names of topics and group within their namespace."""

    def queues(value: Any) -> Any:
        return {key._replace(topic=f"{space}%{key.topic}"): number for key, number in value.items()} if isinstance(value, dict) else value

    changed: dict[str, Any] = {"group_id": f"{space}%{given.get('group_id', 'pyspark-rocketmq')}"}
    for name in ("starting_offsets", "ending_offsets", "starting_offsets_by_timestamp", "ending_offsets_by_timestamp"):
        if name in given:
            changed[name] = queues(given[name])
    if "topics" in given:
        changed["topics"] = tuple(f"{space}%{topic}" for topic in given["topics"])
    if "assign" in given:
        changed["assign"] = tuple(key._replace(topic=f"{space}%{key.topic}") for key in given["assign"])
    if "topic_pattern" in given:
        changed["topic_pattern"] = f"{re.escape(space)}%(?:{given['topic_pattern']})"
    return changed
