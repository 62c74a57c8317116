"""One served connection over real sockets: answers in any order, back-pressure, bad input, requests of the
server. No peer can harm the server or another peer."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from struct import pack

import pytest
import trio
import trio.testing

from rmqkit.errors import ConnectionLost, RequestTimeout
from rmqkit.limits import MAX_FRAME_BYTES, MAX_HEADER_BYTES
from rmqkit.model.buffer import Buffer
from rmqkit.plugin.request import Answer, Outcome, Peer, Reply, RequestProcessor, Ticket
from rmqkit.protocol import connection, frame
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command, answer, request
from rmqkit.protocol.frame import encode
from rmqkit.remoting import unfinished
from rmqkit.remoting.peer import ServedPeer
from tests.remoting.parts import (
    BIG,
    BREAK,
    ECHO,
    LATE,
    PUSH,
    REFUSE,
    Gate,
    NoteRuns,
    answered,
    binary,
    drained,
    echo,
    numbered,
    refuse,
    until,
    warnings,
)
from tests.remoting.wire import PATIENCE_S, Client, Handler, Served, served


async def test_an_answer_over_the_frame_limit_is_a_system_error() -> None:
    """The sender of the request gets SYSTEM_ERROR instead of a closed connection, for answers with a body and
    for answers in slices."""
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
    """The head comes first, then the slices in order, whatever their number; slices may be memoryviews."""
    slices: list[Buffer] = [
        b"ab",
        memoryview(b"cdef")[1:3],
        b"",
        *(b"%05d" % number for number in range(3_000)),
        bytes(300_000),
    ]
    total = sum(map(len, slices))

    def reply(request: Command, peer: Peer) -> Outcome:
        return Reply(answer(request), slices, total)

    async with served({BIG: Handler(reply)}) as there, there.client() as client:
        assert (await client.ask(numbered(BIG))).body == b"".join(map(bytes, slices))


async def test_a_deferred_answer_does_not_block_the_frames_behind_it() -> None:
    """A deferred answer is awaited in a task of its own."""
    gate = Gate()
    async with served({LATE: Handler(gate), ECHO: Handler(echo)}) as there, there.client() as client:
        await client.send(numbered(LATE, opaque=1), numbered(ECHO, opaque=2))
        assert (await client.receive()).opaque == 2
        gate.event.set()
        assert (await client.receive()).opaque == 1


def holding(tickets: list[Ticket], *, held: bool = False) -> Handler:
    """A processor that postpones its answers until the test completes the tickets."""

    def hold(request: Command, peer: Peer) -> Outcome:
        tickets.append(peer.postpone((request,), held=held))
        return tickets[-1]

    return Handler(hold)


@pytest.mark.parametrize("held", [False, True])
async def test_answers_may_be_postponed(held: bool) -> None:
    """Each answer is sent when its ticket is completed, together with others or alone, large or small; until
    then the request counts as in flight, unless it is held. One-way requests get no answer."""
    tickets: list[Ticket] = []
    processors = {LATE: holding(tickets, held=held), ECHO: Handler(echo)}
    async with served(processors) as there, there.client() as client:
        await client.send(
            *(numbered(LATE, opaque=opaque) for opaque in range(3)), numbered(LATE, opaque=3, oneway=True)
        )
        await client.ask(numbered(ECHO))
        (peer,) = there.server.peers
        assert peer.core.in_flight == (0 if held else 4)
        for ticket in reversed(tickets):
            answered(ticket, bytes(ticket.requests[0].opaque * 100_000))
        assert peer.core.in_flight == 0
        got = [await client.receive() for _ in range(3)]
    assert [(each.opaque, len(each.body)) for each in got] == [(2, 200_000), (1, 100_000), (0, 0)]


async def test_a_ticket_answers_all_its_requests() -> None:
    """One ticket may stand for a run or for a part of a run; hooks see its answers together."""
    tickets: list[Ticket] = []
    seen: list[str] = []

    class Halves(RequestProcessor):
        def process(self, requests: Sequence[Command], peer: Peer) -> list[Outcome]:
            tickets.append(ticket := peer.postpone(requests[:2]))
            return [ticket, ticket, *(answer(request) for request in requests[2:])]

    async with served({LATE: Halves()}, rpc_hooks=(NoteRuns("a", seen),)) as there, there.client() as client:
        await client.send(*(numbered(LATE, opaque=opaque) for opaque in range(4)))
        assert [(await client.receive()).opaque for _ in range(2)] == [2, 3]
        (ticket,) = tickets
        ticket.complete([encode(answer(ticket.requests[0])), answer(ticket.requests[1], 5)])
        assert [(await client.receive()).opaque for _ in range(2)] == [0, 1]
    assert seen == ["a before [0, 1, 2, 3]", "a after [2, 3]: [0, 0]", "a after [0, 1]: [0, 5]"]


async def test_a_ticket_may_hand_over_to_another() -> None:
    """A ticket completed with another ticket gives no answer itself; the other ticket gives it, once."""
    tickets: list[Ticket] = []
    async with served({LATE: holding(tickets, held=True)}) as there, there.client() as client:
        await client.send(numbered(LATE, opaque=1))
        await until(lambda: len(tickets) == 1)
        (first,), (peer,) = tickets, there.server.peers
        second = peer.postpone(first.requests)
        first.complete((second,))
        assert peer.core.in_flight == 1
        answered(second, b"second")
        assert (await client.receive()).body == b"second"
        assert peer.core.in_flight == 0


async def test_a_ticket_is_completed_once() -> None:
    """Completing a ticket twice is an error of the caller, and the second answer is not sent."""
    tickets: list[Ticket] = []
    processors = {LATE: holding(tickets), ECHO: Handler(echo)}
    async with served(processors) as there, there.client() as client:
        await client.send(numbered(LATE, opaque=1))
        await until(lambda: len(tickets) == 1)
        answered(tickets[0])
        with pytest.raises(RuntimeError, match="completed already"):
            answered(tickets[0])
        assert (await client.receive()).opaque == 1
        assert (await client.ask(numbered(ECHO, opaque=2))).opaque == 2
        assert next(iter(there.server.peers)).core.in_flight == 0


async def test_postponed_answers_for_a_slow_reader_come_whole_and_in_order() -> None:
    """An answer that cannot be sent at once is queued, and no later answer overtakes it."""
    tickets: list[Ticket] = []
    async with served({LATE: holding(tickets)}) as there, there.client() as client:
        await client.send(*(numbered(LATE, opaque=opaque) for opaque in range(400)))
        await until(lambda: len(tickets) == 400)
        for ticket in tickets:
            answered(ticket, bytes([ticket.requests[0].opaque % 251]) * 50_000)
        await trio.testing.wait_all_tasks_blocked()
        assert next(iter(there.server.peers)).core.unsent_bytes > 0
        for opaque in range(400):
            got = await client.receive()
            assert (got.opaque, got.body) == (opaque, bytes([opaque % 251]) * 50_000)


async def test_draining_waits_for_postponed_answers() -> None:
    """Postponed answers count as in flight while a server drains."""
    tickets: list[Ticket] = []
    async with (
        served({LATE: holding(tickets)}) as there,
        there.client() as client,
        trio.open_nursery() as nursery,
    ):
        await client.send(numbered(LATE, opaque=1))
        await until(lambda: len(tickets) == 1)
        nursery.start_soon(drained, there)
        await trio.testing.wait_all_tasks_blocked()
        assert not there.closed
        answered(tickets[0])
        assert (await client.receive()).opaque == 1
        assert await client.is_closed()


async def test_draining_does_not_wait_for_held_requests() -> None:
    """A held pull may wait for half a minute, so draining does not wait for it; its client asks another
    broker."""
    tickets: list[Ticket] = []
    async with served({LATE: holding(tickets, held=True)}) as there, there.client() as client:
        await client.send(numbered(LATE, opaque=1))
        await until(lambda: len(tickets) == 1)
        await drained(there)
        assert await client.is_closed()
        answered(tickets[0])


async def test_an_answer_for_a_connection_that_is_gone_is_dropped() -> None:
    """`push`, `answer_async`, `call` and postponed answers have no effect on a closed peer."""
    tickets: list[Ticket] = []

    async def never() -> Outcome:
        raise AssertionError("begun on a closed connection")

    async with served({LATE: holding(tickets, held=True)}) as there:
        async with there.client() as client:
            await client.send(numbered(LATE, opaque=1))
            await until(lambda: len(tickets) == 1)
        await until(lambda: not there.server.peers)
        (ticket,) = tickets
        peer, (asked,) = ticket.peer, ticket.requests
        answered(ticket)
        assert not peer.push(request(40))
        assert not peer.answer_async(asked, never).completed
        answered(peer.postpone((asked,)))
        with pytest.raises(ConnectionLost):
            await peer.call(request(40), 1_000)
        peer.close()
        assert peer.closed
        assert there.closed == [peer]


async def test_a_connection_with_too_many_unanswered_requests_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reading continues once answers have been sent; other connections are not affected."""
    monkeypatch.setattr(connection, "MAX_IN_FLIGHT_PER_CONNECTION", 3)
    gate = Gate()
    async with (
        served({LATE: Handler(gate), ECHO: Handler(echo)}) as there,
        there.client() as client,
        there.client() as other,
    ):
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
    """Of many requests in one packet the server runs only a limited number until the peer reads; another
    connection is served meanwhile. When the peer reads at last, every answer comes, in order."""
    monkeypatch.setattr(connection, "MAX_UNSENT_BYTES_PER_CONNECTION", 1_000_000)
    size, count, processed = 200_000, 200, 0

    def big(request: Command, peer: Peer) -> Outcome:
        nonlocal processed
        processed += 1
        return answer(request, body=bytes(size))

    async with (
        served({BIG: Handler(big), ECHO: Handler(echo)}) as there,
        there.client(receive_buffer_bytes=65_536) as client,
    ):
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
    """A push to a peer with too much unread data is refused, not queued."""
    monkeypatch.setattr(connection, "MAX_UNSENT_BYTES_PER_CONNECTION", 1_000_000)
    async with served({ECHO: Handler(echo)}) as there, there.client(receive_buffer_bytes=65_536) as client:
        await client.ask(numbered(ECHO))
        (peer,) = there.server.peers
        taken = 0
        while peer.push(request(40, body=bytes(100_000))):
            taken += 1
            await trio.testing.wait_all_tasks_blocked()
            assert taken < 100
        assert taken > 10


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
async def test_what_breaks_the_framing_closes_its_connection_only(
    bad: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection is closed without an answer and with one log line that names the peer; earlier requests
    and other connections are served."""
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
    """A request that was read before the broken bytes has been answered already."""
    async with served({ECHO: Handler(echo)}) as there, there.client() as client:
        assert (await client.ask(numbered(ECHO))).code == 0
        await client.stream.send_all(frame.encode(numbered(ECHO, opaque=2))[:11])
        await client.stream.send_all(b"\xff" * 2_000)
        assert await client.is_closed()


@pytest.mark.row("S316")
async def test_a_frame_may_come_in_pieces() -> None:
    """Frames are recognised whether they come byte by byte, two in one packet, or cut anywhere."""
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
    """A frame of 4 MiB, larger than any single read, is echoed unchanged."""
    body = Random(1).randbytes(4 * 1024 * 1024)
    async with served({ECHO: Handler(echo)}) as there, there.client() as client:
        assert (await client.ask(numbered(ECHO, body=body))).body == body


async def test_a_frame_that_never_ends_waits_and_harms_nobody() -> None:
    """A truncated frame is neither answered nor an error; it is dropped when its sender disconnects."""
    async with served({ECHO: Handler(echo)}) as there, there.client() as other:
        async with there.client() as client:
            await client.stream.send_all(frame.encode(numbered(ECHO))[:-1])
            assert (await other.ask(numbered(ECHO))).code == 0
            assert len(there.server.peers) == 2
        await until(lambda: len(there.server.peers) == 1)


async def test_a_peer_that_is_done_sending_still_gets_its_answers() -> None:
    """After a half-close all requests of the peer are answered, including deferred answers, and then the
    connection is closed."""
    gate = Gate()
    async with served({ECHO: Handler(echo), LATE: Handler(gate)}) as there, there.client() as client:
        await client.send(numbered(LATE, opaque=1), numbered(ECHO, opaque=2))
        await client.stream.send_eof()
        assert (await client.receive()).opaque == 2
        gate.event.set()
        assert (await client.receive()).opaque == 1
        assert await client.is_closed()


async def test_a_reset_connection_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A reset by a crashed client cancels the client's requests and logs nothing above debug level."""
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
async def test_mutated_frames_leave_a_server_that_answers(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """After several hundred broken frames, each over a connection of its own and some in pieces, the server
    answers a good request, and no task or connection of theirs is left."""
    random = Random(seed)
    good = numbered(ECHO, opaque=5, body=b"0123456789")
    good.ext = {"topic": "T", "queueId": "1"}
    seeds = [
        frame.encode(good),
        frame.encode(numbered(BREAK, opaque=3)),
        frame.encode(numbered(REFUSE, opaque=4, codec=1)),
    ]
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
                assert not scope.cancelled_caught, (
                    f"the server keeps a connection open that was ended: {bytes(data)!r}"
                )
        async with there.client() as client:
            assert (await client.ask(good)).body == good.body
        await until(
            lambda: not there.server.peers and trio.lowlevel.current_statistics().tasks_living == tasks
        )
        assert len(there.closed) == 101
    assert all("broke the protocol" in line for line in warnings(caplog))


async def peer_of(there: Served, client: Client) -> ServedPeer:
    """The server's side of a connection."""
    await client.ask(numbered(ECHO))
    host, port = client.stream.socket.getsockname()[:2]
    (found,) = (peer for peer in there.server.peers if peer.remote_text == f"{host}:{port}")
    return found


@pytest.mark.row("S323")
async def test_a_push_is_a_one_way_request() -> None:
    """A push carries the one-way bit and needs no answer."""
    async with served({ECHO: Handler(echo)}) as there, there.client() as client:
        peer = await peer_of(there, client)
        assert peer.push(request(40))
        got = await client.receive()
        assert (got.code, got.is_oneway, got.is_response) == (40, True, False)


@pytest.mark.row("S306", "S313")
async def test_a_call_waits_for_the_answer_of_the_peer() -> None:
    """Requests of both directions share the connection; the response bit distinguishes equal opaque numbers,
    and answers may come in any order."""
    async with (
        served({ECHO: Handler(echo)}) as there,
        there.client() as client,
        trio.open_nursery() as nursery,
    ):
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
    """The call raises RequestTimeout; the late answer is dropped and the connection stays usable."""
    async with served({ECHO: Handler(echo)}) as there, there.client() as client:
        peer = await peer_of(there, client)
        with pytest.raises(RequestTimeout):
            await peer.call(request(307), 1)
        asked = await client.receive()
        await client.send(answer(asked))
        assert (await client.ask(numbered(ECHO, opaque=3))).opaque == 3


async def test_calls_fail_when_the_connection_ends() -> None:
    """Pending calls fail at once, not at their time-out."""
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
    """A response whose opaque belongs to no pending call changes nothing."""
    async with served({ECHO: Handler(echo)}) as there, there.client() as client:
        await client.send(Command(code=0, flag=1, opaque=77, remark="surprise"))
        assert (await client.ask(numbered(ECHO))).code == 0


async def test_a_processor_may_close_the_connection() -> None:
    """Later requests of the connection are dropped, and deferred answers are not started."""

    async def never() -> Answer:
        raise AssertionError("begun on a closed connection")

    def kick(request: Command, peer: Peer) -> Outcome:
        peer.close()
        return peer.answer_async(request, never)

    gate = Gate()
    async with served({PUSH: Handler(kick), LATE: Handler(gate)}) as there, there.client() as client:
        await client.send(numbered(PUSH), numbered(LATE))
        assert await client.is_closed()
        await until(lambda: not there.server.peers)


async def test_a_server_drains_while_connections_wait_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is not read because of others' unfinished frames ends with the server."""
    monkeypatch.setattr(unfinished, "MAX_UNFINISHED_BYTES", 400_000)
    monkeypatch.setattr(unfinished, "FREELY_READ_UNFINISHED_BYTES", 100_000)
    async with (
        served({ECHO: Handler(echo)}) as at,
        at.client() as first,
        at.client() as second,
        at.client() as third,
    ):
        for client, size in ((first, 190_000), (second, 190_000), (third, 40_000)):
            await client.stream.send_all(pack(">iI", 400_000, 100) + b" " * size)
        await until(lambda: bool(at.server.context.unfinished.waiting))
        await at.server.drain(PATIENCE_S * 1000)
        assert not at.server.peers
    assert at.server.context.unfinished.total == 0
