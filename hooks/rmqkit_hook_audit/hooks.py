"""Creates events for sends, pulls, send-backs and requests. The code runs in the event loop, so it only
collects data; the writer does the rest."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

from msgspec import Raw

from rmqkit.errors import HeaderError
from rmqkit.model.message import PutMessage
from rmqkit.model.properties import UNIQ_KEY
from rmqkit.plugin.hooks import ConsumeContext, ConsumeMessageHook, EachRequestHook, SendMessageHook, SendRun
from rmqkit.plugin.request import Peer
from rmqkit.plugin.store import Appended
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command
from rmqkit.speedups.sends import Places, PutColumns
from rmqkit_hook_audit.events import Consumed, Message, Requested, Sent, SentBack, encoded, now
from rmqkit_hook_audit.recorder import NOWHERE, Recorder
from rmqkit_hook_audit.requests import ACTIONS, MAX_TEXT, shown_fields
from rmqkit_hook_audit.settings import AuditSettings

_ACCESS_KEY = "AccessKey"
_ACCESS_KEY_BYTES = _ACCESS_KEY.encode()
#: The header with its fields, of a request whose fields were decoded together with it.
_head = attrgetter("head_json")
_destination = attrgetter("topic", "producer_group")


def user_of(request: Command) -> str | None:
    """The access key in a request."""
    text = request.head_json or bytes(request.ext_json)
    if text and _ACCESS_KEY_BYTES not in text:
        # Most requests have none, and decoding the fields takes ten times as long.
        return None
    try:
        user = request.fields().get(_ACCESS_KEY)
    except HeaderError:
        return None
    return user[:MAX_TEXT] if user else None


class Watching:
    """A hook that creates events."""

    _recorder: Recorder = NOWHERE

    def begin(self, recorder: Recorder) -> None:
        """Send events to the recorder from now on."""
        self._recorder = recorder


class SendAudit(Watching, SendMessageHook):
    """Creates an event for each send, or for sends of one connection, group and topic that have the same
    answer."""

    def __init__(self, settings: AuditSettings) -> None:
        self._body_bytes = settings.body_bytes
        self._names = settings.properties
        self._keeps_content = bool(settings.body_bytes or settings.properties)

    def after(self, sends: SendRun) -> None:
        if not self._recorder.on:
            return
        alike = sends.are_alike(_ACCESS_KEY_BYTES)
        users = () if alike else _users(sends.requests)
        if alike or (not users and len({*map(_destination, sends.headers)}) == 1):
            for part in sends.by_peer():
                self._sent(sends, part.start or 0, part.stop, None)
            return
        shown = [
            (header.topic, header.producer_group, users[at] if users else None, peer)
            for at, (header, peer) in enumerate(zip(sends.headers, sends.peers, strict=True))
        ]
        for (_, _, user, _), group in groupby(range(len(shown)), key=shown.__getitem__):
            which = [*group]
            self._sent(sends, which[0], which[-1] + 1, user)

    def _sent(self, sends: SendRun, start: int, stop: int, user: str | None) -> None:
        """Record one event for sends of one connection from a number to another, whose headers are equal as
        far as they are shown."""
        recorder, header = self._recorder, sends.headers[start]
        topic = header.topic
        columns, places = sends.messages, sends.landed
        first, last = start, stop
        if sends.sizes is not None:
            first, last = sends.span(start).start, sends.span(stop - 1).stop
        count = max(min(last, len(columns)) - first, 0)
        weight = count or 1
        notes: list[Message] | Raw
        if (
            count
            and isinstance(columns, PutColumns)
            and isinstance(places, Places)
            and not self._keeps_content
        ):
            notes = Raw(
                columns.json_list(
                    places,
                    first,
                    first + count,
                    topic,
                    MAX_TEXT,
                    lambda at: encoded(_note(columns[at], places[at], topic)),
                )
            )
        else:
            messages, landed = columns[first : first + count], places[first : first + count]
            notes = [_note(message, at, topic) for message, at in zip(messages, landed, strict=True)]
            if self._keeps_content:
                weight += self._add_content(notes, messages) // 1024
        event = Sent(
            now(),
            recorder.broker,
            sends.peers[start].remote_text,
            user,
            sends.code,
            sends.remark[:MAX_TEXT] if sends.remark else None,
            group=header.producer_group[:MAX_TEXT],
            topic=topic[:MAX_TEXT],
            messages=notes,
        )
        recorder.record(event, weight)

    def _add_content(self, notes: Sequence[Message], messages: Sequence[PutMessage]) -> int:
        """Add what is configured of bodies and properties; returns its size in bytes."""
        kept_bytes = 0
        for note, message in zip(notes, messages, strict=True):
            if self._body_bytes:
                note.body = message.body[: self._body_bytes]
                kept_bytes += len(note.body)
            found = {name: message.properties[name] for name in self._names if name in message.properties}
            note.properties = found or None
            kept_bytes += sum(map(len, found.values()))
        return kept_bytes


def _note(message: PutMessage, at: Appended, topic: str) -> Message:
    """What is kept of a message that was sent to a topic."""
    return Message(
        message.properties.get(UNIQ_KEY, "")[:MAX_TEXT],
        None if message.topic == topic else message.topic,
        message.queue_id,
        at.queue_offset,
        len(message.body),
    )


def _users(requests: Sequence[Command]) -> Sequence[str | None]:
    """The access key of each request; empty when no request has one, which costs one search for all."""
    heads = [*map(_head, requests)]
    if all(heads) and _ACCESS_KEY_BYTES not in (heads[0] if len(heads) == 1 else b" ".join(heads)):
        return ()
    users = [user_of(request) for request in requests]
    return users if any(users) else ()


class ConsumeAudit(Watching, ConsumeMessageHook):
    """Creates an event for each pull that returned messages, and for each send-back. Reading the audit's own
    topic creates none, because such an event would be read in turn."""

    def __init__(self, settings: AuditSettings) -> None:
        self._own_topic = settings.topic
        self._pulls = "consume" in settings.events
        self._send_backs = "sendBack" in settings.events

    def before(self, context: ConsumeContext) -> None:
        if self._pulls and context.message_count and context.topic != self._own_topic:
            self._recorder.record(
                Consumed(
                    time=now(),
                    broker=self._recorder.broker,
                    client=context.client_address,
                    user=user_of(context.request),
                    group=context.group,
                    topic=context.topic,
                    queue=context.queue_id,
                    offset=context.offset,
                    next_offset=context.next_offset,
                    count=context.message_count,
                    size_bytes=context.body_bytes,
                )
            )

    def after(self, context: ConsumeContext) -> None:
        if self._send_backs:
            self._recorder.record(
                SentBack(
                    time=now(),
                    broker=self._recorder.broker,
                    client=context.client_address,
                    user=user_of(context.request),
                    code=context.code,
                    group=context.group,
                    topic=context.topic,
                    queue=context.queue_id,
                    offset=context.offset,
                    target=context.target_topic,
                )
            )


class RequestAudit(Watching, EachRequestHook):
    """Creates an event, with the answer, for each request that changes something other than messages."""

    codes = frozenset(ACTIONS)

    def before_each(self, request: Command, peer: Peer) -> None:
        if request.is_oneway:
            # There will be no answer.
            self._note(request, peer, 0, "one-way: its result was not sent")

    def after_each(self, request: Command, answer: Command, peer: Peer) -> None:
        self._note(request, peer, answer.code, answer.remark)

    def _note(self, request: Command, peer: Peer, code: int, remark: str | None) -> None:
        self._recorder.record(
            Requested(
                time=now(),
                broker=self._recorder.broker,
                client=peer.remote_text,
                user=user_of(request),
                code=code,
                remark=remark[:MAX_TEXT] if remark else None,
                action=ACTIONS[RequestCode(request.code)],
                fields=shown_fields(request),
            )
        )
