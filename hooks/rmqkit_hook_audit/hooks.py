"""Creates events for sends, pulls, send-backs and requests. The code runs in the event loop, so it only
makes the lines; the writer does the rest."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby
from operator import attrgetter, sub

from rmqkit.errors import HeaderError
from rmqkit.model.message import PutMessage
from rmqkit.model.properties import UNIQ_KEY
from rmqkit.plugin.access import PRINCIPAL
from rmqkit.plugin.hooks import ConsumeContext, ConsumeMessageHook, SendMessageHook, SendRun
from rmqkit.plugin.request import Caller, Peer
from rmqkit.plugin.request_hooks import EachRequestHook
from rmqkit.plugin.store import Appended
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command
from rmqkit_hook_audit.events import (
    Consumed,
    Message,
    Requested,
    Sent,
    SentBack,
    encoded,
    encoded_time,
    head_of,
    now,
)
from rmqkit_hook_audit.lines import lines
from rmqkit_hook_audit.recorder import NOWHERE, Recorder
from rmqkit_hook_audit.requests import ACTIONS, MAX_TEXT, shown_fields
from rmqkit_hook_audit.settings import AuditSettings

_ACCESS_KEY = "AccessKey"
_ACCESS_KEY_BYTES = _ACCESS_KEY.encode()
#: The header with its fields, of a request whose fields were decoded together with it.
_head = attrgetter("head_json")
_destination = attrgetter("topic", "producer_group")
#: One for each connection, group and topic that sends.
_MAX_HEADS = 1024


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


def user_of_connection(peer: Caller) -> str | None:
    """The user whom the certificate or the token of a connection proves, for requests without access key."""
    user = peer.attributes.get(PRINCIPAL)
    return user[:MAX_TEXT] if isinstance(user, str) and user else None


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
        #: What the lines of events have before and after the time, by what they show of sends.
        self._heads: dict[tuple[str, int, str | None, str, str, object], tuple[bytes, bytes]] = {}

    def begin(self, recorder: Recorder) -> None:
        super().begin(recorder)
        self._heads.clear()

    def after(self, sends: SendRun) -> None:
        if not self._recorder.on:
            return
        alike = lines.are_alike(sends.requests, sends.headers, _ACCESS_KEY_BYTES)
        users = () if alike else _users(sends.requests)
        if alike or (not users and len({*map(_destination, sends.headers)}) == 1):
            self._to_one_topic(sends)
            return
        shown = [
            (header.topic, header.producer_group, users[at] if users else None, peer)
            for at, (header, peer) in enumerate(zip(sends.headers, sends.peers, strict=True))
        ]
        for (_, _, user, _), group in groupby(range(len(shown)), key=shown.__getitem__):
            which = [*group]
            self._sent(sends, which[0], which[-1] + 1, user)

    def _to_one_topic(self, sends: SendRun) -> None:
        """Record an event for each connection, of sends of one producer group, to one topic, without access
        keys."""
        parts, messages, places = sends.by_peer(), sends.messages, sends.results
        stops = [part.stop for part in parts]
        if sends.sizes is not None:
            ends = [*accumulate(sends.sizes)]
            stops = [ends[stop - 1] for stop in stops]
        weights = [*map(sub, stops, [0, *stops])]
        if self._keeps_content or not all(weights) or not len(messages) == len(places) == stops[-1]:
            for part in parts:
                self._sent(sends, part.start or 0, part.stop, None)
            return
        topic, time = sends.headers[0].topic, encoded_time(now())
        made = lines.json_lines(
            messages,
            places,
            [self._head(sends, part.start or 0, time) for part in parts],
            stops,
            topic,
            MAX_TEXT,
            lambda at: encoded(_note(messages[at], places[at], topic)),
        )
        self._recorder.record_lines(made, weights)

    def _head(self, sends: SendRun, at: int, time: bytes) -> bytes:
        """The line of an event up to its messages."""
        header = sends.headers[at]
        peer = sends.peers[at]
        user = peer.attributes.get(PRINCIPAL)
        key = peer.remote_text, sends.code, sends.remark, header.producer_group, header.topic, user
        found = self._heads.get(key)
        if found is None:
            if len(self._heads) >= _MAX_HEADS:
                self._heads.clear()
            found = self._heads[key] = head_of(self._event(sends, at, None))
        before, after = found
        return before + time + after

    def _event(self, sends: SendRun, at: int, user: str | None) -> Sent:
        """An event without messages for a send and those that are shown with it."""
        header = sends.headers[at]
        return Sent(
            now(),
            self._recorder.broker,
            sends.peers[at].remote_text,
            user or user_of_connection(sends.peers[at]),
            sends.code,
            sends.remark[:MAX_TEXT] if sends.remark else None,
            group=header.producer_group[:MAX_TEXT],
            topic=header.topic[:MAX_TEXT],
        )

    def _sent(self, sends: SendRun, start: int, stop: int, user: str | None) -> None:
        """Record one event for sends of one connection from a number to another, whose headers are equal as
        far as they are shown."""
        topic = sends.headers[start].topic
        span = slice(sends.span(start).start, sends.span(stop - 1).stop)
        messages, results = sends.messages[span], sends.results[span]
        weight = len(messages) or 1
        event = self._event(sends, start, user)
        event.messages = [_note(message, at, topic) for message, at in zip(messages, results, strict=True)]
        if self._keeps_content:
            weight += self._add_content(event.messages, messages) // 1024
        self._recorder.record(event, weight)

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
                user=user_of(request) or user_of_connection(peer),
                code=code,
                remark=remark[:MAX_TEXT] if remark else None,
                action=ACTIONS[RequestCode(request.code)],
                fields=shown_fields(request),
            )
        )
