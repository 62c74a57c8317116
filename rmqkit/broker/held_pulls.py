"""Pulls that found nothing and wait for a message or their time-out (Java: PullRequestHoldService; behaviour sheet, C5).

A held pull is a value in a table, not a task: thousands cost nothing but their memory. An arriving message wakes those of its queue whose filter lets
its tags pass; a loop ends the expired ones.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from itertools import count

from attrs import define

from rmqkit.abc import Peer, UnitFilter
from rmqkit.limits import MAX_HELD_PULLS_PER_CONNECTION
from rmqkit.protocol.command import Command

_log = logging.getLogger(__name__)
#: Pulls that are over stay in the order of deadlines until their time, but never more than these and half of all.
_MAX_ENDED = 1_024


@define(eq=False, slots=True)
class HeldPull:
    """`retry` runs the pull once more, without holding it again, and answers the peer."""

    request: Command
    peer: Peer
    offset: int
    deadline_ms: int
    unit_filter: UnitFilter | None
    retry: Callable[[], None]
    ended: bool = False


class HeldPulls:
    """(topic, queue id) -> held pulls. `holding` is cheap to ask on the send path."""

    def __init__(self) -> None:
        self._by_queue: dict[tuple[str, int], list[HeldPull]] = {}
        self._by_deadline: list[tuple[int, int, tuple[str, int], HeldPull]] = []
        self._order = count()
        self._ended = 0
        self._per_peer: dict[Peer, int] = {}

    @property
    def holding(self) -> bool:
        return bool(self._by_queue)

    def __len__(self) -> int:
        return sum(map(len, self._by_queue.values()))

    def hold(self, topic: str, queue_id: int, pull: HeldPull) -> bool:
        """False when the connection holds too many already; the pull is then to be answered at once."""
        held = self._per_peer.get(pull.peer, 0)
        if held >= MAX_HELD_PULLS_PER_CONNECTION:
            return False
        self._per_peer[pull.peer] = held + 1
        key = (topic, queue_id)
        self._by_queue.setdefault(key, []).append(pull)
        heapq.heappush(self._by_deadline, (pull.deadline_ms, next(self._order), key, pull))
        return True

    def arrived(self, topic: str, queue_id: int, max_offset: int, tags_code: int | None) -> None:
        """A queue grew to `max_offset`. With `tags_code` only pulls whose filter may match wake; None wakes all that are behind."""
        key = (topic, queue_id)
        pulls = self._by_queue.get(key)
        if pulls is None:
            return
        awake = [
            pull
            for pull in pulls
            if pull.offset < max_offset and (tags_code is None or pull.unit_filter is None or _may_match(pull.unit_filter, tags_code))
        ]
        for pull in awake:
            self._end(key, pull)
        for pull in awake:
            _run(pull)
        self._forget_ended()

    def expire(self, now_ms: int) -> None:
        """Answer the pulls whose time is up."""
        while self._by_deadline and self._by_deadline[0][0] <= now_ms:
            _, _, key, pull = heapq.heappop(self._by_deadline)
            self._ended -= 1
            if not pull.ended:
                self._end(key, pull)
                _run(pull)

    def recheck(self, max_offset: Callable[[str, int], int]) -> None:
        """The safety net: compare every queue's end with what its held pulls wait for."""
        for topic, queue_id in list(self._by_queue):
            self.arrived(topic, queue_id, max_offset(topic, queue_id), None)

    def drop_peer(self, peer: Peer) -> None:
        """A connection ended; its pulls are forgotten."""
        if peer not in self._per_peer:
            return
        for key, pulls in list(self._by_queue.items()):
            for pull in [pull for pull in pulls if pull.peer is peer]:
                self._end(key, pull)
        self._forget_ended()

    def _end(self, key: tuple[str, int], pull: HeldPull) -> None:
        pull.ended = True
        self._ended += 1
        pulls = self._by_queue[key]
        pulls.remove(pull)
        if not pulls:
            del self._by_queue[key]
        left = self._per_peer[pull.peer] - 1
        if left:
            self._per_peer[pull.peer] = left
        else:
            del self._per_peer[pull.peer]

    def _forget_ended(self) -> None:
        """Let go of pulls that were answered before their deadline: a busy queue would pile them up for the length of a hold."""
        if self._ended > _MAX_ENDED and self._ended * 2 > len(self._by_deadline):
            self._by_deadline = [entry for entry in self._by_deadline if not entry[3].ended]
            heapq.heapify(self._by_deadline)
            self._ended = 0


def _may_match(unit_filter: UnitFilter, tags_code: int) -> bool:
    """A filter that fails lets the message pass: the read that follows fails again, and tells the consumer instead of the sender."""
    try:
        return unit_filter(tags_code)
    except Exception:  # noqa: BLE001 - a plugin's filter must not fail another client's send
        _log.exception("filter of a held pull failed")
        return True


def _run(pull: HeldPull) -> None:
    try:
        pull.retry()
    except Exception:  # noqa: BLE001 - nor may one pull keep the others from their answers
        _log.exception("held pull of %s failed", pull.peer.remote_text)
