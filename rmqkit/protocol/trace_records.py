"""Reading of the records of the trace topic (wire-protocol sheet, section 8; Java: TraceDataEncoder)."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

FIELD_END = "\x01"
RECORD_END = "\x02"
_PUB, _SUB_BEFORE, _SUB_AFTER = "Pub", "SubBefore", "SubAfter"


@frozen(kw_only=True)
class TraceEvent:
    """What happened to a message: `kind` is Pub, SubBefore or SubAfter.

    time_ms     0 when the record does not tell, as with SubAfter of old clients
    request_id  connects a SubBefore with its SubAfter
    """

    kind: str
    message_id: str
    time_ms: int = 0
    group: str = ""
    request_id: str = ""
    cost_ms: int = 0
    success: bool = True


def events(body: bytes) -> Iterator[TraceEvent]:
    """The events of a trace message. Records of other kinds and records that cannot be read are left out:
    every client writes into the topic."""
    for record in body.decode("utf-8", "replace").split(RECORD_END):
        fields = record.split(FIELD_END)
        try:
            event = _event(fields)
        except (IndexError, ValueError):
            continue
        if event is not None:
            yield event


def _event(fields: list[str]) -> TraceEvent | None:
    kind = fields[0]
    if kind == _PUB:
        return TraceEvent(
            kind=kind,
            message_id=fields[5],
            time_ms=int(fields[1]),
            group=fields[3],
            cost_ms=int(fields[10]),
            success=fields[-1] != "false" and "false" not in fields[12:14],
        )
    if kind == _SUB_BEFORE:
        return TraceEvent(
            kind=kind, message_id=fields[5], time_ms=int(fields[1]), group=fields[3], request_id=fields[4]
        )
    if kind == _SUB_AFTER:
        return TraceEvent(
            kind=kind,
            message_id=fields[2],
            request_id=fields[1],
            cost_ms=int(fields[3]),
            success=fields[4] == "true",
            time_ms=int(fields[7]) if len(fields) > 7 else 0,
            group=fields[8] if len(fields) > 8 else "",
        )
    return None
