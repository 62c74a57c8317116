"""Disk usage as `df` shows it (Java: UtilAll.getDiskPartitionSpaceUsedPercent)."""

from __future__ import annotations

import os
from pathlib import Path

from attrs import frozen


@frozen
class DiskUsage:
    """A file system at one moment. Blocks reserved for the superuser are neither used nor available."""

    total_bytes: int
    used_bytes: int
    available_bytes: int

    @property
    def percent(self) -> int:
        """Used space as a whole percentage of used plus available space, rounded up."""
        whole = self.used_bytes + self.available_bytes
        return -(-self.used_bytes * 100 // whole) if whole else 100


def disk_usage(path: Path) -> DiskUsage:
    """The usage of a path's file system. Raises OSError."""
    status = os.statvfs(path)
    size = status.f_frsize
    used = status.f_blocks - status.f_bfree
    return DiskUsage(status.f_blocks * size, used * size, status.f_bavail * size)


def usage_percent(path: Path) -> int:
    """`DiskUsage.percent` of a path's file system. Raises OSError."""
    return disk_usage(path).percent
