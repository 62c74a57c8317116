"""The keywords of a send, and the message that they describe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, cast

import msgspec

from rmqkit.client.codecs import Codec, noted
from rmqkit.errors import ClientError
from rmqkit.model.message import Message
from rmqkit.model.queue import MessageQueue


class MessageKeywords(TypedDict, total=False):
    """The parts of a message beside its topic and body, see `Message`."""

    tag: str | None
    keys: Iterable[str] | str
    properties: Mapping[str, str] | None
    ordering_key: str | None
    delay_level: int | None
    priority: int | None


class SendKeywords(MessageKeywords, total=False):
    """Keywords of `Producer.send`, `send_oneway` and `transaction`: fields of `SendOptions`."""

    queue: MessageQueue | None
    timeout_ms: int | None


class SendOptions(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How one message is sent. Raises TypeError for another keyword.

    tag, keys, properties, ordering_key, delay_level, priority
                parts of a message that is given as a topic and a body; see `Message`
    queue       the queue that gets the message, instead of one that the producer chooses
    timeout_ms  time limit of the send with all its attempts, instead of the producer's
    """

    tag: str | None = None
    keys: Iterable[str] | str = ()
    properties: Mapping[str, str] | None = None
    ordering_key: str | None = None
    delay_level: int | None = None
    priority: int | None = None
    queue: MessageQueue | None = None
    timeout_ms: int | None = None

    def message(self, given: Message | str, body: Any, codec: Codec[Any] | None = None) -> Message:
        """The given message, or one of a topic, a body and these parts; with a codec the body is a value.
        Raises ClientError when both forms are mixed, TypeError as `Message`, and as `Codec.encode`."""
        has_parts = bool(
            self.tag
            or self.keys
            or self.properties
            or self.ordering_key
            or self.delay_level
            or self.priority is not None
        )
        if isinstance(given, Message):
            if body is not None or has_parts:
                raise ClientError(
                    "a Message has its own body, tag, keys, properties, ordering key, delay level and"
                    " priority; set them there"
                )
            return given
        if body is None:
            raise ClientError("pass a Message, or a topic and a body")
        if codec is None and type(given) is str and not has_parts:
            return Message(given, body)
        properties = self.properties or {}
        if codec is not None:
            body, properties = codec.encode(body), noted(codec, properties)
        return Message(
            topic=given,
            body=body,
            tag=self.tag,
            keys=cast(Sequence[str], self.keys),
            properties=properties,
            ordering_key=self.ordering_key,
            delay_level=self.delay_level,
            priority=self.priority,
        )


__all__ = ["MessageKeywords", "SendKeywords", "SendOptions"]
