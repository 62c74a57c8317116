"""The output of `inspect` and `verify`, as text and as JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rmqkit.toolkit import output
from rmqkit_store_mmap.tools.log_check import Outcome


def show_survey(found: dict[str, Any]) -> None:
    """Print the result of `inspect` as text."""
    log, queues, index, checkpoint = found["log"], found["queueFiles"], found["index"], found["checkpoint"]
    output.line(f"{found['directory']}: {_state(found['inUse'], found['lockHolder'], found['abort'])}")
    output.line(
        f"log offsets {log['minOffset']} to {log['maxOffset']}, segments of {log['segmentBytes']} bytes"
    )
    output.line()
    indexed = {key: sum(file[key] for file in index) for key in ("bytes", "allocatedBytes")} | {
        "files": len(index)
    }
    output.table(
        ("PART", "FILES", "BYTES", "ALLOCATED"),
        [
            (name, part["files"], part["bytes"], part["allocatedBytes"])
            for name, part in (("log", log), ("queues", queues), ("index", indexed))
        ],
    )
    for gap in [{"directory": log["directory"], **gap} for gap in log["gaps"]] + queues["gaps"]:
        output.line(
            f"gap in {gap['directory']}: no file holds the bytes from {gap['from']} up to {gap['to']}"
        )
    for name in log["strangers"]:
        output.line(f"{log['directory']}/{name} does not belong there")
    if index:
        output.line()
        output.table(
            ("INDEX FILE", "ENTRIES", "FROM OFFSET", "TO OFFSET", "FROM TIME", "TO TIME"),
            [
                (
                    f["name"],
                    f["entries"],
                    f["beginPhyOffset"],
                    f["endPhyOffset"],
                    _time(f["beginTimestamp"]),
                    _time(f["endTimestamp"]),
                )
                for f in index
            ],
        )
    output.line()
    output.line("checkpoint: " + (", ".join(_flat(checkpoint)) if checkpoint else "none"))
    output.line(
        "config: "
        + (", ".join(f"{file['name']} ({file['bytes']} bytes)" for file in found["config"]) or "none")
    )
    if found["others"]:
        output.line("not read: " + ", ".join(found["others"]))
    output.line()
    output.table(
        ("TOPIC", "QUEUE", "FIRST", "NEXT", "MESSAGES"),
        [
            (t["topic"], q["queueId"], q["minOffset"], q["maxOffset"], q["messages"])
            for t in found["topics"]
            for q in t["queues"]
        ],
    )


def _flat(found: dict[str, Any], prefix: str = "") -> list[str]:
    words: list[str] = []
    for name, value in found.items():
        words += (
            _flat(value, f"{prefix}{name}.")
            if isinstance(value, dict)
            else [f"{prefix}{name} {value}"] * (value is not None)
        )
    return words


def verdict(root: Path, outcome: Outcome, seconds: float) -> dict[str, Any]:
    """The outcome of a verification as a JSON document."""
    damage = outcome.damage
    return {
        "directory": str(root),
        "ok": damage is None,
        "inUse": outcome.in_use,
        "lockHolder": outcome.holder,
        "abort": outcome.abort,
        "damage": (
            None if damage is None else {"file": str(damage.path), "byte": damage.byte, "what": damage.what}
        ),
        "records": outcome.records,
        "logBytes": outcome.log_bytes,
        "units": outcome.units,
        "indexEntries": outcome.index_entries,
        "superseded": outcome.superseded,
        "notes": outcome.notes,
        "seconds": round(seconds, 3),
    }


def show_verdict(found: dict[str, Any]) -> None:
    """Print the result of `verify` as text, the damage to standard error."""
    output.line(f"{found['directory']}: {_state(found['inUse'], found['lockHolder'], found['abort'])}")
    rate = found["logBytes"] / 1e6 / max(found["seconds"], 1e-3)
    output.line(
        f"records checked: {found['records']} ({found['logBytes']} bytes), queue units: {found['units']},"
        f" index entries: {found['indexEntries']} in {found['seconds']:.1f} s ({rate:.0f} MB/s)"
    )
    if found["superseded"]:
        records = "1 record is" if found["superseded"] == 1 else f"{found['superseded']} records are"
        output.line(f"note: {records} of topics that were deleted and made again")
    for note in found["notes"]:
        output.line(f"note: {note}")
    damage = found["damage"]
    if damage is None:
        output.line("no damage found")
    else:
        output.error(f"damaged: {damage['file']}: byte {damage['byte']}: {damage['what']}")


def _state(in_use: bool, holder: int | None, abort: bool) -> str:
    if in_use:
        return (
            f"in use by process {holder}"
            if holder is not None and holder > 0
            else "in use by a process that cannot be seen from here"
        )
    return "not closed cleanly (abort is there): the next start repairs it" if abort else "closed cleanly"


def _time(timestamp_ms: int) -> str:
    return (
        datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="seconds")
        if timestamp_ms > 0
        else "-"
    )
