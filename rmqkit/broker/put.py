"""The one way into the store: put hooks, append, dispatch, held pulls (Java: DefaultMessageStore.putMessage, ReputMessageService.doReput)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence

import trio

from rmqkit.abc import Appended, Clock, Level, MessageStore
from rmqkit.broker.dispatching import Dispatching
from rmqkit.broker.held_pulls import HeldPulls
from rmqkit.broker.settling import Settled, Settling
from rmqkit.errors import MessageIllegal, RequestRefused, StoreError
from rmqkit.hook_calls import Hooks
from rmqkit.hooks import PutMessageHook
from rmqkit.model.delay import deliver_time_ms
from rmqkit.model.message import PutMessage
from rmqkit.model.names import SCHEDULE_TOPIC
from rmqkit.protocol.codes import ResponseCode

_log = logging.getLogger(__name__)

#: What became of one message: where it landed, or why it was refused.
Put = Appended | RequestRefused


class Putter:
    """Used by every processor and service that writes messages.

    delay_levels   ms by level less one: what is written into the schedule topic gets its time of delivery for a tags code
    parks_delayed  whether a service delivers messages with a delay level
    """

    def __init__(
        self,
        store: MessageStore,
        hooks: Iterable[PutMessageHook],
        dispatching: Dispatching,
        held_pulls: HeldPulls,
        acknowledge_at: Level,
        flush_timeout_ms: int,
        clock: Clock,
        delay_levels: Sequence[int],
        parks_delayed: bool,
    ) -> None:
        self.parks_delayed = parks_delayed
        self._store = store
        self._hooks = Hooks.of("put message hook", hooks).checked(PutMessageHook, ["before_put"])
        #: Properties some hook looks for; None when one wants to see every message.
        self.wants: frozenset[str] | None = None
        if all(hook.wants for hook in self._hooks):
            self.wants = frozenset(name for hook in self._hooks for name in hook.wants or ())
        self._dispatching = dispatching
        self._held = held_pulls
        self._acknowledge_at = acknowledge_at
        #: Must be running for those to be answered that wait for the disk.
        self.settling = Settling(store, flush_timeout_ms)
        self._clock = clock
        self._delay_levels = tuple(delay_levels)
        #: What others are told of once it can be read, with the log offset behind it; None where that is at once. As large as what the store buffers.
        self._unwritten: deque[tuple[int, Sequence[PutMessage], Sequence[Appended]]] | None = None
        if not store.written_by_append:
            self._unwritten = deque()
            store.on_written = self._written

    def put(self, messages: Sequence[PutMessage]) -> list[Put]:
        """Store messages that have nothing to do with each other: each is stored or refused by itself. Order is kept. Never raises."""
        refused: dict[int, RequestRefused] = {}
        for entry in self._hooks.entries:
            wants = entry.hook.wants
            for at, message in enumerate(messages):
                if at not in refused and not (wants and wants.isdisjoint(message.properties)):
                    try:
                        entry.demand("before_put", message)
                    except RequestRefused as refusal:
                        refused[at] = refusal
        if not refused:
            return self._store_each(messages)
        results = iter(self._store_each([message for at, message in enumerate(messages) if at not in refused]))
        return [refused[at] if at in refused else next(results) for at in range(len(messages))]

    def put_together(self, messages: Sequence[PutMessage]) -> list[Appended]:
        """Store all or none (a batch request). Raises RequestRefused."""
        for entry in self._hooks.entries:
            wants = entry.hook.wants
            for message in messages:
                if not (wants and wants.isdisjoint(message.properties)):
                    entry.demand("before_put", message)
        return self._append(messages)

    def put_plain(self, messages: Sequence[PutMessage]) -> list[Appended]:
        """As `put_together`, for messages to ordinary topics that carry none of the properties in `wants`: no hook need be asked."""
        return self._land(messages)

    def put_one(self, message: PutMessage) -> Appended:
        """Raises RequestRefused."""
        return self.put_together([message])[0]

    def _store_each(self, messages: Sequence[PutMessage]) -> list[Put]:
        if not messages:
            return []
        try:
            return list(self._append(messages))
        except RequestRefused as refusal:
            if len(messages) == 1 or refusal.code != ResponseCode.MESSAGE_ILLEGAL:
                return [refusal] * len(messages)
        results: list[Put] = []
        for message in messages:
            results += self._store_each([message])
        return results

    def _append(self, messages: Sequence[PutMessage]) -> list[Appended]:
        for message in messages:
            if message.topic == SCHEDULE_TOPIC:
                due_ms = deliver_time_ms(message.properties, self._clock.now_ms(), self._delay_levels)
                message.tags_code = message.tags_code if due_ms is None else due_ms
        return self._land(messages)

    def _land(self, messages: Sequence[PutMessage]) -> list[Appended]:
        try:
            landed = self._store.append(messages)
        except MessageIllegal as error:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        except StoreError as error:
            raise RequestRefused(error.code, str(error)) from error
        except Exception as error:
            _log.exception("the store failed at an append")
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the store failed: {type(error).__name__}: {error}") from error
        if self._unwritten is not None:
            if landed:
                self._unwritten.append((_end(landed[-1]), tuple(messages), landed))
        elif self._dispatching.feeds or self._held.holding:
            self._tell(messages, landed)
        return landed

    def _written(self, offset: int) -> None:
        """The store has written everything before an offset (MessageStore.on_written): it can be read, so others may know of it."""
        unwritten = self._unwritten
        while unwritten and unwritten[0][0] <= offset:
            _, messages, landed = unwritten.popleft()
            self._tell(messages, landed)

    def _tell(self, messages: Sequence[PutMessage], landed: Sequence[Appended]) -> None:
        if self._dispatching.feeds and landed:
            self._dispatching.appended(messages, landed)
        held = self._held
        if held.holding:
            for message, at in zip(messages, landed, strict=True):
                held.arrived(message.topic, message.queue_id, at.queue_offset + 1, message.tags_code)

    def must_wait(self, message: PutMessage, at: Appended) -> bool:
        """Whether the acknowledgement of a stored message has to wait for `settle`."""
        level = self._acknowledge_at if message.wait else Level.WRITTEN
        return not self._store.is_settled(_end(at), level)

    def nothing_to_wait_for(self, last: Appended) -> bool:
        """Whether everything up to a stored message may be acknowledged now, whatever its senders asked for."""
        return self._store.is_settled(_end(last), self._acknowledge_at)

    def when_settled(self, wait: bool, at: Appended, then: Settled) -> None:
        """Call `then` once everything up to a stored message may be acknowledged, to senders who `wait` for the disk (PutMessage.wait) or do not; or when it
        may not."""
        self.settling.add(_end(at), self._acknowledge_at if wait else Level.WRITTEN, then)

    async def settle(self, wait: bool, at: Appended) -> int:
        """Wait for the same: SUCCESS or FLUSH_DISK_TIMEOUT. Raises RequestRefused when nothing may be promised."""
        done = trio.Event()
        results: list[int | RequestRefused] = []

        def then(result: int | RequestRefused) -> None:
            results.append(result)
            done.set()

        self.when_settled(wait, at, then)
        await done.wait()
        if isinstance(results[0], RequestRefused):
            raise results[0]
        return results[0]

    async def settle_everything(self) -> None:
        """Wait until all that was put so far is as safe as an acknowledged message. Raises StoreError."""
        await self._store.settled(self._store.end_offset, self._acknowledge_at)


def _end(at: Appended) -> int:
    """The log offset behind a message."""
    return at.physical_offset + at.size_bytes
