"""Creates events for sends, pulls, send-backs and requests. The code runs in the event loop, so it only
collects data; the writer does the rest."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rmqkit.errors import HeaderError
from rmqkit.model.message import PutMessage
from rmqkit.model.properties import UNIQ_KEY
from rmqkit.plugin.hooks import ConsumeContext, ConsumeMessageHook, EachRequestHook, SendMessageHook, SendRun
from rmqkit.plugin.request import Peer
from rmqkit.plugin.store import Appended
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command
from rmqkit_hook_audit.events import Consumed, Message, Requested, Sent, SentBack, now
from rmqkit_hook_audit.recorder import NOWHERE, Recorder
from rmqkit_hook_audit.requests import ACTIONS, MAX_TEXT, shown_fields
from rmqkit_hook_audit.settings import AuditSettings

_ACCESS_KEY = "AccessKey"
_ACCESS_KEY_BYTES = _ACCESS_KEY.encode()


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
    """Creates an event for each send, or for sends of one group and topic that have the same answer."""

    def __init__(self, settings: AuditSettings) -> None:
        self._body_bytes = settings.body_bytes
        self._names = settings.properties

    def after(self, sends: SendRun) -> None:
        if not self._recorder.on:
            return
        headers, time = sends.headers, now()
        group, topic, users = headers[0].producer_group, headers[0].topic, _users(sends.requests)
        start, user = 0, users[0] if users else None
        for at, header in enumerate(headers):
            if header.topic == topic and header.producer_group == group and (not users or users[at] == user):
                continue
            self._sent(sends, range(start, at), user, time)
            group, topic, start, user = header.producer_group, header.topic, at, users[at] if users else None
        self._sent(sends, range(start, len(headers)), user, time)

    def _sent(self, sends: SendRun, which: range, user: str | None, time: datetime) -> None:
        messages, landed, header = sends.messages, sends.landed, sends.headers[which.start]
        if len(which) < len(sends):
            stored = slice(sends.span(which.start).start, sends.span(which.stop - 1).stop)
            messages, landed = messages[stored], landed[stored]
        notes = self._messages(messages, landed, header.topic)
        recorder = self._recorder
        recorder.record(
            Sent(
                time,
                recorder.broker,
                sends.peer.remote_text,
                user,
                sends.code,
                sends.remark[:MAX_TEXT] if sends.remark else None,
                group=header.producer_group[:MAX_TEXT],
                topic=header.topic[:MAX_TEXT],
                messages=notes,
            ),
            self._weight(notes),
        )

    def _weight(self, notes: Sequence[Message]) -> int:
        """The weight of events in the queue."""
        if not self._body_bytes and not self._names:
            return len(notes) or 1
        kept_bytes = sum(
            len(note.body or b"") + sum(map(len, (note.properties or {}).values())) for note in notes
        )
        return max(1, len(notes)) + kept_bytes // 1024

    def _messages(
        self, messages: Sequence[PutMessage], landed: Sequence[Appended], topic: str
    ) -> list[Message]:
        found = [
            Message(
                message.properties.get(UNIQ_KEY, "")[:MAX_TEXT],
                None if message.topic == topic else message.topic,
                message.queue_id,
                at[0],
                len(message.body),
            )
            for message, at in zip(messages, landed, strict=True)
        ]
        if self._body_bytes or self._names:
            for note, message in zip(found, messages, strict=True):
                if self._body_bytes:
                    note.body = message.body[: self._body_bytes]
                note.properties = {
                    name: message.properties[name] for name in self._names if name in message.properties
                } or None
        return found


def _users(requests: Sequence[Command]) -> Sequence[str | None]:
    """The access key of each request; empty when no request has one, which costs one search for all."""
    heads = [request.head_json or bytes(request.ext_json) for request in requests]
    if all(heads) and _ACCESS_KEY_BYTES not in b" ".join(heads):
        return ()
    return [user_of(request) for request in requests]


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
