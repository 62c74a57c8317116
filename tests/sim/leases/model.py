"""A model of pop consumption beside the rules of leases: a queue, a retry queue and a log in lists, clients
that do anything, and what must be true at each step.

A history is bytes: each tells what happens next. It fails with an AssertionError where a message is lost, is
delivered after its acknowledgement or while it is leased, or where order by key is broken.
"""

from __future__ import annotations

from attrs import define, field

from rmqkit_pop.leases import Lease, Leases, NotLeased, Queue, QueueKey
from rmqkit_pop.records import AckRecord, Record, ack_of

OWN, RETRY = QueueKey("g", "T", 0), QueueKey("g", "%RETRY%g_T", 0)
REVIVE = 3
#: Failed deliveries after which a message is a dead letter.
MOST = 4
UNORDERED, BY_QUEUE, BY_KEY, CHANGING = range(4)


@define
class Message:
    number: int
    key: str | None
    failed: int = 0


@define
class Handle:
    """What a client has of a delivery."""

    key: QueueKey
    offset: int
    pop_ms: int
    number: int
    delivery: int


@define
class World:
    """One history. `finished` has the numbers of acknowledged messages and dead letters, `until` the end of
    each lease as its client knows it, `attempts` the attempt id and `last` the number of each last
    delivery, `turn` that of the first one with its attempt id, `failed` the deliveries that failed and
    count."""

    mode: int
    now_ms: int = 1_000_000
    queues: dict[QueueKey, list[Message]] = field(factory=lambda: {OWN: [], RETRY: []})
    log: list[tuple[Record, int]] = field(factory=list)
    table: dict[QueueKey, int] = field(factory=dict)
    saved: tuple[dict[QueueKey, int], int, int] = field(factory=lambda: ({}, 0, 0))
    handles: list[Handle] = field(factory=list)
    finished: set[int] = field(factory=set)
    until: dict[int, int] = field(factory=dict)
    attempts: dict[int, str | None] = field(factory=dict)
    deliveries: int = 0
    last: dict[int, int] = field(factory=dict)
    turn: dict[int, int] = field(factory=dict)
    failed: dict[int, set[int]] = field(factory=dict)
    leases: Leases = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.leases = Leases(self._start)

    def _start(self, key: QueueKey) -> int:
        return self.table.get(key, 0)

    # What happens.

    def send(self, count: int) -> None:
        for _ in range(count):
            number = len(self.queues[OWN])
            key = f"k{number % 3}" if number % 5 < 4 else None
            if self.mode == BY_QUEUE:
                key = ""
            self.queues[OWN].append(Message(number, key))

    def pop(self, limit: int, invisible_ms: int, attempt_id: str | None = None) -> None:
        keys = [OWN, RETRY]
        if self.mode in (BY_QUEUE, BY_KEY) or (self.mode == CHANGING and attempt_id is not None):
            limit -= self._pop_in_order(limit, invisible_ms, attempt_id)
            keys.remove(OWN)
        for key in keys:
            limit -= self._pop_unordered(key, limit, invisible_ms)

    def _pop_unordered(self, key: QueueKey, limit: int, invisible_ms: int) -> int:
        queue, messages = self.leases.queue(key), self.queues[key]
        if queue.ordered:
            queue.go_to(queue.committed, ordered=False)
        start = at = queue.position
        offsets: list[int] = []
        while at < len(messages) and len(offsets) < limit:
            if at not in queue.leases and at not in queue.done:
                offsets.append(at)
            at += 1
        if offsets:
            self._deliver(queue, start, offsets, at, invisible_ms)
        else:
            queue.pass_over(at)
            self.table[key] = at
        return len(offsets)

    def _pop_in_order(self, limit: int, invisible_ms: int, attempt_id: str | None) -> int:
        queue, messages = self.leases.queue(OWN), self.queues[OWN]
        if not queue.ordered:
            queue.go_to(queue.committed, ordered=True)
        while len(queue.takable(limit, self.now_ms, attempt_id)) < limit and queue.position < len(messages):
            at = queue.position
            queue.scanned([(at, messages[at].key)], at + 1)
        offsets = queue.takable(limit, self.now_ms, attempt_id)
        if offsets:
            self._deliver(queue, offsets[0], offsets, queue.position, invisible_ms, attempt_id)
        self.table[OWN] = queue.committed
        return len(offsets)

    def _deliver(
        self,
        queue: Queue,
        start: int,
        offsets: list[int],
        next_offset: int,
        invisible_ms: int,
        attempt_id: str | None = None,
    ) -> None:
        ordered = queue.ordered
        pop_ms = max(self.now_ms, self.leases.last_pop_ms(queue, offsets) + 1)
        messages = [self.queues[queue.key][offset] for offset in offsets]
        for at, message in enumerate(messages):
            self._may_be_delivered(message, {each.number for each in messages[:at]}, attempt_id)
        record = self.leases.deliver(
            queue,
            start,
            offsets,
            pop_ms,
            self.now_ms + invisible_ms,
            "b",
            next_offset=next_offset,
            attempt_id=attempt_id,
            ordered=ordered,
        )
        self._store(record)
        self.deliveries += 1
        for offset, message in zip(offsets, messages, strict=True):
            self.handles.append(Handle(queue.key, offset, pop_ms, message.number, self.deliveries))
            self.last[message.number] = self.deliveries
            is_over = self.until.get(message.number, 0) <= self.now_ms
            if attempt_id is None or is_over or self.attempts.get(message.number) != attempt_id:
                self.turn[message.number] = self.deliveries
            self.until[message.number] = self.now_ms + invisible_ms
            self.attempts[message.number] = attempt_id

    def _may_be_delivered(self, message: Message, before: set[int], attempt_id: str | None) -> None:
        """The rules that hold for each delivery."""
        number = message.number
        assert number not in self.finished, f"{number} is delivered after its acknowledgement"
        if attempt_id is None or self.attempts.get(number) != attempt_id:
            assert self.until.get(number, 0) <= self.now_ms, f"{number} is delivered while it is leased"
        if self.mode in (BY_QUEUE, BY_KEY) and message.key is not None:
            for earlier in self.queues[OWN][:number]:
                if earlier.key == message.key:
                    in_turn = earlier.number in self.finished or earlier.number in before
                    assert in_turn, f"{number} is delivered before {earlier.number}, which has its key"

    def ack(self, at: int) -> None:
        """A client acknowledges by any handle that it ever got."""
        if not self.handles:
            return
        handle = self.handles[at % len(self.handles)]
        found = self._find(handle)
        if found is None:
            assert self._is_stale(handle), f"the handle of {handle.number} is valid, and is refused"
            return
        self._store(ack_of(found.record, [handle.offset]))
        self.finished.add(handle.number)

    def extend(self, at: int, invisible_ms: int, *, suspended: bool) -> None:
        """A client renews or shortens a lease; it may go on with the old handle."""
        if not self.handles:
            return
        handle = self.handles[at % len(self.handles)]
        found = self._find(handle)
        if found is None:
            return
        records = self.leases.extend(found, handle.offset, self.now_ms, invisible_ms, suspended=suspended)
        for record in records:
            self._store(record)
        renewed = self.leases.queues[handle.key].leases[handle.offset]
        self.handles.append(
            Handle(handle.key, handle.offset, renewed.record.pop_ms, handle.number, handle.delivery)
        )
        self.until[handle.number] = self.now_ms + invisible_ms
        # Before a kill it may have failed already; after it, it goes on.
        self.failed.get(handle.number, set()).discard(self.turn[handle.number])

    def _find(self, handle: Handle) -> Lease | None:
        try:
            return self.leases.find(handle.key, handle.offset, handle.pop_ms)
        except NotLeased:
            return None

    def _is_stale(self, handle: Handle) -> bool:
        """Whether a handle may be refused: its message is finished, its lease is over, or the message was
        delivered again."""
        if handle.number in self.finished or self.until.get(handle.number, 0) <= self.now_ms:
            return True
        return self.last[handle.number] > handle.delivery

    def pass_time(self, ms: int) -> None:
        """Leases end."""
        self.now_ms += ms
        for lease in self.leases.due(self.now_ms):
            for offset in lease.open_offsets():
                message = self.queues[lease.queue.key][offset]
                assert self.until[message.number] <= self.now_ms, f"the lease of {message.number} ends early"
                self._ended(lease, offset, message)

    def _ended(self, lease: Lease, offset: int, message: Message) -> None:
        failed = lease.queue.attempts.get(offset, 0) if lease.record.ordered else message.failed
        before = self.failed.setdefault(message.number, set())
        if self.mode != CHANGING and lease.record.pop_ms:
            known = before - {self.turn[message.number]}
            assert failed == len(known), f"{failed} failed deliveries of {message.number} are {len(known)}"
        if not lease.record.suspended:
            before.add(self.turn[message.number])
        if failed >= MOST and not lease.record.suspended:
            self._store(ack_of(lease.record, [offset]))
            self.finished.add(message.number)
        elif lease.stays(offset):
            self.leases.free(lease, offset)
            self.table[OWN] = lease.queue.committed
        else:
            again = Message(message.number, message.key, failed + (not lease.record.suspended))
            self.queues[RETRY].append(again)
            self._store(ack_of(lease.record, [offset]))

    def _store(self, record: Record) -> None:
        self.log.append((record, self.now_ms))
        self.leases.apply(record, REVIVE, len(self.log) - 1, self.now_ms)
        key = QueueKey(record.group, record.topic, record.queue_id)
        self.table[key] = self.leases.queue(key).committed

    def rewrite(self, age: int) -> None:
        """Old records are stored again, so that the log before them is not needed."""
        found = self.leases.old(REVIVE, len(self.log) - age, 0)
        if found is None:
            return
        whose, records = found
        first = len(self.log)
        self.log += [(record, self.now_ms) for record in records]
        self.leases.rewritten(whose, REVIVE, first, self.now_ms)

    def save(self) -> None:
        """The table of offsets is written, with the marks in the log."""
        end = len(self.log)
        self.saved = dict(self.table), min(end, self.leases.low_water(REVIVE, end)), end

    def kill(self) -> None:
        """The broker is killed, and reads the log."""
        table, low, seen = self.saved
        self.table = dict(table)
        self.leases = Leases(self._start)
        for at in range(low, len(self.log)):
            record, stored_ms = self.log[at]
            self.leases.apply(record, REVIVE, at, stored_ms, moves=at >= seen)
        for key, queue in self.leases.queues.items():
            self.table[key] = queue.committed
        leased = sum(len(queue.leases) for queue in self.leases.queues.values())
        assert self.leases.count == leased == sum(self.leases.by_group.values())

    # The end.

    def drain(self) -> None:
        """In the end every message is acknowledged or a dead letter: none is lost, and nothing is kept."""
        for _ in range(20 + 4 * len(self.queues[OWN])):
            self.pop(32, 1_000)
            self.ack_all()
            self.pass_time(100_000)
        lost = {message.number for message in self.queues[OWN]} - self.finished
        assert not lost, f"{sorted(lost)} are lost"
        assert self.leases.count == 0
        assert self.leases.low_water(REVIVE, len(self.log)) == len(self.log)

    def ack_all(self) -> None:
        for handle in self.handles:
            if handle.number not in self.finished and self._find(handle) is not None:
                self.ack(self.handles.index(handle))


def live(history: bytes) -> World:
    """Run a history to its end. Raises AssertionError."""
    world = World(history[0] % 4 if history else UNORDERED)
    world.send(5)
    for step, value in zip(history[1::2], history[2::2], strict=False):
        act(world, step, value)
    world.drain()
    return world


def act(world: World, step: int, value: int) -> None:
    """One step of a history."""
    match step % 12:
        case 0:
            world.send(1 + value % 4)
        case 1 | 2:
            world.pop(1 + value % 6, 10 + value * 8)
        case 3:
            world.pop(1 + value % 6, 10 + value * 8, attempt_id=f"a{value % 2}")
        case 4 | 5:
            world.ack(value)
        case 6:
            world.extend(value, value * 4, suspended=False)
        case 7:
            world.extend(value, 10 + value % 32, suspended=True)
        case 8:
            world.pass_time(value * 4)
        case 9:
            world.save()
        case 10:
            world.kill()
        case _:
            world.rewrite(value % 16)


__all__ = ["AckRecord", "World", "live"]
