"""Disk usage."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmqkit.toolkit.disk import disk_usage, usage_percent


@pytest.mark.parametrize(
    ("blocks", "free", "available", "percent"),
    [
        (1000, 500, 500, 50),
        (1000, 500, 400, 56),
        (1000, 999, 999, 1),
        (1000, 1000, 1000, 0),
        (1000, 0, 0, 100),
        (0, 0, 0, 100),
    ],
)
def test_usage(monkeypatch: pytest.MonkeyPatch, blocks: int, free: int, available: int, percent: int) -> None:
    """Usage is used space divided by used plus available space, rounded up; blocks reserved for the superuser
    count as neither."""

    class Status:
        f_blocks, f_bfree, f_bavail, f_frsize = blocks, free, available, 4096

    monkeypatch.setattr(os, "statvfs", lambda path: Status)
    assert usage_percent(Path("/")) == percent


def test_usage_of_a_real_disk(tmp_path: Path) -> None:
    """The usage is a percentage; a missing path raises an error."""
    assert 0 <= usage_percent(tmp_path) <= 100
    with pytest.raises(FileNotFoundError):
        usage_percent(tmp_path / "nothing")


def test_bytes_are_those_of_the_file_system(tmp_path: Path) -> None:
    """Totals count reserved blocks, available bytes do not."""
    usage, told = disk_usage(tmp_path), os.statvfs(tmp_path)
    assert usage.total_bytes == told.f_blocks * told.f_frsize
    assert usage.used_bytes + usage.available_bytes <= usage.total_bytes
