"""The file timermetrics."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqkit_timer import counts as counting
from rmqkit_timer.counts import Counts


def test_the_file_is_apaches(tmp_path: Path) -> None:
    """What Apache's broker writes is read, and the other way round."""
    file = counting.file_in(tmp_path)
    (tmp_path / "timermetrics").write_text(
        '{"dataVersion":{"counter":7,"stateVersion":0,"timestamp":1700000000000},'
        '"timingCount":{"T":{"count":3,"timeStamp":1700000000001}}}'
    )
    found = counting.load(file)
    assert found.timing_count["T"].count == 3
    found.add("T", -1, 5)
    found.add("U", 1, 5)
    file.save(found)
    again = counting.load(file)
    assert again == found
    assert (again.timing_count["T"].count, again.data_version.counter) == (2, 9)
    assert b'"timeStamp": 5' in (tmp_path / "timermetrics").read_bytes()


def test_a_damaged_file_stops_nothing(tmp_path: Path) -> None:
    """The counts are figures."""
    (tmp_path / "timermetrics").write_text("{")
    assert counting.load(counting.file_in(tmp_path)) == Counts()


def test_the_number_of_topics_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those for which nothing waits are forgotten first."""
    monkeypatch.setattr(counting, "MAX_TOPICS", 3)
    found = Counts()
    for topic, number in (("a", 1), ("b", 1), ("b", -1), ("c", 1), ("d", 1)):
        found.add(topic, number, 1)
    assert list(found.timing_count) == ["a", "c", "d"]
    found.add("e", 1, 1)
    assert list(found.timing_count) == ["c", "d", "e"]
