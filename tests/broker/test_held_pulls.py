"""Pulls that wait: what wakes them, what ends them, and that they stay out of each other's way."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest

from rmqkit.abc import UnitFilter
from rmqkit.broker import held_pulls
from rmqkit.broker.held_pulls import HeldPull, HeldPulls
from rmqkit.protocol.command import request
from rmqkit.testing.peer import FakePeer


class Waiting:
    """Held pulls with a list of the names of those that were run again."""

    def __init__(self) -> None:
        self.held = HeldPulls()
        self.peer = FakePeer()
        self.woken: list[str] = []

    def hold(
        self,
        name: str,
        *,
        offset: int = 0,
        deadline_ms: int = 1_000,
        queue: tuple[str, int] = ("T", 0),
        unit_filter: UnitFilter | None = None,
        peer: FakePeer | None = None,
        retry: Callable[[], None] | None = None,
    ) -> bool:
        pull = HeldPull(request(11), peer or self.peer, offset, deadline_ms, unit_filter, retry or (lambda: self.woken.append(name)))
        return self.held.hold(*queue, pull)


@pytest.mark.row("S046", "S049")
def test_a_message_wakes_the_pulls_behind_it() -> None:
    """A pull wakes when its queue grows past its offset, once."""
    waiting = Waiting()
    assert not waiting.held.holding
    waiting.hold("at 0", offset=0)
    waiting.hold("at 1", offset=1)
    assert waiting.held.holding
    waiting.held.arrived("T", 0, 1, 0)
    assert waiting.woken == ["at 0"]
    waiting.held.arrived("T", 0, 2, 0)
    assert waiting.woken == ["at 0", "at 1"]
    waiting.held.arrived("T", 0, 3, 0)
    assert len(waiting.woken) == 2
    assert not waiting.held.holding


@pytest.mark.row("S090")
def test_queues_are_apart() -> None:
    """Neither another queue of the topic nor the same queue of another topic wakes a pull."""
    waiting = Waiting()
    waiting.hold("pull")
    waiting.held.arrived("T", 1, 5, 0)
    waiting.held.arrived("U", 0, 5, 0)
    assert waiting.woken == []
    assert len(waiting.held) == 1


@pytest.mark.row("S049")
def test_a_message_wakes_only_pulls_whose_filter_lets_its_tags_pass() -> None:
    """The others go on waiting."""
    waiting = Waiting()
    waiting.hold("A", unit_filter=lambda code: code == 65)
    waiting.hold("B", unit_filter=lambda code: code == 66)
    waiting.hold("all")
    waiting.held.arrived("T", 0, 1, 66)
    assert waiting.woken == ["B", "all"]
    assert len(waiting.held) == 1


@pytest.mark.row("S047", "S090")
def test_a_recheck_wakes_all_that_are_behind() -> None:
    """The safety net looks at offsets only: filters are asked by the read that follows."""
    waiting = Waiting()
    waiting.hold("behind", offset=3, unit_filter=lambda code: False)
    waiting.hold("at the end", offset=4)
    waiting.hold("other queue", offset=3, queue=("T", 1))
    waiting.held.recheck(lambda topic, queue_id: 4 if queue_id == 0 else 3)
    assert waiting.woken == ["behind"]


@pytest.mark.row("S048")
def test_expired_pulls_are_answered_in_the_order_of_their_deadlines() -> None:
    """A pull ends at its deadline, not before, and not twice."""
    waiting = Waiting()
    waiting.hold("late", deadline_ms=2_000)
    waiting.hold("early", deadline_ms=1_000)
    waiting.held.expire(999)
    assert waiting.woken == []
    waiting.held.expire(2_000)
    assert waiting.woken == ["early", "late"]
    waiting.held.expire(3_000)
    assert len(waiting.woken) == 2
    assert not waiting.held.holding


def test_a_woken_pull_does_not_expire_as_well() -> None:
    """A pull is answered once, by the message or by its deadline."""
    waiting = Waiting()
    waiting.hold("pull")
    waiting.held.arrived("T", 0, 1, 0)
    waiting.held.expire(5_000)
    assert waiting.woken == ["pull"]


def test_a_closed_connection_takes_its_pulls_with_it() -> None:
    """Its pulls are forgotten, not run; others stay."""
    waiting, gone = Waiting(), FakePeer()
    waiting.hold("gone", peer=gone)
    waiting.hold("gone too", peer=gone, queue=("T", 1))
    waiting.hold("stays")
    waiting.held.drop_peer(gone)
    waiting.held.drop_peer(gone)
    waiting.held.arrived("T", 0, 1, 0)
    waiting.held.expire(5_000)
    assert waiting.woken == ["stays"]


def test_a_connection_holds_so_many_pulls_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit a pull is not held; a place comes free when one ends; other connections have their own count."""
    monkeypatch.setattr(held_pulls, "MAX_HELD_PULLS_PER_CONNECTION", 2)
    waiting = Waiting()
    assert waiting.hold("1")
    assert waiting.hold("2", offset=5)
    assert not waiting.hold("3")
    assert waiting.hold("other", peer=FakePeer(), offset=5)
    waiting.held.arrived("T", 0, 1, 0)
    assert waiting.woken == ["1"]
    assert waiting.hold("4")
    assert not waiting.hold("5")


@pytest.mark.parametrize("end", ["arrived", "expire", "recheck"])
def test_a_retry_that_raises_harms_no_other(end: str) -> None:
    """Neither the sender whose message woke it nor the pulls behind it see the exception."""
    waiting = Waiting()

    def broken() -> None:
        raise RuntimeError("a plugin's filter broke")

    waiting.hold("broken", retry=broken)
    waiting.hold("good")
    match end:
        case "arrived":
            waiting.held.arrived("T", 0, 1, 0)
        case "expire":
            waiting.held.expire(1_000)
        case _:
            waiting.held.recheck(lambda topic, queue_id: 1)
    assert waiting.woken == ["good"]
    assert not waiting.held.holding


def test_a_filter_that_raises_wakes_its_pull_and_harms_no_other() -> None:
    """The read that follows raises again and tells the consumer; the sender must not pay for a plugin's filter."""
    waiting = Waiting()

    def broken(code: int) -> bool:
        raise RuntimeError("a plugin's filter broke")

    waiting.hold("broken", unit_filter=broken)
    waiting.hold("good")
    waiting.held.arrived("T", 0, 1, 0)
    assert waiting.woken == ["broken", "good"]


def test_a_retry_that_holds_again_waits_for_the_next_message() -> None:
    """A pull that goes back into the table while it is woken is not woken by the same message again."""
    waiting = Waiting()
    runs: list[int] = []

    def again() -> None:
        runs.append(1)
        waiting.hold("again", retry=again)

    waiting.hold("again", retry=again)
    waiting.held.arrived("T", 0, 1, 0)
    assert len(runs) == 1
    assert len(waiting.held) == 1


class Retry:
    """A retry that can be watched."""

    def __call__(self) -> None:
        return


def test_answered_pulls_leave_nothing_behind() -> None:
    """A queue that wakes its pull ten thousand times within one hold keeps only a few of the pulls that are over."""
    waiting = Waiting()
    retries: list[weakref.ref[Retry]] = []
    for _ in range(10_000):
        retry = Retry()
        retries.append(weakref.ref(retry))
        waiting.hold("pull", deadline_ms=15_000, retry=retry)
        waiting.held.arrived("T", 0, 1, 0)
    assert len(waiting.held) == 0
    assert sum(retry() is not None for retry in retries) < 2_000
