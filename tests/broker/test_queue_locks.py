"""Queue locks of ordered consumers."""

from __future__ import annotations

import pytest

from rmqkit.broker import queue_locks
from rmqkit.broker.queue_locks import LOCK_LIFE_MS, QueueLocks
from rmqkit.errors import RequestRefused
from rmqkit.model.queue import MessageQueue

Q0, Q1 = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)


def test_a_free_queue_is_granted_once() -> None:
    """The first client to ask holds a queue; others get only free queues."""
    locks = QueueLocks()
    assert locks.lock("g", [Q0], "c1", 0) == [Q0]
    assert locks.lock("g", [Q0, Q1], "c2", 1) == [Q1]


def test_groups_do_not_hinder_each_other() -> None:
    """The same queue may be locked by one client of every group."""
    locks = QueueLocks()
    locks.lock("g", [Q0], "c1", 0)
    assert locks.lock("h", [Q0], "c2", 0) == [Q0]


def test_a_renewed_lock_lives_on() -> None:
    """Asking again renews the lock."""
    locks = QueueLocks()
    locks.lock("g", [Q0], "c1", 0)
    assert locks.lock("g", [Q0], "c1", LOCK_LIFE_MS) == [Q0]
    assert locks.lock("g", [Q0], "c2", LOCK_LIFE_MS + 1) == []
    assert locks.lock("g", [Q0], "c2", 2 * LOCK_LIFE_MS) == []
    assert locks.lock("g", [Q0], "c2", 2 * LOCK_LIFE_MS + 1) == [Q0]


def test_a_lock_expires_after_sixty_seconds() -> None:
    """At 60 s a lock is still held, a millisecond later it is free."""
    assert LOCK_LIFE_MS == 60_000
    locks = QueueLocks()
    locks.lock("g", [Q0], "c1", 1_000)
    assert locks.any_held("g", 61_000)
    assert locks.lock("g", [Q0], "c2", 61_000) == []
    assert not locks.any_held("g", 61_001)
    assert locks.lock("g", [Q0], "c2", 61_001) == [Q0]


def test_only_the_holder_releases() -> None:
    """Unlocking another client's queue, or an unknown queue or group, is ignored."""
    locks = QueueLocks()
    locks.lock("g", [Q0], "c1", 0)
    locks.unlock("g", [Q0, Q1], "c2")
    locks.unlock("h", [Q0], "c1")
    assert locks.lock("g", [Q0], "c2", 1) == []
    locks.unlock("g", [Q0], "c1")
    assert not locks.any_held("g", 1)
    assert locks.lock("g", [Q0], "c2", 1) == [Q0]


def test_any_held_is_by_group() -> None:
    """One live lock is sufficient, and another group's does not count."""
    locks = QueueLocks()
    locks.lock("g", [Q0], "c1", 0)
    locks.lock("g", [Q1], "c1", 30_000)
    assert locks.any_held("g", 90_000)
    assert not locks.any_held("h", 0)


def test_expired_locks_are_removed() -> None:
    """A client that never returns leaves nothing behind, whichever group is accessed next."""
    locks = QueueLocks()
    for number in range(100):
        locks.lock(f"g{number}", [Q0, Q1], "c1", 0)
    locks.lock("renewed", [Q0], "c1", 0)
    locks.lock("renewed", [Q0], "c1", LOCK_LIFE_MS)
    assert not locks.any_held("g0", LOCK_LIFE_MS + 1)
    assert len(locks) == 1


def test_asking_for_nothing_keeps_nothing() -> None:
    """A request without queues creates no entry for its group."""
    locks = QueueLocks()
    for number in range(100):
        assert locks.lock(f"g{number}", [], "c1", 0) == []
    assert len(locks) == 0
    assert not locks.any_held("g0", 0)


@pytest.mark.parametrize(("limit", "value"), [("MAX_QUEUE_LOCKS", 1), ("MAX_QUEUE_LOCK_BYTES", 500)])
def test_a_full_table_refuses_new_locks(monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    """Held locks are still renewed; there is room again when one expires or is released."""
    monkeypatch.setattr(queue_locks, limit, value)
    locks = QueueLocks()
    locks.lock("g", [Q0], "c1", 0)
    with pytest.raises(RequestRefused, match="try again later"):
        locks.lock("g", [Q1], "c1", 1)
    assert locks.refused == 1
    assert locks.lock("g", [Q0], "c1", 2) == [Q0]
    locks.unlock("g", [Q0], "c1")
    assert locks.lock("g", [Q1], "c2", 3) == [Q1]
    assert locks.lock("g", [Q0], "c1", 3 + LOCK_LIFE_MS + 1) == [Q0]


def test_a_lock_expires_by_its_own_time_when_the_clock_went_back() -> None:
    """A lock renewed before the clock was set back does not keep a later one alive."""
    locks = QueueLocks()
    locks.lock("g", [Q0], "c1", 10 * LOCK_LIFE_MS)
    locks.lock("g", [Q1], "c1", 0)
    assert locks.lock("g", [Q1], "c2", LOCK_LIFE_MS + 1) == [Q1]
