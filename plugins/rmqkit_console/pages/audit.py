"""The newest events of the audit: who sent, consumed and changed what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

from rmqkit.client import RmqError, copying
from rmqkit_console.audit_file import newest_lines
from rmqkit_console.console import Asked, Console
from rmqkit_console.side_by_side import side_by_side

#: Kinds of events, as the audit names them.
KINDS: Final = ("all", "request", "create", "send", "sendBack", "consume", "dropped")
#: Events on a page, by default and at most, and those of a topic that are looked at.
DEFAULT_SHOWN, MAX_SHOWN, MAX_SEARCHED = 100, 1_000, 5_000
_NOWHERE, _FILE, _TOPIC = "", "file", "topic"


async def audit(console: Console, asked: Asked) -> dict[str, Any]:
    """The newest events that the chosen kind and text match, the newest first; `source` is where they are
    from: the file of a broker on this machine, or a topic. `foreign` counts what others wrote to that. Raises
    NoRoute when there is no such topic, and BrokerError when the user may not see the cluster's settings."""
    kind, find = asked.choice("kind", KINDS), asked.text("find")
    most = asked.number("max", DEFAULT_SHOWN, 1, MAX_SHOWN)
    settings = console.settings
    source, lines, foreign, faults = _NOWHERE, list[bytes](), 0, list[str]()
    if settings.audit_file:
        source = _FILE
        await _check_may_see(console)
        try:
            lines = await trio.to_thread.run_sync(newest_lines, Path(settings.audit_file))
        except OSError as error:
            faults.append(f"{settings.audit_file} cannot be read: {error.strerror or error}")
    elif settings.audit_topic:
        source = _TOPIC
        lines, foreign = await _of_topic(console, settings.audit_topic)
    events = []
    for line in lines:
        event = _event(line)
        if event is not None and kind in ("all", event["event"]) and find.encode() in line:
            events.append(_shown(event, hide=settings.hide_bodies))
            if len(events) == most:
                break
    return {
        "source": source,
        "where": settings.audit_file or settings.audit_topic,
        "events": events,
        "foreign": foreign,
        "faults": faults,
        "kind": kind,
        "kinds": list(KINDS),
        "find": find,
        "max": most,
    }


async def _check_may_see(console: Console) -> None:
    """The file is not asked for through a broker, so a broker is asked for what needs the same trust."""
    if not console.logs_in.is_by_keys:
        return
    admin = console.client.admin
    found = await side_by_side(admin.broker_settings, (await admin.masters()).values())
    errors = [each for each in found.values() if isinstance(each, RmqError)]
    if len(errors) == len(found):
        raise errors[0]


async def _of_topic(console: Console, topic: str) -> tuple[list[bytes], int]:
    """The newest messages that a broker itself wrote, and how many others there are: their born hosts are not
    the broker's."""
    span = await copying.span(console.client, topic)
    newest = {queue: (max(first, end - MAX_SEARCHED), end) for queue, (first, end) in span.items()}
    found, foreign = [], 0
    async with copying.reader(console.client) as reader, aclosing(copying.read(reader, newest)) as reading:
        async for message in reading:
            if message.born_host == message.store_host:
                found.append((message.store_timestamp_ms, message.queue_offset, bytes(message.body)))
            else:
                foreign += 1
    return [body for _, _, body in sorted(found, reverse=True)], foreign


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("event"), str) else None


def _shown(event: dict[str, Any], *, hide: bool) -> dict[str, Any]:
    """An event as it was written, with a sentence about it."""
    messages = event.get("messages")
    if hide and isinstance(messages, list):
        kept = [
            {name: value for name, value in each.items() if name != "body"}
            for each in messages
            if isinstance(each, dict)
        ]
        event = event | {"messages": kept}
    say = _SAY.get(event["event"])
    return {
        "time": event.get("time", ""),
        "event": event["event"],
        "what": say(event) if say else "",
        "fields": event,
    }


def _sent(event: Mapping[str, Any]) -> str:
    number = len(event.get("messages") or ())
    return f"{event.get('group')} to {event.get('topic')}: {number} messages"


def _consumed(event: Mapping[str, Any]) -> str:
    return (
        f"{event.get('group')} from {event.get('topic')}, queue {event.get('queue')}: offsets"
        f" {event.get('offset')} to {event.get('nextOffset')}"
    )


def _sent_back(event: Mapping[str, Any]) -> str:
    place = f"{event.get('topic')}, queue {event.get('queue')}, offset {event.get('offset')}"
    return f"{event.get('group')} from {place} to {event.get('target', 'nowhere')}"


def _requested(event: Mapping[str, Any]) -> str:
    fields = event.get("fields")
    pairs = fields.items() if isinstance(fields, dict) else ()
    return " ".join([str(event.get("action")), *(f"{name}={value}" for name, value in pairs)])


def _created(event: Mapping[str, Any]) -> str:
    parts = []
    for name in ("created", "deleted"):
        names = event.get(name)
        if isinstance(names, list) and names:
            parts.append(f"{name} {event.get('kind')} {', '.join(map(str, names))}")
    return "; ".join(parts)


def _dropped(event: Mapping[str, Any]) -> str:
    return f"{event.get('count')} events could not be written"


_SAY: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "send": _sent,
    "consume": _consumed,
    "sendBack": _sent_back,
    "request": _requested,
    "create": _created,
    "dropped": _dropped,
}

__all__ = ["KINDS", "audit"]
