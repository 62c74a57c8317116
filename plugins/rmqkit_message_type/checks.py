"""Refuses messages, and recalls, that are not of the type of their topic (Java: SendMessageActivity,
RecallMessageActivity, DefaultTopicMessageTypeValidator)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rmqkit.errors import DecodeError, HeaderError, RequestRefused
from rmqkit.model import properties as props
from rmqkit.model.message_type import TopicMessageType, declared_type, type_for_topics
from rmqkit.model.names import DLQ_PREFIX, RETRY_PREFIX
from rmqkit.plugin.hooks import Refusals, SendMessageHook, SendRun
from rmqkit.plugin.request import BROKER, Peer
from rmqkit.plugin.request_broker import NeedsBroker, RequestBroker
from rmqkit.plugin.request_hooks import EachRequestHook
from rmqkit.protocol import batch
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers import RecallMessageRequestHeader

#: Messages of brokers and consumers, which have been checked when they were first sent.
_UNCHECKED = (RETRY_PREFIX, DLQ_PREFIX)


class _Declared(NeedsBroker):
    """Knows the topics of its broker."""

    def open(self, broker: RequestBroker) -> None:
        self._topics = broker.topics

    def _type_of(self, topic: str) -> TopicMessageType:
        """The type that a topic declares; MIXED of an unknown one, which others refuse or create."""
        config = self._topics.get(topic)
        if config is None or topic.startswith(_UNCHECKED):
            return TopicMessageType.MIXED
        return declared_type(config.attributes)


class CheckSends(_Declared, SendMessageHook):
    """Checks sends, in a batch each message. A batch that cannot be read is left to the broker, which refuses
    it."""

    def before(self, sends: SendRun) -> Refusals | None:
        refused: dict[int, Exception] = {}
        for at, header in enumerate(sends.headers):
            declared = self._type_of(header.topic)
            if declared is TopicMessageType.MIXED or props.TRANSFER_FLAG in sends.properties[at]:
                continue
            for properties in _messages_of(sends, at):
                actual = type_for_topics(properties)
                if actual is not declared:
                    refused[at] = _refusal(header.topic, declared, actual)
                    break
        return refused or None


class CheckRecalls(_Declared, EachRequestHook):
    """Checks recalls, which are of delayed messages."""

    codes = frozenset({int(RequestCode.RECALL_MESSAGE)})
    servers = frozenset({BROKER})

    def before_each(self, request: Command, peer: Peer) -> None:
        try:
            topic = request.header(RecallMessageRequestHeader).topic
        except HeaderError:
            # Its processor refuses it.
            return
        declared = self._type_of(topic)
        if declared not in (TopicMessageType.MIXED, TopicMessageType.DELAY):
            raise _refusal(topic, declared, TopicMessageType.DELAY)


def _messages_of(sends: SendRun, at: int) -> Iterator[Mapping[str, str]]:
    """The properties of each message of a send."""
    request = sends.requests[at]
    if not (sends.headers[at].batch or request.code == RequestCode.SEND_BATCH_MESSAGE):
        yield sends.properties[at]
        return
    items: list[batch.BatchItem] = []
    try:
        batch.decode(request.body, items)
    except DecodeError:
        return
    for item in items:
        yield props.decode_bytes(item.properties)


def _refusal(topic: str, declared: TopicMessageType, actual: TopicMessageType) -> RequestRefused:
    """The refusal with Java's text, and what to do."""
    return RequestRefused(
        ResponseCode.MESSAGE_ILLEGAL,
        f"TopicMessageType validate failed, the expected type is {declared}, but actual type is {actual}: use"
        f" a topic of its type, or change that of {topic} with: rmqkit topic create {topic} --type {actual}",
    )
