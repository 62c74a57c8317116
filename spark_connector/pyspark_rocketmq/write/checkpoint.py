"""Reads from a query's checkpoint the identity of the micro-batch that is about to be written.

Spark writes `offsets/N` before batch N runs: the time of planning in ms, and the offsets of its sources. A
repeated batch keeps the file; a batch that is planned again, for example after a checkpoint was restored from
a backup, gets a different one. Only the file's digest is used here.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
from attrs import frozen
from pyarrow import fs

log = logging.getLogger(__name__)

#: A consumer offset is a signed 64-bit number and not negative.
_DIGEST_BYTES = 8


@frozen
class BatchId:
    """A micro-batch: its number, and a 63-bit digest of what it reads."""

    number: int
    digest: int


def newest_batch(location: str) -> BatchId | None:
    """The batch that was planned last in a checkpoint; None when it cannot be determined, and the reason is
    logged.

    location  the option checkpointLocation: a path or a URI. Remote ones are read by Arrow's file systems
              (hdfs, s3, gs, abfs)
    """
    try:
        files, root = _file_system(location)
        names = [info.base_name for info in files.get_file_info(fs.FileSelector(f"{root}/offsets"))]
        number = max(int(name) for name in names if name.isdecimal())
        with files.open_input_stream(f"{root}/offsets/{number}") as stream:
            content = stream.read()
    except (OSError, ValueError, pa.ArrowException) as error:
        warn_once(
            f"the checkpoint {location} cannot be read here, so a repeated batch is written again: {error}"
        )
        return None
    return BatchId(number, digest_of(content))


@lru_cache(maxsize=64)
def warn_once(text: str) -> None:
    """Log a warning once per process: writers are created twice for each batch."""
    log.warning(text)


def digest_of(content: bytes) -> int:
    """A 63-bit digest, never 0."""
    return int.from_bytes(blake2b(content, digest_size=_DIGEST_BYTES).digest(), "big") >> 1 or 1


def _file_system(location: str) -> tuple[fs.FileSystem, str]:
    local = location.removeprefix("file:")
    if local != location or not urlsplit(location).scheme:
        # As in Hadoop, percent encoding is not decoded.
        return fs.LocalFileSystem(), str(Path(re.sub("^/+", "/", local)).absolute())
    files, root = fs.FileSystem.from_uri(location)
    return files, root.rstrip("/")
