"""Queue locks of ordered consumers."""

from __future__ import annotations

import pytest

from rmqkit.broker.queue_locks import LOCK_LIFE_MS, QueueLocks
from rmqkit.model.queue import MessageQueue

Q0, Q1 = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)


def test_a_free_queue_is_granted_once() -> None:
    """The first to ask holds a queue; another is given only what is free."""
    locks = QueueLocks()
    assert locks.lock("g", [Q0], "c1", 0) == [Q0]
    assert locks.lock("g", [Q0, Q1], "c2", 1) == [Q1]


def test_groups_do_not_hinder_each_other() -> None:
    """The same queue may be locked by one client of every group."""
    locks = QueueLocks()
    locks.lock("g", [Q0], "c1", 0)
    assert locks.lock("h", [Q0], "c2", 0) == [Q0]


def test_a_renewed_lock_lives_on() -> None:
    """Asking again moves the time of a lock that is held."""
    locks = QueueLocks()
    locks.lock("g", [Q0], "c1", 0)
    assert locks.lock("g", [Q0], "c1", LOCK_LIFE_MS) == [Q0]
    assert locks.lock("g", [Q0], "c2", LOCK_LIFE_MS + 1) == []
    assert locks.lock("g", [Q0], "c2", 2 * LOCK_LIFE_MS) == []
    assert locks.lock("g", [Q0], "c2", 2 * LOCK_LIFE_MS + 1) == [Q0]


@pytest.mark.row("S213")
def test_a_lock_expires_after_sixty_seconds() -> None:
    """At 60 s a lock still holds, a millisecond later it is anyone's."""
    assert LOCK_LIFE_MS == 60_000
    locks = QueueLocks()
    locks.lock("g", [Q0], "c1", 1_000)
    assert locks.any_held("g", 61_000)
    assert locks.lock("g", [Q0], "c2", 61_000) == []
    assert not locks.any_held("g", 61_001)
    assert locks.lock("g", [Q0], "c2", 61_001) == [Q0]


def test_only_the_holder_releases() -> None:
    """An unlock of somebody else's queue, of an unknown queue or group is ignored."""
    locks = QueueLocks()
    locks.lock("g", [Q0], "c1", 0)
    locks.unlock("g", [Q0, Q1], "c2")
    locks.unlock("h", [Q0], "c1")
    assert locks.lock("g", [Q0], "c2", 1) == []
    locks.unlock("g", [Q0], "c1")
    assert not locks.any_held("g", 1)
    assert locks.lock("g", [Q0], "c2", 1) == [Q0]


def test_any_held_is_by_group() -> None:
    """One live lock is enough, and another group's does not count."""
    locks = QueueLocks()
    locks.lock("g", [Q0], "c1", 0)
    locks.lock("g", [Q1], "c1", 30_000)
    assert locks.any_held("g", 90_000)
    assert not locks.any_held("h", 0)
