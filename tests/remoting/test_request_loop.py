"""Requests, hooks and processors over real sockets: requests that arrive together are served in runs, and
each gets its answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import pytest
import trio
import trio.testing

from rmqkit.errors import HeaderError, RequestDelayed, RequestRefused
from rmqkit.limits import MAX_REQUESTS_PER_TURN
from rmqkit.plugin.hooks import Refusals
from rmqkit.plugin.request import Answer, EachRequest, Outcome, Peer, Reply, RequestProcessor
from rmqkit.plugin.request_hooks import EachRequestHook, RpcHook
from rmqkit.protocol import frame
from rmqkit.protocol.codes import RequestCode, ResponseCode, SerializeType
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.frame import encode
from tests.remoting.parts import (
    BIG,
    BREAK,
    ECHO,
    LATE,
    REFUSE,
    Gate,
    NoteRuns,
    echo,
    numbered,
    refuse,
    until,
    warnings,
)
from tests.remoting.wire import Handler, served


def breaks(request: Command, peer: Peer) -> Outcome:
    raise ZeroDivisionError("secret\nTraceback (most recent call last)") from KeyError("inner")


@pytest.mark.row("S317", "S320", "S321", "S322")
@pytest.mark.parametrize("codec", [SerializeType.JSON, SerializeType.ROCKETMQ])
async def test_an_answer_comes_in_the_serialisation_of_its_request(codec: int) -> None:
    """Code, opaque, remark, fields and body are transmitted both ways in JSON and in the binary form."""
    async with served({ECHO: Handler(echo)}) as there, there.client() as client:
        asked = numbered(ECHO, opaque=-7, body=b"\x00body", codec=codec)
        asked.ext = {"topic": "Tüpic", "n": "1"}
        got = await client.ask(asked)
    assert (got.codec, got.code, got.opaque, got.remark, got.body) == (codec, 0, -7, "echo", b"\x00body")
    assert got.fields() == {"topic": "Tüpic", "n": "1"}
    assert got.is_response
    assert not got.is_oneway


async def test_both_serialisations_share_a_connection() -> None:
    """Each request is answered in its own serialisation."""
    async with served({ECHO: Handler(echo)}) as there, there.client() as client:
        await client.send(
            numbered(ECHO, opaque=1, codec=1), numbered(ECHO, opaque=2), numbered(ECHO, opaque=3, codec=1)
        )
        assert [((await client.receive()).codec) for _ in range(3)] == [1, 0, 1]


@pytest.mark.row("S323", "S312")
@pytest.mark.parametrize("code", [ECHO, REFUSE, BREAK, LATE, 999])
async def test_a_one_way_request_is_never_answered(code: int) -> None:
    """No success and no error is sent for it, neither at once nor later."""
    gate = Gate()
    gate.event.set()
    processors = {ECHO: Handler(echo), REFUSE: Handler(refuse), BREAK: Handler(breaks), LATE: Handler(gate)}
    async with served(processors) as there, there.client() as client:
        await client.send(numbered(code, opaque=1, oneway=True), numbered(ECHO, opaque=2))
        assert (await client.receive()).opaque == 2
        (peer,) = there.server.peers
        await until(lambda: peer.core.in_flight == 0)
        assert (await client.ask(numbered(ECHO, opaque=3))).opaque == 3


@pytest.mark.row("S312")
async def test_an_unknown_code_is_not_supported() -> None:
    """The answer has code 3 and a remark with the number, and with the name where RocketMQ has one."""
    async with served({}) as there, there.client() as client:
        got = await client.ask(numbered(RequestCode.POP_MESSAGE))
        assert (got.code, got.remark) == (3, "request code 200050 (POP_MESSAGE) is not supported here")
        got = await client.ask(numbered(31_999))
        assert (got.code, got.remark) == (3, "request code 31999 is not supported here")


@pytest.mark.row("S312")
async def test_a_default_processor_takes_the_rest() -> None:
    """Codes without a processor of their own are handled by the default processor."""
    async with served({REFUSE: Handler(refuse)}, default=Handler(echo)) as there, there.client() as client:
        assert (await client.ask(numbered(4711))).code == 0
        assert (await client.ask(numbered(REFUSE))).code == ResponseCode.NO_PERMISSION


async def test_a_refusal_has_its_code_and_text() -> None:
    """RequestRefused and every other error of rmqkit determine code and remark of the answer."""

    def bad_header(request: Command, peer: Peer) -> Outcome:
        raise HeaderError("header of request 2: field topic is missing")

    async with (
        served({REFUSE: Handler(refuse), BREAK: Handler(bad_header)}) as there,
        there.client() as client,
    ):
        got = await client.ask(numbered(REFUSE))
        assert (got.code, got.remark) == (ResponseCode.NO_PERMISSION, "not you")
        got = await client.ask(numbered(BREAK))
        assert (got.code, got.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "header of request 2: field topic is missing",
        )


async def test_a_processor_that_breaks_is_an_answer_without_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The peer gets SYSTEM_ERROR with the exception's own text, the log gets the traceback, and the
    connection stays open."""

    async def later(request: Command) -> Answer:
        await trio.lowlevel.checkpoint()
        raise ZeroDivisionError("late")

    def breaks_later(request: Command, peer: Peer) -> Outcome:
        return peer.answer_async(request, partial(later, request))

    async with (
        served({BREAK: Handler(breaks), LATE: Handler(breaks_later), ECHO: Handler(echo)}) as there,
        there.client() as client,
    ):
        got = await client.ask(numbered(BREAK))
        assert got.code == ResponseCode.SYSTEM_ERROR
        assert got.remark is not None
        assert got.remark.startswith("internal error: ZeroDivisionError: secret")
        assert "File" not in got.remark
        got = await client.ask(numbered(LATE))
        assert (got.code, got.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "internal error: ZeroDivisionError: late",
        )
        assert (await client.ask(numbered(ECHO))).code == 0
    assert len(warnings(caplog)) == 2
    assert all(record.exc_info for record in caplog.records if record.levelno >= logging.WARNING)


@pytest.mark.parametrize("where", ["work", "batch", "batch count", "ticket", "encode", "type"])
async def test_a_plugin_that_breaks_its_contract_cannot_end_the_server(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Work that raises, a processor that raises or loses answers, a ticket that does, an answer that cannot
    be encoded: all stay one request's trouble."""

    async def broken() -> Outcome:
        raise ValueError("work")

    class Batch(RequestProcessor):
        def process(self, requests: Sequence[Command], peer: Peer) -> list[Outcome]:
            if where == "batch":
                raise ValueError("batch")
            return []

    def bad(request: Command, peer: Peer) -> Outcome:
        if where == "work":
            return peer.answer_async(request, broken)
        if where == "ticket":
            ticket = peer.postpone((request,))
            ticket.complete(())
            return ticket
        if where == "type":
            return 5  # type: ignore[return-value]
        response = answer(request)
        response.remark = object()  # type: ignore[assignment]
        return response

    processor = Batch() if where.startswith("batch") else Handler(bad)
    async with (
        served({BREAK: processor, ECHO: Handler(echo)}) as there,
        there.client() as client,
        there.client() as other,
    ):
        await client.send(numbered(BREAK, opaque=1), numbered(ECHO, opaque=2))
        answers = {got.opaque: got.code for got in [await client.receive(), await client.receive()]}
        assert answers == {1: ResponseCode.SYSTEM_ERROR, 2: 0}
        (peer, _) = sorted(there.server.peers, key=lambda peer: -peer.core.last_moved)
        await until(lambda: peer.core.in_flight == 0)
        assert (await other.ask(numbered(ECHO))).code == 0
        assert (await client.ask(numbered(ECHO, opaque=3))).opaque == 3
    assert len(warnings(caplog)) == 1


async def test_an_encoded_answer_is_sent_as_it_is() -> None:
    """A processor may answer with a whole encoded frame, as the send path does."""

    def encoded(request: Command, peer: Peer) -> Outcome:
        return frame.encode(answer(request, 17, "ready-made"))

    async with served({ECHO: Handler(encoded)}) as there, there.client() as client:
        got = await client.ask(numbered(ECHO, opaque=5))
    assert (got.code, got.opaque, got.remark) == (17, 5, "ready-made")


async def test_requests_that_arrive_together_go_to_a_processor_in_runs() -> None:
    """Consecutive requests of one processor form a run, and one-way requests a run of their own; requests of
    other processors and answers of the peer end the run, and the answers keep the order."""
    runs: list[list[int]] = []

    class Batch(RequestProcessor):
        def process(self, requests: Sequence[Command], peer: Peer) -> list[Outcome]:
            runs.append([request.opaque for request in requests])
            return [None if request.opaque == 3 else answer(request) for request in requests]

    stray = Command(code=0, flag=1, opaque=99)
    batch = Batch()
    async with served({10: batch, 11: batch, ECHO: Handler(echo)}) as there, there.client() as client:
        sent = [
            numbered(10, opaque=1),
            numbered(11, opaque=2),
            numbered(10, opaque=3),
            numbered(ECHO, opaque=4),
        ]
        sent += [numbered(11, opaque=5), stray, numbered(10, opaque=6), numbered(10, opaque=7, oneway=True)]
        await client.send(*sent, numbered(ECHO, opaque=8))
        order = [(await client.receive()).opaque for _ in range(6)]
    assert order == [1, 2, 4, 5, 6, 8]
    assert runs == [[1, 2, 3], [5], [6], [7]]


class Note(EachRequestHook):
    """Notes its calls; raises the error it is given."""

    def __init__(
        self, name: str, seen: list[str], before: Exception | None = None, after: Exception | None = None
    ) -> None:
        self._name, self._seen, self._before, self._after = name, seen, before, after

    def before_each(self, request: Command, peer: Peer) -> None:
        self._seen.append(f"{self._name} before {request.opaque}")
        if self._before is not None:
            raise self._before

    def after_each(self, request: Command, answer: Command, peer: Peer) -> None:
        self._seen.append(f"{self._name} after {request.opaque}: {answer.code}")
        if self._after is not None:
            raise self._after


async def test_rpc_hooks_run_around_every_request_in_order() -> None:
    """Hooks run before the processor and once the answer is known, for immediate, sliced, deferred and
    failing answers alike."""
    seen: list[str] = []
    gate = Gate()
    gate.event.set()

    def reply(request: Command, peer: Peer) -> Outcome:
        return Reply(answer(request), [b"x"], 1)

    processors = {ECHO: Handler(echo), LATE: Handler(gate), REFUSE: Handler(refuse), BIG: Handler(reply)}
    async with (
        served(processors, rpc_hooks=(Note("a", seen), Note("b", seen))) as there,
        there.client() as client,
    ):
        for opaque, code in enumerate((ECHO, LATE, REFUSE, BIG, 999)):
            await client.ask(numbered(code, opaque=opaque))
    codes = [0, 0, 16, 0, 3]
    assert seen == [
        line
        for at, code in enumerate(codes)
        for line in (f"a before {at}", f"b before {at}", f"a after {at}: {code}", f"b after {at}: {code}")
    ]


async def test_there_is_no_after_for_a_one_way_request() -> None:
    """As in Java, the after hook is not called for one-way requests."""
    seen: list[str] = []
    gate = Gate()
    gate.event.set()
    async with (
        served({ECHO: Handler(echo), LATE: Handler(gate)}, rpc_hooks=(Note("a", seen),)) as there,
        there.client() as client,
    ):
        await client.send(
            numbered(ECHO, opaque=1, oneway=True),
            numbered(LATE, opaque=2, oneway=True),
            numbered(ECHO, opaque=3),
        )
        await client.receive()
        (peer,) = there.server.peers
        await until(lambda: peer.core.in_flight == 0)
    assert seen == ["a before 1", "a before 2", "a before 3", "a after 3: 0"]


@pytest.mark.parametrize(
    ("error", "code", "remark"),
    [
        (RequestRefused(ResponseCode.NO_PERMISSION, "who are you"), 16, "who are you"),
        (ValueError("boom"), 1, "rpc hook 'Note' failed: ValueError: boom"),
    ],
)
async def test_a_before_hook_refuses(
    error: Exception, code: int, remark: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither later hooks nor the processor see the request. Any other exception refuses it too, so that a
    broken check admits no request."""
    seen: list[str] = []
    processed: list[Command] = []

    def act(request: Command, peer: Peer) -> Outcome:
        processed.append(request)
        return answer(request)

    async with (
        served({ECHO: Handler(act)}, rpc_hooks=(Note("a", seen, before=error), Note("b", seen))) as there,
        there.client() as client,
    ):
        got = await client.ask(numbered(ECHO, opaque=1))
    assert (got.code, got.remark) == (code, remark)
    assert processed == []
    assert "b before 1" not in seen
    assert len(warnings(caplog)) == (code == 1)


async def test_an_after_hook_that_breaks_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The failure is logged; the answer and the later hooks are not affected."""
    seen: list[str] = []
    hooks = (Note("a", seen, after=ValueError("boom")), Note("b", seen))
    async with served({ECHO: Handler(echo)}, rpc_hooks=hooks) as there, there.client() as client:
        assert (await client.ask(numbered(ECHO, opaque=1))).code == 0
    assert seen[-1] == "b after 1: 0"
    assert len(warnings(caplog)) == 1


class Mixed(RequestProcessor):
    """Answers ECHO with a frame, BIG with a command, LATE later: with what `later` gives. `runs` are the
    opaques of what it was given."""

    def __init__(self, later: Callable[[Command], Answer] = answer) -> None:
        self._later = later
        self.runs: list[list[int]] = []

    def process(self, requests: Sequence[Command], peer: Peer) -> list[Outcome]:
        self.runs.append([request.opaque for request in requests])
        return [self._outcome(request, peer) for request in requests]

    def _outcome(self, request: Command, peer: Peer) -> Outcome:
        if request.code == LATE:
            return peer.answer_async(request, partial(self._answer_later, request))
        return encode(answer(request, remark="whole")) if request.code == ECHO else answer(request, 7)

    async def _answer_later(self, request: Command) -> Answer:
        await trio.lowlevel.checkpoint()
        return self._later(request)


async def test_hooks_are_shown_what_arrived_together() -> None:
    """The answers of a run that are known at once are shown together; the others are shown when they come.
    One-way requests are a run without answers. No request is shown twice."""
    seen: list[str] = []
    mixed = Mixed()
    async with (
        served({ECHO: mixed, LATE: mixed, BIG: mixed}, rpc_hooks=(NoteRuns("a", seen),)) as there,
        there.client() as client,
    ):
        await client.send(*(numbered(ECHO, opaque=at) for at in range(3)))
        assert [(await client.receive()).opaque for _ in range(3)] == [0, 1, 2]
        assert seen == ["a before [0, 1, 2]", "a after [0, 1, 2]: [0, 0, 0]"]
        seen.clear()
        codes = [ECHO, BIG, LATE, ECHO]
        await client.send(
            *(numbered(code, opaque=at) for at, code in enumerate(codes)),
            numbered(ECHO, opaque=4, oneway=True),
        )
        assert {(await client.receive()).opaque for _ in codes} == {0, 1, 2, 3}
        (peer,) = there.server.peers
        await until(lambda: peer.core.in_flight == 0)
    assert seen == [
        "a before [0, 1, 2, 3]",
        "a after [0, 1, 3]: [0, 7, 0]",
        "a before [4]",
        "a after [2]: [0]",
    ]


async def test_a_hook_refuses_some_of_a_run() -> None:
    """Neither the later hooks nor the processor see the refused requests; the others stay together, and the
    answers keep the order of the requests. All hooks see all answers."""
    seen: list[str] = []
    mixed = Mixed()
    hooks = (NoteRuns("a", seen, (1,)), NoteRuns("b", seen, (2, 4)), NoteRuns("c", seen))
    async with served({ECHO: mixed}, rpc_hooks=hooks) as there, there.client() as client:
        await client.send(*(numbered(ECHO, opaque=at) for at in range(5)))
        got = [await client.receive() for _ in range(5)]
    assert [(each.opaque, each.code, each.remark) for each in got] == [
        (0, 0, "whole"),
        (1, 16, "not you"),
        (2, 16, "not you"),
        (3, 0, "whole"),
        (4, 16, "not you"),
    ]
    assert mixed.runs == [[0, 3]]
    assert seen == ["a before [0, 1, 2, 3, 4]", "b before [0, 2, 3, 4]", "c before [0, 3]"] + [
        f"{name} after [0, 1, 2, 3, 4]: [0, 16, 16, 0, 16]" for name in "abc"
    ]


async def test_a_run_that_is_refused_as_a_whole_does_not_reach_the_processor() -> None:
    """Every request of the run is answered with the refusal."""
    mixed = Mixed()
    hooks = (NoteRuns("a", [], range(3)),)
    async with served({ECHO: mixed}, rpc_hooks=hooks) as there, there.client() as client:
        await client.send(*(numbered(ECHO, opaque=at) for at in range(3)))
        assert [(await client.receive()).code for _ in range(3)] == [16, 16, 16]
    assert mixed.runs == []


class Delays(RpcHook):
    """Delays the odd opaques by a minute."""

    def before(self, requests: Sequence[Command], peer: Peer) -> Refusals:
        return {at: RequestDelayed(60) for at, request in enumerate(requests) if request.opaque % 2}


async def test_a_hook_delays_some_of_a_run(mock_clock: trio.testing.MockClock) -> None:
    """The others are answered at once. A delayed request counts as in flight; when it is due, the later hooks
    see it, and may refuse it."""
    seen: list[str] = []
    mixed = Mixed()
    hooks = (NoteRuns("a", seen), Delays(), NoteRuns("b", seen, (3,)))
    async with served({ECHO: mixed}, rpc_hooks=hooks) as there, there.client() as client:
        await client.send(*(numbered(ECHO, opaque=at) for at in range(4)))
        assert [(await client.receive()).opaque for _ in range(2)] == [0, 2]
        (peer,) = there.server.peers
        assert peer.core.in_flight == 2
        assert seen[:2] == ["a before [0, 1, 2, 3]", "b before [0, 2]"]
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(60)
        got = [await client.receive() for _ in range(2)]
        assert {(each.opaque, each.code) for each in got} == {(1, 0), (3, ResponseCode.NO_PERMISSION)}
        await until(lambda: peer.core.in_flight == 0)
    assert mixed.runs == [[0, 2], [1]]
    assert {"b before [1]", "b before [3]", "a after [1]: [0]", "a after [3]: [16]"} <= set(seen)


async def test_a_delayed_request_ends_with_its_connection(mock_clock: trio.testing.MockClock) -> None:
    """It is never processed, and the server has nothing left of it."""
    mixed = Mixed()
    async with served({ECHO: mixed}, rpc_hooks=(Delays(),)) as there:
        async with there.client() as client:
            await client.send(numbered(ECHO, opaque=1), numbered(ECHO, opaque=2))
            assert (await client.receive()).opaque == 2
            (peer,) = there.server.peers
            peer.close()
        await until(lambda: not there.server.peers)
        mock_clock.jump(60)
        await trio.testing.wait_all_tasks_blocked()
    assert mixed.runs == [[2]]


@pytest.mark.parametrize(
    "refusals",
    [{3: RequestRefused(16, "x")}, {"0": RequestRefused(16, "x")}, {0: "no"}, [0], 1, {0: ValueError("x")}],
)
async def test_a_hook_that_refuses_by_nonsense_lets_nobody_in(
    refusals: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """SYSTEM_ERROR for the run, or for the request whose check failed, and the hook is named in the log."""

    class Nonsense(RpcHook):
        def before(self, requests: Sequence[Command], peer: Peer) -> Refusals | None:
            return refusals  # type: ignore[no-any-return]

    mixed = Mixed()
    async with served({ECHO: mixed}, rpc_hooks=(Nonsense(),)) as there, there.client() as client:
        got = await client.ask(numbered(ECHO))
    assert got.code == ResponseCode.SYSTEM_ERROR
    assert (got.remark or "").startswith("rpc hook 'Nonsense' failed: ")
    assert mixed.runs == []
    assert len(warnings(caplog)) == 1


async def test_a_hook_of_single_requests_refuses_by_raising(caplog: pytest.LogCaptureFixture) -> None:
    """Of a run, the requests it raises for are refused; where it fails with another error the answer is
    SYSTEM_ERROR; the others are served. After the answers it is called for each of them, although it fails at
    the first."""

    class Odd(EachRequestHook):
        answered: ClassVar[list[int]] = []

        def before_each(self, request: Command, peer: Peer) -> None:
            if request.opaque == 1:
                raise RequestRefused(16, "odd")
            if request.opaque == 3:
                raise ValueError("boom")

        def after_each(self, request: Command, answer: Command, peer: Peer) -> None:
            self.answered.append(request.opaque)
            raise ValueError("boom")

    mixed, hook = Mixed(), Odd()
    async with served({ECHO: mixed}, rpc_hooks=(hook,)) as there, there.client() as client:
        await client.send(*(numbered(ECHO, opaque=at) for at in range(4)))
        got = [await client.receive() for _ in range(4)]
    assert [each.code for each in got] == [0, 16, 0, 1]
    assert mixed.runs == [[0, 2]]
    assert hook.answered == [0, 1, 2, 3]
    assert len(warnings(caplog)) == 2


async def test_a_hook_is_shown_the_codes_it_names() -> None:
    """Requests with other codes go to the processor without that hook, in runs of their own."""
    seen: list[str] = []
    mixed, hook = Mixed(), NoteRuns("a", seen)
    hook.codes = frozenset({LATE, ECHO})
    async with (
        served({ECHO: mixed, LATE: mixed, BIG: mixed}, rpc_hooks=(hook,)) as there,
        there.client() as client,
    ):
        codes = [BIG, BIG, ECHO, ECHO, BIG, ECHO]
        await client.send(*(numbered(code, opaque=at) for at, code in enumerate(codes)))
        assert [(await client.receive()).opaque for _ in codes] == list(range(len(codes)))
    assert seen == ["a before [2, 3]", "a after [2, 3]: [0, 0]", "a before [5]", "a after [5]: [0]"]
    assert mixed.runs == [[0, 1], [2, 3], [4], [5]]


async def test_a_late_answer_that_is_encoded_is_shown_decoded() -> None:
    """Hooks see a late answer decoded, as every answer."""
    seen: list[str] = []
    mixed = Mixed(lambda request: encode(answer(request)))
    async with served({LATE: mixed}, rpc_hooks=(NoteRuns("a", seen),)) as there, there.client() as client:
        assert (await client.ask(numbered(LATE, opaque=1))).code == 0
    assert seen == ["a before [1]", "a after [1]: [0]"]


async def test_a_hook_that_looks_at_runs_and_breaks_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The failure is logged and the answers are sent."""
    hook = NoteRuns("a", [], after=ValueError("boom"))
    async with served({ECHO: Mixed()}, rpc_hooks=(hook,)) as there, there.client() as client:
        await client.send(numbered(ECHO, opaque=1), numbered(ECHO, opaque=2))
        assert [(await client.receive()).opaque for _ in range(2)] == [1, 2]
    assert len(warnings(caplog)) == 1


async def test_a_processor_of_single_requests_is_asked_for_room_before_each() -> None:
    """Its answers may be big, so it gets one request at a time."""
    runs: list[int] = []

    class Single(EachRequest):
        def process(self, requests: Sequence[Command], peer: Peer) -> Sequence[Outcome]:
            runs.append(len(requests))
            return super().process(requests, peer)

        def handle(self, request: Command, peer: Peer) -> Outcome:
            return answer(request)

    async with served({ECHO: Single()}) as there, there.client() as client:
        await client.send(*(numbered(ECHO, opaque=at) for at in range(3)))
        assert [(await client.receive()).opaque for _ in range(3)] == [0, 1, 2]
    assert runs == [1, 1, 1]


@pytest.mark.row("S029", "S072")
async def test_requests_that_arrive_together_are_served_in_turns() -> None:
    """A connection that sends hundreds of requests at once lets other connections be served in between."""
    served_at: list[int] = []
    turn = 0

    def note(request: Command, peer: Peer) -> Outcome:
        served_at.append(turn)
        return None

    async with (
        served({ECHO: Handler(echo), LATE: Handler(note)}) as at,
        at.client() as client,
        trio.open_nursery() as nursery,
    ):

        async def count() -> None:
            nonlocal turn
            while True:
                turn += 1
                await trio.lowlevel.checkpoint()

        nursery.start_soon(count)
        await client.send(*[numbered(LATE, oneway=True)] * 1_000, numbered(ECHO))
        await client.receive()
        nursery.cancel_scope.cancel()
    assert len(served_at) == 1_000
    assert max(served_at.count(turn) for turn in set(served_at)) <= 2 * MAX_REQUESTS_PER_TURN
