"""ACK_MESSAGE, BATCH_ACK_MESSAGE and CHANGE_MESSAGE_INVISIBLETIME (wire-protocol sheet, section 3.6; Java:
AckMessageProcessor, ChangeInvisibleTimeProcessor)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rmqkit.errors import DecodeError, RequestRefused
from rmqkit.model import names
from rmqkit.plugin.acks import Acknowledgement
from rmqkit.plugin.request import EachRequest, Outcome, Peer, RequestProcessor
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.error_answer import error_answer
from rmqkit.protocol.headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
)
from rmqkit.protocol.receipt import (
    BatchAck,
    BatchAckMessageRequestBody,
    Receipt,
    parse_receipt,
    real_topic,
    retry_mark,
)
from rmqkit_pop.engine import Engine
from rmqkit_pop.leases import Lease, NotLeased, QueueKey
from rmqkit_pop.limits import MAX_BATCH_ACKS
from rmqkit_pop.popping import check_invisible
from rmqkit_pop.records import ack_of


def leased(
    engine: Engine, header: AckMessageRequestHeader | ChangeInvisibleTimeRequestHeader
) -> tuple[Lease, Receipt]:
    """The lease of a message, with its handle. Raises RequestRefused."""
    engine.require_ready()
    config = engine.broker.topics.get(header.topic)
    if config is None:
        raise RequestRefused(
            ResponseCode.TOPIC_NOT_EXIST,
            f"topic {header.topic[:300]!r} does not exist: name the one that the message was read from, which"
            " for a retried message is the retry topic of its group",
        )
    if not 0 <= header.queue_id < config.read_queue_nums:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"queue {header.queue_id} of topic {header.topic} does not exist, it has"
            f" {config.read_queue_nums}",
        )
    try:
        handle = parse_receipt(header.extra_info)
    except DecodeError as error:
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"extraInfo is not a handle: {error}") from error
    _check_own(engine, handle, header)
    topic = header.topic if header.lite_topic is None else names.lite_queue(header.topic, header.lite_topic)
    key = QueueKey(header.consumer_group, topic, header.queue_id)
    try:
        lease = engine.leases.find(key, header.offset, handle.pop_time_ms)
    except NotLeased as error:
        raise RequestRefused(ResponseCode.NO_MESSAGE, str(error)) from error
    if lease.record.ordered != handle.is_ordered:
        raise RequestRefused(
            ResponseCode.NO_MESSAGE, f"the handle is not of the pop that has leased message {header.offset}"
        )
    return lease, handle


def _check_own(
    engine: Engine, handle: Receipt, header: AckMessageRequestHeader | ChangeInvisibleTimeRequestHeader
) -> None:
    """Check that a handle is of this broker, and of the message that the request names. Raises
    RequestRefused."""
    name = engine.broker.config.broker_name
    if handle.broker_name != name:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"the handle is of broker {handle.broker_name[:100]!r}, this one is {name}: send it there",
        )
    other = handle.offset is not None and handle.offset != header.offset
    if other or handle.queue_id != header.queue_id or handle.retry != retry_mark(header.topic):
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"the handle is of another message than {header.offset} in queue {header.queue_id} of topic"
            f" {header.topic}",
        )


class AckProcessor(RequestProcessor):
    """Answers acknowledgements when they are stored, all those of a run together."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def process(self, requests: Sequence[Command], peer: Peer) -> Sequence[Outcome]:
        outcomes: list[Outcome] = [None] * len(requests)
        found: dict[str, dict[tuple[Lease, int], int]] = {}
        for number, request in enumerate(requests):
            try:
                header = request.header(AckMessageRequestHeader)
                lease, _ = leased(self._engine, header)
                of_group = found.setdefault(header.consumer_group, {})
                if (lease, header.offset) in of_group:
                    raise RequestRefused(
                        ResponseCode.NO_MESSAGE, f"message {header.offset} is acknowledged already"
                    )
                of_group[lease, header.offset] = number
            except Exception as error:  # noqa: BLE001 - whatever a processor raises must become an answer
                outcomes[number] = error_answer(request, error)
        for of_group in found.values():
            if of_group:
                self._finish(of_group, requests, peer, outcomes)
        return outcomes

    def _finish(
        self,
        found: dict[tuple[Lease, int], int],
        requests: Sequence[Command],
        peer: Peer,
        outcomes: list[Outcome],
    ) -> None:
        """Store the acknowledgements of one group, and set the outcomes of their requests."""
        try:
            stored = finish(self._engine, found)
            for number in found.values():
                outcomes[number] = when_stored(requests[number], peer, stored, answer(requests[number]))
        except Exception as error:  # noqa: BLE001 - whatever a processor raises must become an answer
            for number in found.values():
                outcomes[number] = error_answer(requests[number], error)


class BatchAckProcessor(EachRequest):
    """Acknowledges what is leased of many messages; what is not is passed over, as in Java."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def handle(self, request: Command, peer: Peer) -> Outcome:
        engine = self._engine
        engine.require_ready()
        body = request.decode_body(BatchAckMessageRequestBody) if request.body else None
        if body is None or not body.acks:
            raise RequestRefused(ResponseCode.NO_MESSAGE, "the request acknowledges nothing")
        if len(body.acks) > MAX_BATCH_ACKS:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"the request has {len(body.acks)} acknowledgements, at most {MAX_BATCH_ACKS}: send several",
            )
        if body.broker_name not in (None, engine.broker.config.broker_name):
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"the acknowledgements are of broker {body.broker_name[:100]!r}: send them there",
            )
        wanted: dict[str, dict[tuple[Lease, int], None]] = {}
        for ack in body.acks:
            found = wanted.setdefault(ack.group, {})
            found |= dict.fromkeys(self._leased(ack))
        stored: list[Acknowledgement] = []
        for places in wanted.values():
            if places:
                stored.append(finish(engine, places))
        if not stored:
            return answer(request)
        return when_stored(request, peer, stored[-1], answer(request))

    def _leased(self, ack: BatchAck) -> list[tuple[Lease, int]]:
        """The leases of the messages. Raises RequestRefused for a malformed acknowledgement."""
        try:
            offsets = ack.offsets()
        except DecodeError as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from error
        key = QueueKey(ack.group, real_topic(ack.topic, ack.group, ack.retry), ack.queue_id)
        found = []
        for offset in offsets:
            try:
                found.append((self._engine.leases.find(key, offset, ack.pop_time_ms), offset))
            except NotLeased:
                continue
        return found


class ChangeInvisibleProcessor(EachRequest):
    """Renews a lease, or ends it sooner: the message is hidden for a time from now on. The old handle stays
    valid beside the new one."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def handle(self, request: Command, peer: Peer) -> Outcome:
        engine = self._engine
        header = request.header(ChangeInvisibleTimeRequestHeader)
        check_invisible(header.invisible_time, least=0)
        lease, handle = leased(engine, header)
        now_ms = engine.broker.clock.now_ms()
        records = engine.leases.extend(
            lease, header.offset, now_ms, header.invisible_time, suspended=bool(header.suspend)
        )
        stored = engine.change(records)
        renewed = engine.leases.queues[lease.queue.key].leases[header.offset].record
        times = ChangeInvisibleTimeResponseHeader(
            pop_time=renewed.pop_ms, invisible_time=renewed.invisible_ms, revive_qid=handle.revive_queue
        )
        return when_stored(request, peer, stored, answer(request, header=times))


def finish(engine: Engine, places: Iterable[tuple[Lease, int]]) -> Acknowledgement:
    """Store that messages of one group are finished, and let those go on that wait for ordered ones. Raises
    RequestRefused."""
    by_lease: dict[Lease, list[int]] = {}
    for lease, offset in places:
        by_lease.setdefault(lease, []).append(offset)
    stored = engine.change([ack_of(lease.record, offsets) for lease, offsets in by_lease.items()])
    for queue in dict.fromkeys(lease.queue for lease in by_lease if lease.record.ordered):
        engine.wake(queue)
    return stored


def when_stored(request: Command, peer: Peer, stored: Acknowledgement, success: Command) -> Outcome:
    """An answer that is given when records are stored."""
    if stored.outcome is not None:
        return _outcome(request, success, stored.outcome)
    ticket = peer.postpone((request,))
    stored.when_settled(lambda outcome: ticket.complete((_outcome(request, success, outcome),)))
    return ticket


def _outcome(request: Command, success: Command, outcome: int | RequestRefused) -> Command:
    return error_answer(request, outcome) if isinstance(outcome, RequestRefused) else success


__all__ = ["AckProcessor", "BatchAckProcessor", "ChangeInvisibleProcessor"]
