"""Finds lost index files by the records whose keys they contained.

Entries are in the order of the log, and every record with a key has one. So the log between the last record
of one file and the first of the next contains no keys, or a file is missing there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rmqkit.model import properties as props
from rmqkit.model.sysflag import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from rmqkit_store_mmap.index.index_file import IndexFile
from rmqkit_store_mmap.log.commit_log import CommitLog
from rmqkit_store_mmap.log.scan import Found, check_record, parse_record

#: Number of bytes of the log examined before each file if there is no sign of a missing file.
GLANCE_BYTES = 1024 * 1024


class Gap(NamedTuple):
    """The record at log offset `start` has a key and no entry; `behind` is the first file whose entries
    come after it."""

    start: int
    behind: IndexFile


def first_gap(log: CommitLog, files: Sequence[IndexFile], most_bytes: int | None) -> Gap | None:
    """The first gap in a sequence of index files, at the start of the log or between two files. Examines
    `most_bytes` of the log before each file, or all of it if None."""
    at = log.min_offset
    for file in files:
        stop = file.begin_offset if most_bytes is None else min(file.begin_offset, at + most_bytes)
        for found in _records(log, at, stop):
            if has_keys(found):
                return Gap(found.physical_offset, file)
        for found in _records(log, max(at, file.end_offset), file.end_offset + 1):
            at = found.physical_offset + found.size_bytes
    return None


def has_keys(found: Found) -> bool:
    """Whether a record has index entries."""
    if found.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
        return False
    return bool(found.properties.get(props.UNIQ_KEY) or found.properties.get(props.KEYS, "").strip(" "))


def _records(log: CommitLog, start: int, stop: int) -> Iterator[Found]:
    """The records that begin in [start, stop), up to the first bad one."""
    at, segment = start, log.segment_at(start)
    while segment is not None and at < stop:
        size = check_record(segment.view(), at - segment.base, at, check_body=False)
        if size > 0:
            yield parse_record(segment.view(), at - segment.base)
            at += size
        elif size == 0:
            at, segment = segment.stop, log.segment_at(segment.stop)
        else:
            return
