"""`Topic` for threads."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Generic, Self, Unpack

from rmqkit.client.blocking_consumers import BlockingLitePullConsumer, BlockingPushConsumer
from rmqkit.client.blocking_faces import Face, call_in_loop
from rmqkit.client.codecs import Codec, Value
from rmqkit.client.consumer.options import Expression, LitePullKeywords, PushKeywords
from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.client.producing.send_options import MessageKeywords, SendKeywords
from rmqkit.client.producing.send_result import SendResult
from rmqkit.client.topic import Topic
from rmqkit.model.message import Message
from rmqkit.model.subscription import SUBSCRIBE_ALL


class BlockingTopic(Face[Topic[Value]], Generic[Value]):
    """`Topic` for threads: every method takes the same arguments and raises the same."""

    @property
    def name(self) -> str:
        """The name of the topic."""
        return self._inner.name

    @property
    def codec(self) -> Codec[Value]:
        """What encodes and decodes the values."""
        return self._inner.codec

    def close(self) -> None:
        """Close what is open (`Topic.aclose`). May be called twice; does nothing in a forked child."""
        if not self._client.in_forked_child:
            self._client.run(self._inner.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, value: Value, **keywords: Unpack[SendKeywords]) -> SendResult:
        """Send a value, and wait until a broker has stored it (`Topic.send`)."""
        return self._client.run(partial(self._inner.send, value, **keywords))

    def message(self, value: Value, **parts: Unpack[MessageKeywords]) -> Message:
        """A message with the value, for batches and transactions (`Topic.message`)."""
        return self._inner.message(value, **parts)

    def consumer(
        self, group: str, *, expression: str | Expression = SUBSCRIBE_ALL, **options: Unpack[LitePullKeywords]
    ) -> BlockingLitePullConsumer[Value]:
        """A member of a group that is iterated over, or asked for messages (`Topic.consumer`)."""
        make = partial(self._inner.consumer, group, expression=expression, **options)
        return BlockingLitePullConsumer(self._client, call_in_loop(self._client, make))

    def run(
        self,
        handle: Callable[[ReceivedMessage[Value]], Awaitable[object] | object],
        *,
        group: str,
        expression: str | Expression = SUBSCRIBE_ALL,
        stop_on: Sequence[signal.Signals] = (),
        **options: Unpack[PushKeywords],
    ) -> None:
        """Join a group and call `handle` with each message, in threads, until a signal of `stop_on` arrives
        (`Topic.run`, `BlockingPushConsumer.run`)."""
        self.push_consumer(group, expression=expression, **options).run(handle, stop_on=stop_on)

    def push_consumer(
        self, group: str, *, expression: str | Expression = SUBSCRIBE_ALL, **options: Unpack[PushKeywords]
    ) -> BlockingPushConsumer:
        """What `run` makes, to be opened with `with`, and stopped by `stop` (`Topic.push_consumer`)."""
        make = partial(self._inner.push_consumer, group, expression=expression, **options)
        return BlockingPushConsumer(self._client, call_in_loop(self._client, make))
