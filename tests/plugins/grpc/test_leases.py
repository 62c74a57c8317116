"""Leases that the server renews."""

from __future__ import annotations

from rmqkit.protocol.receipt import Receipt
from rmqkit_grpc.handles import Handle
from rmqkit_grpc.leases import Leases
from rmqkit_grpc.limits import MAX_RENEWALS_MS, MAX_RENEWED, RENEW_BEFORE_MS, RENEWED_INVISIBLE_MS

NOW = 1_700_000_000_000


def handle(offset: int, pop_ms: int = NOW) -> Handle:
    return Handle(Receipt(0, pop_ms, RENEWED_INVISIBLE_MS, 1, "0", "broker-a", 0, offset))


def test_leases_are_due_before_they_end() -> None:
    """Again after each renewal, as long as the client works."""
    leases = Leases()
    leases.add("G", "T", handle(1), NOW)
    assert leases.due(NOW) == []
    due_ms = NOW + RENEWED_INVISIBLE_MS - RENEW_BEFORE_MS
    assert leases.due(due_ms - 1) == []
    (lease,) = leases.due(due_ms)
    assert (lease.group, lease.topic, lease.handle) == ("G", "T", handle(1))
    leases.renewed(lease, due_ms + RENEWED_INVISIBLE_MS)
    assert leases.due(due_ms) == []
    assert len(leases.due(due_ms + RENEWED_INVISIBLE_MS - 1)) == 1


def test_leases_that_have_ended_are_forgotten() -> None:
    """And those of a client that has worked for hours on one message."""
    leases = Leases()
    leases.add("G", "T", handle(1), NOW)
    assert leases.due(NOW + RENEWED_INVISIBLE_MS) == []
    assert len(leases) == 0
    leases.add("G", "T", handle(2), NOW)
    (lease,) = leases.due(NOW + RENEWED_INVISIBLE_MS - 1)
    leases.renewed(lease, NOW + 2 * MAX_RENEWALS_MS)
    assert leases.due(NOW + MAX_RENEWALS_MS + 1) == []
    assert len(leases) == 0


def test_finished_messages_are_not_renewed() -> None:
    """Whichever handle of the message says so; a renewal that comes late changes nothing."""
    leases = Leases()
    leases.add("G", "T", handle(1), NOW)
    leases.add("G", "T", handle(2), NOW)
    first, _ = leases.due(NOW + RENEWED_INVISIBLE_MS - 1)
    leases.forget("G", "T", handle(1, NOW + 5))
    leases.forget("other", "T", handle(2))
    leases.renewed(first, NOW + 10 * RENEWED_INVISIBLE_MS)
    assert [each.handle.receipt.offset for each in leases.take()] == [2]
    assert leases.take() == []


def test_the_number_is_limited() -> None:
    """The room is what is left of the limit."""
    leases = Leases()
    assert leases.room == MAX_RENEWED
    leases.add("G", "T", handle(1), NOW)
    leases.add("G", "T", handle(1), NOW)
    assert leases.room == MAX_RENEWED - 1
