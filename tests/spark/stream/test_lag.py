"""Lag from the progress of a query."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyspark_rocketmq.read.source import QueueKey, SourceError
from pyspark_rocketmq.stream.lag import lag

A, B, P = (
    QueueKey("orders", "broker-a", 0),
    QueueKey("orders", "broker-a", 1),
    QueueKey("payments", "broker-a", 0),
)
END = {"q": {"orders": {"broker-a": {"0": 90, "1": 10}}}, "v": 1}
LATEST = {"q": {"orders": {"broker-a": {"0": 100, "1": 8}}, "payments": {"broker-a": {"0": 5}}}, "v": 1}


def source(end: Any, latest: Any) -> dict[str, Any]:
    return {"description": "any", "endOffset": end, "latestOffset": latest}


@pytest.mark.parametrize("form", [json.dumps, dict])
def test_distances(form: Any) -> None:
    """The lag of each queue, each topic and in total is the end minus the read position, at least 0; offsets
    may be text or values."""
    found = lag({"sources": [source(form(END), form(LATEST))]})
    assert found.behind == {A: 10, B: 0, P: 5}
    assert (found.total, found.most, found.of_topics()) == (15, 10, {"orders": 10, "payments": 5})


def test_sources_add_up() -> None:
    """The lags of two sources of this format on the same queues are added; other formats, and a source
    without offsets, are ignored."""
    sources = [
        source(END, LATEST),
        source(json.dumps(END), LATEST),
        source('{"logOffset": 3}', "3"),
        source(None, None),
        source("null", "null"),
    ]
    assert lag({"sources": sources}).behind == {A: 20, B: 0, P: 10}


def test_nothing_yet() -> None:
    """A query without progress has no lag."""
    found = lag(None)
    assert (found.behind, found.total, found.most) == ({}, 0, 0)


def test_other_version() -> None:
    """Offsets of another version of this connector raise an error instead of a lag of 0."""
    with pytest.raises(SourceError, match="version 2"):
        lag({"sources": [source({"q": {}, "v": 2}, LATEST)]})
