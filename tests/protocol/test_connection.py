"""The state of a connection: its table is total, and whatever happens in whatever order, no call is lost and
no byte is counted twice."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rmqkit.errors import ClientError, ConnectionLost, ProtocolError, RequestTimeout
from rmqkit.protocol import connection
from rmqkit.protocol.command import Command, answer, request
from rmqkit.protocol.connection import TABLE, Call, ConnectionCore, Event, State
from rmqkit.protocol.frame import encode

PEER = "10.0.0.1:10911"
#: A connection only moves forward in this order.
LIFE = [State.OPEN, State.DRAINING, State.HALF_CLOSED, State.CLOSED]


class Asked:
    """A call of a test, and how often it was woken."""

    def __init__(self, core: ConnectionCore, timeout_ms: int, now: float) -> None:
        self.woken = 0
        self.command = request(10)
        self.call: Call = core.call(self.command, timeout_ms, now, self._wake)

    def _wake(self) -> None:
        self.woken += 1


def opened() -> ConnectionCore:
    return ConnectionCore(PEER, 0.0)


def test_the_table_says_what_every_event_does_in_every_state() -> None:
    """No pair of state and event is missing."""
    assert set(TABLE) == set(State)
    assert all(set(row) == set(Event) for row in TABLE.values())


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_a_connection_only_moves_forward(state: State, event: Event) -> None:
    """From no state does an event lead back to an earlier one; faults and closing end it from everywhere."""
    follower = TABLE[state][event]
    assert follower is None or LIFE.index(follower) >= LIFE.index(state)
    if event in (Event.FAULT, Event.CLOSE):
        assert follower is State.CLOSED
    elif state is not State.CLOSED:
        assert follower is not State.CLOSED


@pytest.mark.parametrize(
    ("state", "works"),
    [
        (State.OPEN, {Event.REQUEST, Event.RESPONSE, Event.CALL, Event.SEND}),
        (State.DRAINING, {Event.REQUEST, Event.RESPONSE, Event.SEND}),
        (State.HALF_CLOSED, {Event.SEND}),
        (State.CLOSED, set()),
    ],
)
def test_what_a_connection_does_in_each_state(state: State, works: set[Event]) -> None:
    """Frames that may pass, in either direction; the drawing at the head of the module."""
    passing = (Event.REQUEST, Event.RESPONSE, Event.CALL, Event.SEND)
    assert {event for event in passing if TABLE[state][event] is not None} == works
    assert all(TABLE[state][event] in (state, None) for event in passing)


class Life(RuleBasedStateMachine):
    """Any events in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.core = opened()
        self.now = 0.0
        self.asked: list[Asked] = []
        self.queued = self.gone = 0
        self.seen = State.OPEN

    @rule(event=st.sampled_from([Event.END, Event.DRAIN, Event.FAULT, Event.CLOSE]))
    def ends(self, event: Event) -> None:
        before, why = self.core.state, self.core.why
        self.core.happened(event, event.value)
        assert self.core.state is TABLE[before][event]
        assert self.core.why == (why or (event.value if self.core.closed else None))

    @rule(timeout_ms=st.integers(1, 100))
    def calls(self, timeout_ms: int) -> None:
        if TABLE[self.core.state][Event.CALL] is None:
            with pytest.raises(ConnectionLost, match=PEER):
                Asked(self.core, timeout_ms, self.now)
        else:
            self.asked.append(Asked(self.core, timeout_ms, self.now))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def answers(self, data: st.DataObject) -> None:
        """The first answer counts; one that comes late, or again, finds no call."""
        each = data.draw(st.sampled_from(self.asked))
        pending = each.call.answer is None and TABLE[self.core.state][Event.RESPONSE] is not None
        assert self.core.respond(answer(each.command)) == pending

    @rule(passed_ms=st.integers(0, 60))
    def time_passes(self, passed_ms: int) -> None:
        self.now += passed_ms / 1000
        earliest = self.core.expire(self.now)
        assert earliest > self.now

    @rule(size=st.integers(0, 2_000))
    def queues(self, size: int) -> None:
        self.core.outgoing.append(bytes(size))
        self.core.unsent_bytes += size
        self.queued += size

    @rule()
    def sends(self) -> None:
        size = sum(map(len, self.core.take_outgoing()))
        self.core.sent(size, self.now)
        self.gone += size

    @invariant()
    def it_only_moves_forward(self) -> None:
        assert LIFE.index(self.core.state) >= LIFE.index(self.seen)
        self.seen = self.core.state
        assert self.core.takes_requests == (self.seen in (State.OPEN, State.DRAINING))

    @invariant()
    def bytes_are_counted_once(self) -> None:
        assert self.core.unsent_bytes == self.queued - self.gone == sum(map(len, self.core.outgoing))

    @invariant()
    def every_call_is_woken_once_when_it_is_over(self) -> None:
        answers_come = TABLE[self.core.state][Event.RESPONSE] is not None
        pending = [each for each in self.asked if each.call.answer is None and answers_come]
        assert self.core.pending_calls == len(pending)
        assert len({each.call.opaque for each in pending}) == len(pending)
        for each in self.asked:
            over = each.call.answer is not None or each.call.expired or not answers_come
            assert each.woken == over
            if each.call.answer is not None:
                assert self.core.result(each.call) is each.call.answer
            elif over:
                kind = RequestTimeout if each.call.expired else ConnectionLost
                with pytest.raises(kind, match=PEER):
                    self.core.result(each.call)


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@settings(max_examples=50, deadline=None)
@given(cuts=st.lists(st.integers(1, 40), max_size=30), broken=st.booleans())
def test_commands_arrive_whole_however_the_bytes_are_cut(cuts: list[int], broken: bool) -> None:
    """Those in front of a broken frame included; then `fault` says what is wrong."""
    data = b"".join(encode(request(10, opaque=number, body=b"x" * number)) for number in range(3))
    if broken:
        data += b"\xff" * 8
    core, got, at = opened(), list[Command](), 0
    for size in (*cuts, len(data)):
        if core.fault is None:
            with suppress(ProtocolError):
                got += core.feed(data[at : at + size])
        at += size
    assert [(command.opaque, len(command.body)) for command in got] == [(0, 0), (1, 1), (2, 2)]
    assert isinstance(core.fault, ProtocolError) == broken


def test_a_forgotten_call_has_no_answer() -> None:
    """An answer that comes all the same is dropped, also when its number is in use again."""
    core = opened()
    first = Asked(core, 1_000, 0.0)
    core.forget(first.call)
    assert not core.respond(answer(first.command))
    core._opaque = first.call.opaque
    second = Asked(core, 1_000, 0.0)
    core.forget(first.call)
    assert core.respond(answer(second.command))
    assert (first.woken, second.woken) == (0, 1)


def test_calls_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """With too many pending the next one is refused, until one is answered."""
    monkeypatch.setattr(connection, "MAX_PENDING_CALLS", 1)
    core = opened()
    first = Asked(core, 1_000, 0.0)
    with pytest.raises(ClientError, match="owes 1 answers already"):
        Asked(core, 1_000, 0.0)
    core.respond(answer(first.command))
    Asked(core, 1_000, 0.0)
    assert core.pending_calls == 1


def test_requests_and_bytes_congest_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Either too many of the one or of the other; both relieve it when they go."""
    monkeypatch.setattr(connection, "MAX_IN_FLIGHT_PER_CONNECTION", 2)
    monkeypatch.setattr(connection, "MAX_UNSENT_BYTES_PER_CONNECTION", 100)
    core = opened()
    core.in_flight = 2
    assert (core.congested, core.overloaded, core.has_room) == (True, True, True)
    core.in_flight = 0
    core.outgoing += [bytes(60), bytes(60)]
    core.unsent_bytes += 120
    assert (core.congested, core.overloaded, core.has_room) == (True, False, False)
    core.take_outgoing()
    assert core.congested
    core.sent(120, 5.0)
    assert (core.congested, core.has_room, core.last_moved) == (False, True, 5.0)


def test_one_way_requests_are_numbered_until_the_end() -> None:
    """A peer that has ended its stream may still read them."""
    core, command = opened(), request(10)
    core.happened(Event.END)
    core.oneway(command)
    assert command.is_oneway
    core.happened(Event.CLOSE, "cut")
    with pytest.raises(ConnectionLost, match="cut"):
        core.oneway(request(10))
