"""The options of writing."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

from pyspark_rocketmq.option_kinds import COUNT, COUNT_OR_NONE, FLAG, SIZE, TEXT
from pyspark_rocketmq.option_table import WRITE, Option, OptionError, read_options
from pyspark_rocketmq.options import CONNECTION, HINTS, OPTIONS, check_connection
from rmqkit.model.names import group_fault, topic_fault

_HERE = (WRITE,)

#: Everything about writing.
WRITE_OPTIONS: tuple[Option, ...] = (
    *CONNECTION,
    Option(
        name="topic",
        kind=TEXT,
        where=_HERE,
        aliases=("path",),
        meaning="Where all rows go; without it each row says so in the column topic.",
    ),
    Option(name="producerGroup", kind=TEXT, default="spark-sink", where=_HERE, meaning="The producer group brokers see."),
    Option(
        name="batchBytes",
        kind=SIZE,
        default="512k",
        where=_HERE,
        meaning="About how large one request is; brokers take 4 MiB unless told otherwise.",
    ),
    Option(
        name="maxInFlight", kind=COUNT, default="4", where=_HERE, meaning="Requests of one task that may wait for their acknowledgement."
    ),
    Option(name="sendTimeoutMs", kind=COUNT, default="10000", where=_HERE, meaning="How long one request may take."),
    Option(
        name="send.numRetries",
        kind=COUNT_OR_NONE,
        default="5",
        where=_HERE,
        meaning="Further tries while brokers cannot be reached or are busy. A try whose answer was lost may have stored its rows: then they are there twice.",
    ),
    Option(name="send.retryIntervalMs", kind=COUNT_OR_NONE, default="1000", where=_HERE, meaning="The time between two tries."),
    Option(
        name="replayIdentity",
        kind=FLAG,
        default="true",
        where=_HERE,
        meaning="Give each message the properties SPARK_QUERY, SPARK_BATCH, SPARK_PART and SPARK_SEQ, the same when a batch is written again.",
    ),
    Option(
        name="skipCommittedBatches",
        kind=FLAG,
        default="true",
        where=_HERE,
        meaning="A stream keeps the number of its last batch at the broker, and does not write that batch or one before again. Needs the option topic.",
    ),
    Option(
        name="sinkGroup",
        kind=TEXT,
        where=_HERE,
        meaning="The consumer group whose offset keeps that number. Default `spark-sink-` and the query's id.",
    ),
)


@frozen(kw_only=True)
class WriteOptions:
    """Where and how to write; see WRITE_OPTIONS. Times in ms. `topic` is empty when the column says it."""

    name_server: str
    topic: str = ""
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    credentials_file: str | None = None
    tls: bool = False
    namespace: str = ""
    vip_channel: str = "false"
    producer_group: str = "spark-sink"
    batch_bytes: int = 512 << 10
    max_in_flight: int = 4
    send_timeout_ms: int = 10_000
    send_num_retries: int = 5
    send_retry_interval_ms: int = 1000
    replay_identity: bool = True
    skip_committed_batches: bool = True
    sink_group: str | None = None

    @classmethod
    def parse(cls, mapping: Mapping[str, str]) -> WriteOptions:
        """Read the options of df.write or df.writeStream, whatever the case of their names. Raises OptionError."""
        given = {name: text for name, text in mapping.items() if name.lower() not in _SPARKS_OWN}
        own = {option.name for option in WRITE_OPTIONS}
        found = read_options(WRITE_OPTIONS, given, WRITE, elsewhere=[option for option in OPTIONS if option.name not in own], hints=HINTS)
        check_connection(found)
        if not found.get("name_server"):
            raise OptionError("it is not said where to write: give nameServer = host:9876")
        options = cls(**found)
        faults = (
            ("topic", topic_fault(options.topic) if options.topic else None),
            ("producerGroup", group_fault(options.producer_group)),
            ("sinkGroup", group_fault(options.sink_group) if options.sink_group else None),
        )
        for name, fault in faults:
            if fault is not None:
                raise OptionError(f"option {name}: {fault}")
        return options

    def topic_name(self, topic: str) -> str:
        """A topic within the namespace."""
        return f"{self.namespace}%{topic}" if self.namespace and not topic.startswith(f"{self.namespace}%") else topic


#: Spark hands them to the sink of a stream, too.
_SPARKS_OWN = ("checkpointlocation",)
