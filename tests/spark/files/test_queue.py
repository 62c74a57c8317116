"""Queues of store directories whose log is incomplete."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_rocketmq.files.places import ONLY_BROKER
from pyspark_rocketmq.files.source import FilesSource
from pyspark_rocketmq.read.source import Bounds, QueueKey
from rmqkit.testing.store import message, running
from tests.stores.tools.kit import make

QUEUE = QueueKey("Orders", ONLY_BROKER, 0)


@pytest.mark.parametrize("left", [0, 6, 10])
async def test_entries_behind_the_end_of_the_log_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, left: int
) -> None:
    """A copy without the end of the log, or without the log, is read as far as it goes; the log names the
    queue and the number of its entries that have no record, once. A complete copy says nothing."""
    async with running(make(tmp_path)) as store:
        store.append([message("Orders", body=b"x" * 100) for _ in range(10)])
    (log,) = (tmp_path / "commitlog").iterdir()
    records = log.read_bytes().rstrip(b"\0")
    record_bytes = len(records) // 10
    if left:
        log.write_bytes(records[: left * record_bytes].ljust(log.stat().st_size, b"\0"))
    else:
        log.unlink()
    source = FilesSource(tmp_path)
    for _ in range(2):
        assert source.bounds([QUEUE]) == {QUEUE: Bounds(0, left)}
    assert caplog.text.count(f"queue 0 is read up to offset {left}, although it has {10 - left} more") == (
        left < 10
    )
    assert ("copy of the directory is incomplete" in caplog.text) == (left < 10)
    source.close()
