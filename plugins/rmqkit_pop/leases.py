"""The rules of leases, without I/O and clock: state, and the records that change it.

A method that decides returns a record, and changes nothing; `apply` changes the state by a record that was
stored. So a restart, which applies the stored records again, comes to the same state. What is not in a record
follows from time alone: `due` gives the leases that have ended.

A lease has one or several messages of one queue, which were delivered together. A message of a normal lease
that ends goes to a retry topic, where it is another message. A message of an ordered lease stays in its
place, and nothing behind it that must follow it is delivered before it is finished.

Times are in ms, offsets are queue offsets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec
from attrs import define, field

from rmqkit.plugin.broker import Leased
from rmqkit_pop.due import DueTimes
from rmqkit_pop.limits import MAX_WINDOW
from rmqkit_pop.records import AckRecord, CheckPointRecord, Record, ack_of

#: A lease of a broker without our fields is not over before its acknowledgements can have been read: they
#: come through that broker's timer, after their check point.
FOREIGN_GRACE_MS = 3_000


class NotLeased(Exception):
    """No lease belongs to a handle."""


class QueueKey(NamedTuple):
    """A queue of a topic as one group consumes it."""

    group: str
    topic: str
    queue_id: int


class Lease(msgspec.Struct, eq=False, gc=False):
    """Messages of a queue that were delivered together and are not finished. Not visited by the garbage
    collector, of which a million would take a second.

    record          what stores it
    record_offset   where, in its revive queue
    until_ms        its end
    look_ms         when it is looked at: at its end, or later when its messages could not be moved then
    open            bits of the messages of `offsets` that it still has
    """

    queue: Queue
    record: CheckPointRecord
    offsets: tuple[int, ...]
    revive_queue: int
    record_offset: int
    written_ms: int
    until_ms: int
    look_ms: int
    open: int

    @property
    def first_pop_ms(self) -> int:
        return self.record.first_pop_ms or self.record.pop_ms

    def stays(self, offset: int) -> bool:
        """Whether a message is delivered again in its place: in order, unless its group has read the queue
        without order since then, and is behind it."""
        return self.record.ordered and offset >= self.queue.committed

    def open_offsets(self) -> list[int]:
        """The messages that it still has."""
        return [offset for at, offset in enumerate(self.offsets) if self.open >> at & 1]


@define(eq=False, slots=True)
class Queue:
    """What is known of one queue for one group.

    position  the next message to read
    leases    offset -> lease, for each leased message
    ordered   whether it is read in order at present
    window    in order: the messages that were read and are not finished, with what keeps their order: those
              with the same text follow each other, None is free
    done      in order: the finished messages behind the first that is not
    attempts  in order: failed deliveries of a message, where there were any
    """

    key: QueueKey
    position: int
    leases: dict[int, Lease] = field(factory=dict)
    ordered: bool = False
    #: Counts the calls of `go_to`.
    epoch: int = 0
    window: dict[int, str | None] = field(factory=dict)
    done: set[int] = field(factory=set)
    attempts: dict[int, int] = field(factory=dict)
    #: The latest time of the leases that ended because the queue was set back.
    dropped_ms: int = 0
    #: Number of changes that are not safe yet.
    unsettled: int = 0
    #: Revive queue and offset of the first record that counts for its order.
    pin: tuple[int, int] | None = None
    written_ms: int = 0

    @property
    def committed(self) -> int:
        """The offset before which the group has got everything, and in order has finished everything."""
        return next(iter(self.window), self.position)

    def go_to(self, position: int, *, ordered: bool) -> None:
        """Read on at another place, or in another way."""
        self.position, self.ordered = position, ordered
        self.epoch += 1
        self.window.clear()

    def pass_over(self, next_offset: int) -> None:
        """Read on behind messages that are not for the group."""
        self.position = max(self.position, next_offset)
        self.trim()

    def scanned(self, messages: Sequence[tuple[int, str | None]], next_offset: int) -> None:
        """Take messages that were read in order into the window; those that are done stay out."""
        for offset, key in messages:
            if offset not in self.done:
                self.window[offset] = key
        self.position = next_offset
        self.trim()

    @property
    def room(self) -> int:
        """Messages that the window still takes."""
        return MAX_WINDOW - len(self.window)

    def takable(self, limit: int, now_ms: int, attempt_id: str | None = None) -> list[int]:
        """The messages of the window that may be delivered now, in order. With the attempt id of a delivery
        whose answer was lost, its messages are, until its lease ends."""
        found: list[int] = []
        waiting: set[str] = set()
        for offset, key in self.window.items():
            lease = self.leases.get(offset)
            repeated = lease is not None and lease.record.attempt_id == attempt_id is not None
            if lease is not None and not (repeated and lease.until_ms > now_ms):
                if key is not None:
                    waiting.add(key)
            elif key is None or key not in waiting:
                found.append(offset)
                if len(found) == limit:
                    break
        return found

    def finish(self, offset: int) -> None:
        """A message that is delivered in order is finished."""
        self.attempts.pop(offset, None)
        if offset >= self.committed:
            self.window.pop(offset, None)
            self.done.add(offset)
            self.trim()

    def trim(self) -> None:
        """Forget which messages before the first unfinished one are done."""
        if self.done:
            committed = self.committed
            if min(self.done) < committed:
                self.done = {offset for offset in self.done if offset >= committed}

    @property
    def keeps_order(self) -> bool:
        """Whether records count for its order."""
        return bool(self.done or self.attempts or any(lease.record.ordered for lease in self.leases.values()))


class Leases:
    """All leases of a broker. `start(key)` gives the position of a queue that is not known yet."""

    def __init__(self, start: Callable[[QueueKey], int]) -> None:
        self._start = start
        self.queues: dict[QueueKey, Queue] = {}
        self.by_group: Counter[str] = Counter()
        self.count = 0
        self._due: DueTimes[Lease] = DueTimes()
        #: Revive queue -> record offset -> whose record it is, in order.
        self._pinned: dict[int, dict[int, Lease | Queue]] = {}

    def queue(self, key: QueueKey) -> Queue:
        """The queue, from its start if it is new."""
        found = self.queues.get(key)
        if found is None:
            found = self.queues[key] = Queue(key, self._start(key))
        return found

    # Decisions.

    def last_pop_ms(self, queue: Queue, offsets: Sequence[int]) -> int:
        """The latest time of the leases that some messages have, or had before their queue was read again; 0
        without any."""
        held = (queue.leases.get(offset) for offset in offsets) if queue.leases else ()
        return max((lease.record.pop_ms for lease in held if lease is not None), default=queue.dropped_ms)

    def deliver(
        self,
        queue: Queue,
        start: int,
        offsets: Sequence[int],
        pop_ms: int,
        until_ms: int,
        broker_name: str,
        *,
        next_offset: int | None = None,
        attempt_id: str | None = None,
        ordered: bool = False,
    ) -> CheckPointRecord:
        """The record of a delivery of messages, which begins at `start`. `pop_ms` is later than
        `last_pop_ms`."""
        return CheckPointRecord(
            start=start,
            pop_ms=pop_ms,
            invisible_ms=until_ms - pop_ms,
            count=len(offsets),
            queue_id=queue.key.queue_id,
            topic=queue.key.topic,
            group=queue.key.group,
            differences=tuple(offset - start for offset in offsets),
            broker_name=broker_name,
            next_offset=None if ordered else next_offset,
            attempts=tuple(queue.attempts.get(offset, 0) for offset in offsets) if ordered else (),
            attempt_id=attempt_id if ordered else None,
            ordered=ordered,
            own=True,
        )

    def find(self, key: QueueKey, offset: int, pop_ms: int) -> Lease:
        """The lease of a handle with this time. It lives until what follows its end is done, and then the
        message may be delivered again. Raises NotLeased."""
        queue = self.queues.get(key)
        lease = queue.leases.get(offset) if queue is not None else None
        if lease is None:
            raise NotLeased(
                f"group {key.group} has no lease of message {offset} in queue {key.queue_id} of topic"
                f" {key.topic}: it is acknowledged already, or its lease has ended and it is delivered again"
            )
        if not lease.first_pop_ms <= pop_ms <= lease.record.pop_ms:
            raise NotLeased(
                f"the handle of message {offset} in queue {key.queue_id} of topic {key.topic} belongs to"
                " another delivery of it: use the handle of the last one"
            )
        return lease

    def extend(
        self,
        lease: Lease,
        offset: int,
        now_ms: int,
        invisible_ms: int,
        *,
        suspended: bool,
        hide: bool = False,
    ) -> list[Record]:
        """The records that set the end of the lease of one message. With `hide` no handle is valid from then
        on: it failed, and waits for its next delivery."""
        old = lease.record
        pop_ms = max(now_ms, old.pop_ms + 1)
        queue = lease.queue
        renewed = CheckPointRecord(
            start=offset,
            pop_ms=pop_ms,
            invisible_ms=now_ms + invisible_ms - pop_ms,
            count=1,
            queue_id=old.queue_id,
            topic=old.topic,
            group=old.group,
            differences=(0,),
            broker_name=old.broker_name,
            first_pop_ms=0 if hide else lease.first_pop_ms,
            suspended=suspended,
            attempts=(queue.attempts.get(offset, 0),) if old.ordered else (),
            attempt_id=None if hide else old.attempt_id,
            ordered=old.ordered,
            hidden=hide,
            own=True,
        )
        return [renewed, ack_of(old, [offset])]

    def leased(self, group: str, topic: str, queue_id: int) -> Leased:
        """The messages of a queue that a group has leased."""
        queue = self.queues.get(QueueKey(group, topic, queue_id))
        if queue is None:
            return Leased()
        behind = sum(offset >= queue.committed for offset in queue.leases) if queue.window else 0
        return Leased(len(queue.leases) - behind, behind)

    def due(self, now_ms: int) -> Iterator[Lease]:
        """The leases that have ended, each once: move its messages, or `look_again`."""
        return self._due.take(now_ms)

    def next_due_ms(self) -> int | None:
        """When the next lease ends."""
        return self._due.next_ms()

    def low_water(self, revive_queue: int, end: int) -> int:
        """The offset of the first record of a revive queue that still counts; `end` when none does."""
        first = self._first(revive_queue)
        return end if first is None else first[0]

    def _first(self, revive_queue: int) -> tuple[int, Lease | Queue] | None:
        """The first record that counts, and whose it is."""
        pinned = self._pinned.get(revive_queue)
        while pinned:
            at, whose = next(iter(pinned.items()))
            if isinstance(whose, Lease) or whose.keeps_order:
                return at, whose
            del pinned[at]
            whose.pin = None
        return None

    def old(
        self, revive_queue: int, before: int, before_ms: int
    ) -> tuple[Lease | Queue, list[Record]] | None:
        """Whose record is the first of a revive queue that counts, and the records with all that it says by
        now, if it is before an offset or a time; None without such a one. When they are stored,
        `rewritten`."""
        first = self._first(revive_queue)
        if first is None or (first[0] >= before and first[1].written_ms >= before_ms):
            return None
        whose = first[1]
        return whose, [_now(whose)] if isinstance(whose, Lease) else _order_of(whose)

    # Changes.

    def rewritten(self, whose: Lease | Queue, revive_queue: int, record_offset: int, now_ms: int) -> None:
        """What was stored for a lease or for the order of a queue is stored again, from an offset on."""
        if isinstance(whose, Lease):
            self._unpin(whose.revive_queue, whose.record_offset, whose)
            whose.revive_queue, whose.record_offset = revive_queue, record_offset
        elif whose.pin is not None:
            self._unpin(*whose.pin, whose)
            whose.pin = revive_queue, record_offset
        whose.written_ms = now_ms
        self._pin(revive_queue, record_offset, whose)

    def look_again(self, lease: Lease, at_ms: int) -> None:
        """Let `due` give an ended lease once more, if it still has messages."""
        if lease.open:
            lease.look_ms = at_ms
            self._due.add(lease, at_ms)

    def free(self, lease: Lease, offset: int) -> None:
        """Let a message of an ordered lease that has ended be delivered again, in its place."""
        queue = lease.queue
        failed = queue.attempts.get(offset, 0) + (not lease.record.suspended)
        if failed:
            queue.attempts[offset] = failed
        self._leave(lease, offset)

    def apply(
        self, record: Record, revive_queue: int, record_offset: int, now_ms: int, *, moves: bool = True
    ) -> None:
        """Change the state by a stored record. `moves`: whether it says where its queue is read next."""
        key = QueueKey(record.group, record.topic, record.queue_id)
        if moves and record.next_offset is not None:
            self._move(self.queue(key), record.next_offset, ordered=record.ordered)
        if isinstance(record, CheckPointRecord):
            self._apply_check_point(self.queue(key), record, revive_queue, record_offset, now_ms)
        else:
            self._apply_ack(key, record, revive_queue, record_offset, now_ms)

    def _move(self, queue: Queue, next_offset: int, *, ordered: bool) -> None:
        """Read a queue on at an offset. In order that is the first message which is not finished."""
        if not ordered:
            queue.position = next_offset
        elif not queue.window:
            queue.position = max(queue.position, next_offset)
        queue.trim()

    def _apply_check_point(
        self, queue: Queue, record: CheckPointRecord, revive_queue: int, at: int, now_ms: int
    ) -> None:
        places = record.places
        if not places:
            return
        offsets = [offset for _, offset in places]
        known = queue.leases.get(offsets[0])
        if known is not None and _named(known.record, record):
            if not record.ordered:
                self.rewritten(known, revive_queue, at, now_ms)
            return
        for offset in offsets:
            old = queue.leases.get(offset)
            if old is not None:
                self._leave(old, offset)
        until_ms = record.pop_ms + record.invisible_ms + (0 if record.own else FOREIGN_GRACE_MS)
        lease = Lease(
            queue,
            record,
            tuple(offsets),
            revive_queue,
            at,
            now_ms,
            until_ms,
            until_ms,
            (1 << len(offsets)) - 1,
        )
        queue.leases.update(dict.fromkeys(offsets, lease))
        self.count += len(offsets)
        self.by_group[queue.key.group] += len(offsets)
        self._due.add(lease, until_ms)
        if record.ordered:
            for place, offset in places:
                if place < len(record.attempts) and record.attempts[place]:
                    queue.attempts[offset] = record.attempts[place]
            self._pin_order(queue, revive_queue, at, now_ms)
        else:
            for offset in offsets if queue.attempts else ():
                queue.attempts.pop(offset, None)
            self._pin(revive_queue, at, lease)

    def _apply_ack(self, key: QueueKey, record: AckRecord, revive_queue: int, at: int, now_ms: int) -> None:
        queue = self.queues.get(key)
        if queue is None and record.ordered:
            queue = self.queue(key)
        if queue is None:
            return
        for offset in record.offsets:
            lease = queue.leases.get(offset)
            if lease is not None:
                if not _named(lease.record, record):
                    continue
                self._leave(lease, offset)
            if record.ordered:
                queue.finish(offset)
                self._pin_order(queue, revive_queue, at, now_ms)

    def forget(self, key: QueueKey) -> None:
        """Forget a queue, which has no leases, or whose topic or group is gone."""
        queue = self.queues.pop(key, None)
        if queue is None:
            return
        for offset, lease in list(queue.leases.items()):
            self._leave(lease, offset)
        if queue.pin is not None:
            self._unpin(*queue.pin, queue)

    def clear(self) -> None:
        """Forget everything."""
        self._due.clear()
        self._pinned.clear()
        for queue in self.queues.values():
            queue.leases.clear()
        self.queues.clear()
        self.by_group.clear()
        self.count = 0

    def _leave(self, lease: Lease, offset: int) -> None:
        """Take a message from its lease; the last one ends it."""
        del lease.queue.leases[offset]
        lease.open &= ~(1 << lease.offsets.index(offset))
        group = lease.queue.key.group
        self.count -= 1
        self.by_group[group] -= 1
        if not self.by_group[group]:
            del self.by_group[group]
        if not lease.open:
            self._due.remove(lease, lease.look_ms)
            if not lease.record.ordered:
                self._unpin(lease.revive_queue, lease.record_offset, lease)

    def _pin_order(self, queue: Queue, revive_queue: int, at: int, now_ms: int) -> None:
        if queue.pin is None:
            queue.pin, queue.written_ms = (revive_queue, at), now_ms
            self._pin(revive_queue, at, queue)

    def _pin(self, revive_queue: int, at: int, whose: Lease | Queue) -> None:
        self._pinned.setdefault(revive_queue, {})[at] = whose

    def _unpin(self, revive_queue: int, at: int, whose: Lease | Queue) -> None:
        pinned = self._pinned.get(revive_queue)
        if pinned is not None and pinned.get(at) is whose:
            del pinned[at]


def _named(lease: CheckPointRecord, record: Record) -> bool:
    """Whether a record names a lease, as Java compares them."""
    return lease.start == record.start and lease.pop_ms == record.pop_ms and lease.ordered == record.ordered


def _now(lease: Lease) -> CheckPointRecord:
    """The record of a lease with what is acknowledged by now."""
    record = lease.record
    still = set(lease.open_offsets())
    finished = sum(1 << at for at, offset in record.places if offset not in still)
    return msgspec.structs.replace(record, acked=record.acked | finished, next_offset=None)


def _order_of(queue: Queue) -> list[Record]:
    """Records with all that counts for the order of a queue."""
    key = queue.key
    template = CheckPointRecord(
        start=0,
        pop_ms=0,
        invisible_ms=0,
        count=1,
        queue_id=key.queue_id,
        topic=key.topic,
        group=key.group,
        differences=(0,),
        suspended=True,
        ordered=True,
        own=True,
    )
    leased = dict.fromkeys(lease for lease in queue.leases.values() if lease.record.ordered)
    found: list[Record] = [_now(lease) for lease in leased]
    found += [
        msgspec.structs.replace(template, start=offset, attempts=(failed,))
        for offset, failed in queue.attempts.items()
        if not ((lease := queue.leases.get(offset)) and lease.record.ordered)
    ]
    if queue.done:
        done = tuple(sorted(queue.done))
        found.append(msgspec.structs.replace(ack_of(template, done), offset=-1, several=done))
    found[0] = msgspec.structs.replace(found[0], next_offset=queue.committed)
    return found


__all__ = ["FOREIGN_GRACE_MS", "Lease", "Leases", "NotLeased", "Queue", "QueueKey"]
