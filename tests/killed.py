"""The directory of a broker that runs in this process, as a `kill -9` would leave it."""

from __future__ import annotations

import shutil
from pathlib import Path

#: The changes of a table since it was written, and those that are being written.
_CHANGES = ("*.journal", "*.old")
_LOCKS = ("lock", "abort.lock", "*.tmp")


def killed(directory: Path, copy: Path) -> Path:
    """Copy a directory in which threads write tables meanwhile. Their changes come first: what is removed
    after that is in the tables, which come later."""
    config = directory / "config"
    while not _copied_changes(config, copy / "config"):
        shutil.rmtree(copy / "config")
    ignored = shutil.ignore_patterns(*_LOCKS, *_CHANGES)
    shutil.copytree(directory, copy, ignore=ignored, dirs_exist_ok=True)
    return copy


def _copied_changes(config: Path, copy: Path) -> bool:
    """False when a file has got another name meanwhile."""
    copy.mkdir(parents=True)
    for path in [path for pattern in _CHANGES for path in config.glob(pattern)]:
        try:
            shutil.copy2(path, copy)
        except FileNotFoundError:
            return False
    return True
