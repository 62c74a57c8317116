"""What the stream reader answers Spark's calls, without Spark: limits, parts, lag, what goes to a worker."""

from __future__ import annotations

import json
import logging
import pickle
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows

from pyspark_rocketmq import stream
from pyspark_rocketmq.columns import DEFAULT_COLUMNS, Projection
from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.planning import Part
from pyspark_rocketmq.schemas import struct_of
from pyspark_rocketmq.source import Bounds, QueueKey, QueueRange
from pyspark_rocketmq.stream import StreamReader
from tests.spark.kit_numbers import Numbers

A, B = QueueKey("orders", "broker-a", 0), QueueKey("orders", "broker-a", 1)


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Numbers:
    """The source that every reader of a test opens: 100 messages in one queue, 10 in another."""
    numbers = Numbers({A: Bounds(0, 100), B: Bounds(0, 10)})
    monkeypatch.setattr(stream, "open_source", lambda options: numbers)
    return numbers


def reader(**given: str) -> StreamReader:
    options = {"nameServer": "127.0.0.1:9876", "topic": "orders", "startingOffsets": "earliest"} | given
    return StreamReader(ReadOptions.parse(options, streaming=True), struct_of(Projection(tuple(DEFAULT_COLUMNS))))


def stored(offset: dict[str, Any]) -> dict[str, Any]:
    back: dict[str, Any] = json.loads(json.dumps(offset))
    return back


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "7", "maxBytesPerTrigger": "1m", "minOffsetsPerTrigger": "3"}, ReadMaxRows(7)),
        ({"maxBytesPerTrigger": "1m"}, ReadMaxBytes(1 << 20)),
        ({"minOffsetsPerTrigger": "3"}, ReadMinRows(3)),
    ],
)
def test_default_limit(given: dict[str, str], limit: ReadLimit) -> None:
    """Spark is told one limit, if there is any: it asks with it, or for everything."""
    assert reader(**given).getDefaultReadLimit() == limit


def test_limits_and_triggers(source: Numbers) -> None:
    """Whatever limit Spark passes on, the options hold; but where it asks for all there is it gets that."""
    asked = reader(maxOffsetsPerTrigger="11")
    start = asked.initialOffset()
    assert asked.latestOffset(start, ReadMaxRows(11))["q"] == {"orders": {"broker-a": {"0": 10, "1": 1}}}
    assert asked.latestOffset(start, ReadAllAvailable())["q"] == {"orders": {"broker-a": {"0": 100, "1": 10}}}


def test_parts(source: Numbers) -> None:
    """Parts cover the batch as the options want it divided; nothing new is no part."""
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
    """After the preparation what comes is not seen."""
    asked = reader()
    asked.prepareForTriggerAvailableNow()
    source.held[A] = Bounds(0, 900)
    end = asked.latestOffset(asked.initialOffset(), ReadAllAvailable())
    assert end["q"] == {"orders": {"broker-a": {"0": 100, "1": 10}}}
    assert asked.latestOffset(end, ReadAllAvailable()) is end


@pytest.mark.parametrize("wanted", ["true", "false"])
def test_lag_is_logged(source: Numbers, caplog: pytest.LogCaptureFixture, wanted: str) -> None:
    """With emitLagLogs a query that cannot keep up says so, not at every batch; one that can says nothing."""
    asked = reader(maxOffsetsPerTrigger="11", emitLagLogs=wanted)
    start = asked.initialOffset()
    for _ in range(3):
        end = asked.latestOffset(start, ReadMaxRows(11))
        asked.partitions(start, end)
        start = end
    said = "after this batch 99 messages are left, at most 90 in a queue; by topic: {'orders': 99}"
    assert [(record.levelno, record.message) for record in caplog.records] == ([(logging.WARNING, said)] if wanted == "true" else [])
    caplog.clear()
    fresh = reader(emitLagLogs=wanted)
    start = fresh.initialOffset()
    fresh.partitions(start, fresh.latestOffset(start, ReadAllAvailable()))
    assert not caplog.records


def test_what_goes_to_a_worker(source: Numbers) -> None:
    """A reader that is in use can be pickled: it goes without its connections."""
    asked = reader()
    start = asked.initialOffset()
    other: StreamReader = pickle.loads(pickle.dumps(asked))
    source.held = {A: Bounds(0, 5)}
    assert asked.initialOffset() == start
    assert other.initialOffset()["q"] == {"orders": {"broker-a": {"0": 0}}}


def test_stop(source: Numbers) -> None:
    """A reader that was stopped asks anew when it is used again; stopping one that was never used is nothing."""
    asked = reader()
    asked.stop()
    asked.initialOffset()
    asked.stop()
    source.held[A] = Bounds(60, 100)
    assert asked.initialOffset()["q"] == {"orders": {"broker-a": {"0": 60, "1": 0}}}
