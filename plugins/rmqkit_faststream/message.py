"""Messages as handlers of FastStream get them."""

from __future__ import annotations

from typing import Any, Final

from faststream._internal.parser import DefaultCodec
from faststream.message import StreamMessage

from rmqkit.client import DeadLetter, Delivery
from rmqkit.model import properties as props

#: Properties that say how a body is encoded, what it belongs to, and where its answer goes.
CONTENT_TYPE: Final = "content-type"
CORRELATION_ID: Final = "correlation-id"
REPLY_TO: Final = "reply-to"
_OWN: Final = frozenset({CONTENT_TYPE, CORRELATION_ID, REPLY_TO})


class RocketMessage(StreamMessage[Delivery]):
    """One message. `raw_message.message` is the message of the client, with its keys, tag and place."""

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
        headers = {
            key: value
            for key, value in message.properties.items()
            if key not in _OWN and key not in props.OF_ONE_SENDING
        }
        return RocketMessage(
            raw_message=delivery,
            body=message.body,
            headers=headers,
            content_type=message.properties.get(CONTENT_TYPE),
            correlation_id=message.properties.get(CORRELATION_ID),
            reply_to=message.properties.get(REPLY_TO, ""),
            message_id=message.message_id,
        )

    async def decode_message(self, message: StreamMessage[Any]) -> Any:
        """The decoded body, by its content type."""
        return await self.codec.decode(message)


__all__ = ["Parser", "RocketMessage"]
