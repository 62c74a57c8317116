"""The leases of one broker: their rules (`leases`) over its log and its tables.

Whatever changes a lease is appended to the revive topic first, and answered when it is as safe as an
acknowledged message. The offsets of groups follow when the records before them are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple
from zlib import crc32

import trio

from rmqkit.errors import RequestRefused
from rmqkit.model import names
from rmqkit.model.message import PutMessage
from rmqkit.model.run import MessageRun
from rmqkit.model.sysflag import BORN_HOST_V6
from rmqkit.plugin.acks import Acknowledgement
from rmqkit.plugin.request_broker import RequestBroker
from rmqkit.protocol.codes import ResponseCode
from rmqkit.toolkit.cold_reads import hot_bytes
from rmqkit_pop.leases import Lease, Leases, Queue, QueueKey
from rmqkit_pop.records import AckRecord, CheckPointRecord, Record, ack_of, to_message
from rmqkit_pop.settings import PopSettings

#: The group of the offsets in the revive topic: of the record before the first that counts (Java), and of the
#: first whose positions may be ahead of the committed offsets.
REVIVE_GROUP, SEEN_GROUP = "CID_RMQ_SYS_REVIVE_GROUP", "CID_RMQ_SYS_REVIVE_SEEN"
_IPV6_BYTES = 20


class Delivery(NamedTuple):
    """Messages of one queue for a client."""

    queue: Queue
    start: int
    offsets: Sequence[int]
    next_offset: int
    ordered: bool = False


class Engine:
    """Leases messages. `ready` while the broker is a master that knows all its leases."""

    def __init__(self, broker: RequestBroker) -> None:
        self.broker = broker
        self.ready = False
        self.leases = Leases(self._start)
        self.topic = names.revive_topic(broker.config.broker_cluster_name)
        #: The part of the log before its end that counts as in memory.
        self.memory_bytes = hot_bytes(broker.config.access_message_in_memory_max_ratio)
        #: Number of queues of the revive topic.
        self.queues = 1
        #: Set when a lease may end before the next look.
        self.sooner = trio.Event()
        #: When that look is.
        self.look_ms = 0.0
        #: Revive queue -> the offset up to which records have been applied.
        self.applied: dict[int, int] = {}
        #: (revive queue, offset) of own records behind those of others, which are not applied yet.
        self.ahead: set[tuple[int, int]] = set()
        #: Called with an ordered queue whose messages may be delivered again, or further ones.
        self.woken: Callable[[QueueKey], None] | None = None
        self._unsettled: dict[int, dict[int, None]] = {}
        self._told: dict[QueueKey, int] = {}
        broker.topics.on_turn.append(self.forget_topic)
        broker.offsets.leases.append(self.leases.leased)

    @property
    def settings(self) -> PopSettings:
        """The present ones."""
        return self.broker.config.owned(PopSettings)

    def require_ready(self) -> None:
        """Check that the leases are known. Raises RequestRefused."""
        if not self.ready:
            raise RequestRefused(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "this broker does not know its leases: it is starting, or not the master, or the service"
                " 'pop' is switched off",
            )

    def revive_queue(self, group: str) -> int:
        """The queue with the records of a group: one for all, as an answer names one."""
        return crc32(group.encode()) % self.queues

    # Places of groups.

    def _start(self, key: QueueKey) -> int:
        found = self.broker.offsets.get(*key)
        if found is not None:
            self._told[key] = found
        return found or 0

    def queue(self, key: QueueKey, first: Callable[[], int], *, ordered: bool) -> Queue:
        """The queue as its group reads it now. `first` gives the first offset for a group that has none yet;
        it is committed at once, so that nothing that comes later is missed. An offset that was set by
        others, as by a reset, counts. Raises what `first` raises."""
        offsets = self.broker.offsets
        reset = offsets.resets.get(*key)
        current = offsets.get(*key)
        known = self.leases.queues.get(key)
        if current is None:
            # The table may have been lost where the log with the leases was not.
            current = first() if known is None else known.committed
            offsets.commit(*key, current)
            self._told[key] = current
        if reset is not None:
            offsets.resets.take(*key)
            self._drop(key)
            current = reset
            offsets.commit(*key, current)
        queue = self.leases.queue(key)
        if reset is not None or self._told.get(key) != current:
            queue.done.clear()
            queue.attempts.clear()
            queue.go_to(current, ordered=ordered)
        elif queue.ordered != ordered:
            queue.go_to(queue.committed, ordered=ordered)
        self._told[key] = current
        return queue

    def _drop(self, key: QueueKey) -> None:
        """End all leases of a queue: its group reads it again."""
        queue = self.leases.queues.get(key)
        if queue is not None and queue.leases:
            found = dict.fromkeys(queue.leases.values())
            queue.dropped_ms = max(lease.record.pop_ms for lease in found)
            self.change([ack_of(lease.record, lease.open_offsets()) for lease in found])

    def commit(self, queue: Queue) -> None:
        """Commit what the group has got, when the last record of it is safe, unless others have set its
        offset meanwhile."""
        if not queue.unsettled:
            self._commit(queue.key, queue.committed)

    def _commit(self, key: QueueKey, offset: int) -> None:
        offsets, told = self.broker.offsets, self._told.get(key)
        ours = offsets.get(*key) == told and offsets.resets.get(*key) is None
        if ours and told != offset and key in self.leases.queues:
            offsets.commit(*key, offset)
            self._told[key] = offset

    def pass_over(self, queue: Queue, next_offset: int) -> None:
        """Read on behind messages that are not for the group."""
        queue.pass_over(next_offset)
        self.commit(queue)

    # Changes.

    def room(self, group: str) -> int:
        """The number of messages that may be leased to a group now."""
        settings = self.settings
        return min(
            settings.pop_max_leases_per_group - self.leases.by_group[group],
            settings.pop_max_leases - self.leases.count,
        )

    def deliver(
        self, deliveries: Sequence[Delivery], now_ms: int, invisible_ms: int, attempt_id: str | None
    ) -> tuple[list[CheckPointRecord], Acknowledgement]:
        """Lease messages to a client, which gets them when the result is settled. Raises RequestRefused when
        that cannot be stored; nothing is leased then."""
        name = self.broker.config.broker_name
        # One time for all: an answer has one. It is later than those of leases that end by it.
        pop_ms = max(
            [now_ms, *(self.leases.last_pop_ms(each.queue, each.offsets) + 1 for each in deliveries)]
        )
        records = [
            self.leases.deliver(
                each.queue,
                each.start,
                each.offsets,
                pop_ms,
                now_ms + invisible_ms,
                name,
                next_offset=each.next_offset,
                attempt_id=attempt_id,
                ordered=each.ordered,
            )
            for each in deliveries
        ]
        return records, self.change(records)

    def change(self, records: Sequence[Record], copies: Sequence[PutMessage] = ()) -> Acknowledgement:
        """Store records of one group, behind the copies of messages of which they say that they are finished,
        all or none, and change the leases. Raises RequestRefused, without effect."""
        broker, now_ms = self.broker, self.broker.clock.now_ms()
        revive_queue = self.revive_queue(records[0].group)
        messages = [*copies, *(self._message(record, revive_queue, now_ms) for record in records)]
        stored = broker.appender.append_durably(_together(messages, plain=not copies))
        places = stored.results[len(copies) :]
        for place in stored.results:
            if isinstance(place, RequestRefused):
                raise place
        unsettled = self._unsettled.setdefault(revive_queue, {})
        touched: dict[Queue, None] = {}
        for record, place in zip(records, places, strict=True):
            assert not isinstance(place, RequestRefused), "it was looked at"
            self._appended(revive_queue, place.queue_offset)
            self.leases.apply(record, revive_queue, place.queue_offset, now_ms)
            unsettled[place.queue_offset] = None
            queue = self.leases.queues.get(QueueKey(record.group, record.topic, record.queue_id))
            if queue is not None:
                touched[queue] = None
        due_ms = self.leases.next_due_ms()
        if due_ms is not None and due_ms < self.look_ms:
            self.sooner.set()
        for queue in touched:
            queue.unsettled += 1
        commits = [(queue, queue.epoch, queue.committed) for queue in touched]
        own = [place.queue_offset for place in places if not isinstance(place, RequestRefused)]

        def settled(outcome: int | RequestRefused) -> None:
            for offset in own:
                unsettled.pop(offset, None)
            safe = not isinstance(outcome, RequestRefused) and self.ready
            for queue, epoch, offset in commits:
                queue.unsettled -= 1
                if safe and queue.epoch == epoch:
                    self._commit(queue.key, offset if queue.unsettled else queue.committed)

        stored.when_settled(settled)
        return stored

    def _message(self, record: Record, revive_queue: int, now_ms: int) -> PutMessage:
        host = self.broker.store_host
        sys_flag = BORN_HOST_V6 if len(host) == _IPV6_BYTES else 0
        return to_message(record, self.topic, revive_queue, host, now_ms, sys_flag)

    def rewrite(self, revive_queue: int, before: int, before_ms: int) -> bool:
        """Store the oldest record of a revive queue again if it is before an offset and a time. False when
        there is none. Raises RequestRefused."""
        found = self.leases.old(revive_queue, before, before_ms)
        if found is None:
            return False
        whose, records = found
        now_ms = self.broker.clock.now_ms()
        messages = [self._message(record, revive_queue, now_ms) for record in records]
        stored = self.broker.appender.append_durably(_together(messages, plain=True))
        first = stored.results[0]
        if isinstance(first, RequestRefused):
            raise first
        for number in range(len(records)):
            self._appended(revive_queue, first.queue_offset + number)
        self.leases.rewritten(whose, revive_queue, first.queue_offset, now_ms)
        return True

    def _appended(self, revive_queue: int, offset: int) -> None:
        """An own record is applied; it is not to be applied once more behind records of others."""
        if self.applied.get(revive_queue) == offset:
            self.applied[revive_queue] = offset + 1
        else:
            self.ahead.add((revive_queue, offset))

    # Waiting clients.

    def wake(self, queue: Queue) -> None:
        """Let those look once more that wait for a queue of a group, though no message has come."""
        key = queue.key
        if self.woken is not None:
            self.woken(key)
        for queue_id in (-1, key.queue_id):
            for pops in (True, False):
                self.broker.held.arrived(*waiting_key(key.group, key.topic, queue_id, pops=pops), 1)

    # Progress.

    def marks(self) -> dict[int, tuple[int, int]]:
        """Revive queue -> the first record that counts, and the first whose positions may not be committed
        yet."""
        found = {}
        for revive_queue in range(self.queues):
            end = self.applied.get(revive_queue, 0)
            seen = next(iter(self._unsettled.get(revive_queue, ())), end)
            found[revive_queue] = min(seen, self.leases.low_water(revive_queue, end)), seen
        return found

    def begin(self, queues: int) -> None:
        """Forget everything, before the stored records are applied."""
        self.close()
        self.queues = queues

    def opened(self) -> None:
        """All stored records are applied."""
        for queue in list(self.leases.queues.values()):
            self.commit(queue)
        self.ready = True

    def close(self) -> None:
        """End; whoever comes next reads the leases from the log."""
        self.ready = False
        self.leases.clear()
        self._unsettled.clear()
        self._told.clear()
        self.applied.clear()
        self.ahead.clear()

    def forget_topic(self, topic: str) -> None:
        """End the leases of a topic that was deleted: another one with its name has other messages."""
        if self.ready and self.broker.topics.get(topic) is None:
            self.forget_queues(topic)

    def forget_queues(self, topic: str) -> None:
        """End the leases of all queues under this name."""
        for key, queue in list(self.leases.queues.items()):
            if key.topic == topic:
                for lease in dict.fromkeys(queue.leases.values()):
                    with suppress(RequestRefused):
                        self.change([ack_of(lease.record, lease.open_offsets())])
                self.leases.forget(key)
                self._told.pop(key, None)

    def forget_idle(self, most: int) -> None:
        """Forget queues without leases when more than `most` are known; their offsets are committed."""
        known = self.leases.queues
        if len(known) > most:
            for key, queue in list(known.items()):
                if (
                    not queue.leases
                    and not queue.keeps_order
                    and self.broker.offsets.get(*key) == queue.committed
                ):
                    self.leases.forget(key)
                    self._told.pop(key, None)


def waiting_key(group: str, topic: str, queue_id: int, *, pops: bool = True) -> tuple[str, int]:
    """The key under which the pops of a group wait, besides those of queues, or its notifications; no topic
    has such a name."""
    return f"{topic}@{group}{'' if pops else '@'}", queue_id + 1


def _together(messages: Sequence[PutMessage], *, plain: bool) -> MessageRun:
    """Messages that are stored all or none; `plain` records have nothing that put hooks look for."""
    requests = [0] * len(messages) if len(messages) > 1 else None
    return MessageRun(messages, requests, () if plain else None)


__all__ = ["REVIVE_GROUP", "SEEN_GROUP", "AckRecord", "Delivery", "Engine", "Lease", "waiting_key"]
