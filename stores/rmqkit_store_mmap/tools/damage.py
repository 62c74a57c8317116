"""The exception for the first bad place that a check finds."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from rmqkit.errors import StoreCorrupt
from rmqkit_store_mmap.readonly.data_files import DataFile, FileRow, gaps


class Damage(StoreCorrupt):
    """A bad place: the file, the byte at which it begins, and the fault."""

    def __init__(self, path: Path, byte: int, what: str) -> None:
        super().__init__(f"{path}: byte {byte}: {what}")
        self.path = path
        self.byte = byte
        self.what = what


def check_row(row: FileRow, size_bytes: int) -> None:
    """Check names, lengths and completeness of the files of a log or queue. Raises Damage."""
    if row.strangers:
        raise Damage(
            row.directory / row.strangers[0],
            0,
            "does not belong into a directory of files named by their start offset",
        )
    for file in row.files:
        if file.size_bytes != size_bytes:
            raise Damage(
                file.path,
                min(file.size_bytes, size_bytes),
                f"the file has {file.size_bytes} bytes, {size_bytes} are right",
            )
        if file.path.name != f"{file.base:020d}":
            raise Damage(file.path, 0, "the name is not a start offset of 20 digits")
    for start, stop in gaps(row.files):
        raise Damage(
            row.directory / f"{start:020d}",
            0,
            f"the file is missing: nothing holds the bytes from {start} up to {stop}",
        )
    _check_overlap(row.files)


def _check_overlap(files: tuple[DataFile, ...]) -> None:
    for file, later in pairwise(files):
        if later.base < file.base + file.size_bytes:
            raise Damage(later.path, 0, f"the file begins inside {file.path.name}")
