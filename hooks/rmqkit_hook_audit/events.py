"""The form of events: one JSON object each, times in ISO 8601 with the zone, defaults omitted."""

from __future__ import annotations

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
_START = b'{"event":"'
_SOME_TIME = datetime(2000, 1, 1, tzinfo=UTC)
_NOTHING = msgspec.Raw(b"")


def encoded(value: Event | Message) -> bytes:
    """An event, or a message of one, as it is written. Unpaired surrogates, which JSON can express but UTF-8
    cannot, are written as numbers."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        kinds = (datetime, bytes, msgspec.Raw)
        return _encoder.encode(_writable(msgspec.to_builtins(value, builtin_types=kinds)))


def line(event: Event) -> bytes:
    """An event with the end of its line."""
    return encoded(event) + b"\n"


def kind_of(line: bytes) -> str:
    """The kind of the event in a line."""
    return line[len(_START) :].partition(b'"')[0].decode()


def head_of(event: Sent) -> tuple[bytes, bytes]:
    """What stands before and after the time in the line of an event, up to its messages. They are the same
    for all events that differ in these two fields only."""
    text = encoded(msgspec.structs.replace(event, time=_SOME_TIME, messages=_NOTHING))
    before, _, after = text.partition(encoded_time(_SOME_TIME))
    return before, after[: -len(b"}")]


def encoded_time(time: datetime) -> bytes:
    """A time as it stands in a line, in quotes."""
    return _encoder.encode(time)


def _writable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_writable(name): _writable(item) for name, item in value.items()}
    return [_writable(item) for item in value] if isinstance(value, list) else value


def now() -> datetime:
    return datetime.now(UTC)
