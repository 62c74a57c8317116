"""The identity of a micro-batch, from the files of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_rocketmq.write.checkpoint import BatchId, digest_of, newest_batch

PLANNED = b'v1\n{"batchTimestampMs":1795331361729}\n{"q":{}}'


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint as it is while batch 10 runs."""
    place = tmp_path / "check point"
    (place / "offsets").mkdir(parents=True)
    for name, content in {"9": b"earlier", "10": PLANNED, ".10.crc": b"sum", ".11.tmp": b"half"}.items():
        (place / "offsets" / name).write_bytes(content)
    return place


def test_the_newest_batch(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest batch is found by number, not by name; a path, a relative path and a URI name the same
    checkpoint."""
    expected = BatchId(10, digest_of(PLANNED))
    assert newest_batch(str(checkpoint)) == expected
    assert newest_batch(f"file:{checkpoint}/") == expected
    assert newest_batch(f"file://{checkpoint}") == expected
    monkeypatch.chdir(checkpoint.parent)
    assert newest_batch(checkpoint.name) == expected


def test_a_batch_that_is_planned_anew_is_another_one(checkpoint: Path) -> None:
    """The same number with another time of planning has another digest, which is a legal consumer offset."""
    before = newest_batch(str(checkpoint))
    (checkpoint / "offsets" / "10").write_bytes(PLANNED.replace(b"729", b"730"))
    after = newest_batch(str(checkpoint))
    assert before is not None
    assert after is not None
    assert before.number == after.number
    assert before.digest != after.digest
    assert 0 < after.digest < 1 << 63


@pytest.mark.parametrize("location", ["{}/nowhere", "{}/empty", "s4://bucket/x"])
def test_a_checkpoint_that_cannot_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, location: str
) -> None:
    """There is no identity, and a log line explains the consequence."""
    (tmp_path / "empty" / "offsets").mkdir(parents=True)
    assert newest_batch(location.format(tmp_path)) is None
    assert "is written again" in caplog.text
