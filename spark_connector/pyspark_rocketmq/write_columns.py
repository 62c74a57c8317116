"""The columns that can be written, and the check of a frame's schema against them before any task runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from pyspark_rocketmq.columns import DEFAULT_COLUMNS, METADATA_COLUMNS

#: Column -> Spark types it may have, the recommended one first.
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

#: What reading gives and the broker decides itself: passed over, so that what was read can be written.
PASSED_OVER = tuple(name for name in (*DEFAULT_COLUMNS, *METADATA_COLUMNS) if name not in WRITE_COLUMNS)


class SchemaError(Exception):
    """A frame cannot be written as it is. The text names the column and says what to do."""


def checked_columns(fields: Iterable[tuple[str, str]], topic: str) -> Mapping[str, str]:
    """Column of the connector -> name of the frame's column, from the (name, type) of each field; upper and lower case do not matter.

    topic   the option; with it the column `topic` is not used
    Raises SchemaError naming every fault.
    """
    known = {name.lower(): name for name in WRITE_COLUMNS}
    passed_over = {name.lower() for name in PASSED_OVER}
    found: dict[str, str] = {}
    faults = []
    for given, kind in fields:
        name = known.get(given.lower())
        if name is None:
            if given.lower() not in passed_over:
                near = get_close_matches(given.lower(), known, n=1)
                hint = f"did you mean {known[near[0]]}?" if near else f"known are {', '.join(WRITE_COLUMNS)}."
                faults.append(f"column {given} cannot be written; {hint} Rename or drop it")
        elif kind not in WRITE_COLUMNS[name]:
            faults.append(f"column {given} is {kind}, it has to be {' or '.join(WRITE_COLUMNS[name])}; cast it")
        elif name in found:
            faults.append(f"columns {found[name]} and {given} are both the {name} of a message; drop one")
        else:
            found[name] = given
    if not any(given.lower() == "body" for given, _ in fields):
        faults.append("column body (binary or string) is missing; it is what a message carries")
    if topic:
        found.pop("topic", None)
    elif "topic" not in found:
        faults.append("there is neither an option topic nor a column topic; name where messages go")
    if "shardingKey" in found and "queueId" in found:
        faults.append("columns shardingKey and queueId both choose the queue; drop one")
    if faults:
        raise SchemaError("the frame cannot be written to RocketMQ: " + "; ".join(faults))
    return found
