"""The content of a store directory according to the headers and ends of its files, without verification."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs

from rmqkit.toolkit.directory_lock import lock_holder
from rmqkit_store_mmap.log.log_reader import LogReader
from rmqkit_store_mmap.open.abort_file import AbortMark
from rmqkit_store_mmap.open.checkpoint import Checkpoint
from rmqkit_store_mmap.queue import deletions
from rmqkit_store_mmap.queue.queue_numbers import FILE_NAME
from rmqkit_store_mmap.queue.queue_reader import QueueReader
from rmqkit_store_mmap.readonly.data_files import FileRow, gaps
from rmqkit_store_mmap.readonly.readonly import StoreReader
from rmqkit_store_mmap.tools.index_check import IndexHeader, index_headers


def survey(store: StoreReader) -> dict[str, Any]:
    """A JSON document about a store directory; keys as in RocketMQ's own JSON, times in ms, sizes in bytes.
    Raises StoreCorrupt, OSError."""
    holder = lock_holder(store.root)
    rows: list[FileRow] = []
    topics = []
    known_end = 0
    for name, queue_ids in store.topics().items():
        queues = [store.queue(name, queue_id) for queue_id in queue_ids]
        rows += [queue.row for queue in queues]
        known_end = max(known_end, *(queue.known_end for queue in queues))
        found = [_queue(queue, store.log.min_offset) for queue in queues]
        topics.append({"topic": name, "messages": sum(queue["messages"] for queue in found), "queues": found})
    return {
        "directory": str(store.root),
        "inUse": holder is not None,
        "lockHolder": holder,
        "abort": AbortMark(store.root).present(),
        "log": _log(store.log, known_end),
        "queueFiles": {
            "fileBytes": store.queue_file_bytes,
            **_sum(rows),
            "gaps": [{"directory": str(row.directory), **gap} for row in rows for gap in _gaps(row)],
        },
        "index": [_index(header) for header in index_headers(store.root / "index")],
        "checkpoint": _checkpoint(store.root / "checkpoint"),
        "config": _config_files(store.root / "config"),
        "others": _others(store),
        "topics": topics,
    }


def _sum(rows: list[FileRow]) -> dict[str, int]:
    files = [file for row in rows for file in row.files]
    return {
        "files": len(files),
        "bytes": sum(file.size_bytes for file in files),
        "allocatedBytes": sum(file.allocated_bytes for file in files),
    }


def _gaps(row: FileRow) -> list[dict[str, int]]:
    return [{"from": start, "to": stop} for start, stop in gaps(row.files)]


def _log(log: LogReader, known_end: int) -> dict[str, Any]:
    begun = [file.base for file in log.files if _begins(log, file.base)]
    return {
        "directory": str(log.row.directory),
        "segmentBytes": log.segment_bytes,
        "minOffset": log.min_offset,
        "maxOffset": log.end_offset(max(known_end, begun[-1] if begun else 0)),
        **_sum([log.row]),
        "gaps": _gaps(log.row),
        "strangers": list(log.row.strangers),
        "segments": [
            {
                "name": file.path.name,
                "from": file.base,
                "to": file.base + file.size_bytes,
                "bytes": file.size_bytes,
                "allocatedBytes": file.allocated_bytes,
                "empty": file.base not in begun,
            }
            for file in log.files
        ],
    }


def _begins(log: LogReader, base: int) -> bool:
    return log.record(base, 8) is not None


def _queue(queue: QueueReader, log_min: int) -> dict[str, int]:
    low = queue.min_offset(log_min)
    return {
        "queueId": queue.queue_id,
        "minOffset": low,
        "maxOffset": queue.end_offset,
        "messages": queue.end_offset - low,
        **_sum([queue.row]),
    }


def _index(header: IndexHeader) -> dict[str, Any]:
    return {
        "name": header.path.name,
        "bytes": header.size_bytes,
        "allocatedBytes": header.allocated_bytes,
        "entries": header.next_entry - 1,
        "usedSlots": header.used_slots,
        "beginTimestamp": header.begin_time_ms,
        "endTimestamp": header.end_time_ms,
        "beginPhyOffset": header.begin_offset,
        "endPhyOffset": header.end_offset,
    }


def _checkpoint(path: Path) -> dict[str, Any] | None:
    """All fields of the checkpoint, None without a file."""
    if not path.is_file():
        return None
    fields = attrs.asdict(
        Checkpoint.load(path), recurse=False, filter=lambda field, value: field.name != "path"
    )
    return {_camel(name): _plain(value) for name, value in fields.items()}


def _plain(value: Any) -> Any:
    """Converts named tuples and attrs classes to documents, bytes to hexadecimal text."""
    if attrs.has(type(value)):
        return {_camel(name): _plain(inner) for name, inner in attrs.asdict(value, recurse=False).items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {_camel(name): _plain(inner) for name, inner in value._asdict().items()}
    return value.hex() if isinstance(value, bytes) else value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _config_files(directory: Path) -> list[dict[str, Any]]:
    paths = sorted(directory.iterdir()) if directory.is_dir() else []
    return [{"name": path.name, "bytes": path.stat().st_size} for path in paths if path.is_file()]


def _others(store: StoreReader) -> list[str]:
    """Names of files in the directory that this tool does not read."""
    known = {
        "abort",
        "lock",
        "checkpoint",
        "config",
        "index",
        "consumequeue",
        "commitlog",
        FILE_NAME,
        deletions.FILE_NAME,
    }
    return sorted(
        path.name
        for path in store.root.iterdir()
        if path.name not in known and path != store.log.row.directory
    )
