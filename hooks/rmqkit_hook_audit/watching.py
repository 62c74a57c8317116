"""Makes events of sends, pulls, send-backs and requests. All of it runs in the loop, so it only notes; the writer does the rest."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rmqkit.abc import Appended, Peer
from rmqkit.errors import HeaderError
from rmqkit.hooks import ConsumeContext, ConsumeMessageHook, ManySendsHook, RpcHook, SendContext, SentTogether
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers import SendMessageRequestHeaderV2
from rmqkit_hook_audit.events import Consumed, Message, Requested, Sent, SentBack, now
from rmqkit_hook_audit.recorder import NOWHERE, Recorder
from rmqkit_hook_audit.requests import ACTIONS, MAX_TEXT, shown_fields
from rmqkit_hook_audit.settings import AuditSettings

_ACCESS_KEY = "AccessKey"
_ACCESS_KEY_BYTES = _ACCESS_KEY.encode()


def user_of(request: Command) -> str | None:
    """The access key a request names."""
    text = request.head_json or bytes(request.ext_json)
    if text and _ACCESS_KEY_BYTES not in text:
        # Most requests name none, and to read the fields takes ten times as long.
        return None
    try:
        user = request.fields().get(_ACCESS_KEY)
    except HeaderError:
        return None
    return user[:MAX_TEXT] if user else None


class Watching:
    """What sees something that is worth an event."""

    _recorder: Recorder = NOWHERE

    def begin(self, recorder: Recorder) -> None:
        """From now on events go there."""
        self._recorder = recorder


class SendAudit(Watching, ManySendsHook):
    """An event for each send, or for those of one group, topic and user that were stored together."""

    def __init__(self, settings: AuditSettings) -> None:
        self._body_bytes = settings.body_bytes
        self._names = settings.properties

    def after_many(self, sends: SentTogether) -> None:
        """Where nobody checks users the first request speaks for those that came with it; where somebody does, no send is plain."""
        if not self._recorder.on:
            return
        time, user = now(), user_of(sends.requests[0])
        groups = [request.header(SendMessageRequestHeaderV2).producer_group for request in sends.requests]
        topics = [message.topic for message in sends.messages]
        start = 0
        for at in range(1, len(groups)) if len(set(groups)) > 1 or len(set(topics)) > 1 else ():
            if groups[at] != groups[start] or topics[at] != topics[start]:
                self._sent(sends, groups[start], topics[start], user, start, at, time)
                start = at
        self._sent(sends, groups[start], topics[start], user, start, len(groups), time)

    def after(self, context: SendContext) -> None:
        notes = self._messages(context.messages, context.landed, context.topic)
        self._recorder.record(
            Sent(
                time=now(),
                broker=self._recorder.broker,
                client=context.born_host,
                user=user_of(context.request),
                code=context.code,
                remark=context.remark[:MAX_TEXT] if context.remark else None,
                group=context.producer_group[:MAX_TEXT],
                topic=context.topic[:MAX_TEXT],
                messages=notes,
            ),
            self._weight(notes),
        )

    def _sent(self, sends: SentTogether, group: str, topic: str, user: str | None, start: int, stop: int, time: datetime) -> None:
        notes = self._messages(sends.messages[start:stop], sends.landed[start:stop], topic)
        self._recorder.record(
            Sent(
                time=time,
                broker=self._recorder.broker,
                client=sends.peer.remote_text,
                user=user,
                code=sends.code,
                remark=sends.remark,
                group=group[:MAX_TEXT],
                topic=topic,
                messages=notes,
            ),
            self._weight(notes),
        )

    def _weight(self, notes: Sequence[Message]) -> int:
        """What an event takes of the queue's room."""
        if not self._body_bytes and not self._names:
            return len(notes) or 1
        kept_bytes = sum(len(note.body or b"") + sum(map(len, (note.properties or {}).values())) for note in notes)
        return max(1, len(notes)) + kept_bytes // 1024

    def _messages(self, messages: Sequence[PutMessage], landed: Sequence[Appended], topic: str) -> list[Message]:
        found = [
            Message(
                id=message.properties.get(props.UNIQ_KEY, "")[:MAX_TEXT],
                queue=message.queue_id,
                offset=at.queue_offset,
                size_bytes=len(message.body),
                topic=None if message.topic == topic else message.topic,
            )
            for message, at in zip(messages, landed, strict=True)
        ]
        if self._body_bytes or self._names:
            for note, message in zip(found, messages, strict=True):
                if self._body_bytes:
                    note.body = message.body[: self._body_bytes]
                note.properties = {name: message.properties[name] for name in self._names if name in message.properties} or None
        return found


class ConsumeAudit(Watching, ConsumeMessageHook):
    """An event for each pull that gave messages, and each send-back. Reading the audit's own topic makes none, which would be read in turn."""

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


class RequestAudit(Watching, RpcHook):
    """An event for each request that changes something other than messages, with how it was answered."""

    codes = frozenset(ACTIONS)

    def before(self, request: Command, peer: Peer) -> None:
        if request.is_oneway:
            # There will be no answer to wait for.
            self._note(request, peer, 0, "one-way: how it ended was told to nobody")

    def after(self, request: Command, response: Command, peer: Peer) -> None:
        self._note(request, peer, response.code, response.remark)

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
