"""POP_MESSAGE (wire-protocol sheet, section 3.6; Java: PopMessageProcessor)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import trio

from rmqkit.errors import MessageIllegal, RequestRefused
from rmqkit.model import properties as props
from rmqkit.model.buffer import Buffer
from rmqkit.plugin.filter import CompiledFilter
from rmqkit.plugin.held import HeldRequest
from rmqkit.plugin.held import QueueKey as HeldKey
from rmqkit.plugin.request import Answer, EachRequest, Outcome, Peer, Reply, Ticket
from rmqkit.plugin.store import NotInMemory
from rmqkit.protocol import record as records_of
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.error_answer import error_answer
from rmqkit.protocol.headers import PopMessageRequestHeader, PopMessageResponseHeader
from rmqkit.protocol.receipt import (
    ORDERED_QUEUE,
    QueueOffsets,
    Receipt,
    offset_infos,
    order_count_entries,
    retry_mark,
)
from rmqkit.toolkit.cold_reads import retry_when_cached
from rmqkit.toolkit.restored import restored
from rmqkit.toolkit.unsaved import when_saved
from rmqkit_pop.engine import Engine
from rmqkit_pop.leases import QueueKey
from rmqkit_pop.limits import MAX_BATCH, MAX_INVISIBLE_MS
from rmqkit_pop.priority import by_priority
from rmqkit_pop.reading import PopRead
from rmqkit_pop.records import CheckPointRecord
from rmqkit_pop.waiting import (
    check,
    check_wait,
    filter_of,
    held_keys,
    held_offsets,
    own_sources,
    ranked_sources,
    retry_sources,
)

#: A held pop keeps its header as text and decoded, and its filter.
_TEXT_COPIES = 3
_NOTHING = PopMessageResponseHeader(pop_time=0, invisible_time=0, revive_qid=0, rest_num=0)


class Pop(msgspec.Struct, eq=False, gc=False):
    """A checked pop. Calling it runs a held one again; it refers to no object that the garbage collector
    would visit, as HeldRequest."""

    processor: PopProcessor
    request: Command
    header: PopMessageRequestHeader
    peer: Peer
    filter: CompiledFilter
    deadline_ms: int
    ticket: Ticket | None = None
    keys: tuple[HeldKey, ...] = ()
    #: Of a pop of lite topics.
    client_id: str = ""

    def __call__(self, final: bool) -> tuple[int, ...] | None:
        return self.processor.retry(self, final)


class PopProcessor(EachRequest):
    """Leases messages to clients, or holds their requests until there are some."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._turn = 0

    def handle(self, request: Command, peer: Peer) -> Outcome:
        return when_saved(partial(self._checked, request, peer), request, peer)

    def _checked(self, request: Command, peer: Peer) -> Outcome:
        """The outcome of a pop. Clients read the header of an answer that says there is nothing. Raises
        RequestRefused, Unsaved."""
        try:
            return self._pop(request, peer)
        except RequestRefused as refused:
            if refused.code not in (ResponseCode.POLLING_FULL, ResponseCode.POLLING_TIMEOUT):
                raise
            return answer(request, refused.code, refused.remark, header=_NOTHING)

    def _pop(self, request: Command, peer: Peer) -> Outcome:
        header = request.header(PopMessageRequestHeader)
        engine = self._engine
        check(engine, header)
        check_fields(header)
        deadline_ms = check_wait(header, engine.broker.clock.now_ms())
        pop = Pop(self, request, header, peer, filter_of(engine, header), deadline_ms)
        return self._first(pop)

    def _first(self, pop: Pop) -> Outcome:
        """Answer or hold. Raises RequestRefused, Unsaved."""
        return self._when_read(pop, partial(self._held_or_answered, pop, final=False))

    def _when_read(self, pop: Pop, then: Callable[[PopRead], Outcome]) -> Outcome:
        """What `then` makes of a look for messages, at once or by a task of the connection."""
        if pop.filter.records_async is not None:
            return pop.peer.answer_async(pop.request, partial(self._filtered, pop, then))
        try:
            return then(self.look(pop))
        except NotInMemory as missed:
            again = partial(
                retry_when_cached, self._engine.broker.store, lambda: then(self.look(pop)), missed
            )
            return pop.peer.answer_async(pop.request, again)

    def look(self, pop: Pop) -> PopRead:
        """Look for messages. Raises NotInMemory, RequestRefused, Unsaved."""
        engine, header = self._engine, pop.header
        config, group = check(engine, header)
        read = PopRead(engine, header, pop.filter, self.room(header))
        self._turn += 1
        ranked = not header.order and by_priority(config, group, self._turn)
        own = ranked_sources(engine, header, config) if ranked else own_sources(header, config, self._turn)
        retries = retry_sources(engine, header.topic, header.consumer_group)
        # Every so often what failed comes first, so that new messages do not keep it waiting for ever.
        settings = engine.settings
        often = settings.pop_from_retry_probability
        if ranked:
            often = settings.pop_from_retry_probability_for_priority
        first = not header.order and self._turn * 61 % 100 < often
        read.look([*retries, *own] if first else [*own, *retries])
        return read

    def room(self, header: PopMessageRequestHeader) -> int:
        """The number of messages that a pop may lease, at least one. Raises RequestRefused."""
        engine = self._engine
        room = engine.room(header.consumer_group)
        if room <= 0:
            raise RequestRefused(
                ResponseCode.POLLING_FULL,
                f"group {header.consumer_group} has {engine.leases.by_group[header.consumer_group]} leased"
                f" messages, all groups together {engine.leases.count}: acknowledge some first"
                " (popMaxLeasesPerGroup, popMaxLeases)",
            )
        return min(header.max_msg_nums, room)

    async def _filtered(self, pop: Pop, then: Callable[[PopRead], Outcome]) -> Outcome:
        """What `then` makes of a look with a filter that is awaited: it looks again with each verdict that
        was missing. Raises RequestRefused, Unsaved."""
        verdicts: dict[bytes, bool] = {}
        judge = pop.filter.records_async
        assert judge is not None, "the filter is asynchronous"
        missing: list[bytes] = []

        def known(records: Sequence[Buffer]) -> Sequence[bool]:
            found = [bytes(each) for each in records]
            missing.extend(each for each in found if each not in verdicts)
            return [verdicts.get(each, False) for each in found]

        looked = msgspec.structs.replace(pop, filter=CompiledFilter(pop.filter.unit, known))
        while True:
            missing.clear()
            try:
                read = self.look(looked)
            except NotInMemory as missed:
                await self._engine.broker.store.fetch(missed)
                continue
            if not missing:
                return then(read)
            unknown = list(dict.fromkeys(missing))
            for record, wanted in zip(unknown, await judge(unknown), strict=True):
                verdicts[record] = wanted
            await trio.lowlevel.checkpoint()

    def _held_or_answered(self, pop: Pop, read: PopRead, *, final: bool) -> Outcome:
        if read.found:
            return self._lease(pop, read)
        self._pass_over(read)
        if final or self._engine.broker.clock.now_ms() >= pop.deadline_ms:
            return self._nothing(pop, read, ResponseCode.POLLING_TIMEOUT)
        if not self._hold(pop, read):
            return self._nothing(pop, read, ResponseCode.POLLING_FULL)
        return pop.ticket

    def _pass_over(self, read: PopRead) -> None:
        for queue, offset in read.passed:
            self._engine.pass_over(queue, offset)

    def keys_of(self, pop: Pop) -> tuple[HeldKey, ...]:
        """What a pop waits for. Raises RequestRefused, Unsaved."""
        config, _ = check(self._engine, pop.header)
        return held_keys(self._engine, pop.header, config)

    def offsets_of(self, pop: Pop) -> tuple[int, ...]:
        """The offsets at which it waits."""
        return tuple(held_offsets(self._engine, pop.header, pop.keys))

    def _hold(self, pop: Pop, read: PopRead) -> bool:
        engine = self._engine
        pop.keys = self.keys_of(pop)
        held = HeldRequest(
            pop.request,
            pop.peer,
            pop.keys,
            self.offsets_of(pop),
            pop.deadline_ms,
            pop.filter.unit,
            pop,
            len(pop.request.body) + len(pop.request.ext_json) * _TEXT_COPIES,
        )
        if not engine.broker.held.hold(held):
            return False
        if pop.ticket is None:
            pop.ticket = pop.peer.postpone((pop.request,), held=True)
        for queue, offset in read.passed:
            # More may lie behind what was looked at.
            if offset < engine.broker.store.max_offset(*queue.key[1:]) and not (
                queue.ordered and queue.leases
            ):
                engine.wake(queue)
        return True

    def retry(self, pop: Pop, final: bool) -> tuple[int, ...] | None:
        """Run a held pop again (HeldRequest.retry). Raises nothing."""
        ticket = pop.ticket
        assert ticket is not None, "a held pop has one"
        outcome: Outcome
        try:
            if pop.peer.closed:
                outcome = self._timeout(pop)
            elif not final and self._is_idle(pop):
                return self.offsets_of(pop)
            elif pop.filter.records_async is not None:
                pop.ticket = None
                outcome = self._first(pop)
            else:
                read = self.look(pop)
                if not read.found and not final and self._engine.broker.clock.now_ms() < pop.deadline_ms:
                    self._pass_over(read)
                    return self.offsets_of(pop)
                outcome = self._held_or_answered(pop, read, final=True)
        except NotInMemory:
            outcome = self._when_read(pop, partial(self._held_or_answered, pop, final=True))
        except Exception as error:  # noqa: BLE001 - the peer needs an answer to every error
            outcome = error_answer(pop.request, error)
        ticket.complete((outcome,))
        return None

    def _is_idle(self, pop: Pop) -> bool:
        """Whether another one that was woken with it has taken everything: a cheap look, for one message
        wakes all that wait for it."""
        if pop.header.order:
            return False
        store, known = self._engine.broker.store, self._engine.leases.queues
        for topic, queue_id in pop.keys[:-1]:
            queue = known.get(QueueKey(pop.header.consumer_group, topic, queue_id))
            if store.max_offset(topic, queue_id) > (0 if queue is None else queue.position):
                return False
        return True

    def _timeout(self, pop: Pop) -> Command:
        return answer(pop.request, ResponseCode.POLLING_TIMEOUT, "no message came in time")

    def _nothing(self, pop: Pop, read: PopRead, code: ResponseCode) -> Command:
        header = PopMessageResponseHeader(
            pop_time=self._engine.broker.clock.now_ms(),
            invisible_time=pop.header.invisible_time,
            revive_qid=self._engine.revive_queue(pop.header.consumer_group),
            rest_num=read.rest,
        )
        remark = "no message came in time"
        if code == ResponseCode.POLLING_FULL:
            remark = "too many requests wait at this broker or on this connection: try again later"
        self._engine.broker.stats.missed_pulls += 1
        return answer(pop.request, code, remark, header=header)

    def _lease(self, pop: Pop, read: PopRead) -> Outcome:
        """Lease the messages; they are delivered when the leases are stored. Raises RequestRefused."""
        engine, header = self._engine, pop.header
        self._pass_over(read)
        now_ms = engine.broker.clock.now_ms()
        records, stored = engine.deliver(
            [each.delivery for each in read.found], now_ms, header.invisible_time, header.attempt_id
        )
        reply = self._reply(pop, read, records, now_ms)
        if stored.outcome is not None:
            return _settled(pop.request, reply, stored.outcome)
        ticket = pop.peer.postpone((pop.request,))
        stored.when_settled(lambda outcome: ticket.complete((_settled(pop.request, reply, outcome),)))
        return ticket

    def header_of(
        self, pop: Pop, read: PopRead, records: Sequence[CheckPointRecord], now_ms: int
    ) -> msgspec.Struct:
        """The header of an answer with messages."""
        engine, pop_ms = self._engine, records[0].pop_ms
        places = [
            QueueOffsets(
                retry_mark(each.source.key.topic),
                each.source.key.queue_id,
                each.delivery.start,
                each.delivery.offsets,
            )
            for each in read.found
        ]
        starts, offsets = offset_infos(places)
        counts: list[str] = []
        for place, record in zip(places, records, strict=True):
            if record.ordered:
                tried = list(zip(place.offsets, record.attempts, strict=True))
                counts += order_count_entries(place.retry, place.queue_id, tried)
        return PopMessageResponseHeader(
            pop_time=pop_ms,
            invisible_time=now_ms + pop.header.invisible_time - pop_ms,
            revive_qid=ORDERED_QUEUE if pop.header.order else engine.revive_queue(pop.header.consumer_group),
            rest_num=read.rest,
            start_offset_info=starts,
            msg_offset_info=offsets,
            order_count_info=";".join(counts) or None,
        )

    def _reply(self, pop: Pop, read: PopRead, records: list[CheckPointRecord], now_ms: int) -> Answer:
        engine, header = self._engine, pop.header
        found_header = self.header_of(pop, read, records, now_ms)
        head = answer(pop.request, ResponseCode.SUCCESS, "FOUND", header=found_header)
        slices: list[Buffer] = []
        stats = engine.broker.stats
        stats.found_pulls += 1
        for each, record in zip(read.found, records, strict=True):
            if each.source.key.topic != header.topic:
                slices += [self._as_original(pop, record, at, data) for at, data in enumerate(each.records)]
            else:
                slices += each.records
            topic = each.source.key.topic if each.source.is_retry else header.topic
            stats.got(header.consumer_group, topic, len(each.records), each.size)
        return Reply(head, slices, sum(map(len, slices)))

    def _as_original(self, pop: Pop, lease: CheckPointRecord, at: int, data: Buffer) -> Buffer:
        """The record number `at` of a lease in a retry topic, or in a lite topic, under the topic that was
        asked for, with its handle. One that becomes too long by it is delivered as it is: clients know retry
        topics."""
        stored = records_of.unpack(data, check_crc=False)
        handle = Receipt(
            lease.start,
            lease.pop_ms,
            lease.invisible_ms,
            ORDERED_QUEUE if lease.ordered else self._engine.revive_queue(lease.group),
            retry_mark(lease.topic),
            self._engine.broker.config.broker_name,
            lease.queue_id,
            stored.queue_offset,
        )
        message = restored(stored, pop.header.topic, stored.queue_id)
        message.prepared_offset = stored.prepared_offset
        if lease.ordered:
            message.reconsume_times += lease.attempts[at]
        try:
            message.properties_bytes = props.edited(stored.properties_bytes, (), {props.POP_CK: handle.text})
            size = records_of.message_size(message)
        except MessageIllegal:
            return data
        return records_of.pack(
            message,
            size,
            stored.queue_offset,
            stored.physical_offset,
            stored.store_timestamp_ms,
            stored.store_host,
        )


def check_fields(header: PopMessageRequestHeader) -> None:
    """Check how much is asked for, and for how long. Raises RequestRefused."""
    if not 1 <= header.max_msg_nums <= MAX_BATCH:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"maxMsgNums is {header.max_msg_nums}: a pop takes 1 to {MAX_BATCH} messages",
        )
    check_invisible(header.invisible_time, least=1)


def check_invisible(invisible_ms: int, *, least: int) -> None:
    """Check a length of a lease. Raises RequestRefused."""
    if not least <= invisible_ms <= MAX_INVISIBLE_MS:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"invisibleTime is {invisible_ms} ms: use {least} to {MAX_INVISIBLE_MS} ms, and renew the lease"
            " of what takes longer",
        )


def _settled(request: Command, reply: Answer, outcome: int | RequestRefused) -> Answer:
    """The answer when the leases are stored, here at least; when they may not be, nobody gets the messages,
    and they are delivered again after their leases."""
    return error_answer(request, outcome) if isinstance(outcome, RequestRefused) else reply


__all__ = ["Pop", "PopProcessor", "check_fields", "check_invisible"]
