"""Messages in the hands of the application."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar

from anyio import CancelScope

from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.client.consumer.source import Source
from rmqkit.client.hooks import ClientConsumeContext, ClientHooks, ConsumeReturnType
from rmqkit.errors import ClientError
from rmqkit.remoting.backend import AsyncBackend

log = logging.getLogger(__name__)
S = TypeVar("S", bound=Source)
#: A message in hand, with what it belongs to.
InHand = tuple[S, ReceivedMessage]


class Retry(Exception):
    """Raised by a handler: deliver the message again.

    after  seconds until then; rounded up to the next delay level of the broker (1 s, 5 s, 10 s, 30 s, 1 to
           10 min, 20 min, 30 min, 1 h, 2 h), in ordered queues exact between 10 ms and 30 s. Default: the
           broker chooses a time that grows with the attempts; in ordered queues 1 s
    """

    def __init__(self, after: float | None = None) -> None:
        super().__init__("retry" if after is None else f"retry after {after} s")
        self.after = after


class DeadLetter(Exception):
    """Raised by a handler: put the message into the dead-letter topic of the group, which says `why`."""

    def __init__(self, why: str = "") -> None:
        super().__init__(why)
        self.why = why


class MessageOutcomes(ABC, Generic[S]):
    """Decides what becomes of the messages of a group after their handlers."""

    group: str
    #: Of the loop that runs the handlers.
    backend: AsyncBackend

    @abstractmethod
    def check_usable(self) -> None:
        """Check that messages can be settled. Raises ClientError when the client has ended, and in a forked
        child."""

    @abstractmethod
    def measured(self, source: S, messages: int, began_s: float, *, ok: bool) -> None:
        """Count a handler that ended without being cancelled; `messages` is the number it had."""

    @abstractmethod
    async def failed(self, in_hand: Sequence[InHand[S]], error: Exception) -> None:
        """Send the messages back, or return them to their queues. When cancelled, a message may be delivered
        twice."""

    @abstractmethod
    def finished(self, source: S, message: ReceivedMessage) -> None:
        """Count the message as finished."""

    @abstractmethod
    def returned(self, source: S, message: ReceivedMessage) -> None:
        """Return the message to its queue, neither finished nor failed."""


class Handling:
    """Messages that the application handles, in a block or until `ack` or `retry`. They are settled once.
    `in_hand` has those of each queue by their offsets, in order."""

    def __init__(
        self,
        outcomes: MessageOutcomes[Any],
        hooks: ClientHooks,
        in_hand: Mapping[Source, dict[int, ReceivedMessage]],
    ) -> None:
        self._outcomes = outcomes
        self._hooks = hooks
        self._in_hand = in_hand
        self._scope = outcomes.backend.scope()
        self._began_s = outcomes.backend.current_time()
        self._contexts: list[ClientConsumeContext | None] = []
        self._entered = self._settled = False

    async def ack(self) -> bool:
        """Finish the messages, in any task of the event loop and without a block: the offsets move on, as at
        the end of one.

        Until then the messages count as handled: they limit how much is pulled, the offset does not pass
        them, and the next message of an ordered queue or key waits. When the consumer is closed or loses a
        queue, they are delivered again. Returns False when that has happened to one of them, which then is
        not finished here. Raises ClientError when they are settled already, and when the client has ended.
        """
        return await self._settle_now(None)

    async def retry(self, after_ms: float | None = None) -> bool:
        """Have the messages delivered again after a time, as `Retry` does in a block, whose limits and
        default apply. Returns and raises as `ack`; ClientError for a negative time. When cancelled, a message
        may be delivered twice."""
        if after_ms is not None and not after_ms >= 0:
            raise ClientError(f"after_ms={after_ms}: must not be negative")
        return await self._settle_now(Retry(None if after_ms is None else after_ms / 1000))

    def _enter(self) -> None:
        if self._entered or self._settled:
            self._check_unsettled()
            raise ClientError("this delivery has a block already; take the next one from the consumer")
        self._entered = True
        self._scope.__enter__()
        self._begin(self._scope)

    def _begin(self, scope: CancelScope) -> None:
        """Let the queues know a handler by its scope, and tell the hooks."""
        for source, messages in self._in_hand.items():
            source.handlers.add(scope)
            source.consumed_s = self._began_s
            if source.dropped:
                scope.cancel()
            delivered = tuple(messages.values())
            self._contexts.append(self._hooks.consuming(self._outcomes.group, source.queue, delivered))

    def _check_unsettled(self) -> None:
        if self._settled:
            raise ClientError("this delivery is settled already: settle each one once")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        cancelled = self._scope.__exit__(kind, error, trace) is True
        try:
            if not self._settled:
                self._settled = True
                return await self._settle(error, cancelled)
            if not isinstance(error, Exception):
                return cancelled
            log.warning("a block failed after its messages were settled", exc_info=error)
            return True
        finally:
            for source in self._in_hand:
                source.handled(self._scope)

    async def _settle_now(self, error: Retry | None) -> bool:
        self._check_unsettled()
        effective = not any(source.dropped for source in self._in_hand)
        if effective:
            self._outcomes.check_usable()
        self._settled = True
        # While messages are sent back, the consumer must neither leave nor give up a lock.
        settling = self._outcomes.backend.scope()
        if self._entered:
            for source in self._in_hand:
                source.handlers.add(settling)
        else:
            self._begin(settling)
        try:
            await self._settle(error, cancelled=False)
        finally:
            for source in self._in_hand:
                source.handled(settling)
        return effective

    async def _settle(self, error: BaseException | None, cancelled: bool) -> bool:
        """Returns whether the error is dealt with."""
        outcomes = self._outcomes
        failed: list[InHand[Source]] = []
        result = ConsumeReturnType.EXCEPTION if isinstance(error, Exception) else ConsumeReturnType.FAILED
        for (source, messages), context in zip(self._in_hand.items(), self._contexts, strict=True):
            if error is None or isinstance(error, Exception):
                outcomes.measured(source, len(messages), self._began_s, ok=error is None)
            if error is None and not source.dropped:
                self._hooks.consumed(context, ConsumeReturnType.SUCCESS)
                for message in messages.values():
                    outcomes.finished(source, message)
                continue
            self._hooks.consumed(context, result)
            if isinstance(error, Exception) and not cancelled and not source.dropped:
                failed.extend((source, message) for message in messages.values())
                continue
            for message in messages.values():
                outcomes.returned(source, message)
        if not isinstance(error, Exception):
            return cancelled
        if failed:
            await outcomes.failed(failed, error)
        return True


class Delivery(Handling):
    """One message, from `async for delivery in consumer`:

        async with delivery as message: ...

    Leaving the block finishes the message. An exception is logged, and the message is delivered again later;
    `Retry` and `DeadLetter` say how. A cancelled block leaves the message unfinished, to be delivered again.
    The block is cancelled when the consumer loses the message's queue.

    A delivery may also be kept without a block, and settled later by `ack` or `retry`.
    """

    def __init__(
        self, outcomes: MessageOutcomes[Any], hooks: ClientHooks, source: Source, message: ReceivedMessage
    ) -> None:
        super().__init__(outcomes, hooks, {source: {message.queue_offset: message}})
        self.message = message

    async def __aenter__(self) -> ReceivedMessage:
        self._enter()
        return self.message


class Batch(Handling):
    """Messages of any queues, from `async for batch in consumer.batches(100)`:

        async with batch as messages: ...

    The messages of one queue are together and in order. What happens to them at the end of the block is the
    same as for a `Delivery`, and the same for all of them: an exception has every message delivered again.
    `finish` takes out those that are done. The block is cancelled when the consumer loses one of the queues;
    the messages of the other queues are handed out again.
    """

    def __init__(
        self, outcomes: MessageOutcomes[Any], hooks: ClientHooks, in_hand: Sequence[InHand[Source]]
    ) -> None:
        by_queue: dict[Source, dict[int, ReceivedMessage]] = {}
        for source, message in in_hand:
            by_queue.setdefault(source, {})[message.queue_offset] = message
        super().__init__(outcomes, hooks, by_queue)
        self.messages = [message for messages in by_queue.values() for message in messages.values()]
        self._sources = {
            (message.queue, offset): source
            for source, messages in by_queue.items()
            for offset, message in messages.items()
        }

    async def __aenter__(self) -> list[ReceivedMessage]:
        self._enter()
        return self.messages

    def finish(self, *messages: ReceivedMessage) -> None:
        """Count messages of the batch as finished now, whatever becomes of the others (Java: ackIndex).
        Messages of a queue that was lost, or that are finished already, stay as they are. Raises ValueError
        for a message that is not in this batch."""
        for message in messages:
            source = self._sources.get((message.queue, message.queue_offset))
            if source is None:
                raise ValueError(f"message {message.message_id} is not in this batch")
            found = None if source.dropped else self._in_hand[source].pop(message.queue_offset, None)
            if found is not None:
                self._outcomes.finished(source, found)
