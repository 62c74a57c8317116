"""One peer over one stream: matching, limits, time-outs, cancellation, the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqkit.errors import (
    ClientError,
    ConnectFailed,
    ConnectionLost,
    ProtocolError,
    RequestRefused,
    RequestTimeout,
)
from rmqkit.limits import MAX_IN_FLIGHT_PER_CONNECTION, MAX_PENDING_CALLS
from rmqkit.protocol import connection as core
from rmqkit.protocol.codes import CLIENT_VERSION, ResponseCode, SerializeType
from rmqkit.protocol.command import Command, answer, request
from rmqkit.protocol.frame import FrameDecoder, encode
from rmqkit.remoting.connection import Connection
from tests.client.fakes import PipeStream, on_both_backends, pipe, run, settled


class Peer:
    """The far end, driven by the test."""

    def __init__(self, stream: PipeStream) -> None:
        self.stream = stream
        self._decoder = FrameDecoder()
        self._ready: list[Command] = []

    async def take(self) -> Command:
        while not self._ready:
            self._ready = self._decoder.feed(await self.stream.receive())
        return self._ready.pop(0)

    async def give(self, *commands: Command) -> None:
        await self.stream.send(b"".join(encode(command) for command in commands))


@asynccontextmanager
async def connected(limit: float = 1000, **options: Any) -> Any:
    near, far = pipe(limit)
    connection = Connection(near, "fake:1", **options)
    async with anyio.create_task_group() as group:
        await group.start(lambda *, task_status: connection.run(task_status=task_status))
        try:
            yield connection, Peer(far), group
            await settled()
        finally:
            connection.close()
            await far.aclose()


def body_of(responses: list[Command]) -> list[bytes]:
    return [response.body for response in responses]


@pytest.mark.row("S306", "S313")
@on_both_backends
def test_answers_in_any_order_find_their_callers(backend: str) -> None:
    """A response is matched by opaque alone (wire-protocol sheet, 1.4)."""

    async def body() -> None:
        async with connected() as (connection, peer, group):
            got: dict[int, bytes] = {}

            async def ask(number: int) -> None:
                got[number] = (await connection.call(request(10, body=b"%d" % number), 1000)).body

            for number in range(5):
                group.start_soon(ask, number)
            asked = [await peer.take() for _ in range(5)]
            for command in reversed(asked):
                await peer.give(answer(command, body=command.body * 2))
            await settled()
            assert got == {number: b"%d" % number * 2 for number in range(5)}
            assert connection.pending_calls == 0

    run(backend, body)


@on_both_backends
@pytest.mark.parametrize("codec", [SerializeType.JSON, SerializeType.ROCKETMQ])
def test_requests_carry_language_version_and_the_chosen_codec(backend: str, codec: SerializeType) -> None:
    """Outgoing requests say PYTHON and 475 (a client without GO_AWAY) in the header form that was set."""

    async def body() -> None:
        async with connected(serialize_type=codec) as (connection, peer, group):
            group.start_soon(connection.call, request(34, body=b"x"), 1000)
            command = await peer.take()
            assert (command.language, command.version, command.codec, command.flag) == (
                "PYTHON",
                CLIENT_VERSION,
                codec,
                0,
            )
            await peer.give(answer(command))
            await connection.oneway(request(34))
            assert (await peer.take()).is_oneway

    run(backend, body)


@on_both_backends
def test_an_unknown_opaque_is_dropped(backend: str) -> None:
    """A response whose opaque belongs to no pending call changes nothing."""

    async def body() -> None:
        async with connected() as (connection, peer, group):
            group.start_soon(connection.call, request(10), 1000)
            command = await peer.take()
            stray = answer(command)
            stray.opaque = 4711
            await peer.give(stray, answer(command))
            await settled()
            assert not connection.closed
            assert connection.pending_calls == 0

    run(backend, body)


@pytest.mark.row("S307")
@on_both_backends
def test_a_call_without_answer_times_out_and_the_connection_stays(backend: str) -> None:
    """RequestTimeout names address and time; a late answer is dropped and the next call works. A longer
    call is not disturbed."""

    async def body() -> None:
        async with connected() as (connection, peer, group):
            answers: list[Command] = []

            async def patient() -> None:
                answers.append(await connection.call(request(11), 60_000))

            group.start_soon(patient)
            held = await peer.take()
            with pytest.raises(RequestTimeout, match="fake:1 within 30 ms"):
                await connection.call(request(10), 30)
            late = await peer.take()
            await peer.give(answer(late, body=b"late"), answer(held, body=b"held"))
            await settled()
            assert body_of(answers) == [b"held"]
            group.start_soon(connection.call, request(12), 1000)
            await peer.give(answer(await peer.take()))

    run(backend, body)


@pytest.mark.row("S307")
@on_both_backends
def test_the_end_of_the_stream_fails_all_calls(backend: str) -> None:
    """All pending calls fail at once, and so do later ones; dying inside a frame is said."""

    async def body() -> None:
        async with connected() as (connection, peer, group):
            errors: list[str] = []

            async def ask() -> None:
                try:
                    await connection.call(request(10), 60_000)
                except ConnectionLost as error:
                    errors.append(str(error))

            for _ in range(3):
                group.start_soon(ask)
            commands = [await peer.take() for _ in range(3)]
            await peer.stream.send(encode(answer(commands[0], body=b"x" * 100))[:50])
            await peer.stream.aclose()
            await settled()
            assert len(errors) == 3
            assert all("inside a frame, 50 bytes had come" in error for error in errors)
            assert connection.closed
            with pytest.raises(ConnectionLost):
                await connection.call(request(10), 1000)
            with pytest.raises(ConnectionLost):
                await connection.oneway(request(10))

    run(backend, body)


@on_both_backends
def test_a_last_word_shorter_than_a_prefix_is_recognised(backend: str) -> None:
    """A server that takes TLS alone answers with an alert of 7 bytes and closes."""

    async def body() -> None:
        async with connected() as (connection, peer, group):
            errors: list[str] = []

            async def ask() -> None:
                with pytest.raises(ConnectionLost) as lost:
                    await connection.call(request(10), 60_000)
                errors.append(str(lost.value))

            group.start_soon(ask)
            await peer.take()
            await peer.stream.send(b"\x15\x03\x01\x00\x02\x02\x46")
            await peer.stream.aclose()
            await settled()
            (error,) = errors
            assert "it speaks TLS, not RocketMQ's remoting protocol" in error

    run(backend, body)


@on_both_backends
@pytest.mark.parametrize(
    "garbage",
    [
        b"\x7f\xff\xff\xff\x00\x00\x00\x00",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x00\x00\x00\x04\x09\x00\x00\x00",
    ],
)
def test_garbage_ends_the_connection(backend: str, garbage: bytes) -> None:
    """Bytes that break the framing close the connection; the client does not guess where the next frame
    begins."""

    async def body() -> None:
        async with connected() as (connection, peer, group):
            group.start_soon(peer.stream.send, garbage)
            with pytest.raises(ConnectionLost, match="broke the framing"):
                await connection.call(request(10), 60_000)

    run(backend, body)


@on_both_backends
def test_cancelling_a_call_leaves_the_connection_usable(backend: str) -> None:
    """The pending entry is removed, the late answer is dropped, and the next call is served."""

    async def body() -> None:
        async with connected() as (connection, peer, group):
            async with anyio.create_task_group() as inner:
                inner.start_soon(connection.call, request(10), 60_000)
                command = await peer.take()
                assert connection.pending_calls == 1
                inner.cancel_scope.cancel()
            assert connection.pending_calls == 0
            group.start_soon(connection.call, request(11), 1000)
            following = await peer.take()
            assert following.code == 11
            await peer.give(answer(command), answer(following))
            await settled()
            assert connection.pending_calls == 0
            assert not connection.closed

    run(backend, body)


@on_both_backends
def test_cancelling_run_fails_the_calls(backend: str) -> None:
    """When `run` is cancelled, pending calls fail instead of waiting for ever."""

    async def body() -> None:
        near, far = pipe()
        connection = Connection(near, "fake:1")
        async with anyio.create_task_group() as group:
            runner = anyio.CancelScope()

            async def run_it() -> None:
                with runner:
                    await connection.run()

            async def ask() -> None:
                with pytest.raises(ConnectionLost, match="cancelled"):
                    await connection.call(request(10), 60_000)

            group.start_soon(run_it)
            group.start_soon(ask)
            await Peer(far).take()
            runner.cancel()
        await far.aclose()

    run(backend, body)


Handler = Callable[[Command], "Command | Awaitable[Command | None] | None"]


async def _slowly(command: Command) -> Command:
    await anyio.lowlevel.checkpoint()
    return answer(command, body=b"slow")


async def _never(command: Command) -> Command | None:
    return None


def _refuse(command: Command) -> Command:
    raise RequestRefused(ResponseCode.NO_PERMISSION, "not you")


def _crash(command: Command) -> Command:
    raise ValueError("a bug")


async def _crash_later(command: Command) -> Command:
    raise ValueError("a later bug")


@on_both_backends
@pytest.mark.parametrize(
    ("handler", "code", "remark"),
    [
        (None, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "request code 40 is not served here"),
        (_slowly, ResponseCode.SUCCESS, None),
        (_refuse, ResponseCode.NO_PERMISSION, "not you"),
        (_crash, ResponseCode.SYSTEM_ERROR, "ValueError: a bug"),
        (_crash_later, ResponseCode.SYSTEM_ERROR, "ValueError: a later bug"),
    ],
)
@pytest.mark.parametrize("codec", [0, 1])
def test_requests_of_the_server_are_answered(
    backend: str, handler: Handler | None, code: int, remark: str | None, codec: int
) -> None:
    """Both directions have opaque spaces of their own; the answer copies opaque and codec; a handler that
    fails gives an error answer."""

    async def body() -> None:
        async with connected(on_request=handler) as (connection, peer, group):
            group.start_soon(connection.call, request(10), 60_000)
            own = await peer.take()
            asked = request(40, opaque=own.opaque)
            asked.codec = codec
            await peer.give(asked)
            response = await peer.take()
            assert (response.is_response, response.opaque, response.codec) == (True, own.opaque, codec)
            assert (response.code, response.remark) == (code, remark)
            assert connection.pending_calls == 1
            await peer.give(answer(own))

    run(backend, body)


@on_both_backends
@pytest.mark.parametrize("handler", [None, _slowly, _crash, _never])
def test_oneway_requests_of_the_server_get_no_answer(backend: str, handler: Handler | None) -> None:
    """A one-way request gets no answer, not even an error (wire-protocol sheet, 1.4)."""

    async def body() -> None:
        async with connected(on_request=handler) as (connection, peer, group):
            await peer.give(request(40, oneway=True))
            await settled()
            group.start_soon(connection.call, request(10), 1000)
            first = await peer.take()
            assert not first.is_response
            await peer.give(answer(first))

    run(backend, body)


@on_both_backends
def test_handlers_that_wait_do_not_block_each_other(backend: str) -> None:
    """Several requests of the server are handled at the same time; requests beyond the limit are answered
    SYSTEM_BUSY."""

    async def body() -> None:
        release = anyio.Event()

        async def wait(command: Command) -> Command:
            await release.wait()
            return answer(command)

        async with connected(on_request=wait) as (_connection, peer, _group):
            limit = MAX_IN_FLIGHT_PER_CONNECTION
            await peer.give(*(request(40, opaque=number) for number in range(limit + 1)))
            refused = await peer.take()
            assert (refused.code, refused.opaque) == (ResponseCode.SYSTEM_BUSY, limit)
            release.set()
            assert {(await peer.take()).opaque for _ in range(limit)} == set(range(limit))

    run(backend, body)


@on_both_backends
def test_writes_of_many_tasks_leave_together(backend: str) -> None:
    """A hundred calls made in one round of the scheduler cost a handful of writes."""

    async def body() -> None:
        async with connected() as (connection, peer, group):
            for _ in range(100):
                group.start_soon(connection.call, request(10), 1000)
            commands = [await peer.take() for _ in range(100)]
            assert connection._stream.sent_chunks <= 3
            await peer.give(*(answer(command) for command in commands))
            await settled()
            assert connection.pending_calls == 0

    run(backend, body)


@pytest.mark.row("S308")
@on_both_backends
def test_limits_of_calls_and_bytes(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many calls are refused at once; too many unsent bytes make callers wait, within their time-out."""
    monkeypatch.setattr(core, "MAX_PENDING_CALLS", 2)
    monkeypatch.setattr(core, "MAX_UNSENT_BYTES_PER_CONNECTION", 1000)

    async def body() -> None:
        async with connected(limit=0) as (connection, peer, _group):
            async with anyio.create_task_group() as inner:
                inner.start_soon(connection.call, request(10, body=b"x" * 500), 60_000)
                inner.start_soon(connection.call, request(10, body=b"x" * 500), 60_000)
                await settled()
                with pytest.raises(RequestTimeout):
                    await connection.call(request(10), 20)
                first, second = await peer.take(), await peer.take()
                with pytest.raises(ClientError, match="owes 2 answers"):
                    await connection.call(request(10), 1000)
                await peer.give(answer(first), answer(second))
            assert connection.pending_calls == 0

    run(backend, body)


@on_both_backends
def test_a_frame_that_is_too_large_is_refused_before_it_is_sent(backend: str) -> None:
    """The peer would close the connection, so the call raises an error instead of sending the frame."""

    async def body() -> None:
        async with connected() as (connection, peer, group):
            with pytest.raises(ProtocolError, match="at most"):
                await connection.call(request(10, body=bytes(17 * 1024 * 1024)), 1000)
            assert connection.pending_calls == 0
            group.start_soon(connection.call, request(10), 1000)
            await peer.give(answer(await peer.take()))

    run(backend, body)


def test_the_counter_wraps_and_steps_over_ids_in_use() -> None:
    """Opaque is a signed 32-bit counter that wraps."""

    async def body() -> None:
        async with connected() as (connection, peer, group):
            connection._core._opaque = 0x7FFFFFFF
            for _ in range(2):
                group.start_soon(connection.call, request(10), 60_000)
            first, second = await peer.take(), await peer.take()
            assert [first.opaque, second.opaque] == [0x7FFFFFFF, -0x80000000]
            connection._core._opaque = 0x7FFFFFFF
            group.start_soon(connection.call, request(10), 60_000)
            third = await peer.take()
            assert third.opaque == -0x7FFFFFFF
            await peer.give(answer(first), answer(second), answer(third))

    run("trio", body)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=12), st.permutations(range(6)))
def test_answers_cut_anywhere_reach_their_callers(cuts: list[int], order: list[int]) -> None:
    """However the network cuts and orders the answers, each caller gets its own."""

    async def body() -> None:
        async with connected() as (connection, peer, group):
            got: dict[int, bytes] = {}

            async def ask(number: int) -> None:
                got[number] = (await connection.call(request(10, body=bytes([number])), 60_000)).body

            for number in range(6):
                group.start_soon(ask, number)
            asked = [await peer.take() for _ in range(6)]
            stream = b"".join(encode(answer(asked[number], body=asked[number].body)) for number in order)
            at = 0
            for cut in cuts:
                await peer.stream.send(stream[at : at + cut])
                at += cut
            await peer.stream.send(stream[at:])
            await settled()
            assert got == {number: bytes([number]) for number in range(6)}

    run("trio", body)


@pytest.mark.row("S307")
@on_both_backends
def test_a_request_that_cannot_be_written_is_forgotten(backend: str) -> None:
    """The call fails at once instead of at its time-out, and no pending entry is left."""

    async def body() -> None:
        async with connected() as (connection, _peer, _group):

            async def broken(data: bytes) -> None:
                raise anyio.BrokenResourceError

            connection._stream.send = broken
            with pytest.raises(ConnectionLost, match="BrokenResourceError"):
                await connection.call(request(10), 60_000)
            assert connection.pending_calls == 0
            assert connection.closed

    run(backend, body)


@pytest.mark.row("S308")
def test_the_number_of_calls_under_way_is_javas() -> None:
    """At most 65535 calls per connection, as Java's clientAsyncSemaphoreValue."""
    assert MAX_PENDING_CALLS == 65_535


@pytest.mark.row("S309")
@on_both_backends
@pytest.mark.parametrize("end", ["answer", "time-out", "cancelled"])
def test_a_call_gives_its_place_back_once(backend: str, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call frees its slot once, however it ended; a late answer does not free it a second time."""
    monkeypatch.setattr(core, "MAX_PENDING_CALLS", 1)

    async def body() -> None:
        async with connected() as (connection, peer, _group):
            async with anyio.create_task_group() as inner:

                async def first() -> None:
                    if end == "time-out":
                        with pytest.raises(RequestTimeout):
                            await connection.call(request(10), 20)
                    else:
                        await connection.call(request(10), 60_000)

                inner.start_soon(first)
                command = await peer.take()
                with pytest.raises(ClientError, match="owes 1 answers"):
                    await connection.call(request(10), 1000)
                if end == "answer":
                    await peer.give(answer(command))
                elif end == "cancelled":
                    inner.cancel_scope.cancel()
            assert connection.pending_calls == 0
            await peer.give(answer(command))
            async with anyio.create_task_group() as inner:
                inner.start_soon(connection.call, request(11), 1000)
                following = await peer.take()
                with pytest.raises(ClientError, match="owes 1 answers"):
                    await connection.call(request(12), 1000)
                await peer.give(answer(following))

    run(backend, body)


@pytest.mark.row("S310")
@on_both_backends
def test_one_way_requests_are_flagged_and_held_back(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One-way requests have bit 1 of the flag and leave no pending entry; when the peer does not read,
    senders wait, so that memory is bounded."""
    monkeypatch.setattr(core, "MAX_UNSENT_BYTES_PER_CONNECTION", 1000)

    async def body() -> None:
        async with connected(limit=0) as (connection, peer, group):
            handed: list[int] = []

            async def send_all() -> None:
                for number in range(10):
                    await connection.oneway(request(34, body=bytes(500)))
                    handed.append(number)

            group.start_soon(send_all)
            await settled()
            assert len(handed) < 10
            assert connection.pending_calls == 0
            got = [await peer.take() for _ in range(10)]
            assert {(command.flag, len(command.body)) for command in got} == {(2, 500)}
            await settled()
            assert handed == list(range(10))

    run(backend, body)


@pytest.mark.row("S311")
def test_every_call_ends_with_its_own_time_out() -> None:
    """Each caller is woken within a second of its deadline (here: some milliseconds), in whatever order
    the calls were made."""

    async def body() -> None:
        async with connected() as (connection, _peer, _group):
            late: dict[int, float] = {}

            async def ask(timeout_ms: int) -> None:
                began_s = anyio.current_time()
                with pytest.raises(RequestTimeout):
                    await connection.call(request(10), timeout_ms)
                late[timeout_ms] = anyio.current_time() - began_s - timeout_ms / 1000

            async with anyio.create_task_group() as group:
                for timeout_ms in (3000, 100, 60_000, 101, 2999):
                    group.start_soon(ask, timeout_ms)
            assert list(late) == [100, 101, 2999, 3000, 60_000]
            assert all(-1e-6 <= overdue <= 0.01 for overdue in late.values())
            assert connection.pending_calls == 0

    run("trio", body)


@on_both_backends
def test_a_clients_own_codes_do_not_travel(backend: str) -> None:
    """A handler that fails with a client-side code, such as 10001, answers SYSTEM_ERROR: the peer does not
    know those codes."""

    def unreachable(command: Command) -> Command:
        raise ConnectFailed("10.0.0.1:1", "refused")

    async def body() -> None:
        async with connected(on_request=unreachable) as (_connection, peer, _group):
            await peer.give(request(40))
            response = await peer.take()
            assert (response.code, response.remark) == (
                ResponseCode.SYSTEM_ERROR,
                "cannot connect to 10.0.0.1:1: refused",
            )

    run(backend, body)
