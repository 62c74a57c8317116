"""Disk usage (Java: UtilAll.getDiskPartitionSpaceUsedPercent)."""

from __future__ import annotations

import os
from pathlib import Path


def usage_percent(path: Path) -> int:
    """Used space as a whole percentage of used plus available space, rounded up; blocks reserved for the
    superuser count as neither. Raises OSError."""
    status = os.statvfs(path)
    used = status.f_blocks - status.f_bfree
    whole = used + status.f_bavail
    return -(-used * 100 // whole) if whole else 100
