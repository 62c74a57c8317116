"""Options and columns of a write, without Spark."""

from __future__ import annotations

import pytest

from pyspark_rocketmq.options.table import OptionError
from pyspark_rocketmq.options.write import WriteOptions
from pyspark_rocketmq.write.columns import PASSED_OVER, WRITE_COLUMNS, SchemaError, checked_columns

SERVER = {"nameServer": "127.0.0.1:9876"}


def test_case_and_path_do_not_matter() -> None:
    """save("T") passes the topic as a path; the checkpoint location is Spark's own option."""
    options = WriteOptions.parse(
        {"NAMESERVER": "h:1", "path": "T", "BATCHBYTES": "64k", "checkpointLocation": "x", "tls": "true"}
    )
    assert (options.name_server, options.topic, options.batch_bytes, options.tls) == (
        "h:1",
        "T",
        65_536,
        True,
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "set nameServer = host:9876"),
        (SERVER | {"batchByte": "1"}, "did you mean 'batchBytes'"),
        (
            SERVER | {"maxOffsetsPerTrigger": "1"},
            "option maxOffsetsPerTrigger does not apply to writing, only to streaming reads",
        ),
        (SERVER | {"topic": "not a topic"}, "option topic: "),
        (SERVER | {"sinkGroup": "not a group"}, "option sinkGroup: "),
        ({"nameServer": "nonsense"}, "as host:9876;host:9876: address 'nonsense' is not of the form"),
        (SERVER | {"writeName": "a.b"}, "option writeName: letters, digits"),
        (SERVER | {"maxInFlight": "0"}, "option maxInFlight = '0'"),
        (SERVER | {"secretKey": "pssst"}, "option accessKey is missing"),
        (SERVER | {"accessKey": "app"}, "option secretKey is missing"),
        (
            SERVER | {"accessKey": "app", "secretKey": "pssst", "credentialsFile": "keys"},
            "option credentialsFile: give the file, or accessKey and secretKey",
        ),
    ],
)
def test_what_is_wrong_is_said(given: dict[str, str], said: str) -> None:
    """The error contains the option and the remedy, and never a secret."""
    with pytest.raises(OptionError) as wrong:
        WriteOptions.parse(given)
    assert said in str(wrong.value)
    assert "pssst" not in str(wrong.value)


def test_columns_are_found_whatever_their_case() -> None:
    """Other columns of a read are ignored; the option topic takes precedence over the column."""
    fields = [("BODY", "string"), ("Topic", "string"), *((name, "bigint") for name in PASSED_OVER)]
    assert checked_columns(fields, "") == {"body": "BODY", "topic": "Topic"}
    assert checked_columns(fields, "T") == {"body": "BODY"}
    everything = [(name, types[-1]) for name, types in WRITE_COLUMNS.items() if name != "shardingKey"]
    assert set(checked_columns(everything, "")) == set(WRITE_COLUMNS) - {"shardingKey"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([("key", "string")], "column body (binary or string) is missing"),
        ([("body", "string"), ("Body", "string")], "columns body and Body both map to body"),
        ([("body", "string"), ("shardingKey", "string"), ("queueId", "int")], "both choose the queue"),
        (
            [("body", "string"), ("whatever", "int")],
            "column whatever cannot be written; known are body, topic",
        ),
    ],
)
def test_frames_that_cannot_be_written(fields: list[tuple[str, str]], said: str) -> None:
    """Each fault is reported with a remedy."""
    with pytest.raises(SchemaError) as wrong:
        checked_columns(fields, "T")
    assert said in str(wrong.value)
