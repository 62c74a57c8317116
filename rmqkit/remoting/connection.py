"""One peer over one byte stream, client side (Java: NettyRemotingAbstract, NettyRemotingClient; wire-protocol sheet, sections 1.4 and 9).

Callers put their frame into an outgoing buffer; one writer sends what has gathered with one call, so that many requests at a time cost
few system calls. One reader hands answers to the callers that wait, by opaque, and requests of the peer to the handler. One timer looks
after all time-outs: a call has no timer of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from math import inf
from typing import TYPE_CHECKING

import anyio
from anyio.abc import ByteStream, TaskGroup, TaskStatus

from rmqkit.errors import ClientError, ConnectionLost, ProtocolError, RequestTimeout, RmqError, wire_code
from rmqkit.limits import MAX_IN_FLIGHT_PER_CONNECTION, MAX_PENDING_CALLS, MAX_UNSENT_BYTES_PER_CONNECTION, READ_CHUNK_BYTES
from rmqkit.protocol.codes import CLIENT_VERSION, FLAG_ONEWAY, FLAG_RESPONSE, ResponseCode, SerializeType
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.frame import FrameDecoder, encode

if TYPE_CHECKING:
    from rmqkit.remoting.lanes import Lanes

log = logging.getLogger(__name__)

#: Answers a request of the peer, or returns None for no answer; plain or coroutine function. RmqError answers with its code and text.
RequestHandler = Callable[[Command], "Command | Awaitable[Command | None] | None"]

LANGUAGE = "PYTHON"
#: Time-outs are noticed at most this late; it keeps the timer from waking once per call when thousands run out together.
TIMER_STEP_S = 0.005
_STREAM_ERRORS = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)


class _Waiting:
    """A call that waits: exactly one of `answer` and `error` is set before `done`."""

    __slots__ = ("answer", "deadline", "done", "error", "timeout_ms")

    def __init__(self, deadline: float, timeout_ms: int) -> None:
        self.done = anyio.Event()
        self.deadline = deadline
        self.timeout_ms = timeout_ms
        self.answer: Command | None = None
        self.error: ClientError | None = None


class Connection:
    """Requests and answers over one stream. Usable from the moment it is made; `run` must be running for anything to move.

    `address` is the text errors carry. `serialize_type` and `version` mark what goes out; an answer to the peer's request copies its codec.
    """

    def __init__(
        self,
        stream: ByteStream,
        address: str,
        *,
        on_request: RequestHandler | None = None,
        serialize_type: SerializeType = SerializeType.JSON,
        version: int = CLIENT_VERSION,
    ) -> None:
        self.address = address
        #: The lanes this connection is one of, over a transport that has lanes.
        self.lanes: Lanes | None = None
        #: When bytes last arrived, in the time of `anyio.current_time`.
        self.last_received_s = anyio.current_time()
        self._stream = stream
        self._on_request = on_request
        self._codec = int(serialize_type)
        self._version = version
        self._opaque = 0
        self._pending: dict[int, _Waiting] = {}
        self._outgoing: list[bytes] = []
        self._unsent_bytes = 0
        self._idle: anyio.Event | None = None
        self._drained = anyio.Event()
        self._alarm = anyio.CancelScope()
        self._alarm_at = inf
        self._handling = 0
        self._retiring = False
        self._why: str | None = None
        self._scope = anyio.CancelScope()

    @property
    def closed(self) -> bool:
        return self._why is not None

    @property
    def pending_calls(self) -> int:
        return len(self._pending)

    # --- what callers do -----------------------------------------------------------------------------------------------

    async def call(self, command: Command, timeout_ms: int) -> Command:
        """Send a request and wait for its answer, whatever its code. Sets opaque, codec, language and version of `command`.

        Raises RequestTimeout, ConnectionLost, ClientError (MAX_PENDING_CALLS wait) and ProtocolError (frame too large, nothing
        was sent). Cancelled: the request may still reach the peer, its answer is dropped, the connection stays usable.
        """
        deadline = anyio.current_time() + timeout_ms / 1000
        if self._unsent_bytes > MAX_UNSENT_BYTES_PER_CONNECTION:
            await self._room(deadline, timeout_ms)
        if self._why is not None:
            raise ConnectionLost(self.address, self._why)
        pending = self._pending
        if len(pending) >= MAX_PENDING_CALLS:
            raise ClientError(f"{self.address} owes {len(pending)} answers already, at most {MAX_PENDING_CALLS} may be awaited at a time")
        opaque = self._next_opaque()
        command.opaque = opaque
        command.flag = 0
        frame = self._frame(command)
        waiting = pending[opaque] = _Waiting(deadline, timeout_ms)
        self._enqueue(frame)
        if deadline < self._alarm_at:
            self._alarm_at = self._alarm.deadline = deadline
        try:
            await waiting.done.wait()
        finally:
            pending.pop(opaque, None)
            if self._retiring and not pending:
                self.close("the server is going away")
        if waiting.answer is None:
            assert waiting.error is not None
            raise waiting.error
        return waiting.answer

    async def oneway(self, command: Command) -> None:
        """Hand a one-way request to the writer; waits only while too many bytes are unsent. Sets the same fields as `call`.

        Raises ConnectionLost when the connection is known to be dead, ProtocolError when the frame is too large. Cancelled: not sent.
        """
        await anyio.lowlevel.checkpoint()
        if self._unsent_bytes > MAX_UNSENT_BYTES_PER_CONNECTION:
            await self._room(inf, 0)
        if self._why is not None:
            raise ConnectionLost(self.address, self._why)
        command.opaque = self._next_opaque()
        command.flag = FLAG_ONEWAY
        self._enqueue(self._frame(command))

    async def flush(self) -> None:
        """Wait until everything handed over so far is with the operating system, or the connection is dead."""
        while self._unsent_bytes and self._why is None:
            await self._drained.wait()

    def close(self, why: str = "closed by this side") -> None:
        """End the connection: calls that wait fail with ConnectionLost, unsent bytes are lost, `run` returns. Safe to call twice."""
        self._end(why)
        self._scope.cancel()

    def retire(self) -> None:
        """Close as soon as no call waits any more (the peer said GO_AWAY). The caller sees to it that no new ones come."""
        self._retiring = True
        if not self._pending:
            self.close("the server is going away")

    def _next_opaque(self) -> int:
        """A signed 32-bit counter that wraps and steps over ids in use."""
        while True:
            opaque = self._opaque
            self._opaque = opaque + 1 if opaque < 0x7FFFFFFF else -0x80000000
            if opaque not in self._pending:
                return opaque

    def _frame(self, command: Command) -> bytes:
        command.codec = self._codec
        command.language = LANGUAGE
        command.version = self._version
        return encode(command)

    def _enqueue(self, frame: bytes) -> None:
        self._outgoing.append(frame)
        self._unsent_bytes += len(frame)
        if self._idle is not None:
            self._idle.set()
            self._idle = None

    async def _room(self, deadline: float, timeout_ms: int) -> None:
        with anyio.CancelScope(deadline=deadline) as scope:
            while self._unsent_bytes > MAX_UNSENT_BYTES_PER_CONNECTION and self._why is None:
                await self._drained.wait()
        if scope.cancelled_caught:
            raise RequestTimeout(self.address, timeout_ms)

    # --- what runs beside them -----------------------------------------------------------------------------------------

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Move bytes until the stream ends, the peer breaks the framing, `close` is called or the task is cancelled.

        Closes the stream and fails all waiting calls with ConnectionLost in every case. Does not raise for a dead connection: the reason is
        logged and stands in the ConnectionLost errors.
        """
        try:
            with self._scope:
                if self._why is None:
                    async with anyio.create_task_group() as group:
                        group.start_soon(self._write)
                        group.start_soon(self._watch_deadlines)
                        task_status.started()
                        await self._read(group)
                        group.cancel_scope.cancel()
        finally:
            self._end("its task was cancelled")
            await anyio.aclose_forcefully(self._stream)

    async def _read(self, group: TaskGroup) -> None:
        decoder = FrameDecoder()
        receive, pending = self._stream.receive, self._pending
        heard = False
        try:
            while True:
                data = await receive(READ_CHUNK_BYTES)
                heard = True
                self.last_received_s = anyio.current_time()
                for command in decoder.feed(data):
                    if command.flag & FLAG_RESPONSE:
                        waiting = pending.pop(command.opaque, None)
                        if waiting is None:
                            log.debug("%s: dropped an answer with the unknown opaque %d", self.address, command.opaque)
                        else:
                            waiting.answer = command
                            waiting.done.set()
                    else:
                        self._take_request(command, group)
        except anyio.EndOfStream:
            unfinished = decoder.pending_bytes
            if unfinished:
                self._end(f"closed by the peer inside a frame, {unfinished} bytes had come")
            else:
                self._end(
                    "closed by the peer"
                    if heard
                    else "closed by the peer before it said anything, as ports do that take only TLS (tls.enable)"
                )
        except ProtocolError as error:
            self._end(f"the peer broke the framing: {error}")
        except _STREAM_ERRORS as error:
            self._end(_reason(error))

    async def _write(self) -> None:
        try:
            while True:
                if not self._outgoing:
                    self._idle = anyio.Event()
                    await self._idle.wait()
                batch, self._outgoing = self._outgoing, []
                data = batch[0] if len(batch) == 1 else b"".join(batch)
                await self._stream.send(data)
                self._unsent_bytes -= len(data)
                self._drained.set()
                self._drained = anyio.Event()
        except _STREAM_ERRORS as error:
            self.close(_reason(error))

    async def _watch_deadlines(self) -> None:
        while True:
            with anyio.CancelScope(deadline=self._alarm_at) as self._alarm:
                await anyio.sleep_forever()
            now, earliest = anyio.current_time(), inf
            for waiting in self._pending.values():
                if waiting.deadline > now:
                    earliest = min(earliest, waiting.deadline)
                elif waiting.error is None:
                    waiting.error = RequestTimeout(self.address, waiting.timeout_ms)
                    waiting.done.set()
            self._alarm_at = max(earliest, now + TIMER_STEP_S)

    def _end(self, why: str) -> None:
        if self._why is not None:
            return
        self._why = why
        log.debug("connection to %s ended: %s", self.address, why)
        for waiting in self._pending.values():
            if waiting.error is None:
                waiting.error = ConnectionLost(self.address, why)
                waiting.done.set()
        self._pending.clear()
        self._drained.set()

    # --- requests of the peer ------------------------------------------------------------------------------------------

    def _take_request(self, request: Command, group: TaskGroup) -> None:
        """Answer at once where the handler does; a handler that waits goes on in a task of its own."""
        if self._on_request is None:
            self._refuse(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"request code {request.code} is not served here")
            return
        if self._handling >= MAX_IN_FLIGHT_PER_CONNECTION:
            self._refuse(request, ResponseCode.SYSTEM_BUSY, f"[OVERLOAD] {self._handling} requests are being handled")
            return
        try:
            outcome = self._on_request(request)
        except Exception as error:  # noqa: BLE001 - logged and answered
            self._answer(request, self._failure(request, error))
            return
        if isawaitable(outcome):
            self._handling += 1
            group.start_soon(self._finish, request, outcome)
        else:
            self._answer(request, outcome)

    async def _finish(self, request: Command, outcome: Awaitable[Command | None]) -> None:
        try:
            response = await outcome
        except Exception as error:  # noqa: BLE001 - logged and answered
            response = self._failure(request, error)
        finally:
            self._handling -= 1
        self._answer(request, response)

    def _refuse(self, request: Command, code: ResponseCode, remark: str) -> None:
        self._answer(request, answer(request, code, remark))

    def _failure(self, request: Command, error: Exception) -> Command:
        if isinstance(error, RmqError):
            return answer(request, wire_code(error), str(error))
        log.error("%s: handling of request %d failed", self.address, request.code, exc_info=error)
        return answer(request, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")

    def _answer(self, request: Command, response: Command | None) -> None:
        if response is None or request.is_oneway or self._why is not None:
            return
        response.opaque, response.codec = request.opaque, request.codec
        response.flag |= FLAG_RESPONSE
        response.language, response.version = LANGUAGE, self._version
        try:
            frame = encode(response)
        except ProtocolError as error:
            frame = encode(answer(request, ResponseCode.SYSTEM_ERROR, str(error)))
        self._enqueue(frame)


def _reason(error: BaseException) -> str:
    """Text of a stream error; anyio's own say nothing themselves, what they wrap does."""
    return str(error) or str(error.__cause__ or "") or type(error).__name__
