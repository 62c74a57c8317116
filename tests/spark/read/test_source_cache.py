"""One source per place and process."""

from __future__ import annotations

import os

import pytest
from attrs import evolve

from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.read import source_cache as opening
from pyspark_rocketmq.read.source_cache import close_source, open_source


class Closing:
    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources that only count, and a separate cache for this test."""
    monkeypatch.setattr(opening, "_open", Closing)
    monkeypatch.setattr(opening, "_sources", {})


OPTIONS = ReadOptions(name_server="127.0.0.1:9876", topics=("T",))


def test_a_source_is_kept() -> None:
    """The source is kept for the same place, whatever is read; another place or other pull options get
    another source."""
    first = open_source(OPTIONS)
    assert open_source(evolve(OPTIONS, topics=("U",), batch_rows=5)) is first
    assert open_source(evolve(OPTIONS, name_server="127.0.0.1:9877")) is not first
    assert open_source(evolve(OPTIONS, pull_pipelining=3)) is not first


def test_a_closed_source_is_made_anew() -> None:
    """Closing a source that is not open does nothing."""
    close_source(OPTIONS)
    first = open_source(OPTIONS)
    close_source(OPTIONS)
    close_source(OPTIONS)
    assert isinstance(first, Closing)
    assert first.closed == 1
    assert open_source(OPTIONS) is not first


def test_a_forked_child_opens_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's daemon forks workers, which cannot use the threads and connections of the parent."""
    first = open_source(OPTIONS)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert open_source(OPTIONS) is not first
