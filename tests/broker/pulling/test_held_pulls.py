"""Held pulls: waking, ending, and isolation from each other."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.broker.pulling import held_pulls
from rmqkit.broker.pulling.held_pulls import HeldPulls
from rmqkit.broker.run.sliced_work import SLICE_COST, SlicedWork
from rmqkit.plugin.held import HeldRequest
from rmqkit.plugin.store import UnitFilter
from rmqkit.protocol.command import request
from rmqkit.testing.peer import FakePeer


class Waiting:
    """Held pulls with a list of the names of those that were run again."""

    def __init__(self) -> None:
        self.work = SlicedWork()
        self.held = HeldPulls(self.work)
        self.peer = FakePeer()
        self.woken: list[str] = []

    def hold(
        self,
        name: str,
        *,
        offset: int = 0,
        deadline_ms: int = 1_000,
        text_bytes: int = 0,
        queue: tuple[str, int] = ("T", 0),
        unit_filter: UnitFilter | None = None,
        peer: FakePeer | None = None,
        retry: Callable[[bool], int | None] | None = None,
    ) -> bool:
        def retry_one(final: bool) -> tuple[int, ...] | None:
            if retry is None:
                self.woken.append(name)
                return None
            held_from = retry(final)
            return None if held_from is None else (held_from,)

        return self.hold_many(
            {queue: offset}, retry_one, deadline_ms, text_bytes, unit_filter, peer or self.peer
        )

    def hold_many(
        self,
        places: dict[tuple[str, int], int],
        retry: Callable[[bool], tuple[int, ...] | None],
        deadline_ms: int = 1_000,
        text_bytes: int = 0,
        unit_filter: UnitFilter | None = None,
        peer: FakePeer | None = None,
    ) -> bool:
        """Hold a request for several queues from their offsets on."""
        keys, offsets = tuple(places), tuple(places.values())
        return self.held.hold(
            HeldRequest(
                request(11), peer or self.peer, keys, offsets, deadline_ms, unit_filter, retry, text_bytes
            )
        )


@pytest.mark.row("S046", "S049")
def test_a_message_wakes_the_pulls_behind_it() -> None:
    """A pull wakes when its queue grows past its offset, once."""
    waiting = Waiting()
    assert not waiting.held.count
    waiting.hold("at 0", offset=0)
    waiting.hold("at 1", offset=1)
    assert waiting.held.count
    waiting.held.arrived("T", 0, 1, 0)
    waiting.work.finish()
    assert waiting.woken == ["at 0"]
    waiting.held.arrived("T", 0, 2, 0)
    waiting.work.finish()
    assert waiting.woken == ["at 0", "at 1"]
    waiting.held.arrived("T", 0, 3, 0)
    waiting.work.finish()
    assert len(waiting.woken) == 2
    assert not waiting.held.count


@pytest.mark.row("S090")
def test_queues_are_apart() -> None:
    """Messages of another queue or topic do not wake a pull."""
    waiting = Waiting()
    waiting.hold("pull")
    waiting.held.arrived("T", 1, 5, 0)
    waiting.held.arrived("U", 0, 5, 0)
    waiting.work.finish()
    assert waiting.woken == []
    assert len(waiting.held) == 1


@pytest.mark.row("S049")
def test_a_message_wakes_only_pulls_whose_filter_lets_its_tags_pass() -> None:
    """Pulls with other filters stay held."""
    waiting = Waiting()
    waiting.hold("A", unit_filter=lambda code: code == 65)
    waiting.hold("B", unit_filter=lambda code: code == 66)
    waiting.hold("all")
    waiting.held.arrived("T", 0, 1, 66)
    waiting.work.finish()
    assert waiting.woken == ["B", "all"]
    assert len(waiting.held) == 1


@pytest.mark.row("S047", "S090")
def test_a_recheck_wakes_all_that_are_behind() -> None:
    """The recheck compares only offsets; the following read applies the filters."""
    waiting = Waiting()
    waiting.hold("behind", offset=3, unit_filter=lambda code: False)
    waiting.hold("at the end", offset=4)
    waiting.hold("other queue", offset=3, queue=("T", 1))
    waiting.held.recheck(lambda topic, queue_id: 4 if queue_id == 0 else 3)
    waiting.work.finish()
    assert waiting.woken == ["behind"]


@pytest.mark.row("S048")
def test_expired_pulls_are_answered_in_the_order_of_their_deadlines() -> None:
    """A pull ends at its deadline, not before, and not twice."""
    waiting = Waiting()
    waiting.hold("late", deadline_ms=2_000)
    waiting.hold("early", deadline_ms=1_000)
    waiting.held.expire(999)
    waiting.work.finish()
    assert waiting.woken == []
    waiting.held.expire(2_000)
    waiting.work.finish()
    assert waiting.woken == ["early", "late"]
    waiting.held.expire(3_000)
    waiting.work.finish()
    assert len(waiting.woken) == 2
    assert not waiting.held.count


def test_a_woken_pull_does_not_expire_as_well() -> None:
    """A pull is answered once, by the message or by its deadline."""
    waiting = Waiting()
    waiting.hold("pull")
    waiting.held.arrived("T", 0, 1, 0)
    waiting.work.finish()
    waiting.held.expire(5_000)
    waiting.work.finish()
    assert waiting.woken == ["pull"]


def test_a_closed_connection_takes_its_pulls_with_it() -> None:
    """Its pulls are forgotten without being run; others stay."""
    waiting, gone = Waiting(), FakePeer()
    waiting.hold("gone", peer=gone)
    waiting.hold("gone too", peer=gone, queue=("T", 1))
    waiting.hold("stays")
    waiting.held.drop_peer(gone)
    waiting.held.drop_peer(gone)
    assert len(waiting.held) == 1
    waiting.held.arrived("T", 0, 1, 0)
    waiting.work.finish()
    waiting.held.expire(5_000)
    waiting.work.finish()
    assert waiting.woken == ["stays"]


def test_a_connection_holds_so_many_pulls_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit a pull is not held; room is made when one ends; each connection has its own count."""
    monkeypatch.setattr(held_pulls, "MAX_HELD_PULLS_PER_CONNECTION", 2)
    waiting = Waiting()
    assert waiting.hold("1")
    assert waiting.hold("2", offset=5)
    assert not waiting.hold("3")
    assert waiting.hold("other", peer=FakePeer(), offset=5)
    waiting.held.arrived("T", 0, 1, 0)
    waiting.work.finish()
    assert waiting.woken == ["1"]
    assert waiting.hold("4")
    assert not waiting.hold("5")


@pytest.mark.parametrize("end", ["arrived", "expire", "recheck"])
def test_a_retry_that_raises_harms_no_other(end: str) -> None:
    """Neither the sender whose message woke it nor later pulls see the exception."""
    waiting = Waiting()

    def broken(final: bool) -> None:
        raise RuntimeError("a plugin's filter broke")

    waiting.hold("broken", retry=broken)
    waiting.hold("good")
    match end:
        case "arrived":
            waiting.held.arrived("T", 0, 1, 0)
            waiting.work.finish()
        case "expire":
            waiting.held.expire(1_000)
            waiting.work.finish()
        case _:
            waiting.held.recheck(lambda topic, queue_id: 1)
            waiting.work.finish()
    assert waiting.woken == ["good"]
    assert not waiting.held.count


def test_a_filter_that_raises_wakes_its_pull_and_harms_no_other() -> None:
    """The following read raises again and reports it to the consumer; the sender is not affected."""
    waiting = Waiting()

    def broken(code: int) -> bool:
        raise RuntimeError("a plugin's filter broke")

    waiting.hold("broken", unit_filter=broken)
    waiting.hold("good")
    waiting.held.arrived("T", 0, 1, 0)
    waiting.work.finish()
    assert waiting.woken == ["broken", "good"]


def test_a_retry_that_holds_again_waits_for_the_next_message() -> None:
    """A pull that is held again while being woken is not woken by the same message again."""
    waiting = Waiting()
    runs: list[int] = []

    def again(final: bool) -> None:
        runs.append(1)
        waiting.hold("again", retry=again)

    waiting.hold("again", retry=again)
    waiting.held.arrived("T", 0, 1, 0)
    waiting.work.finish()
    assert len(runs) == 1
    assert len(waiting.held) == 1


def test_a_pull_that_finds_nothing_that_matches_is_held_on() -> None:
    """A pull whose filter needs the records themselves is run for each message, from behind the rejected ones
    on, and keeps its place, its deadline and its share of the limits until one matches."""
    waiting = Waiting()
    runs: list[bool] = []

    def retry(final: bool) -> int | None:
        runs.append(final)
        if not final and len(runs) < 3:
            return len(runs)
        waiting.woken.append("filtered")
        return None

    waiting.hold("filtered", retry=retry)
    waiting.hold("later", offset=3)
    waiting.held.arrived("T", 0, 1, 7)
    waiting.work.finish()
    waiting.held.arrived("T", 0, 1, 7)
    waiting.work.finish()
    assert (runs, waiting.woken, len(waiting.held)) == ([False], [], 2)
    waiting.held.arrived("T", 0, 2, 7)
    waiting.work.finish()
    waiting.held.arrived("T", 0, 3, 7)
    waiting.work.finish()
    assert (runs, waiting.woken, len(waiting.held)) == ([False] * 3, ["filtered"], 1)


@pytest.mark.parametrize("end", ["recheck", "expire", "evict"])
def test_a_pull_is_not_held_beyond_its_time(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its deadline, at a recheck and when room is needed, a pull is run for the last time."""
    waiting = Waiting()

    def retry(final: bool) -> int | None:
        if not final:
            return 1
        waiting.woken.append("filtered")
        return None

    waiting.hold("filtered", retry=retry)
    waiting.hold("filtered too", retry=retry)
    waiting.held.arrived("T", 0, 1, 7)
    waiting.work.finish()
    assert waiting.woken == []
    match end:
        case "recheck":
            waiting.held.recheck(lambda topic, queue_id: 2)
        case "expire":
            waiting.held.expire(1_000)
        case _:
            monkeypatch.setattr(held_pulls, "MAX_HELD_PULLS", 2)
            waiting.hold("modest", peer=FakePeer(), offset=9)
            waiting.hold("modest too", peer=FakePeer(), offset=9)
    waiting.work.finish()
    assert waiting.woken == ["filtered"] * (1 if end == "evict" else 2)


class Retry:
    """A retry that can be observed."""

    def __call__(self, final: bool) -> None:
        return


def test_answered_pulls_leave_nothing_behind() -> None:
    """A queue that wakes its pull ten thousand times within one hold keeps only a few finished pulls."""
    waiting = Waiting()
    retries: list[weakref.ref[Retry]] = []
    for _ in range(10_000):
        retry = Retry()
        retries.append(weakref.ref(retry))
        waiting.hold("pull", deadline_ms=15_000, retry=retry)
        waiting.held.arrived("T", 0, 1, 0)
        waiting.work.finish()
    assert len(waiting.held) == 0
    assert sum(retry() is not None for retry in retries) < 2_000


def watched(waiting: Waiting, number: int) -> list[weakref.ref[Retry]]:
    """References to the retries of held pulls, which live as long as the pulls."""
    retries = [Retry() for _ in range(number)]
    for retry in retries:
        waiting.hold("pull", retry=retry)
    return [weakref.ref(retry) for retry in retries]


@pytest.mark.parametrize("end", ["arrived", "expire", "drop_peer"])
def test_pulls_that_end_are_freed_slice_by_slice(end: str) -> None:
    """Freeing 100 000 pulls at once would block the event loop for tens of milliseconds."""
    waiting = Waiting()
    retries = watched(waiting, 2_000)
    match end:
        case "arrived":
            waiting.held.arrived("T", 0, 1, 0)
        case "expire":
            waiting.held.expire(1_000)
        case _:
            waiting.held.drop_peer(waiting.peer)
    freed = []
    while waiting.work.busy:
        before = sum(retry() is not None for retry in retries)
        waiting.work.step()
        freed.append(before - sum(retry() is not None for retry in retries))
    assert sum(freed) == 2_000
    assert max(freed) <= SLICE_COST // 5 + 1


@pytest.mark.parametrize("dropped", [False, True])
def test_a_broker_that_ends_keeps_no_pull(dropped: bool) -> None:
    """The collector does not find the circle of a pull and its tables, so they are taken apart; also where a
    connection has ended and its pulls were still to be forgotten."""
    waiting = Waiting()
    retries = watched(waiting, 10)
    if dropped:
        waiting.held.drop_peer(waiting.peer)
    waiting.held.abandon()
    assert len(waiting.held) == 0
    assert [retry() for retry in retries] == [None] * 10


def many(waiting: Waiting, number: int, peers: int = 1) -> list[FakePeer]:
    """Pulls of one queue, in turn over some connections."""
    connections = [FakePeer(port=40_000 + at) for at in range(peers)]
    for at in range(number):
        waiting.hold(str(at), peer=connections[at % peers])
    return connections


def steps(waiting: Waiting) -> list[int]:
    """How many pulls are answered by each step of the work that is left."""
    found = []
    while waiting.work.busy:
        before = len(waiting.woken)
        waiting.work.step()
        found.append(len(waiting.woken) - before)
    return found


def test_a_message_answers_no_pull_within_its_own_send() -> None:
    """The sender continues first; the pulls are answered by a later job."""
    waiting = Waiting()
    waiting.hold("pull")
    waiting.held.arrived("T", 0, 1, 0)
    assert waiting.woken == []
    waiting.work.finish()
    assert waiting.woken == ["pull"]


@pytest.mark.parametrize("end", ["arrived", "expire"])
def test_many_pulls_are_answered_in_slices(end: str) -> None:
    """However many pulls a message or a second ends, a pass of the loop answers a few, each once and in
    order."""
    waiting = Waiting()
    many(waiting, 10_000, peers=6)
    if end == "arrived":
        waiting.held.arrived("T", 0, 1, 0)
    else:
        waiting.held.expire(1_000)
    assert max(steps(waiting)) <= SLICE_COST // 50
    assert waiting.woken == [str(at) for at in range(10_000)]


def test_pulls_that_do_not_match_are_looked_at_in_slices_too() -> None:
    """Checking a queue of non-matching pulls takes no more than a slice per pass of the loop."""
    looks = 0

    def unit_filter(code: int) -> bool:
        nonlocal looks
        looks += 1
        return False

    waiting = Waiting()
    for _ in range(10_000):
        waiting.hold("other", unit_filter=unit_filter)
    waiting.held.arrived("T", 0, 1, 7)
    waiting.work.step()
    assert 0 < looks <= SLICE_COST
    waiting.work.finish()
    assert (looks, len(waiting.held)) == (10_000, 10_000)


def test_messages_that_arrive_together_are_one_walk() -> None:
    """Pulls are checked once for all tags codes that arrived meanwhile, and those before the last message are
    woken."""
    walks = 0

    def unit_filter(code: int) -> bool:
        nonlocal walks
        walks += code == 1
        return code == 3

    waiting = Waiting()
    waiting.hold("A", unit_filter=unit_filter)
    waiting.hold("late", offset=3)
    for offset, code in enumerate((1, 2, 3), 1):
        waiting.held.arrived("T", 0, offset, code)
    waiting.work.finish()
    assert (waiting.woken, walks) == (["A"], 1)


def test_a_message_that_arrives_during_a_walk_is_not_missed() -> None:
    """Pulls not woken by the first message are checked for the second."""
    waiting = Waiting()
    for _ in range(5_000):
        waiting.hold("B", unit_filter=lambda code: code == 66)
    waiting.held.arrived("T", 0, 1, 65)
    waiting.work.step()
    waiting.held.arrived("T", 0, 2, 66)
    waiting.work.finish()
    assert len(waiting.woken) == 5_000


def test_very_many_tags_at_once_wake_every_pull_that_is_behind() -> None:
    """The number of codes kept for a walk is limited; the following read applies the filter."""
    waiting = Waiting()
    waiting.hold("B", unit_filter=lambda code: False)
    for code in range(100):
        waiting.held.arrived("T", 0, code + 1, code)
    waiting.work.finish()
    assert waiting.woken == ["B"]


def test_dropped_pulls_count_no_longer_at_once_and_are_forgotten_in_slices() -> None:
    """Closing connections in any order costs each its own pulls, a few per pass, and none is answered."""
    waiting = Waiting()
    connections = many(waiting, 6_000, peers=6)
    for peer in reversed(connections):
        waiting.held.drop_peer(peer)
    assert len(waiting.held) == 0
    turns = len(steps(waiting))
    assert 6_000 // SLICE_COST < turns < 100
    waiting.held.arrived("T", 0, 1, 0)
    waiting.held.expire(1_000)
    waiting.work.finish()
    assert waiting.woken == []


def test_dropping_a_connection_costs_its_own_pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pulls of other connections are not visited, also when the last-opened connection is removed first."""
    compared = 0

    class Counting(HeldRequest):
        __hash__ = HeldRequest.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return self is other

    waiting = Waiting()
    peers = [FakePeer(), FakePeer()]
    for peer in peers:
        for _ in range(1_000):
            waiting.held.hold(Counting(request(11), peer, (("T", 0),), (0,), 1_000, None, lambda final: None))
    waiting.held.drop_peer(peers[1])
    waiting.work.finish()
    assert len(waiting.held) == 1_000
    assert compared < 1_000


def test_when_all_hold_too_many_the_largest_gives_up_its_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection with many pulls cannot prevent another from holding one; its own further pulls are
    refused."""
    monkeypatch.setattr(held_pulls, "MAX_HELD_PULLS", 10)
    waiting, greedy, modest = Waiting(), FakePeer(), FakePeer()
    for number in range(10):
        assert waiting.hold(f"greedy {number}", peer=greedy)
    assert not waiting.hold("one too many", peer=greedy)
    assert waiting.hold("modest", peer=modest)
    assert waiting.woken == ["greedy 0"]
    assert (len(waiting.held), waiting.held.refused, waiting.held.evicted) == (10, 1, 1)


def test_held_pulls_are_limited_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long subscriptions count by their length, and room is made when the pulls end."""
    monkeypatch.setattr(held_pulls, "MAX_HELD_PULL_BYTES", 1_000_000)
    waiting = Waiting()
    assert waiting.hold("long", text_bytes=900_000)
    assert not waiting.hold("longer", text_bytes=900_000)
    waiting.held.arrived("T", 0, 1, 0)
    waiting.work.finish()
    assert waiting.hold("longer", text_bytes=900_000)
    waiting.held.drop_peer(waiting.peer)
    waiting.work.finish()
    assert waiting.hold("again", text_bytes=900_000)


def test_a_request_for_several_queues_is_woken_by_any_of_them_once() -> None:
    """The first queue that grows past its offset answers it; it then waits at none."""
    waiting = Waiting()
    waiting.hold_many({("T", 0): 5, ("T", 1): 2, ("U", 0): 0}, lambda final: waiting.woken.append("many"))
    waiting.hold("one", queue=("T", 1), offset=2)
    waiting.held.arrived("T", 0, 5)
    waiting.held.arrived("T", 1, 2)
    waiting.work.finish()
    assert waiting.woken == []
    waiting.held.arrived("T", 1, 3)
    waiting.held.arrived("U", 0, 1)
    waiting.work.finish()
    assert waiting.woken == ["many", "one"]
    assert len(waiting.held) == 0
    assert not any(waiting.held.holds(key) for key in (("T", 0), ("T", 1), ("U", 0)))


def test_a_request_for_several_queues_goes_on_from_where_its_filter_rejected() -> None:
    """With an offset for each queue; it stays in all of them until one has what it wants."""
    waiting = Waiting()
    found: list[bool] = []

    def retry(final: bool) -> tuple[int, ...] | None:
        found.append(final)
        return None if final or len(found) == 2 else (4, 7)

    waiting.hold_many({("T", 0): 4, ("T", 1): 0}, retry)
    waiting.held.arrived("T", 1, 7)
    waiting.work.finish()
    assert found == [False]
    waiting.held.arrived("T", 1, 7)
    waiting.held.recheck(lambda topic, queue_id: (4, 7)[queue_id])
    waiting.work.finish()
    assert found == [False]
    waiting.held.arrived("T", 0, 5)
    waiting.work.finish()
    assert found == [False, False]
    assert len(waiting.held) == 0


def test_a_request_for_several_queues_counts_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each queue of it takes memory, so those of a topic with very many are refused first; it is one request,
    whatever its queues."""
    monkeypatch.setattr(held_pulls, "MAX_HELD_PULL_BYTES", 100_000)
    waiting = Waiting()
    wide = {("T", queue_id): 0 for queue_id in range(1_000)}
    assert not waiting.hold_many(wide, lambda final: None)
    narrow = {("T", queue_id): 0 for queue_id in range(50)}
    assert waiting.hold_many(narrow, lambda final: None)
    assert (len(waiting.held), waiting.held.refused) == (1, 1)
    waiting.held.drop_peer(waiting.peer)
    waiting.work.finish()
    assert waiting.hold_many(narrow, lambda final: None)
    waiting.held.abandon()
    assert len(waiting.held) == 0
    assert not waiting.held.holds(("T", 0))


@pytest.mark.parametrize(
    ("keys", "offsets"),
    [((), ()), ((("T", 0),), ()), ((("T", 0), ("T", 1)), (0,)), ((("T", 0), ("T", 0)), (0, 0))],
)
def test_what_cannot_be_held(keys: tuple[tuple[str, int], ...], offsets: tuple[int, ...]) -> None:
    """No queue, another number of offsets, or a queue twice is an error of the caller; nothing is held."""
    waiting = Waiting()
    with pytest.raises(ValueError, match="cannot be held"):
        waiting.held.hold(
            HeldRequest(request(11), waiting.peer, keys, offsets, 1_000, None, lambda final: None)
        )
    assert len(waiting.held) == 0
    assert not waiting.held.holds(("T", 0))


_KEYS = st.sampled_from([("T", 0), ("T", 1), ("U", 0)])


@given(
    st.lists(
        st.one_of(
            st.tuples(
                st.just("hold"),
                st.dictionaries(_KEYS, st.integers(0, 3), min_size=1),
                st.integers(0, 2),
                st.integers(1, 9),
            ),
            st.tuples(st.just("arrived"), _KEYS, st.integers(1, 5), st.just(0)),
            st.tuples(st.just("expire"), st.just(0), st.integers(1, 9), st.just(0)),
            st.tuples(st.just("drop"), st.just(0), st.integers(0, 2), st.just(0)),
        ),
        max_size=30,
    )
)
def test_whatever_happens_each_request_is_answered_as_it_should(steps: list[tuple[Any, ...]]) -> None:
    """Compared with a list that is searched: who is woken by which queue, time and connection; in the end no
    table keeps anything."""
    waiting = Waiting()
    peers = [FakePeer() for _ in range(3)]
    held: dict[str, tuple[dict[tuple[str, int], int], int, int]] = {}
    for number, (what, where, at, deadline_s) in enumerate(steps):
        waiting.woken.clear()
        expected: set[str] = set()
        if what == "hold":
            name = str(number)
            waiting.hold_many(where, partial(_note, waiting, name), deadline_s * 1_000, peer=peers[at])
            held[name] = (where, at, deadline_s)
        elif what == "arrived":
            waiting.held.arrived(*where, at)
            expected = {name for name, (places, _, _) in held.items() if places.get(where, at) < at}
        elif what == "expire":
            waiting.held.expire(at * 1_000)
            expected = {name for name, (_, _, deadline) in held.items() if deadline <= at}
        else:
            waiting.held.drop_peer(peers[at])
            held = {name: each for name, each in held.items() if each[1] != at}
        waiting.work.finish()
        assert sorted(waiting.woken) == sorted(expected)
        held = {name: each for name, each in held.items() if name not in expected}
        assert len(waiting.held) == len(held)
        for key in (("T", 0), ("T", 1), ("U", 0)):
            assert waiting.held.holds(key) == any(key in places for places, _, _ in held.values())
    waiting.held.end_all()
    waiting.work.finish()
    assert len(waiting.held) == 0


def _note(waiting: Waiting, name: str, final: bool) -> None:
    waiting.woken.append(name)
