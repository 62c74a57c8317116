"""POP_LITE_MESSAGE (Java: PopLiteMessageProcessor): the pop of a client from the lite topics that it has
subscribed. Each of them is read in order: while messages of one are leased, the group gets no others of
it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rmqkit.errors import RequestRefused
from rmqkit.model.attributes import LITE_BIND_TOPIC
from rmqkit.model.topic import SubscriptionGroupConfig
from rmqkit.plugin.filter import CompiledFilter
from rmqkit.plugin.held import QueueKey as HeldKey
from rmqkit.plugin.request import Outcome, Peer
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers import (
    PopLiteMessageRequestHeader,
    PopLiteMessageResponseHeader,
    PopMessageRequestHeader,
)
from rmqkit.protocol.receipt import ORDERED_QUEUE
from rmqkit_pop.leases import QueueKey
from rmqkit_pop.lite.topics import LiteTopics, waiting_key
from rmqkit_pop.popping import Pop, PopProcessor, check_fields
from rmqkit_pop.reading import PopRead
from rmqkit_pop.records import CheckPointRecord
from rmqkit_pop.waiting import QUEUE, Source, check, check_wait

_ALL_MESSAGES = CompiledFilter()


def check_parent(lites: LiteTopics, topic: str, group: SubscriptionGroupConfig) -> None:
    """Check that a topic has lite topics, and that a group may read them. Raises RequestRefused."""
    if not lites.is_parent(topic):
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"topic {topic} has no lite topics; make it one that has with: rmqkit topic create {topic} --type"
            " LITE",
        )
    bound = group.attributes.get(LITE_BIND_TOPIC)
    if bound is not None and bound != topic:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"group {group.group_name} reads the lite topics of {bound} ({LITE_BIND_TOPIC}), not of {topic}",
        )


class LitePopProcessor(PopProcessor):
    """Leases messages of lite topics to their subscribers, or holds their requests."""

    def __init__(self, lites: LiteTopics) -> None:
        super().__init__(lites.engine)
        self._lites = lites

    def _pop(self, request: Command, peer: Peer) -> Outcome:
        asked = request.header(PopLiteMessageRequestHeader)
        header = PopMessageRequestHeader(
            consumer_group=asked.consumer_group,
            topic=asked.topic,
            queue_id=0,
            max_msg_nums=asked.max_msg_num,
            invisible_time=asked.invisible_time,
            poll_time=asked.poll_time,
            init_mode=1,
            order=True,
            attempt_id=asked.attempt_id,
            order_by=QUEUE,
        )
        _, group = check(self._engine, header)
        check_parent(self._lites, asked.topic, group)
        check_fields(header)
        deadline_ms = check_wait(header, self._engine.broker.clock.now_ms())
        pop = Pop(self, request, header, peer, _ALL_MESSAGES, deadline_ms, client_id=asked.client_id)
        return self._first(pop)

    def keys_of(self, pop: Pop) -> tuple[HeldKey, ...]:
        return (waiting_key(pop.header.consumer_group, pop.client_id),)

    def offsets_of(self, pop: Pop) -> tuple[int, ...]:
        return (0,)

    def look(self, pop: Pop) -> PopRead:
        engine, header = self._engine, pop.header
        check(engine, header)
        read = PopRead(engine, header, pop.filter, self.room(header))
        client = self._lites.subscriptions.of(header.consumer_group, pop.client_id)
        if client is None or client.topic != header.topic:
            # It waits, for its subscriptions may come soon.
            return read
        client.popped_ms = engine.broker.clock.now_ms()
        names = list(client.ready)
        attempt = header.attempt_id
        if attempt is not None and client.attempt is not None and client.attempt[0] == attempt:
            names = [*client.attempt[1], *names]
        looked = []
        for name in dict.fromkeys(names):
            if read.is_full:
                break
            key = QueueKey(client.group, name, 0)
            if self._may_have(key, attempt):
                read.look([Source(key, is_retry=False)])
            looked.append(name)
        # The end of a lease, or the next message, makes them ready again. Whoever misses something in memory
        # looks at all of them once more.
        for name in looked:
            client.ready.pop(name, None)
        if read.found:
            client.attempt = None
            if attempt is not None:
                client.attempt = attempt, [each.source.key.topic for each in read.found]
        return read

    def header_of(
        self, pop: Pop, read: PopRead, records: Sequence[CheckPointRecord], now_ms: int
    ) -> msgspec.Struct:
        pop_ms = records[0].pop_ms
        return PopLiteMessageResponseHeader(
            pop_time=pop_ms,
            invisible_time=now_ms + pop.header.invisible_time - pop_ms,
            revive_qid=ORDERED_QUEUE,
            order_count_info=";".join(str(tried) for record in records for tried in record.attempts),
        )

    def _may_have(self, key: QueueKey, attempt_id: str | None) -> bool:
        """Whether a queue has messages for its group, as far as that can be seen without a read: a client may
        have thousands."""
        broker = self._engine.broker
        end = broker.store.max_offset(key.topic, 0)
        known = self._engine.leases.queues.get(key)
        if broker.offsets.resets.get(*key) is not None:
            return True
        if known is not None and known.leases:
            return any(lease.record.attempt_id == attempt_id for lease in known.leases.values())
        return end > (broker.offsets.get(*key) or 0)


__all__ = ["LitePopProcessor", "check_parent"]
