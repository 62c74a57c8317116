"""Records of the trace topic, as clients of several versions write them."""

from __future__ import annotations

from rmqkit.protocol.trace_records import TraceEvent, events


def _body(*records: str) -> bytes:
    return "".join(record.replace("|", "\x01") + "\x02" for record in records).encode()


def test_the_life_of_a_message() -> None:
    """A sending, a delivery and its result."""
    body = _body(
        "Pub|1000|cn|p|Orders|ID|tag|key|10.0.0.1:10911|5|3|0|OFFSETID|true",
        "SubBefore|2000|cn|g|REQ|ID|0|key",
        "SubAfter|REQ|ID|7|false|key|1|2007|g",
    )
    assert list(events(body)) == [
        TraceEvent(kind="Pub", message_id="ID", time_ms=1000, group="p", cost_ms=3),
        TraceEvent(kind="SubBefore", message_id="ID", time_ms=2000, group="g", request_id="REQ"),
        TraceEvent(
            kind="SubAfter",
            message_id="ID",
            time_ms=2007,
            group="g",
            request_id="REQ",
            cost_ms=7,
            success=False,
        ),
    ]


def test_old_and_broken_records() -> None:
    """A SubAfter of an old client has neither time nor group; a failed sending has no offset id; what cannot
    be read is left out."""
    body = _body(
        "SubAfter|REQ|ID|7|true|key|0",
        "Pub|1000|cn|p|Orders|ID|tag|key|10.0.0.1:10911|5|3|0|null|false|10.0.0.9",
        "Pub|soon|cn",
        "EndTransaction|1000|cn|p|Orders|ID|tag|key|host|0|TID|COMMIT|false",
        "SubBefore|2000",
    )
    after, failed = events(body + b"\xff")
    assert (after.time_ms, after.group, after.success) == (0, "", True)
    assert (failed.kind, failed.success) == ("Pub", False)
