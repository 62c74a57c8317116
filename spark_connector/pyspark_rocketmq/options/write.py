"""The options for writing."""

from __future__ import annotations

import re
from collections.abc import Mapping

from attrs import frozen

from pyspark_rocketmq.options.connection import HINTS, ConnectionOptions, check_connection
from pyspark_rocketmq.options.kinds import COUNT, COUNT_OR_NONE, FLAG, SIZE, TEXT
from pyspark_rocketmq.options.read import OPTIONS
from pyspark_rocketmq.options.table import WRITE, OptionError, option, options_of, read_options
from rmqkit.model.names import group_fault, topic_fault

#: Spark's own option, in lower case, which Spark also passes to the sink of a stream.
CHECKPOINT = "checkpointlocation"


@frozen(kw_only=True)
class WriteOptions(ConnectionOptions):
    """Where and how to write; see WRITE_OPTIONS. Times in ms. `topic` is empty when a column contains the
    topic."""

    topic: str = option(
        "topic",
        TEXT,
        absent="",
        where=(WRITE,),
        aliases=("path",),
        meaning="Topic for all rows; without it, each row gives its topic in the column topic.",
    )
    producer_group: str = option(
        "producerGroup", TEXT, "spark-sink", where=(WRITE,), meaning="The producer group shown by brokers."
    )
    batch_bytes: int = option(
        "batchBytes",
        SIZE,
        "512k",
        where=(WRITE,),
        meaning="Approximate size of one request; brokers accept 4 MiB by default.",
    )
    max_in_flight: int = option(
        "maxInFlight",
        COUNT,
        "4",
        where=(WRITE,),
        meaning="Maximum number of unacknowledged requests of one task.",
    )
    send_timeout_ms: int = option(
        "sendTimeoutMs", COUNT, "10000", where=(WRITE,), meaning="Time limit of one request."
    )
    send_num_retries: int = option(
        "send.numRetries",
        COUNT_OR_NONE,
        "5",
        where=(WRITE,),
        meaning=(
            "Retries while brokers cannot be reached or are busy. A try whose answer was lost may "
            "have stored its rows, which are then stored twice."
        ),
    )
    send_retry_interval_ms: int = option(
        "send.retryIntervalMs", COUNT_OR_NONE, "1000", where=(WRITE,), meaning="The time between two tries."
    )
    replay_identity: bool = option(
        "replayIdentity",
        FLAG,
        "true",
        where=(WRITE,),
        meaning=(
            "Give each message the properties SPARK_QUERY, SPARK_BATCH, SPARK_PART and SPARK_SEQ, the "
            "same when a batch is written again."
        ),
    )
    write_name: str | None = option(
        "writeName",
        TEXT,
        where=(WRITE,),
        meaning=(
            "Which write of a micro-batch this is, for several in one foreachBatch; part of SPARK_SEQ. "
            "Default the number of the action in the batch, which other queries of the session may shift."
        ),
    )
    skip_committed_batches: bool = option(
        "skipCommittedBatches",
        FLAG,
        "true",
        where=(WRITE,),
        meaning=(
            "A stream marks its last batch on the broker and does not write it again. Needs the "
            "options topic and checkpointLocation."
        ),
    )
    sink_group: str | None = option(
        "sinkGroup",
        TEXT,
        where=(WRITE,),
        meaning="The consumer group whose offset is the mark. Default `spark-sink-` and the query's id.",
    )

    @classmethod
    def parse(cls, mapping: Mapping[str, str]) -> WriteOptions:
        """Parse the options of df.write or df.writeStream, whose names are case-insensitive. Raises
        OptionError."""
        given = {name: text for name, text in mapping.items() if name.lower() != CHECKPOINT}
        own = {option.name for option in WRITE_OPTIONS}
        found = read_options(
            WRITE_OPTIONS,
            given,
            WRITE,
            elsewhere=[option for option in OPTIONS if option.name not in own],
            hints=HINTS,
        )
        check_connection(found)
        if not found.get("name_server"):
            raise OptionError("no cluster is given: set nameServer = host:9876")
        options = cls(**found)
        faults = (
            ("topic", topic_fault(options.topic) if options.topic else None),
            ("producerGroup", group_fault(options.producer_group)),
            ("writeName", _name_fault(options.write_name or "")),
            ("sinkGroup", group_fault(options.sink_group) if options.sink_group else None),
        )
        for name, fault in faults:
            if fault is not None:
                raise OptionError(f"option {name}: {fault}")
        return options

    def topic_name(self, topic: str) -> str:
        """The topic's name with its namespace."""
        return (
            f"{self.namespace}%{topic}"
            if self.namespace and not topic.startswith(f"{self.namespace}%")
            else topic
        )


def _name_fault(name: str) -> str | None:
    return None if re.fullmatch(r"[\w-]*", name) else "letters, digits, _ and - are expected"


#: All options for writing.
WRITE_OPTIONS = options_of(WriteOptions)
