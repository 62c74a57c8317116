"""SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE (Java: SendMessageProcessor; behaviour sheet, C3).

Requests that arrived together go through each step together: parse, hooks, check and build, append, answer.
The messages of a batch are neighbours in the run that is appended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from random import randrange
from typing import Any

from rmqkit.broker.appending.claims import CLAIMABLE
from rmqkit.broker.appending.send_hooks import SendHooks
from rmqkit.broker.processors import send_checks as checks
from rmqkit.broker.processors.send_answers import SendAnswers
from rmqkit.broker.processors.send_columns import PlainSend, PlainSends, born_bits, collector, is_batch
from rmqkit.errors import DecodeError, RequestRefused
from rmqkit.limits import MAX_PROPERTIES_BYTES
from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.model.run import MessageRun, looks
from rmqkit.model.sysflag import (
    BORN_HOST_V6,
    INNER_BATCH,
    MULTI_TAGS,
    NEED_UNWRAP,
    STORE_HOST_V6,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
)
from rmqkit.model.topic import TopicConfig
from rmqkit.plugin.hooks import SendHeader, SendingBroker, SendRun
from rmqkit.plugin.request import JoinedProcessor, Outcome, Peer, Ticket
from rmqkit.plugin.request_broker import RequestBroker
from rmqkit.protocol import batch
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.error_answer import error_answer
from rmqkit.protocol.headers import SendMessageRequestHeaderV2
from rmqkit.protocol.message_id import UniqueKeys
from rmqkit.protocol.tags import tags_code
from rmqkit.toolkit.unsaved import Unsaved

#: These properties are replaced or removed when a client sends them.
_OUR_PROPERTIES = frozenset({props.MSG_REGION, props.TRACE_ON, props.CLUSTER, props.POP_CK})
_DELAYING = frozenset({props.DELAY, *props.TIMER_INPUTS})
_CHECKED_PROPERTIES = _OUR_PROPERTIES | {props.DELAY, props.TRANSACTION_PREPARED}
#: Bits that clients cannot set.
_OUR_BITS = BORN_HOST_V6 | STORE_HOST_V6 | NEED_UNWRAP | INNER_BATCH | TRANSACTION_MASK
_CLIENT_BITS = ~_OUR_BITS
_UNIQ_KEY, _TAGS = props.UNIQ_KEY, props.TAGS
_header_of = attrgetter("typed")
#: The headers of a run when those of all requests were decoded together with them.
_DECODED = {SendMessageRequestHeaderV2}
_SUCCESS = int(ResponseCode.SUCCESS)
#: Flag, body, properties and their stored text.
_Item = tuple[int, bytes, dict[str, str], bytes]


class SendProcessor(JoinedProcessor):
    """Stores messages of clients."""

    def __init__(self, broker: RequestBroker) -> None:
        self._broker = broker
        self._clock = broker.clock
        self._appender, self._stats = broker.appender, broker.stats
        self._hooks = SendHooks(broker.registry.send_message_hooks)
        self._after = self._hooks.after
        config, store_host = broker.config, broker.store_host
        self._answers = SendAnswers(config, store_host)
        self._sending_broker = SendingBroker(broker.address, config.region_id, store_host)
        self._v6_bit = STORE_HOST_V6 if len(store_host) > 8 else 0
        self._keys = UniqueKeys(store_host[:4] if len(store_host) == 8 else b"\x7f\x00\x00\x01")
        self._our_properties = {
            props.MSG_REGION: config.region_id,
            props.TRACE_ON: "true" if config.trace_on else "false",
            props.CLUSTER: config.broker_cluster_name,
        }
        self._suffix = props.encode(self._our_properties)
        #: Properties that need a closer check, here or by put hooks.
        self._watched = _CHECKED_PROPERTIES | (broker.appender.watched or frozenset(CLAIMABLE))
        self._max_body_bytes = 0
        self._limit_bodies()
        broker.on_config_change.append(self._limit_bodies)
        #: Topics that need no further check -> number of queues. Removed when the topic changes.
        self._plain_topics: dict[str, int] = {}
        broker.topics.on_turn.append(lambda topic: self._plain_topics.pop(topic, None))

    def _limit_bodies(self) -> None:
        """Apply maxMessageSize, which may change while the broker runs."""
        limit = self._broker.config.max_message_size
        if limit != self._max_body_bytes:
            self._max_body_bytes = limit
            self._plain = PlainSend(self._watched, self._suffix, self._v6_bit, _CLIENT_BITS, limit)
            self._collector = collector(self._plain)

    def process_joined(self, requests: Sequence[Command], peers: Sequence[Peer]) -> Sequence[Outcome]:
        outcomes: dict[int, Outcome] = {}
        headers: Any = [*map(_header_of, requests)]
        if {*map(type, headers)} != _DECODED:
            headers = self._headers(requests, outcomes)
            left = [at for at in range(len(requests)) if at not in outcomes]
            if not left:
                return list(outcomes.values())
            requests, peers = [requests[at] for at in left], [peers[at] for at in left]
        sends = SendRun(self._sending_broker, self._clock.now_ms(), requests, peers, headers)
        refused = self._hooks.before(sends) if self._hooks.asks else None
        rest = self._store_rest(sends, refused) if refused else self._store(sends)
        return _merged(outcomes, rest) if outcomes else rest

    def _headers(self, requests: Sequence[Command], failed: dict[int, Outcome]) -> list[SendHeader]:
        """The headers of the requests but for those that have none, whose outcomes are added to `failed`."""
        headers: list[SendHeader] = []
        for at, request in enumerate(requests):
            try:
                headers.append(checks.send_header(request))
            except Exception as error:  # noqa: BLE001 - one request's failure is its own answer
                failed[at] = self._failed(request, error)
        return headers

    def _store_rest(self, sends: SendRun, refused: Mapping[int, RequestRefused]) -> Sequence[Outcome]:
        """Answer the sends that hooks refuse, and store the others."""
        left = [at for at in range(len(sends)) if at not in refused]
        outcomes = {at: self._failed(sends.requests[at], refusal) for at, refusal in refused.items()}
        return _merged(outcomes, self._store(sends.select(left)) if left else [])

    def _failed(self, request: Command, error: Exception) -> Command:
        self._stats.put_failed()
        return error_answer(request, error)

    # Checking and building.

    def _build(self, sends: SendRun, faults: dict[int, Exception]) -> tuple[MessageRun, Sequence[int] | None]:
        """The messages to store, in order, and their number of each send; None when each send has one.
        Errors of sends are added to `faults`: Unsaved while a required topic or group is being created."""
        messages = self._collector()
        take, topics, end = messages.take, self._plain_topics, len(sends)
        special: list[int] = []
        at = take(sends, 0, topics)
        while at < end:
            try:
                if self._build_one(sends, at, messages):
                    added = messages.sizes[-1] if messages.sizes else 1
                    special += range(len(messages) - added, len(messages))
            except Exception as error:  # noqa: BLE001 - one send's failure is its own answer
                faults[at] = error
                messages.leave_out()
            at = take(sends, at + 1, topics)
        numbers, sizes = None, messages.sizes
        if sizes is not None:
            numbers = [at for at, size in enumerate(sizes) for _ in range(size)]
        return MessageRun(messages.messages, numbers, special), sizes

    def _build_one(self, sends: SendRun, at: int, messages: PlainSends) -> bool:
        """Add the messages of a send that needs a closer look; returns whether one of them has a watched
        property. Raises RequestRefused, Unsaved."""
        request, header, properties = sends.requests[at], sends.headers[at], sends.properties[at]
        topic, queue_id, body = header.topic, header.queue_id, request.body
        items: Sequence[_Item]
        born_host = sends.peers[at].remote_host
        bits, moved = self._v6_bit | born_bits(born_host), False
        if not 0 < len(body) <= self._max_body_bytes:
            raise checks.body_refused(len(body), self._max_body_bytes)
        if not 0 <= queue_id < self._plain_topics.get(topic, 0):
            topic, queue_id, many_tags = self._place(sends, at)
            bits, moved = bits | many_tags, topic != header.topic
        watched_topic = self._appender.watches(topic)
        if is_batch(request, header):
            if not watched_topic and messages.take_batch(topic, queue_id, header, body, born_host, bits):
                return False
            items, is_special = self._batch(body, properties)
        else:
            is_special = not self._watched.isdisjoint(properties)
            text = header.properties or ""
            if _UNIQ_KEY not in properties or moved or not _OUR_PROPERTIES.isdisjoint(properties):
                properties, stored = self._rewritten(text, properties, moved)
            else:
                stored = self._plain.stored(text)
            if len(stored) > MAX_PROPERTIES_BYTES:
                raise checks.properties_refused(len(stored))
            items = [(header.flag, body, properties, stored)]
            if is_special and checks.is_prepared(properties, header.reconsume_times or 0):
                bits |= TRANSACTION_PREPARED
        sys_flag, wait = header.sys_flag & _CLIENT_BITS | bits, properties.get(props.WAIT) != props.NO_WAIT
        built = [
            PutMessage(
                topic, queue_id, each, own, stored, flag, sys_flag, header.born_timestamp, born_host,
                header.reconsume_times or 0, 0, tags_code(own.get(_TAGS)), wait,
            )
            for flag, each, own, stored in items
        ]  # fmt: skip
        messages.add(built, sends.properties[at].get(_UNIQ_KEY))
        return is_special or watched_topic

    def _place(self, sends: SendRun, at: int) -> tuple[str, int, int]:
        """Topic and queue of a send whose topic may have to be created or replaced, or whose queue the broker
        chooses, and the bits of the system flag that depend on the topic. Raises RequestRefused, Unsaved."""
        request, header, broker = sends.requests[at], sends.headers[at], self._broker
        batched = is_batch(request, header)
        if batched and header.topic.startswith(names.RETRY_PREFIX):
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "a batch may not go to a retry topic")
        topic = checks.topic_for_send(
            broker,
            header.topic,
            header.default_topic,
            header.default_topic_queue_nums,
            sends.peers[at].remote_text,
        )
        checks.check_queue(topic, header.queue_id)
        queue_id = header.queue_id if header.queue_id >= 0 else randrange(max(topic.write_queue_nums, 1))
        name, many_tags = topic.topic_name, topic.topic_filter_type == "MULTI_TAG"
        if name.startswith(names.RETRY_PREFIX):
            group, tries = name[len(names.RETRY_PREFIX) :], header.reconsume_times or 0
            if checks.retries_exhausted(
                broker, group, tries, header.max_reconsume_times, request.version, self._clock.now_ms()
            ):
                dead_letters = checks.dead_letter_topic(broker, group)
                broker.stats.dead_lettered[group, name].add(1)
                name, queue_id = dead_letters.topic_name, 0
        elif not many_tags and not topic.order and not self._appender.watches(name):
            self._plain_topics[name] = max(topic.write_queue_nums, topic.read_queue_nums)
        return name, queue_id, MULTI_TAGS if many_tags and not batched else 0

    def _rewritten(
        self, text: str, properties: Mapping[str, str], dead_letter: bool
    ) -> tuple[dict[str, str], bytes]:
        """The properties of a message with those added by a broker (region, trace switch, cluster, and a
        unique key if the client set none), and what is stored of them."""
        added = dict(self._our_properties)
        if props.UNIQ_KEY not in properties:
            added[props.UNIQ_KEY] = self._keys.make(self._clock.now_ms())
        removed = {props.POP_CK, props.DELAY} if dead_letter else {props.POP_CK}
        kept = {name: value for name, value in properties.items() if name not in removed}
        return kept | added, props.edited(text.encode(), removed, added)

    def _batch(self, body: bytes, outer: dict[str, str]) -> tuple[list[_Item], bool]:
        """The messages of a batch, to whose properties the broker adds nothing (store-format sheet, section
        2.7), and whether one of them has a watched property. Raises RequestRefused."""
        if (refusal := self._broker.appender.unclaimed(outer)) is not None:
            raise refusal
        checks.refuse_prepared(outer)
        if not _DELAYING.isdisjoint(outer):
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "delayed messages may not travel in a batch")
        items: list[_Item] = []
        decode, watched, is_special = props.decode_bytes, self._watched, False
        try:
            for flag, each, stored in batch.decode(body):
                if not each:
                    raise DecodeError("one of its messages has no body")
                properties = decode(stored)
                if not watched.isdisjoint(properties):
                    is_special = True
                    checks.refuse_prepared(properties)
                    if not _DELAYING.isdisjoint(properties):
                        raise RequestRefused(
                            ResponseCode.MESSAGE_ILLEGAL, "delayed messages may not travel in a batch"
                        )
                items.append((flag, each, properties, stored))
            if not items:
                raise DecodeError("it holds no message")
        except DecodeError as error:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL, f"the batch cannot be read: {error}"
            ) from error
        return items, is_special

    # Storing and answering.

    def _store(self, sends: SendRun) -> Sequence[Outcome]:
        """Build, append and answer."""
        faults: dict[int, Exception] = {}
        run, sizes = self._build(sends, faults)
        # Refused messages are left out below.
        results: Any = self._appender.append(run)
        sends.messages, sends.results, sends.sizes = run.messages, results, sizes
        if not (faults or run.refused):
            return self._succeeded(sends) if run.settled else self._answer_later(sends, run)
        start = 0
        for at, size in enumerate(sizes or [1] * len(sends)):
            if size and start in run.refused:
                faults[at] = run.refused[start]
            start += size
        sends.messages, sends.results = [], []
        outcomes = {at: self._fault(sends.select([at]), error) for at, error in faults.items()}
        left = [at for at in range(len(sends)) if at not in faults]
        if not left:
            return _merged(outcomes, [])
        sends.messages, sends.results = run.messages, results
        stored = sends.select(left)
        rest = self._succeeded(stored) if run.settled else self._answer_later(stored, run)
        return _merged(outcomes, rest)

    def _answer_later(self, sends: SendRun, run: MessageRun) -> Sequence[Outcome]:
        """Answer stored sends of a run together when the last one that has to wait may be acknowledged; those
        that do not have to wait, now."""
        messages, results, appender = sends.messages, sends.results, self._appender
        spans = [sends.span(at) for at in range(len(sends))]
        waits = looks.waits_of(messages)
        ends = [results[span.stop - 1] for span in spans]
        places = ends if run.in_order else [run.last_of(results[span]) for span in spans]
        settled = appender.are_settled([waits[span.stop - 1] for span in spans], places)
        late = [at for at, is_settled in enumerate(settled) if not is_settled]
        now = [at for at, is_settled in enumerate(settled) if is_settled]
        owed: dict[int, Outcome] = {}
        if late:
            part = sends.select(late)
            tickets: list[Ticket] = []
            for span in part.by_peer():
                tickets.append(part.peers[span.start or 0].postpone(part.requests[span]))
                owed.update(dict.fromkeys(late[span], tickets[-1]))
            last, waiting = run.last_of(part.results), any(looks.waits_of(part.messages))
            appender.when_settled(waiting, last, partial(self._settled, part, tickets))
        return _merged(owed, self._succeeded(sends.select(now)) if now else [])

    def _succeeded(self, sends: SendRun) -> Sequence[Outcome]:
        """The answers to sends that are acknowledged."""
        sends.code = _SUCCESS
        if self._after is not None:
            self._after(sends)
        return self._answers.of(sends)

    def _settled(self, sends: SendRun, tickets: Sequence[Ticket], result: int | RequestRefused) -> None:
        """Answer sends that had to wait, with a ticket for those of each connection."""
        answers: Sequence[Outcome]
        if isinstance(result, RequestRefused):
            sends.ended(result.code, result.remark)
            answers = [error_answer(request, result) for request in sends.requests]
        else:
            answers = self._answers.of(sends.ended(result))
        start = 0
        for ticket in tickets:
            stop = start + len(ticket.requests)
            ticket.complete(answers[start:stop])
            start = stop
        if self._after is not None:
            self._after(sends)

    def _fault(self, send: SendRun, error: Exception) -> Outcome:
        """Answer one send that was not stored; later, if only its topic or group does not exist yet."""
        if isinstance(error, Unsaved):
            ticket = send.peers[0].postpone(send.requests)
            error.change.when_settled(partial(self._saved, send, ticket, error.change.config))
            return ticket
        refused = self._failed(send.requests[0], error)
        send.ended(refused.code, refused.remark)
        if self._after is not None:
            self._after(send)
        return refused

    def _saved(self, send: SendRun, ticket: Ticket, created: object, failure: RequestRefused | None) -> None:
        """Store a send whose topic or group was being created, or refuse it. Sends that waited for the same
        one keep their order, and those of a new topic are answered when the name servers know it: who reads
        the answer finds its route."""
        if failure is not None:
            ticket.complete([self._fault(send, failure)])
            return
        outcomes = self._store(send)
        if isinstance(created, TopicConfig):
            work = partial(self._announced, outcomes[0])
            outcomes = [send.peers[0].answer_async(send.requests[0], work)]
        ticket.complete(outcomes)

    async def _announced(self, outcome: Outcome) -> Outcome:
        await self._broker.topics.announced()
        return outcome


def _merged(some: Mapping[int, Outcome], others: Sequence[Outcome]) -> Sequence[Outcome]:
    """The outcomes of a run: those at some indexes, and all others in order."""
    rest = iter(others)
    return [some[at] if at in some else next(rest) for at in range(len(some) + len(others))]


__all__ = ["SendProcessor"]
