"""Messages as handlers of FastStream get them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from faststream._internal.parser import DefaultCodec
from faststream.message import StreamMessage

from rmqkit.client import Batch, DeadLetter, Delivery, ReceivedMessage
from rmqkit.model import properties as props

#: Properties that say how a body is encoded, what it belongs to, and where its answer goes.
CONTENT_TYPE: Final = "content-type"
CORRELATION_ID: Final = "correlation-id"
REPLY_TO: Final = "reply-to"
_OWN: Final = frozenset({CONTENT_TYPE, CORRELATION_ID, REPLY_TO})


class RocketMessage(StreamMessage[Delivery | Batch]):
    """One message, or those of a batch. `raw_message` is what the client delivered: `message` of a `Delivery`
    and `messages` of a `Batch` have keys, tags and places."""

    async def ack(self) -> None:
        """Finish the message."""
        if self.committed is None:
            await self.raw_message.ack()
        await super().ack()

    async def nack(self, after_ms: float | None = None) -> None:
        """Have the message delivered again, after a time that the broker chooses or after `after_ms`."""
        if self.committed is None:
            await self.raw_message.retry(after_ms)
        await super().nack()

    async def reject(self) -> None:
        """Put the message into the dead-letter topic of the group."""
        if self.committed is None:
            async with self.raw_message:
                raise DeadLetter("rejected by its handler")
        await super().reject()


class Parser:
    """Makes messages of FastStream out of deliveries."""

    codec = DefaultCodec()

    async def parse_message(self, delivery: Delivery) -> RocketMessage:
        """The message of a delivery; its headers are the properties of the application."""
        message = delivery.message
        return RocketMessage(delivery, message.body, headers=_headers(message), **_own(message))

    async def parse_batch(self, batch: Batch) -> RocketMessage:
        """One message for those of a batch. What there can be only one of, such as the topic for the answer,
        is that of the first."""
        headers = [_headers(message) for message in batch.messages]
        bodies = [message.body for message in batch.messages]
        return RocketMessage(
            batch, bodies, headers=headers[0], batch_headers=headers, **_own(batch.messages[0])
        )

    async def decode_message(self, message: StreamMessage[Any]) -> Any:
        """The decoded body, by its content type."""
        return await self.codec.decode(message)

    async def decode_batch(self, message: StreamMessage[Any]) -> list[Any]:
        """The decoded bodies of a batch, each by its content type."""
        return [
            await self.codec.decode(StreamMessage(each, each.body, **_own(each)))
            for each in message.raw_message.messages
        ]


def _headers(message: ReceivedMessage) -> dict[str, str]:
    """The properties of the application."""
    return {
        key: value
        for key, value in message.properties.items()
        if key not in _OWN and key not in props.OF_ONE_SENDING
    }


def _own(message: ReceivedMessage) -> Mapping[str, Any]:
    """What is known of a message besides, as keywords of FastStream's messages."""
    return {
        "content_type": message.properties.get(CONTENT_TYPE),
        "correlation_id": message.properties.get(CORRELATION_ID),
        "reply_to": message.properties.get(REPLY_TO, ""),
        "message_id": message.message_id,
    }


__all__ = ["Parser", "RocketMessage"]
