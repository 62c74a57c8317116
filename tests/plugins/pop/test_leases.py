"""Single rules of leases; tests/sim/test_leases.py lives whole histories beside a model."""

from __future__ import annotations

import pytest

from rmqkit_pop.leases import FOREIGN_GRACE_MS, Leases, NotLeased, QueueKey
from rmqkit_pop.records import AckRecord, CheckPointRecord, ack_of

KEY = QueueKey("g", "T", 0)


def leased(count: int = 3, **fields: object) -> tuple[Leases, CheckPointRecord]:
    """Some messages of a queue, leased at 1000 for 100 ms."""
    leases = Leases(lambda key: 0)
    offsets = list(range(count))
    record = leases.deliver(leases.queue(KEY), 0, offsets, 1_000, 1_100, "b", next_offset=count, **fields)  # type: ignore[arg-type]
    leases.apply(record, 0, 0, 1_000)
    return leases, record


def test_a_handle_is_valid_as_long_as_its_lease_lives() -> None:
    """However often it is renewed, the first handle and all later ones are; those of no delivery are not."""
    leases, _ = leased()
    for turn in range(1, 5):
        lease = leases.find(KEY, 1, 1_000)
        for at, record in enumerate(leases.extend(lease, 1, 1_000, 50 * turn, suspended=False)):
            leases.apply(record, 0, 2 * turn + at, 1_000)
    assert leases.find(KEY, 1, 1_000).until_ms == 1_200
    assert leases.find(KEY, 1, 1_004).until_ms == 1_200
    for wrong in (999, 1_005, 0):
        with pytest.raises(NotLeased, match="another delivery"):
            leases.find(KEY, 1, wrong)
    with pytest.raises(NotLeased, match="no lease of message 7"):
        leases.find(KEY, 7, 1_000)


def test_leases_end_in_their_order_and_never_early() -> None:
    """A renewed one ends when it says."""
    leases, _ = leased()
    for at, record in enumerate(leases.extend(leases.find(KEY, 0, 1_000), 0, 1_000, 500, suspended=False)):
        leases.apply(record, 0, 1 + at, 1_000)
    assert list(leases.due(1_099)) == []
    (first,) = leases.due(1_200)
    assert first.open_offsets() == [1, 2]
    assert list(leases.due(1_499)) == []
    (second,) = leases.due(1_600)
    assert second.open_offsets() == [0]


def test_the_name_of_a_renewed_lease_is_not_its_old_one() -> None:
    """Java finds a lease by start offset and time: two changes within a millisecond have different times, or
    the acknowledgement of the old one would end the new one."""
    leases, old = leased(1)
    renewed, acked = leases.extend(leases.find(KEY, 0, 1_000), 0, 1_000, 100, suspended=False)
    assert isinstance(renewed, CheckPointRecord)
    assert (renewed.start, renewed.pop_ms) != (old.start, old.pop_ms)
    assert renewed.pop_ms + renewed.invisible_ms == 1_100
    leases.apply(renewed, 0, 1, 1_000)
    leases.apply(acked, 0, 2, 1_000)
    assert leases.count == 1


def test_records_that_no_lease_needs_do_not_count() -> None:
    """The first record that counts is that of the oldest lease; a rewritten one counts where it is."""
    leases, first = leased()
    second = leases.deliver(leases.queue(KEY), 3, [3, 4], 1_000, 1_100, "b", next_offset=5)
    leases.apply(second, 0, 1, 1_000)
    assert leases.low_water(0, 2) == 0
    leases.apply(ack_of(first, [0, 2]), 0, 2, 1_000)
    assert leases.old(0, 0, 0) is None
    found = leases.old(0, 1, 0)
    assert found is not None
    whose, (again,) = found
    assert isinstance(again, CheckPointRecord)
    assert [offset for _, offset in again.places] == [1]
    leases.rewritten(whose, 0, 3, 2_000)
    assert leases.low_water(0, 4) == 1
    leases.apply(ack_of(first, [1]), 0, 4, 1_000)
    leases.apply(ack_of(second, [3, 4]), 0, 5, 1_000)
    assert leases.low_water(0, 6) == 6


def test_a_lease_of_java_waits_for_its_acknowledgements() -> None:
    """They come through its timer, after their check point."""
    leases = Leases(lambda key: 0)
    check_point = CheckPointRecord(
        start=5, pop_ms=1_000, invisible_ms=100, count=2, queue_id=0, topic="T", group="g", broker_name="b"
    )
    leases.apply(check_point, 0, 0, 1_000)
    assert list(leases.due(1_100 + FOREIGN_GRACE_MS - 1)) == []
    leases.apply(AckRecord(offset=6, start=5, pop_ms=1_000, group="g", topic="T", queue_id=0), 0, 1, 1_100)
    (lease,) = leases.due(1_200 + FOREIGN_GRACE_MS)
    assert lease.open_offsets() == [5]


def test_an_acknowledgement_of_an_unknown_lease_changes_nothing() -> None:
    """Nor one that names another lease of the message."""
    leases, record = leased()
    leases.apply(AckRecord(offset=1, start=0, pop_ms=999, group="g", topic="T", queue_id=0), 0, 1, 1_000)
    leases.apply(AckRecord(offset=9, start=9, pop_ms=1_000, group="x", topic="T", queue_id=0), 0, 2, 1_000)
    assert leases.count == 3
    assert leases.find(KEY, 1, record.pop_ms).open_offsets() == [0, 1, 2]


def test_a_forgotten_queue_has_no_leases() -> None:
    """They do not end any more, and no record counts for them."""
    leases, _ = leased(ordered=True)
    leases.forget(KEY)
    leases.forget(KEY)
    assert (leases.count, dict(leases.by_group), leases.low_water(0, 1)) == (0, {}, 1)
    assert list(leases.due(10_000)) == []
