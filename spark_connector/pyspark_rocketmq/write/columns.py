"""The writable columns, and the check of a frame's schema against them before any task runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyspark_rocketmq.decode.columns import DEFAULT_COLUMNS, METADATA_COLUMNS
from rmqkit.errors import did_you_mean

#: Column -> its permitted Spark types, the recommended one first.
WRITE_COLUMNS: dict[str, tuple[str, ...]] = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("string", "array<string>"),
    "properties": ("map<string,string>",),
    "queueId": ("int", "bigint"),
    "brokerName": ("string",),
    "shardingKey": ("string",),
    "delayLevel": ("int",),
    "deliverAt": ("timestamp", "bigint"),
    "flag": ("int",),
}

#: Columns of a read that the broker determines itself: ignored, so that what was read can be written.
PASSED_OVER = tuple(name for name in (*DEFAULT_COLUMNS, *METADATA_COLUMNS) if name not in WRITE_COLUMNS)


class SchemaError(Exception):
    """A frame cannot be written as it is. The text names the column and the remedy."""


def checked_columns(fields: Iterable[tuple[str, str]], topic: str) -> Mapping[str, str]:
    """Column of the connector -> name of the frame's column, from the (name, type) of each field. Names are
    case-insensitive.

    topic   the option; if given, the column `topic` is not used

    Raises SchemaError with all faults.
    """
    known = {name.lower(): name for name in WRITE_COLUMNS}
    passed_over = {name.lower() for name in PASSED_OVER}
    found: dict[str, str] = {}
    faults = []
    for given, kind in fields:
        name = known.get(given.lower())
        if name is None:
            if given.lower() not in passed_over:
                hint = did_you_mean(given, WRITE_COLUMNS, f"; known are {', '.join(WRITE_COLUMNS)}.")
                faults.append(f"column {given} cannot be written{hint} Rename or drop it")
        elif kind not in WRITE_COLUMNS[name]:
            faults.append(
                f"column {given} is {kind}, it has to be {' or '.join(WRITE_COLUMNS[name])}; cast it"
            )
        elif name in found:
            faults.append(f"columns {found[name]} and {given} both map to {name}; drop one")
        else:
            found[name] = given
    if not any(given.lower() == "body" for given, _ in fields):
        faults.append("column body (binary or string) is missing; every message needs it")
    if topic:
        found.pop("topic", None)
    elif "topic" not in found:
        faults.append("there is neither an option topic nor a column topic; one of them is required")
    if "shardingKey" in found and "queueId" in found:
        faults.append("columns shardingKey and queueId both choose the queue; drop one")
    if faults:
        raise SchemaError("the frame cannot be written to RocketMQ: " + "; ".join(faults))
    return found
