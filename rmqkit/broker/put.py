"""The one way into the store: put hooks, append, dispatch, held pulls (Java: DefaultMessageStore.putMessage, ReputMessageService.doReput)."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import trio

from rmqkit.abc import Appended, Clock, DispatchEntry, Dispatcher, Level, MessageStore, PutMessageHook
from rmqkit.broker.held_pulls import HeldPulls
from rmqkit.errors import MessageIllegal, RequestRefused, StoreError
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
        hooks: Sequence[PutMessageHook],
        dispatchers: Sequence[Dispatcher],
        held_pulls: HeldPulls,
        acknowledge_at: Level,
        flush_timeout_ms: int,
        clock: Clock,
        delay_levels: Sequence[int],
        parks_delayed: bool,
    ) -> None:
        self.parks_delayed = parks_delayed
        self._store = store
        self._hooks = tuple(hooks)
        #: Properties some hook looks for; None when one wants to see every message.
        self.wants: frozenset[str] | None = None
        if all(hook.wants for hook in self._hooks):
            self.wants = frozenset(name for hook in self._hooks for name in hook.wants or ())
        self._dispatchers = tuple(dispatchers)
        self._held = held_pulls
        self._acknowledge_at = acknowledge_at
        self._flush_timeout_ms = flush_timeout_ms
        self._clock = clock
        self._delay_levels = tuple(delay_levels)

    def put(self, messages: Sequence[PutMessage]) -> list[Put]:
        """Store messages that have nothing to do with each other: each is stored or refused by itself. Order is kept. Never raises."""
        refused: dict[int, RequestRefused] = {}
        for hook in self._hooks:
            wants = hook.wants
            for at, message in enumerate(messages):
                if at not in refused and not (wants and wants.isdisjoint(message.properties)):
                    try:
                        _ask(hook, message)
                    except RequestRefused as refusal:
                        refused[at] = refusal
        if not refused:
            return self._store_each(messages)
        results = iter(self._store_each([message for at, message in enumerate(messages) if at not in refused]))
        return [refused[at] if at in refused else next(results) for at in range(len(messages))]

    def put_together(self, messages: Sequence[PutMessage]) -> list[Appended]:
        """Store all or none (a batch request). Raises RequestRefused."""
        for hook in self._hooks:
            wants = hook.wants
            for message in messages:
                if not (wants and wants.isdisjoint(message.properties)):
                    _ask(hook, message)
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
        if self._dispatchers:
            self._dispatch(messages, landed)
        held = self._held
        if held.holding:
            for message, at in zip(messages, landed, strict=True):
                held.arrived(message.topic, message.queue_id, at.queue_offset + 1, message.tags_code)
        return landed

    def _dispatch(self, messages: Sequence[PutMessage], landed: Sequence[Appended]) -> None:
        entries = [DispatchEntry(message, at) for message, at in zip(messages, landed, strict=True)]
        for dispatcher in self._dispatchers:
            try:
                dispatcher.dispatch(entries)
            except Exception:  # noqa: BLE001 - one plugin's dispatcher must not take the messages from the others
                _log.exception("dispatcher %s failed", type(dispatcher).__name__)

    def must_wait(self, message: PutMessage, at: Appended) -> bool:
        """Whether the acknowledgement of a stored message has to wait for `settle`."""
        level = self._acknowledge_at if message.wait else Level.WRITTEN
        return not self._store.is_settled(at.physical_offset + at.size_bytes, level)

    def nothing_to_wait_for(self, last: Appended) -> bool:
        """Whether everything up to a stored message may be acknowledged now, whatever its senders asked for."""
        return self._store.is_settled(last.physical_offset + last.size_bytes, self._acknowledge_at)

    async def settle(self, message: PutMessage, at: Appended) -> int:
        """Wait for the level the sender is promised: SUCCESS, FLUSH_DISK_TIMEOUT when it takes too long (the message is stored all the same), or
        SERVICE_NOT_AVAILABLE when the device failed and nothing may be promised."""
        end = at.physical_offset + at.size_bytes
        level = self._acknowledge_at if message.wait else Level.WRITTEN
        try:
            with trio.move_on_after(self._flush_timeout_ms / 1000):
                await self._store.settled(end, level)
                return ResponseCode.SUCCESS
        except StoreError as error:
            _log.error("a message at %s cannot be promised: %s", at.physical_offset, error)
            return ResponseCode.SERVICE_NOT_AVAILABLE
        return ResponseCode.FLUSH_DISK_TIMEOUT


def _ask(hook: PutMessageHook, message: PutMessage) -> None:
    """Raises RequestRefused, whatever the hook raises: a plugin must not end the broker, and the sender is told."""
    try:
        hook.before_put(message)
    except RequestRefused:
        raise
    except Exception as error:
        _log.exception("put hook %s failed", type(hook).__name__)
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"put hook failed: {type(error).__name__}: {error}") from error
