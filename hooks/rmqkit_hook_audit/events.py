"""The form of events: one JSON object each, times in ISO 8601 with the zone, defaults omitted."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec


class Event(msgspec.Struct, omit_defaults=True, rename="camel", tag_field="event", gc=False):
    """The fields of all events.

    time    time of the decision
    broker  name of the broker
    client  address and port of the peer; empty for actions of the broker itself
    user    the access key given by the client, whether it is verified or not
    code    of the answer, 0 for success; remark contains the reason
    """

    time: datetime
    broker: str
    client: str | None = None
    user: str | None = None
    code: int = 0
    remark: str | None = None


class Message(msgspec.Struct, omit_defaults=True, rename="camel", gc=False):
    """A message of a send: its producer's id, its place of storage, the size of its body. `body` and
    `properties` only if configured."""

    id: str = ""
    topic: str | None = None
    queue: int = -1
    offset: int = -1
    size_bytes: int = 0
    body: bytes | None = None
    properties: dict[str, str] | None = None


class Sent(Event, tag="send", kw_only=True, gc=False):
    """Messages of one producer group to one topic that arrived together. A refused send has none."""

    group: str
    topic: str
    messages: list[Message] | msgspec.Raw = []


class Consumed(Event, tag="consume", kw_only=True, gc=False):
    """Messages [offset, next_offset) of a queue delivered to a consumer, without those removed by its filter.
    `size_bytes` is their size as records."""

    group: str
    topic: str
    queue: int
    offset: int
    next_offset: int
    count: int
    size_bytes: int


class SentBack(Event, tag="sendBack", kw_only=True, gc=False):
    """A message that a consumer sent back: first sent to `topic`, read at `offset` of `queue`, now in
    `target`, a retry or dead-letter topic."""

    group: str
    topic: str
    queue: int
    offset: int
    target: str | None = None


class Requested(Event, tag="request", kw_only=True, gc=False):
    """A request that changes something other than messages. `fields` are the header's fields, shortened,
    without signatures and secrets."""

    action: str
    fields: dict[str, str] = {}


class Created(Event, tag="create", kw_only=True, gc=False):
    """Topics or groups that were created or deleted, by request or by the broker: `kind` is topic or
    group."""

    kind: str
    created: list[str] = []
    deleted: list[str] = []


class Dropped(Event, tag="dropped", kw_only=True, gc=False):
    """Events that could not be written since the last event, counting each message of a send, and the
    reason."""

    count: int


_encoder = msgspec.json.Encoder()


def encoded(value: Event | Message) -> bytes:
    """An event, or a message of one, as it is written. Unpaired surrogates, which JSON can express but UTF-8
    cannot, are written as numbers."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        kinds = (datetime, bytes, msgspec.Raw)
        return _encoder.encode(_writable(msgspec.to_builtins(value, builtin_types=kinds)))


def lines(events: Sequence[Event]) -> bytes:
    """A line for each."""
    try:
        return _encoder.encode_lines(events)
    except UnicodeEncodeError:
        return b"".join(encoded(event) + b"\n" for event in events)


def _writable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_writable(name): _writable(item) for name, item in value.items()}
    return [_writable(item) for item in value] if isinstance(value, list) else value


def now() -> datetime:
    return datetime.now(UTC)
