"""A topic with the type of its values."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Generic, Protocol, Self, Unpack

from rmqkit.client.codecs import Codec, Value
from rmqkit.client.consumer.lite_pull import LitePullConsumer
from rmqkit.client.consumer.options import Expression, LitePullKeywords, PushKeywords, Subscribe
from rmqkit.client.consumer.push_consumer import PushConsumer
from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.client.producing.producer import Producer
from rmqkit.client.producing.send_options import MessageKeywords, SendKeywords, SendOptions
from rmqkit.client.producing.send_result import SendResult
from rmqkit.errors import ClientError
from rmqkit.model.message import Message
from rmqkit.model.names import topic_fault
from rmqkit.model.subscription import SUBSCRIBE_ALL


class Consumers(Protocol):
    """Makes the consumers of a topic: what `Topic` needs of a client."""

    def lite_pull_consumer(
        self, group: str, *, codec: Codec[Value], subscribe: Subscribe, **options: Unpack[LitePullKeywords]
    ) -> LitePullConsumer[Value]:
        """A member of a group that is asked for messages (`Client.lite_pull_consumer`)."""

    def push_consumer(
        self, group: str, *, subscribe: Subscribe, codec: Codec[Any] | None, **options: Unpack[PushKeywords]
    ) -> PushConsumer:
        """A member of a group with handlers (`Client.push_consumer`)."""


class Topic(Generic[Value]):
    """A topic whose messages have values of one type, made by `Client.topic`. `codec` encodes and decodes
    them; a message that cannot be decoded goes to the dead letters of the group that reads it.

    The first send opens its producer. `aclose`, or the end of `async with`, closes it, and the consumers that
    are still open; the end of the client does so, too, but waits for nothing.
    """

    def __init__(
        self, client: Consumers, name: str, codec: Codec[Value], producer: Callable[[], Producer[Value]]
    ) -> None:
        fault = topic_fault(name)
        if fault is not None:
            raise ClientError(f"{fault}; a handle needs a legal topic")
        self.name = name
        self.codec = codec
        self._client = client
        self._make_producer = producer
        self._producer: Producer[Value] | None = None
        self._consumers: list[LitePullConsumer[Value]] = []

    async def aclose(self) -> None:
        """Close what is open: the producer as `Producer.aclose`, the consumers as `LitePullConsumer.aclose`.
        May be called twice, and the handle may be used again."""
        producer, self._producer = self._producer, None
        consumers, self._consumers = self._consumers, []
        try:
            if producer is not None:
                await producer.aclose()
        finally:
            for consumer in consumers:
                await consumer.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def send(self, value: Value, **keywords: Unpack[SendKeywords]) -> SendResult:
        """Send a value, and wait until a broker has stored it. The keywords are those of `Producer.send`.
        Raises as that, ClientError when the client has another producer of the group, and as `Codec.encode`,
        when nothing was sent. When cancelled, the message may have been stored."""
        return await (await self._opened_producer()).send(self.name, value, **keywords)

    def message(self, value: Value, **parts: Unpack[MessageKeywords]) -> Message:
        """A message with the value, for `Producer.send_batch` and transactions. The keywords are those of
        `Message`. Raises as `Message` and `Codec.encode`."""
        return SendOptions(**parts).message(self.name, value, self.codec)

    def consumer(
        self, group: str, *, expression: str | Expression = SUBSCRIBE_ALL, **options: Unpack[LitePullKeywords]
    ) -> LitePullConsumer[Value]:
        """A member of a group that is iterated over, or asked for messages: see `LitePullConsumer`. Leave it
        by `async with`, or the end of this handle. `expression` selects messages, such as `tag("new")`.
        Raises as `Client.lite_pull_consumer`."""
        subscribe = {self.name: expression}
        made = self._client.lite_pull_consumer(group, codec=self.codec, subscribe=subscribe, **options)
        self._consumers = [each for each in self._consumers if not each.has_left]
        self._consumers.append(made)
        return made

    async def run(
        self,
        handle: Callable[[ReceivedMessage[Value]], Awaitable[object] | object],
        *,
        group: str,
        expression: str | Expression = SUBSCRIBE_ALL,
        stop_on: Sequence[signal.Signals] = (),
        **options: Unpack[PushKeywords],
    ) -> None:
        """Join a group as a push consumer, and call `handle` with each message until a signal of `stop_on`
        arrives. What it raises has the message delivered again, or makes it a dead letter: see
        `PushConsumer`. The keywords are those of `PushOptions`. Raises as `Client.push_consumer` and
        `PushConsumer.run`; when cancelled, handlers get `drain_s` to end, and the group is left."""
        async with self.push_consumer(group, expression=expression, **options) as consumer:
            await consumer.run(handle, stop_on=stop_on)

    def push_consumer(
        self, group: str, *, expression: str | Expression = SUBSCRIBE_ALL, **options: Unpack[PushKeywords]
    ) -> PushConsumer:
        """What `run` makes, for deliveries and batches, to be opened with `async with`. Raises as
        `Client.push_consumer`."""
        subscribe = {self.name: expression}
        return self._client.push_consumer(group, subscribe=subscribe, codec=self.codec, **options)

    async def _opened_producer(self) -> Producer[Value]:
        if self._producer is None:
            # No other task runs before it is open.
            producer = self._make_producer()
            await producer.start()
            self._producer = producer
        return self._producer
