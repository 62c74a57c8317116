"""NOTIFICATION and POLLING_INFO (wire-protocol sheet, section 3.6; Java: NotificationProcessor,
PollingInfoProcessor)."""

from __future__ import annotations

from functools import partial

import msgspec

from rmqkit.plugin.held import HeldRequest
from rmqkit.plugin.held import QueueKey as HeldKey
from rmqkit.plugin.request import EachRequest, Outcome, Peer, Ticket
from rmqkit.plugin.store import NotInMemory
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.error_answer import error_answer
from rmqkit.protocol.headers import (
    NotificationRequestHeader,
    NotificationResponseHeader,
    PollingInfoRequestHeader,
    PollingInfoResponseHeader,
)
from rmqkit.toolkit.cold_reads import retry_when_cached
from rmqkit.toolkit.unsaved import when_saved
from rmqkit_pop.engine import Engine, waiting_key
from rmqkit_pop.waiting import (
    check,
    check_wait,
    held_keys,
    held_offsets,
    own_sources,
    queue_of,
    retry_sources,
)


class _Notification(msgspec.Struct, eq=False, gc=False):
    """A checked request; calling it runs a held one again."""

    processor: NotificationProcessor
    request: Command
    header: NotificationRequestHeader
    peer: Peer
    deadline_ms: int
    ticket: Ticket | None = None
    keys: tuple[HeldKey, ...] = ()

    def __call__(self, final: bool) -> tuple[int, ...] | None:
        return self.processor.retry(self, final)


class NotificationProcessor(EachRequest):
    """Says whether a pop would find messages, and waits until one would."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def handle(self, request: Command, peer: Peer) -> Outcome:
        return when_saved(partial(self._notify, request, peer), request, peer)

    def _notify(self, request: Command, peer: Peer) -> Outcome:
        header = request.header(NotificationRequestHeader)
        check(self._engine, header)
        deadline_ms = check_wait(header, self._engine.broker.clock.now_ms())
        waiting = _Notification(self, request, header, peer, deadline_ms)
        try:
            return self._first(waiting)
        except NotInMemory as missed:
            store = self._engine.broker.store
            again = partial(retry_when_cached, store, partial(self._first, waiting), missed)
            return peer.answer_async(request, again)

    def _first(self, waiting: _Notification) -> Outcome:
        """Answer or hold. Raises NotInMemory, RequestRefused, Unsaved."""
        if self._has_messages(waiting):
            return self._said(waiting, has_msg=True)
        engine = self._engine
        if engine.broker.clock.now_ms() >= waiting.deadline_ms:
            return self._said(waiting)
        config, _ = check(engine, waiting.header)
        waiting.keys = held_keys(engine, waiting.header, config)
        held = HeldRequest(
            waiting.request,
            waiting.peer,
            waiting.keys,
            tuple(held_offsets(engine, waiting.header, waiting.keys)),
            waiting.deadline_ms,
            None,
            waiting,
            2 * len(waiting.request.ext_json),
        )
        if not engine.broker.held.hold(held):
            return self._said(waiting, polling_full=True)
        waiting.ticket = waiting.peer.postpone((waiting.request,), held=True)
        return waiting.ticket

    def retry(self, waiting: _Notification, final: bool) -> tuple[int, ...] | None:
        """Run a held request again (HeldRequest.retry). Raises nothing."""
        ticket = waiting.ticket
        assert ticket is not None, "a held request has one"
        outcome: Outcome
        try:
            has_messages = self._has_messages(waiting)
            if not has_messages and not final:
                return tuple(held_offsets(self._engine, waiting.header, waiting.keys))
            outcome = self._said(waiting, has_msg=has_messages)
        except NotInMemory:
            # What is not in memory is there.
            outcome = self._said(waiting, has_msg=True)
        except Exception as error:  # noqa: BLE001 - the peer needs an answer to every error
            outcome = error_answer(waiting.request, error)
        ticket.complete((outcome,))
        return None

    def _has_messages(self, waiting: _Notification) -> bool:
        """Whether a queue has a message behind what the group has got, and in order none that holds it up.
        Raises NotInMemory, RequestRefused, Unsaved."""
        engine, header = self._engine, waiting.header
        config, _ = check(engine, header)
        now_ms = engine.broker.clock.now_ms()
        retries = retry_sources(engine, header.topic, header.consumer_group)
        for source in [*own_sources(header, config, 0), *retries]:
            queue = queue_of(engine, source, header)
            more = queue.position < engine.broker.store.max_offset(*source.key[1:])
            if not queue.ordered:
                if more:
                    return True
            elif queue.takable(1, now_ms, header.attempt_id) or (
                more and queue.room > 0 and not queue.leases
            ):
                return True
        return False

    def _said(self, waiting: _Notification, *, has_msg: bool = False, polling_full: bool = False) -> Command:
        header = NotificationResponseHeader(has_msg=has_msg, polling_full=polling_full)
        return answer(waiting.request, ResponseCode.SUCCESS, header=header)


class PollingInfoProcessor(EachRequest):
    """Counts the requests that wait for a queue of a group."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def handle(self, request: Command, peer: Peer) -> Outcome:
        return when_saved(partial(self._count, request), request, peer)

    def _count(self, request: Command) -> Command:
        header = request.header(PollingInfoRequestHeader)
        check(self._engine, header)
        key = waiting_key(header.consumer_group, header.topic, header.queue_id)
        count = self._engine.broker.held.waiting(*key)
        return answer(request, header=PollingInfoResponseHeader(polling_num=count))


__all__ = ["NotificationProcessor", "PollingInfoProcessor"]
