"""Pulls and other requests that found nothing and wait for a message or their deadline (Java:
PullRequestHoldService; behaviour sheet, C5).

A held request is a value in a table, not a task: thousands cost only memory. It is indexed by its queues, its
connection and its deadline; removing it costs a constant time for each queue. A pull has one queue.
Operations on many pulls (a message that wakes them, passed deadlines, a closed connection) are jobs of
SlicedWork, so a sender never pays for the pulls woken by its message. A pull whose filter rejects the new
messages stays held, with its deadline."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from attrs import define, field

from rmqkit.broker.run.sliced_work import SlicedWork
from rmqkit.limits import MAX_HELD_PULL_BYTES, MAX_HELD_PULLS, MAX_HELD_PULLS_PER_CONNECTION
from rmqkit.plugin.held import HeldRequest, QueueKey
from rmqkit.plugin.request import Peer
from rmqkit.plugin.store import UnitFilter

_log = logging.getLogger(__name__)
#: Approximate cost in microseconds of the steps of a job: an answer, removal from the tables, checking a
#: pull.
_ANSWER_COST = 60
_FORGET_COST = 5
_LOOK_COST = 1
#: Cost of a filter per rejected message.
_REJECT_COST = 5
#: Deadlines are checked once a second, so pulls need not be sorted more finely.
_DEADLINE_STEP_MS = 256
#: A moment after all deadlines.
_END_MS = 1 << 62
#: Memory of a held pull besides the texts of its request, and of each further queue of a request.
_PULL_BYTES = 2_560
_KEY_BYTES = 800
#: Tags codes of messages that arrived since a queue's pulls were last looked at; with more than these all
#: pulls behind are woken.
_MAX_TAGS_CODES = 64


@define(eq=False, slots=True)
class _Queue:
    """The pulls of one queue in order of arrival, each with the index of the queue among its keys, and the
    growth of the queue since they were last checked. With `final`, pulls that are behind are answered
    whatever they find."""

    key: QueueKey
    #: The keys of pulls that wait for no other queue: one tuple for all, for the garbage collector visits it.
    alone: tuple[QueueKey]
    pulls: dict[HeldRequest, int] = field(factory=dict)
    waking: bool = False
    final: bool = False
    grown: int | None = None
    #: None when any pull may match the new messages.
    tags_codes: set[int] | None = None


@define(eq=False, slots=True)
class _Holder:
    """The pulls of one connection; `gone` after it has ended."""

    pulls: dict[HeldRequest, None] = field(factory=dict)
    bytes: int = 0
    gone: bool = False


def _nothing() -> None:
    """Does nothing: the default for a missing callback."""


class HeldPulls:
    """The held pulls of a broker. `count` is their number; `on_first` is called before the first one is held
    and after each time that none were left.

    `refused` counts pulls that were not held because of a limit, `evicted` those answered early to make room
    for other connections.
    """

    def __init__(self, work: SlicedWork) -> None:
        self._work = work
        self._queues: dict[QueueKey, _Queue] = {}
        self._holders: dict[Peer, _Holder] = {}
        self._by_deadline: dict[int, dict[HeldRequest, None]] = {}
        self.count = 0
        self.on_first: Callable[[], None] = _nothing
        self._bytes = 0
        self._largest: _Holder | None = None
        self._expiring = False
        self._rechecking = False
        self.refused = 0
        self.evicted = 0

    def __len__(self) -> int:
        return self.count

    def hold(self, pull: HeldRequest) -> bool:
        """Hold a request until its queues grow (`rmqkit.plugin.held.HeldRequests`)."""
        keys = pull.keys
        if len(keys) != len(pull.offsets) or not keys or (len(keys) > 1 and len({*keys}) < len(keys)):
            raise ValueError(f"{len(keys)} keys, each once, and {len(pull.offsets)} offsets cannot be held")
        holder = self._holders.get(pull.peer)
        if holder is None:
            holder = _Holder()
        size = _size(pull)
        if len(holder.pulls) >= MAX_HELD_PULLS_PER_CONNECTION or not self._make_room(holder, size):
            self.refused += 1
            return False
        self._holders[pull.peer] = holder
        pull._holder = holder
        for at, key in enumerate(keys):
            queue = self._queue_of(key)
            queue.pulls[pull] = at
        if len(keys) == 1:
            pull.keys = queue.alone
        holder.pulls[pull] = None
        self._by_deadline.setdefault(pull.deadline_ms // _DEADLINE_STEP_MS, {})[pull] = None
        if not self.count:
            self.on_first()
        self.count += 1
        self._bytes += size
        holder.bytes += size
        return True

    def _queue_of(self, key: QueueKey) -> _Queue:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue(key, (key,))
        return queue

    def holds(self, key: QueueKey) -> bool:
        """Whether pulls of this queue are held."""
        return key in self._queues

    def waiting(self, topic: str, queue_id: int) -> int:
        """The number of pulls of this queue."""
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else len(queue.pulls)

    def arrived(self, topic: str, queue_id: int, max_offset: int, *tags_codes: int) -> None:
        """A queue grew to `max_offset`, by messages with these tags codes: pulls whose filter may match one
        of them are woken; without codes all that are behind.

        They are answered by a job, after the caller has continued.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is not None:
            self._has_grown(queue, max_offset, tags_codes)

    def _has_grown(self, queue: _Queue, max_offset: int, tags_codes: Sequence[int]) -> None:
        if queue.grown is None:
            queue.tags_codes = set()
            if not queue.waking:
                queue.waking = True
                self._work.add(self._wake(queue))
        queue.grown = max_offset
        codes = queue.tags_codes
        if not tags_codes or codes is None or len(codes) >= _MAX_TAGS_CODES:
            queue.tags_codes = None
        else:
            codes.update(tags_codes)

    def expire(self, now_ms: int) -> None:
        """Let a job answer the pulls whose deadline has passed."""
        if self._by_deadline and not self._expiring:
            self._expiring = True
            self._work.add(self._expire(now_ms))

    def end_all(self) -> None:
        """Let a job answer all pulls, as at their deadlines."""
        self._work.add(self._end_until(_END_MS))

    def recheck(self, max_offset: Callable[[str, int], int]) -> None:
        """Safety net: compare every queue's end with its held pulls, and let a job answer those that are
        behind."""
        if self._queues and not self._rechecking:
            self._rechecking = True
            self._work.add(self._recheck(max_offset))

    def drop_peer(self, peer: Peer) -> None:
        """Forget the pulls of a connection that has ended, which no longer count."""
        holder = self._holders.pop(peer, None)
        if holder is None:
            return
        holder.gone = True
        self.count -= len(holder.pulls)
        self._work.add(self._forget(holder))

    def abandon(self) -> None:
        """Forget all pulls without answers when the broker has ended, to free their memory."""
        for pulls in self._by_deadline.values():
            for pull in pulls:
                pull.ended = True
                pull._holder.pulls.clear()
        for queue in self._queues.values():
            queue.pulls.clear()
        self._by_deadline.clear()
        self._queues.clear()
        self._holders.clear()
        self._largest = None
        self.count = self._bytes = 0

    # Jobs.

    def _wake(self, queue: _Queue) -> Iterator[int]:
        """At most one job per queue: messages that arrive meanwhile are handled afterwards, all at once."""
        while (end := queue.grown) is not None:
            codes, final = queue.tags_codes, queue.final
            queue.grown, queue.final = None, False
            yield _LOOK_COST * (len(codes) if codes else 1)

            def is_awake(pull: HeldRequest, end: int = end, codes: set[int] | None = codes) -> bool:
                return pull.offsets[queue.pulls[pull]] < end and (
                    codes is None or pull.unit_filter is None or _may_match(pull.unit_filter, codes)
                )

            yield from self._answer(deque(queue.pulls), is_awake, final)
        queue.waking = False

    def _expire(self, now_ms: int) -> Iterator[int]:
        yield from self._end_until(now_ms)
        self._expiring = False

    def _end_until(self, now_ms: int) -> Iterator[int]:
        for step in sorted(self._by_deadline):
            if step > now_ms // _DEADLINE_STEP_MS:
                break
            yield from self._answer(
                deque(self._by_deadline.get(step, ())), lambda pull: pull.deadline_ms <= now_ms, True
            )

    def _recheck(self, max_offset: Callable[[str, int], int]) -> Iterator[int]:
        for queue in list(self._queues.values()):
            self._has_grown(queue, max_offset(*queue.key), ())
            queue.final = True
            yield _FORGET_COST
        self._rechecking = False

    def _answer(
        self, pulls: deque[HeldRequest], wanted: Callable[[HeldRequest], bool], final: bool
    ) -> Iterator[int]:
        """Removes the pulls from `pulls`, so that each is freed in the slice that ends it."""
        while pulls:
            pull = pulls.popleft()
            if pull.ended or pull._holder.gone or not wanted(pull):
                yield _LOOK_COST
            else:
                began_at = sum(pull.offsets)
                self._run(pull, final)
                passed = sum(pull.offsets) - began_at
                if passed > 0 and not pull.ended:
                    pulls.appendleft(pull)
                yield _ANSWER_COST + _REJECT_COST * passed

    def _forget(self, holder: _Holder) -> Iterator[int]:
        while holder.pulls:
            pull = holder.pulls.popitem()[0]
            self._leave(pull)
            yield _FORGET_COST * len(pull.keys)

    # Inside.

    def _run(self, pull: HeldRequest, final: bool) -> None:
        """Answer a pull, or leave it in its queues with later offsets."""
        held_from = None
        try:
            held_from = pull.retry(final)
        except Exception:  # noqa: BLE001 - an error of one pull must not affect other pulls
            _log.exception("held pull of %s failed", pull.peer.remote_text)
        if held_from is not None and not final:
            pull.offsets = held_from
        elif not pull.ended and not pull._holder.gone:
            self._end(pull)

    def _end(self, pull: HeldRequest) -> None:
        """Remove a pull from all tables."""
        holder = pull._holder
        del holder.pulls[pull]
        holder.bytes -= _size(pull)
        if not holder.pulls:
            del self._holders[pull.peer]
        self.count -= 1
        self._leave(pull)

    def _leave(self, pull: HeldRequest) -> None:
        """Remove a pull from the tables shared by connections."""
        pull.ended = True
        self._bytes -= _size(pull)
        for key in pull.keys:
            queue = self._queues[key]
            del queue.pulls[pull]
            if not queue.pulls:
                del self._queues[key]
        step = pull.deadline_ms // _DEADLINE_STEP_MS
        same_time = self._by_deadline[step]
        del same_time[pull]
        if not same_time:
            del self._by_deadline[step]

    def _make_room(self, newcomer: _Holder, size: int) -> bool:
        """Answer pulls of the connection that holds the most; False when that would be the new pull's own
        connection."""
        while self.count >= MAX_HELD_PULLS or self._bytes + size > MAX_HELD_PULL_BYTES:
            largest = self._largest
            # The largest connection is searched again only when the known one has shrunk to the newcomer's
            # size.
            if largest is None or largest.gone or largest.bytes <= newcomer.bytes + size:
                largest = self._largest = max(
                    self._holders.values(), key=lambda holder: holder.bytes, default=None
                )
            if largest is None or largest.bytes <= newcomer.bytes + size:
                return False
            pull = next(iter(largest.pulls))
            self._run(pull, final=True)
            self.evicted += 1
        return True


def _size(pull: HeldRequest) -> int:
    return _PULL_BYTES + pull.text_bytes + (len(pull.keys) - 1) * _KEY_BYTES


def _may_match(unit_filter: UnitFilter, tags_codes: Iterable[int]) -> bool:
    """A failing filter counts as a match: the following read fails again, and its error reaches the
    consumer."""
    try:
        return any(map(unit_filter, tags_codes))
    except Exception:  # noqa: BLE001 - an error of a plugin's filter must not affect other pulls
        _log.exception("filter of a held pull failed")
        return True
