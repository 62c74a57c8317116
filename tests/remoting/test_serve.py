"""The serving loop over real sockets: every request gets its answer, and no peer can harm the server or another peer."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence
from random import Random
from struct import pack

import pytest
import trio
import trio.testing

from rmqkit.abc import Answer, BatchProcessor, Buffer, Outcome, Peer, Postponed, Reply
from rmqkit.errors import ConnectionLost, HeaderError, RequestRefused, RequestTimeout
from rmqkit.hooks import ManyRequestsHook, RpcHook
from rmqkit.limits import MAX_FRAME_BYTES, MAX_HEADER_BYTES
from rmqkit.protocol import frame
from rmqkit.protocol.codes import RequestCode, ResponseCode, SerializeType
from rmqkit.protocol.command import Command, answer, request
from rmqkit.protocol.frame import encode
from rmqkit.remoting import serve
from tests.remoting.wire import PATIENCE_S, Client, Handler, Served, served

ECHO, REFUSE, BREAK, LATE, BIG, PUSH, CALL = 1, 2, 3, 4, 5, 6, 7


def echo(request: Command, peer: Peer) -> Outcome:
    response = answer(request, 0, "echo", body=request.body)
    response.ext = dict(request.fields())
    return response


def refuse(request: Command, peer: Peer) -> Outcome:
    raise RequestRefused(ResponseCode.NO_PERMISSION, "not you")


def breaks(request: Command, peer: Peer) -> Outcome:
    raise ZeroDivisionError("secret\nTraceback (most recent call last)") from KeyError("inner")


class Gate:
    """A processor that answers once it is opened, and knows who waits."""

    def __init__(self) -> None:
        self.event = trio.Event()
        self.waiting = 0
        self.cancelled = 0

    def __call__(self, request: Command, peer: Peer) -> Outcome:
        return self._later(request)

    async def _later(self, request: Command) -> Answer:
        self.waiting += 1
        try:
            await self.event.wait()
        except trio.Cancelled:
            self.cancelled += 1
            raise
        finally:
            self.waiting -= 1
        return answer(request, 0, "late")


async def until(condition: Callable[[], bool]) -> None:
    """Let the server go on until something has happened."""
    with trio.fail_after(PATIENCE_S):
        while not condition():
            await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked()


def numbered(code: int, *, opaque: int = 0, body: bytes = b"", codec: int = 0, oneway: bool = False) -> Command:
    command = request(code, opaque=opaque, body=body, oneway=oneway)
    command.codec = codec
    return command


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# --- request and response ---------------------------------------------------------------------------------------------


@pytest.mark.row("S312", "S317", "S320", "S321", "S322")
@pytest.mark.parametrize("codec", [SerializeType.JSON, SerializeType.ROCKETMQ])
async def test_an_answer_comes_in_the_serialisation_of_its_request(codec: int) -> None:
    """Code, opaque, remark, fields and body make the way there and back in JSON and in the binary form."""
    async with served({ECHO: Handler(echo)}) as there, there.client() as client:
        asked = numbered(ECHO, opaque=-7, body=b"\x00body", codec=codec)
        asked.ext = {"topic": "Tüpic", "n": "1"}
        got = await client.ask(asked)
    assert (got.codec, got.code, got.opaque, got.remark, got.body) == (codec, 0, -7, "echo", b"\x00body")
    assert got.fields() == {"topic": "Tüpic", "n": "1"}
    assert got.is_response
    assert not got.is_oneway


@pytest.mark.row("S312")
async def test_both_serialisations_share_a_connection() -> None:
    """Each request is answered in its own."""
    async with served({ECHO: Handler(echo)}) as there, there.client() as client:
        await client.send(numbered(ECHO, opaque=1, codec=1), numbered(ECHO, opaque=2), numbered(ECHO, opaque=3, codec=1))
        assert [((await client.receive()).codec) for _ in range(3)] == [1, 0, 1]


@pytest.mark.row("S312", "S323")
@pytest.mark.parametrize("code", [ECHO, REFUSE, BREAK, LATE, 999])
async def test_a_one_way_request_is_never_answered(code: int) -> None:
    """Not with success, not with an error, not later."""
    gate = Gate()
    gate.event.set()
    processors = {ECHO: Handler(echo), REFUSE: Handler(refuse), BREAK: Handler(breaks), LATE: Handler(gate)}
    async with served(processors) as there, there.client() as client:
        await client.send(numbered(code, opaque=1, oneway=True), numbered(ECHO, opaque=2))
        assert (await client.receive()).opaque == 2
        (peer,) = there.server.peers
        await until(lambda: peer.in_flight == 0)
        assert (await client.ask(numbered(ECHO, opaque=3))).opaque == 3


@pytest.mark.row("S312", "S318")
async def test_an_unknown_code_is_not_supported() -> None:
    """Code 3 and a remark with the number, and its name where RocketMQ has one."""
    async with served({}) as there, there.client() as client:
        got = await client.ask(numbered(RequestCode.POP_MESSAGE))
        assert (got.code, got.remark) == (3, "request code 200050 (POP_MESSAGE) is not supported here")
        got = await client.ask(numbered(31_999))
        assert (got.code, got.remark) == (3, "request code 31999 is not supported here")


@pytest.mark.row("S312")
async def test_a_default_processor_takes_the_rest() -> None:
    """Codes without a processor of their own go to it."""
    async with served({REFUSE: Handler(refuse)}, default=Handler(echo)) as there, there.client() as client:
        assert (await client.ask(numbered(4711))).code == 0
        assert (await client.ask(numbered(REFUSE))).code == ResponseCode.NO_PERMISSION


async def test_a_refusal_has_its_code_and_text() -> None:
    """RequestRefused, and every other error of the kit, is the answer it says it is."""

    def bad_header(request: Command, peer: Peer) -> Outcome:
        raise HeaderError("header of request 2: field topic is missing")

    async with served({REFUSE: Handler(refuse), BREAK: Handler(bad_header)}) as there, there.client() as client:
        got = await client.ask(numbered(REFUSE))
        assert (got.code, got.remark) == (ResponseCode.NO_PERMISSION, "not you")
        got = await client.ask(numbered(BREAK))
        assert (got.code, got.remark) == (ResponseCode.SYSTEM_ERROR, "header of request 2: field topic is missing")


async def test_a_processor_that_breaks_is_an_answer_without_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """The peer gets SYSTEM_ERROR and the exception's own text, the log gets the traceback, the connection goes on."""

    async def later(request: Command) -> Answer:
        await trio.lowlevel.checkpoint()
        raise ZeroDivisionError("late")

    def breaks_later(request: Command, peer: Peer) -> Outcome:
        return later(request)

    async with served({BREAK: Handler(breaks), LATE: Handler(breaks_later), ECHO: Handler(echo)}) as there, there.client() as client:
        got = await client.ask(numbered(BREAK))
        assert got.code == ResponseCode.SYSTEM_ERROR
        assert got.remark is not None
        assert got.remark.startswith("internal error: ZeroDivisionError: secret")
        assert "File" not in got.remark
        got = await client.ask(numbered(LATE))
        assert (got.code, got.remark) == (ResponseCode.SYSTEM_ERROR, "internal error: ZeroDivisionError: late")
        assert (await client.ask(numbered(ECHO))).code == 0
    assert len(warnings(caplog)) == 2
    assert all(record.exc_info for record in caplog.records if record.levelno >= logging.WARNING)


@pytest.mark.parametrize("where", ["defer", "batch", "batch count", "encode", "type"])
async def test_a_plugin_that_breaks_its_contract_cannot_end_the_server(where: str, caplog: pytest.LogCaptureFixture) -> None:
    """Deferred work that raises, a batch processor that raises or loses answers, an answer that cannot be encoded: all stay one request's trouble."""

    async def broken() -> None:
        raise ValueError("deferred")

    class Batch(BatchProcessor):
        def process(self, request: Command, peer: Peer) -> Outcome:
            raise NotImplementedError

        def process_many(self, requests: Sequence[Command], peer: Peer) -> list[Outcome]:
            if where == "batch":
                raise ValueError("batch")
            return []

    def bad(request: Command, peer: Peer) -> Outcome:
        if where == "defer":
            peer.defer(broken, 1)
            return None
        if where == "type":
            return 5  # type: ignore[return-value]
        response = answer(request)
        response.remark = object()  # type: ignore[assignment]
        return response

    processor = Batch() if where.startswith("batch") else Handler(bad)
    async with served({BREAK: processor, ECHO: Handler(echo)}) as there, there.client() as client, there.client() as other:
        await client.send(numbered(BREAK, opaque=1), numbered(ECHO, opaque=2))
        answers = {got.opaque: got.code for got in [await client.receive()]}
        if where != "defer":
            answers |= {got.opaque: got.code for got in [await client.receive()]}
            assert answers[1] == ResponseCode.SYSTEM_ERROR
        assert answers[2] == 0
        (peer, _) = sorted(there.server.peers, key=lambda peer: -peer.last_active)
        await until(lambda: peer.in_flight == 0)
        assert (await other.ask(numbered(ECHO))).code == 0
        assert (await client.ask(numbered(ECHO, opaque=3))).opaque == 3
    assert len(warnings(caplog)) == 1


async def test_an_answer_over_the_frame_limit_is_a_system_error() -> None:
    """The sender of the request is told, instead of being cut off; with the body inside and with slices."""
    size = MAX_FRAME_BYTES

    def big(request: Command, peer: Peer) -> Outcome:
        body = bytes(size)
        return answer(request, body=body) if request.opaque == 1 else Reply(answer(request), [body], size)

    async with served({BIG: Handler(big), ECHO: Handler(echo)}) as there, there.client() as client:
        for opaque in (1, 2):
            got = await client.ask(numbered(BIG, opaque=opaque))
            assert (got.code, got.opaque) == (ResponseCode.SYSTEM_ERROR, opaque)
        assert (await client.ask(numbered(ECHO))).code == 0


async def test_a_reply_in_slices_arrives_whole() -> None:
    """Head, then the slices in order, whatever their number; memoryviews included."""
    slices: list[Buffer] = [b"ab", memoryview(b"cdef")[1:3], b"", *(b"%05d" % number for number in range(3_000)), bytes(300_000)]
    total = sum(map(len, slices))

    def reply(request: Command, peer: Peer) -> Outcome:
        return Reply(answer(request), slices, total)

    async with served({BIG: Handler(reply)}) as there, there.client() as client:
        assert (await client.ask(numbered(BIG))).body == b"".join(map(bytes, slices))


async def test_an_encoded_answer_is_sent_as_it_is() -> None:
    """The hot path of a send answers with whole frames."""

    def encoded(request: Command, peer: Peer) -> Outcome:
        return frame.encode(answer(request, 17, "ready-made"))

    async with served({ECHO: Handler(encoded)}) as there, there.client() as client:
        got = await client.ask(numbered(ECHO, opaque=5))
    assert (got.code, got.opaque, got.remark) == (17, 5, "ready-made")


# --- order, deferred answers, back-pressure ---------------------------------------------------------------------------


async def test_requests_that_arrive_together_go_to_a_batch_processor_in_runs() -> None:
    """Neighbours of one processor are one run, others and answers of the peer part them, and the answers keep the order."""
    runs: list[list[int]] = []

    class Batch(BatchProcessor):
        def process(self, request: Command, peer: Peer) -> Outcome:
            raise NotImplementedError

        def process_many(self, requests: Sequence[Command], peer: Peer) -> list[Outcome]:
            runs.append([request.opaque for request in requests])
            return [None if request.opaque == 3 else answer(request) for request in requests]

    stray = Command(code=0, flag=1, opaque=99)
    batch = Batch()
    async with served({10: batch, 11: batch, ECHO: Handler(echo)}) as there, there.client() as client:
        sent = [numbered(10, opaque=1), numbered(11, opaque=2), numbered(10, opaque=3), numbered(ECHO, opaque=4)]
        sent += [numbered(11, opaque=5), stray, numbered(10, opaque=6), numbered(10, opaque=7, oneway=True)]
        await client.send(*sent, numbered(ECHO, opaque=8))
        order = [(await client.receive()).opaque for _ in range(6)]
    assert order == [1, 2, 4, 5, 6, 8]
    assert runs == [[1, 2, 3], [5], [6, 7]]


async def test_a_deferred_answer_does_not_block_the_frames_behind_it() -> None:
    """What waits is a task of its own."""
    gate = Gate()
    async with served({LATE: Handler(gate), ECHO: Handler(echo)}) as there, there.client() as client:
        await client.send(numbered(LATE, opaque=1), numbered(ECHO, opaque=2))
        assert (await client.receive()).opaque == 2
        gate.event.set()
        assert (await client.receive()).opaque == 1


async def test_an_answer_may_come_by_respond() -> None:
    """A processor that returns None answers whenever it likes; a one-way request is not answered even then."""
    held: list[tuple[Peer, Command]] = []

    def hold(request: Command, peer: Peer) -> Outcome:
        held.append((peer, request))
        return None

    async with served({LATE: Handler(hold), ECHO: Handler(echo)}) as there, there.client() as client:
        await client.send(numbered(LATE, opaque=1), numbered(LATE, opaque=2, oneway=True), numbered(ECHO, opaque=3))
        assert (await client.receive()).opaque == 3
        assert next(iter(there.server.peers)).in_flight == 0
        for peer, asked in reversed(held):
            peer.respond(asked, answer(asked, 0, "at last"))
        assert (await client.receive()).opaque == 1
        assert (await client.ask(numbered(ECHO, opaque=4))).opaque == 4


def holding(held: list[tuple[Postponed, Command]]) -> Handler:
    """A processor that postpones its answers; the test gives them."""

    def hold(request: Command, peer: Peer) -> Outcome:
        held.append((peer.postpone(1), request))
        return None

    return Handler(hold)


async def test_answers_may_be_postponed() -> None:
    """Each goes out when it is given, with others or alone, large or small; until then the request counts as in flight. One-way requests get none."""
    held: list[tuple[Postponed, Command]] = []
    async with served({LATE: holding(held), ECHO: Handler(echo)}) as there, there.client() as client:
        await client.send(*(numbered(LATE, opaque=opaque) for opaque in range(3)), numbered(LATE, opaque=3, oneway=True))
        await client.ask(numbered(ECHO))
        (peer,) = there.server.peers
        assert peer.in_flight == 4
        for answered, asked in reversed(held):
            answered([(asked, answer(asked, 0, body=bytes(asked.opaque * 100_000)))])
        assert peer.in_flight == 0
        got = [await client.receive() for _ in range(3)]
    assert [(each.opaque, len(each.body)) for each in got] == [(2, 200_000), (1, 100_000), (0, 0)]


async def test_postponed_answers_for_a_slow_reader_come_whole_and_in_order() -> None:
    """What does not go out at once waits, and nothing overtakes it."""
    held: list[tuple[Postponed, Command]] = []
    async with served({LATE: holding(held)}) as there, there.client() as client:
        await client.send(*(numbered(LATE, opaque=opaque) for opaque in range(400)))
        await until(lambda: len(held) == 400)
        for answered, asked in held:
            answered([(asked, answer(asked, 0, body=bytes([asked.opaque % 251]) * 50_000))])
        await trio.testing.wait_all_tasks_blocked()
        assert next(iter(there.server.peers))._unsent_bytes > 0
        for opaque in range(400):
            got = await client.receive()
            assert (got.opaque, got.body) == (opaque, bytes([opaque % 251]) * 50_000)


async def test_draining_waits_for_postponed_answers() -> None:
    """As for all that is in flight."""
    held: list[tuple[Postponed, Command]] = []
    async with served({LATE: holding(held)}) as there, there.client() as client, trio.open_nursery() as nursery:
        await client.send(numbered(LATE, opaque=1))
        await until(lambda: len(held) == 1)
        nursery.start_soon(drained, there)
        await trio.testing.wait_all_tasks_blocked()
        assert not there.closed
        ((answered, asked),) = held
        answered([(asked, answer(asked))])
        assert (await client.receive()).opaque == 1
        assert await client.is_closed()


async def test_an_answer_for_a_connection_that_is_gone_is_dropped() -> None:
    """`respond`, `push`, `defer`, `call` and what was postponed do no harm to a closed peer."""
    held: list[tuple[Peer, Command]] = []

    def hold(request: Command, peer: Peer) -> Outcome:
        held.append((peer, request))
        return None

    async def never() -> None:
        raise AssertionError("deferred on a closed connection")

    async with served({LATE: Handler(hold)}) as there:
        async with there.client() as client:
            await client.send(numbered(LATE, opaque=1))
            await until(lambda: len(held) == 1)
        await until(lambda: not there.server.peers)
        ((peer, asked),) = held
        peer.respond(asked, answer(asked))
        assert not peer.push(request(40))
        peer.defer(never, 1)
        peer.postpone(1)([(asked, answer(asked))])
        with pytest.raises(ConnectionLost):
            await peer.call(request(40), 1_000)
        peer.close()
        assert peer.closed
        assert there.closed == [peer]


async def test_a_connection_with_too_many_unanswered_requests_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on when answers made room; another connection does not notice."""
    monkeypatch.setattr(serve, "MAX_IN_FLIGHT_PER_CONNECTION", 3)
    gate = Gate()
    async with served({LATE: Handler(gate), ECHO: Handler(echo)}) as there, there.client() as client, there.client() as other:
        for opaque in range(3):
            await client.send(numbered(LATE, opaque=opaque))
            await until(lambda opaque=opaque: gate.waiting == opaque + 1)  # type: ignore[misc]
        await client.send(numbered(ECHO, opaque=9))
        assert (await other.ask(numbered(ECHO))).code == 0
        await trio.testing.wait_all_tasks_blocked()
        assert gate.waiting == 3
        gate.event.set()
        assert {(await client.receive()).opaque for _ in range(4)} == {0, 1, 2, 9}


async def test_a_peer_that_never_reads_costs_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many requests in one packet the server runs only so many until the peer reads; another connection is served meanwhile. When the peer
    reads at last, every answer comes, in order."""
    monkeypatch.setattr(serve, "MAX_UNSENT_BYTES_PER_CONNECTION", 1_000_000)
    size, count, processed = 200_000, 200, 0

    def big(request: Command, peer: Peer) -> Outcome:
        nonlocal processed
        processed += 1
        return answer(request, body=bytes(size))

    async with served({BIG: Handler(big), ECHO: Handler(echo)}) as there, there.client(receive_buffer_bytes=65_536) as client:
        await client.send(*(numbered(BIG, opaque=opaque) for opaque in range(count)))
        await until(lambda: processed > 5)
        async with there.client() as other:
            assert (await other.ask(numbered(ECHO))).code == 0
        # The socket's own buffers hold a few MB, the server's queue 1 MB and one answer.
        assert processed < 60
        for opaque in range(count):
            got = await client.receive()
            assert (got.opaque, len(got.body)) == (opaque, size)
        assert processed == count


async def test_a_peer_that_never_reads_gets_no_more_pushes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A push to a peer with too much unread is refused, not queued."""
    monkeypatch.setattr(serve, "MAX_UNSENT_BYTES_PER_CONNECTION", 1_000_000)
    async with served({ECHO: Handler(echo)}) as there, there.client(receive_buffer_bytes=65_536) as client:
        await client.ask(numbered(ECHO))
        (peer,) = there.server.peers
        taken = 0
        while peer.push(request(40, body=bytes(100_000))):
            taken += 1
            await trio.testing.wait_all_tasks_blocked()
            assert taken < 100
        assert taken > 10


# --- rpc hooks --------------------------------------------------------------------------------------------------------


class Note(RpcHook):
    """Notes what it sees; raises what it is told to."""

    def __init__(self, name: str, seen: list[str], before: Exception | None = None, after: Exception | None = None) -> None:
        self._name, self._seen, self._before, self._after = name, seen, before, after

    def before(self, request: Command, peer: Peer) -> None:
        self._seen.append(f"{self._name} before {request.opaque}")
        if self._before is not None:
            raise self._before

    def after(self, request: Command, response: Command, peer: Peer) -> None:
        self._seen.append(f"{self._name} after {request.opaque}: {response.code}")
        if self._after is not None:
            raise self._after


async def test_rpc_hooks_run_around_every_request_in_order() -> None:
    """Before the processor and after the answer is known, for immediate, sliced, deferred and failing answers alike."""
    seen: list[str] = []
    gate = Gate()
    gate.event.set()

    def reply(request: Command, peer: Peer) -> Outcome:
        return Reply(answer(request), [b"x"], 1)

    processors = {ECHO: Handler(echo), LATE: Handler(gate), REFUSE: Handler(refuse), BIG: Handler(reply)}
    async with served(processors, rpc_hooks=(Note("a", seen), Note("b", seen))) as there, there.client() as client:
        for opaque, code in enumerate((ECHO, LATE, REFUSE, BIG, 999)):
            await client.ask(numbered(code, opaque=opaque))
    codes = [0, 0, 16, 0, 3]
    assert seen == [
        line
        for at, code in enumerate(codes)
        for line in (f"a before {at}", f"b before {at}", f"a after {at}: {code}", f"b after {at}: {code}")
    ]


async def test_there_is_no_after_for_a_one_way_request() -> None:
    """As in Java."""
    seen: list[str] = []
    gate = Gate()
    gate.event.set()
    async with served({ECHO: Handler(echo), LATE: Handler(gate)}, rpc_hooks=(Note("a", seen),)) as there, there.client() as client:
        await client.send(numbered(ECHO, opaque=1, oneway=True), numbered(LATE, opaque=2, oneway=True), numbered(ECHO, opaque=3))
        await client.receive()
        (peer,) = there.server.peers
        await until(lambda: peer.in_flight == 0)
    assert seen == ["a before 1", "a before 2", "a before 3", "a after 3: 0"]


@pytest.mark.parametrize(
    ("error", "code", "remark"),
    [
        (RequestRefused(ResponseCode.NO_PERMISSION, "who are you"), 16, "who are you"),
        (ValueError("boom"), 1, "rpc hook 'Note' failed: ValueError: boom"),
    ],
)
async def test_a_before_hook_refuses(error: Exception, code: int, remark: str, caplog: pytest.LogCaptureFixture) -> None:
    """Neither later hooks nor the processor see the request; any other exception is a refusal too, so that a broken check lets nobody in."""
    seen: list[str] = []
    processed: list[Command] = []

    def act(request: Command, peer: Peer) -> Outcome:
        processed.append(request)
        return answer(request)

    async with served({ECHO: Handler(act)}, rpc_hooks=(Note("a", seen, before=error), Note("b", seen))) as there, there.client() as client:
        got = await client.ask(numbered(ECHO, opaque=1))
    assert (got.code, got.remark) == (code, remark)
    assert processed == []
    assert "b before 1" not in seen
    assert len(warnings(caplog)) == (code == 1)


async def test_an_after_hook_that_breaks_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged; the answer and the later hooks are as if it had not been there."""
    seen: list[str] = []
    hooks = (Note("a", seen, after=ValueError("boom")), Note("b", seen))
    async with served({ECHO: Handler(echo)}, rpc_hooks=hooks) as there, there.client() as client:
        assert (await client.ask(numbered(ECHO, opaque=1))).code == 0
    assert seen[-1] == "b after 1: 0"
    assert len(warnings(caplog)) == 1


async def test_with_hooks_batches_are_seen_one_by_one() -> None:
    """A batch processor behind hooks gets single requests, so that each can be refused by itself."""
    seen: list[str] = []

    class Batch(BatchProcessor):
        def process(self, request: Command, peer: Peer) -> Outcome:
            return answer(request)

        def process_many(self, requests: Sequence[Command], peer: Peer) -> list[Outcome]:
            raise AssertionError("hooks were passed by")

    async with served({ECHO: Batch()}, rpc_hooks=(Note("a", seen),)) as there, there.client() as client:
        await client.send(numbered(ECHO, opaque=1), numbered(ECHO, opaque=2))
        assert [(await client.receive()).code for _ in range(2)] == [0, 0]
    assert len(seen) == 4


async def test_a_hook_is_shown_the_codes_it_names() -> None:
    """Requests of other codes go by it, and go together to a batch processor up to the first it wants to see."""
    seen: list[str] = []
    runs: list[list[int]] = []

    class Batch(BatchProcessor):
        def process(self, request: Command, peer: Peer) -> Outcome:
            runs.append([request.code])
            return answer(request)

        def process_many(self, requests: Sequence[Command], peer: Peer) -> list[Outcome]:
            runs.append([request.code for request in requests])
            return [answer(request) for request in requests]

    hook = Note("a", seen)
    hook.codes = frozenset({LATE})
    batch = Batch()
    async with served({ECHO: batch, LATE: batch, BIG: batch}, rpc_hooks=(hook,)) as there, there.client() as client:
        codes = [ECHO, BIG, ECHO, LATE, LATE, BIG, ECHO]
        await client.send(*(numbered(code, opaque=at) for at, code in enumerate(codes)))
        assert [(await client.receive()).opaque for _ in codes] == list(range(len(codes)))
    assert seen == ["a before 3", "a after 3: 0", "a before 4", "a after 4: 0"]
    assert runs == [[ECHO, BIG, ECHO], [LATE], [LATE], [BIG, ECHO]]


class NoteMany(Note, ManyRequestsHook):
    """Notes what it is shown together, too."""

    def before_many(self, requests: Sequence[Command], peer: Peer) -> None:
        self._seen.append(f"{self._name} before {[request.opaque for request in requests]}")

    def after_many(self, requests: Sequence[Command], peer: Peer) -> None:
        self._seen.append(f"{self._name} after {[request.opaque for request in requests]}")
        if self._after is not None:
            raise self._after


class Mixed(BatchProcessor):
    """Answers ECHO with a frame, BIG with a command, LATE later: with what `later` gives. Never asked about single requests."""

    def __init__(self, later: Callable[[Command], Answer] = answer) -> None:
        self._later = later

    def process(self, request: Command, peer: Peer) -> Outcome:
        raise AssertionError("it was given requests together")

    def process_many(self, requests: Sequence[Command], peer: Peer) -> list[Outcome]:
        return [self._outcome(request) for request in requests]

    def _outcome(self, request: Command) -> Outcome:
        if request.code == LATE:
            return self._answer_later(request)
        return encode(answer(request)) if request.code == ECHO else answer(request, 7)

    async def _answer_later(self, request: Command) -> Answer:
        await trio.lowlevel.checkpoint()
        return self._later(request)


async def test_hooks_that_only_look_are_shown_what_arrived_together() -> None:
    """The encoded answers at once, without those nobody gets; the others one by one, whenever they come. No request is shown twice."""
    seen: list[str] = []
    batch = Mixed()
    async with served({ECHO: batch, LATE: batch, BIG: batch}, rpc_hooks=(NoteMany("a", seen),)) as there, there.client() as client:
        await client.send(*(numbered(ECHO, opaque=at) for at in range(3)))
        assert [(await client.receive()).opaque for _ in range(3)] == [0, 1, 2]
        assert seen == ["a before [0, 1, 2]", "a after [0, 1, 2]"]
        seen.clear()
        codes = [ECHO, BIG, LATE, ECHO]
        await client.send(*(numbered(code, opaque=at) for at, code in enumerate(codes)), numbered(ECHO, opaque=4, oneway=True))
        assert {(await client.receive()).opaque for _ in codes} == {0, 1, 2, 3}
        (peer,) = there.server.peers
        await until(lambda: peer.in_flight == 0)
    assert seen == ["a before [0, 1, 2, 3, 4]", "a after 1: 7", "a after [0, 3]", "a after 2: 0"]


async def test_a_late_answer_that_is_encoded_is_shown_too() -> None:
    """To the hooks that take many: as one of one."""
    seen: list[str] = []
    batch = Mixed(lambda request: encode(answer(request)))
    async with served({LATE: batch}, rpc_hooks=(NoteMany("a", seen),)) as there, there.client() as client:
        assert (await client.ask(numbered(LATE, opaque=1))).code == 0
    assert seen == ["a before [1]", "a after [1]"]


async def test_beside_a_hook_that_asks_nothing_is_shown_together() -> None:
    """It has to be asked about each request by itself, and all hooks see the same then."""
    seen: list[str] = []

    class Single(Mixed):
        def process(self, request: Command, peer: Peer) -> Outcome:
            return answer(request)

    async with served({ECHO: Single()}, rpc_hooks=(NoteMany("a", seen), Note("b", seen))) as there, there.client() as client:
        await client.send(numbered(ECHO, opaque=1), numbered(ECHO, opaque=2))
        assert [(await client.receive()).opaque for _ in range(2)] == [1, 2]
    assert seen == [f"{name} {what}" for at in (1, 2) for what in (f"before {at}", f"after {at}: 0") for name in "ab"]


async def test_a_hook_that_only_looks_sees_its_codes_only() -> None:
    """What it does not name goes to the processor by itself."""
    seen: list[str] = []
    hook = NoteMany("a", seen)
    hook.codes = frozenset({ECHO})
    batch = Mixed()
    async with served({ECHO: batch, BIG: batch}, rpc_hooks=(hook,)) as there, there.client() as client:
        codes = [BIG, ECHO, ECHO, BIG]
        await client.send(*(numbered(code, opaque=at) for at, code in enumerate(codes)))
        assert [(await client.receive()).opaque for _ in codes] == [0, 1, 2, 3]
    assert seen == ["a before [1, 2]", "a after [1, 2]"]


async def test_a_hook_that_looks_and_breaks_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged; the answers go out."""
    hook = NoteMany("a", [], after=ValueError("boom"))
    async with served({ECHO: Mixed()}, rpc_hooks=(hook,)) as there, there.client() as client:
        await client.send(numbered(ECHO, opaque=1), numbered(ECHO, opaque=2))
        assert [(await client.receive()).opaque for _ in range(2)] == [1, 2]
    assert len(warnings(caplog)) == 1


# --- bad input --------------------------------------------------------------------------------------------------------


def binary(body: bytes) -> bytes:
    return pack(">iI", len(body) + 4, 1 << 24 | len(body)) + body


BAD = {
    "garbage": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c4"),
    "oversize": pack(">iI", MAX_FRAME_BYTES, 10) + b"{",
    "negative": pack(">iI", -1, 0),
    "zero": bytes(8),
    "header past frame": pack(">iI", 20, 21) + bytes(40),
    "oversize header": pack(">iI", MAX_HEADER_BYTES + 9, MAX_HEADER_BYTES + 1) + bytes(16),
    "unknown serialisation": pack(">iI", 6, 7 << 24 | 2) + b"{}",
    "no json": pack(">iI", 8, 4) + b"nope",
    "json array": pack(">iI", 6, 2) + b"[]",
    "json bomb": pack(">iI", 200_004, 200_000) + b"[" * 200_000,
    "binary cut short": binary(b"\x00\x01\x00"),
    "binary text past header": binary(pack(">hBhiii", 1, 0, 0, 1, 0, 1_000_000)),
}


@pytest.mark.row("S316")
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
async def test_what_breaks_the_framing_closes_its_connection_only(bad: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """One log line that names the peer, the connection is closed without an answer, requests before it and other connections are served."""
    async with served({ECHO: Handler(echo)}) as there, there.client() as client, there.client() as other:
        await client.ask(numbered(ECHO))
        host, port = client.stream.socket.getsockname()[:2]
        await client.stream.send_all(bad)
        assert await client.is_closed()
        await until(lambda: len(there.server.peers) == 1)
        assert len(there.closed) == 1
        assert (await other.ask(numbered(ECHO))).code == 0
        async with there.client() as fresh:
            assert (await fresh.ask(numbered(ECHO))).code == 0
    (line,) = warnings(caplog)
    assert f"{host}:{port} broke the protocol, connection closed:" in line
    assert len(line) < 300


async def test_a_good_request_in_front_of_garbage_is_not_lost_with_it() -> None:
    """What came before the break on an earlier read was answered already."""
    async with served({ECHO: Handler(echo)}) as there, there.client() as client:
        assert (await client.ask(numbered(ECHO))).code == 0
        await client.stream.send_all(frame.encode(numbered(ECHO, opaque=2))[:11])
        await client.stream.send_all(b"\xff" * 2_000)
        assert await client.is_closed()


@pytest.mark.row("S316")
async def test_a_frame_may_come_in_pieces() -> None:
    """Byte by byte, two in one packet, cut anywhere: the frame is what counts."""
    data = frame.encode(numbered(ECHO, opaque=1, body=b"body"))
    async with served({ECHO: Handler(echo)}) as there, there.client() as client:
        for at in range(len(data)):
            await client.stream.send_all(data[at : at + 1])
            await trio.testing.wait_all_tasks_blocked()
        assert (await client.receive()).body == b"body"
        await client.stream.send_all(data + data[:7])
        assert (await client.receive()).opaque == 1
        await client.stream.send_all(data[7:])
        assert (await client.receive()).opaque == 1


async def test_a_large_frame_comes_through() -> None:
    """Larger than any read; the echo of 4 MiB is byte for byte the same."""
    body = Random(1).randbytes(4 * 1024 * 1024)
    async with served({ECHO: Handler(echo)}) as there, there.client() as client:
        assert (await client.ask(numbered(ECHO, body=body))).body == body


async def test_a_frame_that_never_ends_waits_and_harms_nobody() -> None:
    """A truncated frame is not answered and not an error; when its sender leaves, it is forgotten."""
    async with served({ECHO: Handler(echo)}) as there, there.client() as other:
        async with there.client() as client:
            await client.stream.send_all(frame.encode(numbered(ECHO))[:-1])
            assert (await other.ask(numbered(ECHO))).code == 0
            assert len(there.server.peers) == 2
        await until(lambda: len(there.server.peers) == 1)


async def test_a_peer_that_is_done_sending_still_gets_its_answers() -> None:
    """Half-closed: what it asked is answered, deferred answers included, then the connection is closed."""
    gate = Gate()
    async with served({ECHO: Handler(echo), LATE: Handler(gate)}) as there, there.client() as client:
        await client.send(numbered(LATE, opaque=1), numbered(ECHO, opaque=2))
        await client.stream.send_eof()
        assert (await client.receive()).opaque == 2
        gate.event.set()
        assert (await client.receive()).opaque == 1
        assert await client.is_closed()


async def test_a_reset_connection_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Clients crash; the server cancels what it did for them and says nothing above debug."""
    gate = Gate()
    async with served({LATE: Handler(gate)}) as there, there.client() as client:
        await client.send(numbered(LATE))
        await until(lambda: gate.waiting == 1)
        client.reset()
        await until(lambda: not there.server.peers)
        assert gate.cancelled == 1
        assert len(there.closed) == 1
    assert warnings(caplog) == []


@pytest.mark.parametrize("seed", range(4))
async def test_mutated_frames_leave_a_server_that_answers(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """Several hundred broken frames, each over a connection of its own and some in pieces: afterwards the server answers a good request, and
    neither a task nor a connection of theirs is left."""
    random = Random(seed)
    good = numbered(ECHO, opaque=5, body=b"0123456789")
    good.ext = {"topic": "T", "queueId": "1"}
    seeds = [frame.encode(good), frame.encode(numbered(BREAK, opaque=3)), frame.encode(numbered(REFUSE, opaque=4, codec=1))]
    processors = {ECHO: Handler(echo), REFUSE: Handler(refuse), BREAK: Handler(refuse)}
    async with served(processors) as there:
        tasks = trio.lowlevel.current_statistics().tasks_living
        for _ in range(100):
            data = bytearray(random.choice(seeds))
            for _ in range(random.randint(1, 4)):
                at = random.randrange(len(data))
                match random.randrange(4):
                    case 0:
                        data[at] = random.randrange(256)
                    case 1:
                        data[at] ^= 1 << random.randrange(8)
                    case 2 if len(data) > 20:
                        del data[at : at + random.randint(1, 8)]
                    case _:
                        data[at:at] = random.randbytes(random.randint(1, 8))
            async with there.client() as client:
                cut = random.randrange(len(data))
                with trio.move_on_after(PATIENCE_S) as scope:
                    try:
                        await client.stream.send_all(data[:cut])
                        await client.stream.send_all(data[cut:])
                        await client.stream.send_eof()
                        while await client.stream.receive_some():
                            continue
                    except trio.BrokenResourceError:
                        pass
                assert not scope.cancelled_caught, f"the server keeps a connection open that was ended: {bytes(data)!r}"
        async with there.client() as client:
            assert (await client.ask(good)).body == good.body
        await until(lambda: not there.server.peers and trio.lowlevel.current_statistics().tasks_living == tasks)
        assert len(there.closed) == 101
    assert all("broke the protocol" in line for line in warnings(caplog))


# --- limits on connections --------------------------------------------------------------------------------------------


async def test_an_idle_connection_is_closed(mock_clock: trio.testing.MockClock) -> None:
    """After 120 s without a byte in either direction, at the next look, which comes every 10 s; one that moves stays."""
    async with served({ECHO: Handler(echo)}) as there, there.client() as idle, there.client() as busy:
        await idle.ask(numbered(ECHO))
        await busy.ask(numbered(ECHO))
        for _ in range(12):
            mock_clock.jump(10)
            await trio.testing.wait_all_tasks_blocked()
            assert (await busy.ask(numbered(ECHO))).code == 0
        assert len(there.server.peers) == 2
        mock_clock.jump(10)
        assert await idle.is_closed()
        assert (await busy.ask(numbered(ECHO))).code == 0
        assert len(there.closed) == 1


async def test_a_connection_too_many_is_refused(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """It is closed at once with a log line; those that are there are served, and a place that comes free is taken."""
    monkeypatch.setattr(serve, "MAX_CONNECTIONS", 1)
    async with served({ECHO: Handler(echo)}) as there:
        async with there.client() as client, there.client() as refused:
            assert (await client.ask(numbered(ECHO))).code == 0
            assert await refused.is_closed()
            assert (await client.ask(numbered(ECHO))).code == 0
            assert len(there.server.peers) == 1
        await until(lambda: not there.server.peers)
        async with there.client() as client:
            assert (await client.ask(numbered(ECHO))).code == 0
    assert len(warnings(caplog)) == 1


# --- from the server to the peer --------------------------------------------------------------------------------------


async def peer_of(there: Served, client: Client) -> serve.ServedPeer:
    """The server's side of a connection."""
    await client.ask(numbered(ECHO))
    host, port = client.stream.socket.getsockname()[:2]
    (found,) = (peer for peer in there.server.peers if peer.remote_text == f"{host}:{port}")
    return found


@pytest.mark.row("S323")
async def test_a_push_is_a_one_way_request() -> None:
    """It needs no answer and carries the one-way bit."""
    async with served({ECHO: Handler(echo)}) as there, there.client() as client:
        peer = await peer_of(there, client)
        assert peer.push(request(40))
        got = await client.receive()
        assert (got.code, got.is_oneway, got.is_response) == (40, True, False)


@pytest.mark.row("S306", "S313")
async def test_a_call_waits_for_the_answer_of_the_peer() -> None:
    """Requests of both directions share the connection; equal opaque numbers are told apart by the response bit, answers may come in any order."""
    async with served({ECHO: Handler(echo)}) as there, there.client() as client, trio.open_nursery() as nursery:
        peer = await peer_of(there, client)
        answers: dict[int, Command] = {}

        async def call(code: int) -> None:
            answers[code] = await peer.call(request(code), 60_000)

        nursery.start_soon(call, 307)
        nursery.start_soon(call, 309)
        asked = [await client.receive(), await client.receive()]
        assert {command.is_oneway for command in asked} == {False}
        own = await client.ask(numbered(ECHO, opaque=asked[0].opaque, body=b"mine"))
        assert own.body == b"mine"
        await client.send(*(answer(command, body=str(command.code).encode()) for command in reversed(asked)))
        await until(lambda: len(answers) == 2)
        assert {code: got.body for code, got in answers.items()} == {307: b"307", 309: b"309"}


async def test_a_call_without_an_answer_times_out() -> None:
    """RequestTimeout; the late answer is dropped and the connection stays usable."""
    async with served({ECHO: Handler(echo)}) as there, there.client() as client:
        peer = await peer_of(there, client)
        with pytest.raises(RequestTimeout):
            await peer.call(request(307), 1)
        asked = await client.receive()
        await client.send(answer(asked))
        assert (await client.ask(numbered(ECHO, opaque=3))).opaque == 3


async def test_calls_fail_when_the_connection_ends() -> None:
    """At once, not at their time-out."""
    async with served({ECHO: Handler(echo)}) as there, trio.open_nursery() as nursery:
        lost: list[str] = []

        async def call(peer: Peer) -> None:
            try:
                await peer.call(request(307), 3_600_000)
            except ConnectionLost as error:
                lost.append(str(error))

        async with there.client() as client:
            nursery.start_soon(call, await peer_of(there, client))
            await client.receive()
        await until(lambda: len(lost) == 1)


async def test_a_stray_answer_is_ignored() -> None:
    """An answer that nobody waits for changes nothing."""
    async with served({ECHO: Handler(echo)}) as there, there.client() as client:
        await client.send(Command(code=0, flag=1, opaque=77, remark="surprise"))
        assert (await client.ask(numbered(ECHO))).code == 0


async def test_a_processor_may_close_the_connection() -> None:
    """The rest of what it sent is dropped with it, and what was to be awaited is never begun."""

    async def never() -> Answer:
        raise AssertionError("begun on a closed connection")

    def kick(request: Command, peer: Peer) -> Outcome:
        peer.close()
        return never()

    gate = Gate()
    async with served({PUSH: Handler(kick), LATE: Handler(gate)}) as there, there.client() as client:
        await client.send(numbered(PUSH), numbered(LATE))
        assert await client.is_closed()
        await until(lambda: not there.server.peers)
    gc.collect()


# --- the end ----------------------------------------------------------------------------------------------------------


async def drained(there: Served, timeout_ms: int = 60_000) -> None:
    with trio.fail_after(PATIENCE_S):
        await there.server.drain(timeout_ms)
        await there.ended.wait()


async def test_draining_finishes_what_is_in_flight_and_takes_no_more() -> None:
    """No new connection, no new request; the deferred answer still comes; then the connections are closed and the server ends."""
    gate = Gate()
    async with served({LATE: Handler(gate), ECHO: Handler(echo)}) as there, there.client() as client, there.client() as idle:
        await idle.ask(numbered(ECHO))
        await client.send(numbered(LATE, opaque=1))
        await until(lambda: gate.waiting == 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drained, there)
            assert await idle.is_closed()
            with pytest.raises(OSError, match="connect"):
                async with there.client():
                    pass
            await client.send(numbered(ECHO, opaque=2))
            await trio.testing.wait_all_tasks_blocked()
            gate.event.set()
            assert (await client.receive()).opaque == 1
            assert await client.is_closed()
        assert len(there.closed) == 2


async def test_draining_cuts_no_answer_in_half() -> None:
    """A slow reader whose answers are being written when the server drains gets them whole."""
    size, count = 500_000, 40

    def big(request: Command, peer: Peer) -> Outcome:
        return answer(request, body=bytes(size))

    async with served({BIG: Handler(big), ECHO: Handler(echo)}) as there, there.client(receive_buffer_bytes=65_536) as client:
        await client.send(*(numbered(BIG, opaque=opaque) for opaque in range(count)))
        (await until(lambda: bool(there.server.peers)))
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drained, there)
            await trio.testing.wait_all_tasks_blocked()
            for opaque in range(count):
                got = await client.receive()
                assert (got.opaque, len(got.body)) == (opaque, size)
            assert await client.is_closed()


async def test_draining_has_a_time_limit() -> None:
    """What is not finished then is cut."""
    gate = Gate()
    async with served({LATE: Handler(gate)}) as there, there.client() as client:
        await client.send(numbered(LATE))
        await until(lambda: gate.waiting == 1)
        await drained(there, 1)
        assert await client.is_closed()
        assert gate.cancelled == 1


async def test_draining_an_idle_server_ends_it() -> None:
    """No connections, nothing to wait for."""
    async with served({}) as there:
        await drained(there)


async def test_cancelling_cuts_the_connections() -> None:
    """Nothing is waited for, and nothing is left open."""
    gate = Gate()
    async with served({LATE: Handler(gate)}) as there, there.client() as client:
        await client.send(numbered(LATE))
        await until(lambda: gate.waiting == 1)
        there.scope.cancel()
        with trio.fail_after(PATIENCE_S):
            await there.ended.wait()
        assert await client.is_closed()
        assert gate.cancelled == 1
        assert len(there.closed) == 1
