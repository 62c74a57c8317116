"""Options: names, conflicts, and error texts with a remedy."""

from __future__ import annotations

import pytest

from pyspark_rocketmq.decode.columns import DEFAULT_COLUMNS, METADATA_COLUMNS
from pyspark_rocketmq.options.read import OPTIONS, ReadOptions, projection_of
from pyspark_rocketmq.options.table import BATCH, STREAM, OptionError
from pyspark_rocketmq.read.source import QueueKey

PLACE = {"nameServer": "127.0.0.1:9876", "topic": "T"}


def parse(streaming: bool = False, /, **given: str) -> ReadOptions:
    return ReadOptions.parse(PLACE | given, streaming)


def fault(streaming: bool, given: dict[str, str]) -> str:
    with pytest.raises(OptionError) as caught:
        ReadOptions.parse(given, streaming)
    return str(caught.value)


def test_case_does_not_matter() -> None:
    """Names are case-insensitive, because Spark passes them in lower case."""
    assert (
        ReadOptions.parse(
            {"NAMESERVER": "a:1", "path": "T", "fetchoffset.numretries": "5"}, False
        ).fetch_num_retries
        == 5
    )


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"subscribe": "A, B,A"}, "topics", ("A", "B")),
        ({"path": "T"}, "topics", ("T",)),
        ({"subscribePattern": "a.*"}, "topic_pattern", "a.*"),
        ({"topic": "T", "subExpression": "a || b"}, "tags", ("a", "b")),
        ({"topic": "T", "kafka.group.id": "g"}, "group_id", "g"),
        ({"topic": "T", "kafkaConsumer.pollTimeoutMs": "7"}, "pull_timeout_ms", 7),
        (
            {"topic": "T", "startingOffsetsByTimestampStrategy": "error"},
            "offsets_by_timestamp_strategy",
            "error",
        ),
        ({"assign": '{"T": {"b": [1, 0, 1]}}'}, "assign", (QueueKey("T", "b", 0), QueueKey("T", "b", 1))),
    ],
)
def test_spellings_of_other_connectors(given: dict[str, str], field: str, value: object) -> None:
    """Options of Kafka's and the old RocketMQ connector are accepted where they have a meaning."""
    assert getattr(ReadOptions.parse({"nameServer": "a:1"} | given, False), field) == value


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("startingOffsets", "Latest", "starting_offsets", "latest"),
        (
            "startingOffsets",
            '{"T":{"b":{"0":23,"1":-2}}}',
            "starting_offsets",
            {QueueKey("T", "b", 0): 23, QueueKey("T", "b", 1): -2},
        ),
        ("startingTimestamp", "1767225600000", "starting_timestamp_ms", 1_767_225_600_000),
        ("startingTimestamp", "2026-01-01T00:00:00Z", "starting_timestamp_ms", 1_767_225_600_000),
        ("endingTimestamp", "2026-01-01T02:00:00.5+02:00", "ending_timestamp_ms", 1_767_225_600_500),
        ("maxBytesPerPartition", "64k", "max_bytes_per_partition", 65_536),
        ("batchBytes", "1048576", "batch_bytes", 1 << 20),
        ("tags", "*", "tags", ()),
        ("columns", "keys, queueOffset", "columns", ("keys", "queueOffset")),
        ("failOnDataLoss", "FALSE", "fail_on_data_loss", False),
    ],
)
def test_values(name: str, text: str, field: str, value: object) -> None:
    """Times, sizes, offsets and lists are parsed in all their forms."""
    assert getattr(parse(**{name: text}), field) == value


def test_a_stream_begins_at_the_end_and_a_batch_at_the_beginning() -> None:
    """The defaults are those of Kafka's connector."""
    assert (parse().starting_offsets, parse(True).starting_offsets) == ("earliest", "latest")


@pytest.mark.parametrize(
    ("streaming", "given", "said"),
    [
        (False, {"topics_": "x"}, "unknown option topics_; did you mean 'topic'"),
        (False, {"startingOffset": "earliest"}, "did you mean 'startingOffsets'?"),
        (False, {"zzz": "1"}, "known are accessKey, assign,"),
        (False, {"maxOffsetsPerTrigger": "5"}, "does not apply to batch reading, only to streaming reads"),
        (True, {"endingOffsets": "latest"}, "does not apply to streaming reads, only to batch reading"),
        (False, {"kafka.bootstrap.servers": "a:9092"}, "set nameServer"),
        (False, {"storePath": "/data"}, "nameServer and storePath exclude each other"),
        (False, {"topicPattern": "a"}, "topic and topicPattern exclude each other"),
        (
            False,
            {"startingOffsets": "earliest", "startingTimestamp": "1"},
            "startingOffsets and startingTimestamp exclude each other",
        ),
        (False, {"tags": "a", "sql92": "b = 1"}, "tags and sql92"),
        (False, {"key": "k1 k2"}, "spaces separate the keys of a message"),
        (False, {"nameServer": "nonsense"}, "as host:9876;host:9876: address 'nonsense' is not of the form"),
        (True, {"nameServer": "127.0.0.1:9876;127.0.0.1:port"}, "'127.0.0.1:port' is not of the form"),
        (False, {"nameServer": ";"}, "name servers are expected"),
        (False, {"path": "U"}, "options topic and path mean the same and differ"),
        (False, {"startingTimestamp": "2026-01-01T00:00:00"}, "time zone is missing"),
        (False, {"startingTimestamp": "soon"}, "ISO time such as"),
        (
            False,
            {"startingTimestamp": "10", "endingTimestamp": "5"},
            "endingTimestamp is before startingTimestamp",
        ),
        (
            False,
            {"startingOffsets": '{"T": {"0": 1}}'},
            'JSON {"topic": {"broker name": {"queue id": number}}} is expected',
        ),
        (False, {"startingOffsets": '{"T":{"b":{"0":-3}}}'}, "-2 is the earliest"),
        (False, {"startingOffsets": "[" * 100_000}, "is expected"),
        (False, {"pullPipelining": "0"}, "a whole number of at least 1 is expected"),
        (False, {"maxBytesPerPartition": "5x"}, "256m or 1g"),
        (False, {"failOnDataLoss": "maybe"}, "true or false"),
        (False, {"columns": "key"}, "there is no column key; there are topic,"),
        (False, {"columns": "keys", "includeMetadata": "true"}, "columns and includeMetadata"),
        (False, {"vipChannel": "true"}, "one of false"),
        (False, {"body": "text"}, "one of binary, string is expected"),
        (False, {"topic": "A,B"}, ""),
    ],
)
def test_what_is_wrong_is_said(streaming: bool, given: dict[str, str], said: str) -> None:
    """The text contains the option and the remedy."""
    if not said:
        assert ReadOptions.parse(PLACE | given, streaming).topics == ("A", "B")
    else:
        assert said in fault(streaming, PLACE | given)


def test_places_of_name_servers() -> None:
    """Several addresses, IPv6 and a URL that answers with addresses are accepted."""
    for text in ("a:1;b:2", "a:1,b:2", "[::1]:9876", "http://names.example/addresses"):
        assert ReadOptions.parse(PLACE | {"nameServer": text}, False).name_server == text


def test_no_topic_names_the_trap_of_create_table() -> None:
    """Spark drops the options of catalog tables; the error for a missing topic explains that."""
    assert "CREATE TEMPORARY VIEW" in fault(False, {})
    assert "nameServer = host:9876" in fault(False, {"topic": "T"})


@pytest.mark.parametrize("name", ["accessKey", "secretKey"])
def test_secrets_are_not_shown(name: str) -> None:
    """Half of the credentials is refused; neither error texts nor representations contain the secret."""
    said = fault(False, PLACE | {name: "hunter2"})
    assert name in said
    assert "hunter2" not in said
    assert "hunter2" not in fault(False, PLACE | {name: "hunter2", name.upper(): "other"})
    assert "hunter2" not in repr(ReadOptions(access_key="hunter2", secret_key="hunter2"))


def test_a_namespace_is_put_before_all_names() -> None:
    """The namespace is prefixed to topics, group, assigned queues and offsets (Java:
    NamespaceUtil.wrapNamespace)."""
    made = ReadOptions.parse(
        {"nameServer": "a:1", "topic": "T", "namespace": "ns", "startingOffsets": '{"T":{"b":{"0":1}}}'},
        False,
    )
    assert (made.topics, made.group_id) == (("ns%T",), "ns%pyspark-rocketmq")
    assert made.starting_offsets == {QueueKey("ns%T", "b", 0): 1}


def test_columns() -> None:
    """The default has all columns of the old connector; `columns` selects and orders, metadata columns
    follow."""
    assert projection_of(PLACE).names == tuple(DEFAULT_COLUMNS)
    assert projection_of(PLACE | {"includeMetadata": "true"}).names == (*DEFAULT_COLUMNS, *METADATA_COLUMNS)
    made = projection_of(PLACE | {"columns": "queueoffset,BODY,storeSize", "body": "string"})
    assert (made.names, made.type_of("body")) == (("queueOffset", "body", "storeSize"), "string")


def test_where_options_apply() -> None:
    """Limits of a trigger apply to streams only, end offsets to batches only; every option is described."""
    where = {option.name: option.where for option in OPTIONS}
    assert all(option.meaning.endswith(".") for option in OPTIONS)
    assert where["maxOffsetsPerTrigger"] == (STREAM,)
    assert where["endingOffsets"] == (BATCH,)
