"""One peer over one byte stream, client side (Java: NettyRemotingAbstract, NettyRemotingClient; wire-protocol
sheet, sections 1.4 and 9).

Callers put their frames into an outgoing buffer; one writer sends the buffer in chunks, so that concurrent
requests cost few system calls and a large one does not hold up the event loop. One reader passes answers to
waiting callers, by opaque, and requests of the peer to the handler. One timer handles all time-outs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from inspect import isawaitable
from math import inf
from typing import Protocol

import anyio
from anyio.abc import ByteStream, TaskGroup, TaskStatus

from rmqkit.errors import ProtocolError, RequestTimeout, RmqError, wire_code
from rmqkit.limits import READ_CHUNK_BYTES
from rmqkit.log_limit import limited_logger
from rmqkit.model.buffer import chunks
from rmqkit.protocol.codes import CLIENT_VERSION, FLAG_RESPONSE, ResponseCode, SerializeType
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.connection import ConnectionCore, Event, State
from rmqkit.protocol.value_frames import NOT_ROCKETMQ, other_protocol
from rmqkit.remoting.backend import async_backend

log = limited_logger(__name__)

#: Answers a request of the peer, or returns None for no answer; plain or coroutine function. RmqError is
#: answered with its code and text.
RequestHandler = Callable[[Command], "Command | Awaitable[Command | None] | None"]

LANGUAGE = "PYTHON"
#: Time-outs are noticed with at most this delay, so that the timer does not wake once per call when thousands
#: expire together.
TIMER_STEP_S = 0.005
_RETIRED = "the server is going away"
_STREAM_ERRORS = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)


class LaneSet(Protocol):
    """The lanes of one connection to a server, each of which is a `Connection`."""

    @property
    def all(self) -> list[Connection]:
        """The open lanes, the first one first."""

    async def run(self) -> None:
        """Serve all lanes until the first one ends (`Connection.run`)."""

    async def carrying(self, code: int) -> Connection:
        """The lane for a request code, opened if needed. Raises ConnectionLost."""


class Connection:
    """Requests and answers over one stream. Usable as soon as it is created; `run` must be running for data
    to move.

    `address` is used in errors. `serialize_type` and `version` apply to sent commands; an answer to the
    peer's request copies its codec.
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
        #: The lanes to which this connection belongs, over a transport with lanes.
        self.lanes: LaneSet | None = None
        backend = async_backend()
        self._time, self._event = backend.current_time, backend.event
        self._wakeup, self._wake = backend.wakeup, backend.wake
        self._core = ConnectionCore(address, self._time())
        self._stream = stream
        self._on_request = on_request
        self._codec = int(serialize_type)
        self._version = version
        self._idle: anyio.Event | None = None
        self._drained = anyio.Event()
        self._alarm = anyio.CancelScope()
        self._alarm_at = inf
        self._scope = anyio.CancelScope()

    @property
    def closed(self) -> bool:
        """Whether it has ended, for whatever reason."""
        return self._core.closed

    @property
    def pending_calls(self) -> int:
        """How many calls have no answer yet."""
        return self._core.pending_calls

    @property
    def last_received_s(self) -> float:
        """When bytes last arrived, in the time of `anyio.current_time`."""
        return self._core.received_at

    # --- what callers do ------------------------------------------------------------------------------------

    async def call(self, command: Command, timeout_ms: int) -> Command:
        """Send a request and wait for its answer, whatever its code. Sets opaque, codec, language and version
        of `command`.

        Raises RequestTimeout, ConnectionLost, ClientError (MAX_PENDING_CALLS wait) and ProtocolError (frame
        too large, nothing was sent). Cancelled: the request may still reach the peer, its answer is dropped,
        the connection stays usable.
        """
        core, now = self._core, self._time()
        if not core.has_room:
            await self._room(now + timeout_ms / 1000, timeout_ms)
        done = self._wakeup()
        call = core.call(command, timeout_ms, now, partial(self._wake, done))
        try:
            self._enqueue(self._own(command))
            if call.deadline < self._alarm_at:
                self._alarm_at = self._alarm.deadline = call.deadline
            await done
        finally:
            core.forget(call)
            if core.state is State.DRAINING and not core.pending_calls:
                self.close(_RETIRED)
        return core.result(call)

    async def oneway(self, command: Command) -> None:
        """Pass a one-way request to the writer; waits only while too many bytes are unsent. Sets the same
        fields as `call`.

        Raises ConnectionLost when the connection is known to be dead, ProtocolError when the frame is too
        large. When cancelled, nothing is sent.
        """
        await anyio.lowlevel.checkpoint()
        if not self._core.has_room:
            await self._room(inf, 0)
        self._core.oneway(command)
        self._enqueue(self._own(command))

    async def flush(self) -> None:
        """Wait until everything handed over so far is with the operating system, or the connection is
        dead."""
        while self._core.unsent_bytes and not self._core.closed:
            await self._drained.wait()

    def close(self, why: str = "closed by this side") -> None:
        """End the connection: pending calls fail with ConnectionLost, unsent bytes are lost, `run` returns.
        Safe to call twice."""
        self._end(Event.CLOSE, why)
        self._scope.cancel()

    def retire(self) -> None:
        """Begin no more calls, and close as soon as none is pending (the peer said GO_AWAY)."""
        self._core.happened(Event.DRAIN)
        if not self._core.pending_calls:
            self.close(_RETIRED)

    def _own(self, command: Command) -> Command:
        command.codec = self._codec
        command.language = LANGUAGE
        command.version = self._version
        return command

    def _enqueue(self, command: Command) -> None:
        self._core.queue_frame(command)
        if self._idle is not None:
            self._idle.set()
            self._idle = None

    async def _room(self, deadline: float, timeout_ms: int) -> None:
        with anyio.CancelScope(deadline=deadline) as scope:
            while not self._core.has_room and not self._core.closed:
                await self._drained.wait()
        if scope.cancelled_caught:
            raise RequestTimeout(self.address, timeout_ms)

    # --- what runs beside them ------------------------------------------------------------------------------

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Move bytes until the stream ends, the peer violates the framing, `close` is called or the task is
        cancelled.

        In every case it closes the stream and fails all waiting calls with ConnectionLost. It does not raise
        for a dead connection: the reason is logged and contained in the ConnectionLost errors.
        """
        try:
            with self._scope:
                if not self.closed:
                    async with anyio.create_task_group() as group:
                        group.start_soon(self._write)
                        group.start_soon(self._watch_deadlines)
                        task_status.started()
                        await self._read(group)
                        group.cancel_scope.cancel()
        finally:
            self._end(Event.CLOSE, "its task was cancelled")
            await anyio.aclose_forcefully(self._stream)

    async def _read(self, group: TaskGroup) -> None:
        core, receive = self._core, self._stream.receive
        heard = False
        try:
            while core.fault is None:
                data = await receive(READ_CHUNK_BYTES)
                heard = True
                core.received_at = self._time()
                for command in core.feed(data):
                    if not command.flag & FLAG_RESPONSE:
                        self._take_request(command, group)
                    elif not core.respond(command):
                        log.debug(
                            "%s: dropped an answer with the unknown opaque %d", self.address, command.opaque
                        )
            raise core.fault
        except ProtocolError as error:
            self._end(Event.FAULT, f"the peer broke the framing: {error}")
        except anyio.EndOfStream:
            other = other_protocol(core.first_bytes)
            if other is not None:
                why = f"it speaks {other}, {NOT_ROCKETMQ}"
            elif core.pending_bytes:
                why = f"closed by the peer inside a frame, {core.pending_bytes} bytes had come"
            elif heard:
                why = "closed by the peer"
            else:
                why = (
                    "closed by the peer before it said anything, as ports do that take only TLS (tls.enable)"
                )
            self._end(Event.CLOSE, why)
        except _STREAM_ERRORS as error:
            self._end(Event.CLOSE, _reason(error))

    async def _write(self) -> None:
        core = self._core
        try:
            while True:
                if not core.outgoing:
                    self._idle = self._event()
                    await self._idle.wait()
                for chunk in chunks(core.take_outgoing()):
                    await self._stream.send(bytes(chunk))
                    core.sent(len(chunk), self._time())
                    self._drained.set()
                    self._drained = self._event()
        except _STREAM_ERRORS as error:
            self.close(_reason(error))

    async def _watch_deadlines(self) -> None:
        while True:
            with anyio.CancelScope(deadline=self._alarm_at) as self._alarm:
                await anyio.sleep_forever()
            now = self._time()
            self._alarm_at = max(self._core.expire(now), now + TIMER_STEP_S)

    def _end(self, event: Event, why: str) -> None:
        if not self._core.closed:
            log.debug("connection to %s ended: %s", self.address, why)
            self._core.happened(event, why)
            self._drained.set()

    # --- requests of the peer -------------------------------------------------------------------------------

    def _take_request(self, request: Command, group: TaskGroup) -> None:
        """Answer at once if the handler does; a handler that waits continues in a separate task."""
        if self._on_request is None:
            self._refuse(
                request,
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f"request code {request.code} is not served here",
            )
            return
        if self._core.overloaded:
            self._refuse(
                request,
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD] {self._core.in_flight} requests are being handled",
            )
            return
        try:
            outcome = self._on_request(request)
        except Exception as error:  # noqa: BLE001 - logged and answered
            self._answer(request, self._failure(request, error))
            return
        if isawaitable(outcome):
            self._core.in_flight += 1
            group.start_soon(self._finish, request, outcome)
        else:
            self._answer(request, outcome)

    async def _finish(self, request: Command, outcome: Awaitable[Command | None]) -> None:
        try:
            response = await outcome
        except Exception as error:  # noqa: BLE001 - logged and answered
            response = self._failure(request, error)
        finally:
            self._core.in_flight -= 1
        self._answer(request, response)

    def _refuse(self, request: Command, code: ResponseCode, remark: str) -> None:
        self._answer(request, answer(request, code, remark))

    def _failure(self, request: Command, error: Exception) -> Command:
        if isinstance(error, RmqError):
            if request.is_oneway:
                log.warning("%s: its one-way request %d failed: %s", self.address, request.code, error)
            return answer(request, wire_code(error), str(error))
        log.error("%s: handling of request %d failed", self.address, request.code, exc_info=error)
        return answer(request, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")

    def _answer(self, request: Command, response: Command | None) -> None:
        if response is None or request.is_oneway or self.closed:
            return
        response.opaque, response.codec = request.opaque, request.codec
        response.flag |= FLAG_RESPONSE
        response.language, response.version = LANGUAGE, self._version
        try:
            self._enqueue(response)
        except ProtocolError as error:
            self._enqueue(answer(request, ResponseCode.SYSTEM_ERROR, str(error)))


def _reason(error: BaseException) -> str:
    """Text of a stream error; anyio's own have no text, but the errors they wrap do."""
    return str(error) or str(error.__cause__ or "") or type(error).__name__
