"""The stream reader's answers to Spark, without Spark: limits, parts, lag, pickling."""

from __future__ import annotations

import json
import logging
import pickle
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

from pyspark_rocketmq.decode.columns import DEFAULT_COLUMNS, Projection
from pyspark_rocketmq.decode.schemas import struct_of
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.read.planning import Part
from pyspark_rocketmq.read.source import Bounds, QueueKey, QueueRange, SourceError
from pyspark_rocketmq.stream import reader as stream
from pyspark_rocketmq.stream.reader import StreamReader
from tests.spark.kit_numbers import Numbers

A, B = QueueKey("orders", "broker-a", 0), QueueKey("orders", "broker-a", 1)


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Numbers:
    """The source opened by every reader of a test: 100 messages in one queue, 10 in another."""
    numbers = Numbers({A: Bounds(0, 100), B: Bounds(0, 10)})
    monkeypatch.setattr(stream, "open_source", lambda options: numbers)
    return numbers


def reader(**given: str) -> StreamReader:
    options = {"nameServer": "127.0.0.1:9876", "topic": "orders", "startingOffsets": "earliest"} | given
    return StreamReader(
        ReadOptions.parse(options, streaming=True), struct_of(Projection(tuple(DEFAULT_COLUMNS)))
    )


def stored(offset: dict[str, Any]) -> dict[str, Any]:
    back: dict[str, Any] = json.loads(json.dumps(offset))
    return back


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({}, ReadAllAvailable()),
        (
            {"maxOffsetsPerTrigger": "7", "maxBytesPerTrigger": "1m", "minOffsetsPerTrigger": "3"},
            ReadMaxRows(7),
        ),
        ({"maxBytesPerTrigger": "1m"}, ReadMaxBytes(1 << 20)),
        ({"minOffsetsPerTrigger": "3"}, ReadMinRows(3)),
    ],
)
def test_default_limit(given: dict[str, str], limit: ReadLimit) -> None:
    """Spark is told at most one limit, with which it asks, or it asks for everything."""
    assert reader(**given).getDefaultReadLimit() == limit


def test_limits_and_triggers(source: Numbers) -> None:
    """The limits of the options apply whatever limit Spark passes, except when it asks for everything."""
    asked = reader(maxOffsetsPerTrigger="11")
    start = asked.initialOffset()
    assert asked.latestOffset(start, ReadMaxRows(11))["q"] == {"orders": {"broker-a": {"0": 10, "1": 1}}}
    assert asked.latestOffset(start, ReadAllAvailable())["q"] == {"orders": {"broker-a": {"0": 100, "1": 10}}}


def test_parts(source: Numbers) -> None:
    """Parts divide the batch according to the options; without new messages there is no part."""
    asked = reader(maxRecordsPerPartition="50")
    start = asked.initialOffset()
    end = stored(asked.latestOffset(start, ReadAllAvailable()))
    assert asked.partitions(stored(start), end) == [
        Part((QueueRange(A, 0, 50),)),
        Part((QueueRange(A, 50, 100),)),
        Part((QueueRange(B, 0, 10),)),
    ]
    assert asked.partitions(end, end) == []


def test_available_now(source: Numbers) -> None:
    """Messages that arrive after the preparation are ignored."""
    asked = reader()
    asked.prepareForTriggerAvailableNow()
    source.held[A] = Bounds(0, 900)
    end = asked.latestOffset(asked.initialOffset(), ReadAllAvailable())
    assert end["q"] == {"orders": {"broker-a": {"0": 100, "1": 10}}}
    assert asked.latestOffset(end, ReadAllAvailable()) is end


@pytest.mark.parametrize("wanted", ["true", "false"])
def test_lag_is_logged(source: Numbers, caplog: pytest.LogCaptureFixture, wanted: str) -> None:
    """With emitLagLogs a query that lags behind logs it, not at every batch; one that does not lag logs
    nothing."""
    asked = reader(maxOffsetsPerTrigger="11", emitLagLogs=wanted)
    start = asked.initialOffset()
    for _ in range(3):
        end = asked.latestOffset(start, ReadMaxRows(11))
        asked.partitions(start, end)
        start = end
    said = "after this batch 99 messages are left, at most 90 in a queue; by topic: {'orders': 99}"
    assert [(record.levelno, record.message) for record in caplog.records] == (
        [(logging.WARNING, said)] if wanted == "true" else []
    )
    caplog.clear()
    fresh = reader(emitLagLogs=wanted)
    start = fresh.initialOffset()
    fresh.partitions(start, fresh.latestOffset(start, ReadAllAvailable()))
    assert not caplog.records


def test_the_group_gets_what_was_finished(
    source: Numbers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With commitToGroup, the start of the next batch is committed at each question for its end, once for
    each position, without topics that are not requested. A failure is a warning, and tried again later."""
    committed: list[dict[QueueKey, int]] = []
    failures = [SourceError("the broker is busy")]

    def commit(_: StreamReader, positions: dict[QueueKey, int]) -> None:
        if failures:
            raise failures.pop()
        committed.append(positions)

    asked = reader(commitToGroup="true")
    monkeypatch.setattr(StreamReader, "_commit_to_group", commit)
    start = asked.initialOffset()
    end = asked.latestOffset(start, ReadAllAvailable())
    assert committed == []
    assert "offsets of group pyspark-rocketmq were not committed: the broker is busy" in caplog.text
    asked._commit_after_s = 0.0
    for _ in range(3):
        asked.latestOffset(start, ReadAllAvailable())
    assert committed == [{A: 0, B: 0}]
    for _ in range(3):
        assert asked.latestOffset(end, ReadAllAvailable()) is end
    assert committed[1:] == [{A: 100, B: 10}]
    more = stored(end)
    more["q"]["payments"] = {"broker-a": {"0": 3}}
    asked.latestOffset(more, ReadAllAvailable())
    assert committed[2:] == [{A: 100, B: 10}]


def test_what_goes_to_a_worker(source: Numbers) -> None:
    """A reader in use can be pickled, without its connections."""
    asked = reader()
    start = asked.initialOffset()
    other: StreamReader = pickle.loads(pickle.dumps(asked))
    source.held = {A: Bounds(0, 5)}
    assert asked.initialOffset() == start
    assert other.initialOffset()["q"] == {"orders": {"broker-a": {"0": 0}}}


def test_stop(source: Numbers) -> None:
    """A stopped reader queries again when it is used again; stopping an unused one does nothing."""
    asked = reader()
    asked.stop()
    asked.initialOffset()
    asked.stop()
    source.held[A] = Bounds(60, 100)
    assert asked.initialOffset()["q"] == {"orders": {"broker-a": {"0": 60, "1": 0}}}
