"""The serving side of remoting, on trio: connections in, requests to processors, answers out (Java: NettyRemotingServer, NettyRemotingAbstract).

A connection reads what has arrived, decodes every whole frame in it, runs the processors and answers with one send. Processors are plain functions;
what must wait becomes a task of the connection's nursery, so that it never blocks the frames behind it. A connection stops reading while
too many of its requests are unanswered or too many bytes are unsent; that is the only back-pressure there is.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import trio

from rmqkit.abc import Answer, BatchProcessor, Buffer, Outcome, Peer, Postponed, Reply, RequestProcessor, ServerStream, WorkingListener
from rmqkit.errors import ConnectionLost, DecodeError, ProtocolError, RequestRefused, RequestTimeout, RmqError, wire_code
from rmqkit.hook_calls import HookEntry, Hooks
from rmqkit.hooks import ManyRequestsHook, RpcHook
from rmqkit.limits import (
    IDLE_TIMEOUT_MS,
    MAX_CONNECTIONS,
    MAX_IN_FLIGHT_PER_CONNECTION,
    MAX_PENDING_CALLS,
    MAX_UNSENT_BYTES_PER_CONNECTION,
    READ_CHUNK_BYTES,
)
from rmqkit.protocol import frame
from rmqkit.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE, RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.message_id import pack_host
from rmqkit.remoting.turns import BIG_ANSWER_BYTES, Turns

_log = logging.getLogger(__name__)
_FIRST_CHUNK_BYTES = 16 * 1024
#: What is more goes out by a task, which need not join it.
_WRITTEN_NOW_BYTES = 64 * 1024
_HOUSEKEEPING_MS = 10_000


class Router:
    """Request code -> processor; `default` takes the rest (Java: processorTable)."""

    def __init__(self, processors: Mapping[int, RequestProcessor], default: RequestProcessor | None = None) -> None:
        self.processors = {int(code): processor for code, processor in processors.items()}
        self.default = default if default is not None else NotSupported()


class NotSupported(RequestProcessor):
    """Answers every request with REQUEST_CODE_NOT_SUPPORTED."""

    def process(self, request: Command, peer: Peer) -> Outcome:
        try:
            name = f" ({RequestCode(request.code).name})"
        except ValueError:
            name = ""
        return answer(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"request code {request.code}{name} is not supported here")


class ServedPeer(Peer):
    """One accepted connection."""

    def __init__(self, server: RequestServer, stream: ServerStream) -> None:
        self.remote_host = pack_host(*stream.remote)
        self.remote_text = _host_text(*stream.remote)
        self.closed = False
        self.last_active = trio.current_time()
        self.in_flight = 0
        self._server = server
        self._stream = stream
        self._out: list[Buffer] = []
        self._unsent_bytes = 0
        self._writing = False
        self._woken = False
        self._big = False
        self._room = trio.lowlevel.ParkingLot()
        self._opaque = 0
        self._calls: dict[int, tuple[trio.Event, list[Command]]] = {}
        self._nursery: trio.Nursery | None = None
        self._reading = trio.CancelScope()
        self._receiving = False
        self._stopping = False

    # What processors use.

    def respond(self, request: Command, answer: Answer) -> None:
        if self.closed or request.flag & FLAG_ONEWAY:
            return
        self.enqueue(request, answer)
        self.wake_writer()

    def defer(self, work: Callable[[], Awaitable[None]], requests: int) -> None:
        if self._nursery is None or self.closed:
            return
        self.in_flight += requests
        self._nursery.start_soon(self._deferred, work, requests)

    def postpone(self, requests: int) -> Postponed:
        self.in_flight += requests

        def answered(answers: Sequence[tuple[Command, Answer]]) -> None:
            self.in_flight -= requests
            if not self.closed:
                for request, answer in answers:
                    if not request.flag & FLAG_ONEWAY:
                        self.enqueue(request, answer)
                self._write_now()
            self._room.unpark_all()

        return answered

    def push(self, command: Command) -> bool:
        if self.closed or self._unsent_bytes > MAX_UNSENT_BYTES_PER_CONNECTION:
            return False
        command.opaque = self._next_opaque()
        command.flag = FLAG_ONEWAY
        self.queue(frame.encode(command))
        self.wake_writer()
        return True

    async def call(self, command: Command, timeout_ms: int) -> Command:
        if self.closed or len(self._calls) >= MAX_PENDING_CALLS:
            raise ConnectionLost(self.remote_text)
        command.opaque = opaque = self._next_opaque()
        done: tuple[trio.Event, list[Command]] = (trio.Event(), [])
        self._calls[opaque] = done
        try:
            self.queue(frame.encode(command))
            self.wake_writer()
            with trio.move_on_after(timeout_ms / 1000):
                await done[0].wait()
                if done[1]:
                    return done[1][0]
                raise ConnectionLost(self.remote_text)
            raise RequestTimeout(self.remote_text, timeout_ms)
        finally:
            del self._calls[opaque]

    def close(self) -> None:
        self.closed = True
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    # What the server uses.

    async def run(self) -> None:
        """Serve until the peer goes away, breaks the protocol, is closed, or the server drains."""
        try:
            async with trio.open_nursery() as self._nursery:
                if self.closed:
                    return
                try:
                    with self._reading:
                        await self._read_loop()
                    await self._finish()
                finally:
                    # From here on nobody may start a task of this connection: its nursery is about to close.
                    self.closed = True
                self._nursery.cancel_scope.cancel()
        finally:
            self.closed = True
            for event, _ in self._calls.values():
                event.set()
            with trio.move_on_after(1, shield=True):
                await trio.aclose_forcefully(self._stream)

    def stop_reading(self) -> None:
        """Take no more requests. What was taken is answered: a write that is under way must not be cut in the middle of a frame."""
        self._stopping = True
        if self._receiving:
            self._reading.cancel()

    async def _read_loop(self) -> None:
        if self._stopping:
            return
        self._receiving = True
        self._stream = stream = await self._stream.opened()
        handle, turns = self._server.handle, self._server.turns
        decoder = frame.FrameDecoder()
        chunk_bytes = _FIRST_CHUNK_BYTES
        while not self._stopping:
            self._receiving = True
            data = await stream.receive_some(chunk_bytes)
            self._receiving = False
            if not data or self._stopping:
                return
            if len(data) == chunk_bytes:
                chunk_bytes = min(chunk_bytes * 4, READ_CHUNK_BYTES)
            elif len(data) < chunk_bytes // 8:
                chunk_bytes = max(chunk_bytes // 4, _FIRST_CHUNK_BYTES)
            self.last_active = now = trio.current_time()
            if not self._big:
                turns.lively(now)
            elif turns.crowded(now):
                await turns.wait()
            commands = decoder.feed(bytes(data))
            at, end = 0, len(commands)
            while at < end:
                at = handle(self, commands, at)
                if self._out:
                    self._big = self._unsent_bytes > BIG_ANSWER_BYTES
                    await self._write()
                while self.congested:
                    await self._room.park()
            if decoder.fault is not None:
                raise decoder.fault

    @property
    def congested(self) -> bool:
        """Whether nothing more may be asked of the server until it has answered, or the peer has read."""
        return self.in_flight >= MAX_IN_FLIGHT_PER_CONNECTION or self._unsent_bytes > MAX_UNSENT_BYTES_PER_CONNECTION

    async def _finish(self) -> None:
        """The peer stopped sending, or the server drains: answer what is under way, then end."""
        while self.in_flight:
            await self._room.park()
        await self._write()
        while self._writing:
            await self._room.park()

    async def _deferred(self, work: Callable[[], Awaitable[None]], requests: int) -> None:
        try:
            await work()
        except Exception:  # noqa: BLE001 - a plugin's mistake costs its requests their answers, not the server its life
            _log.exception("deferred work for %s failed", self.remote_text)
        finally:
            self.in_flight -= requests
            self._room.unpark_all()

    def wake_writer(self) -> None:
        if not self._writing and not self._woken and self._nursery is not None and not self.closed:
            self._woken = True
            self._nursery.start_soon(self._write)

    def enqueue(self, request: Command, answer: Answer) -> None:
        """Show an answer to the hooks, and put it behind what is to be sent."""
        self._server.after_hooks(request, answer, self)
        try:
            if isinstance(answer, bytes):
                self.queue(answer)
            elif isinstance(answer, Reply):
                self.queue(frame.frame_head(answer.head, answer.total_bytes))
                self._out += answer.slices
                self._unsent_bytes += answer.total_bytes
            else:
                self.queue(frame.encode(answer))
        except Exception as error:  # noqa: BLE001 - what cannot be written (too large, a plugin's wrong types) is an error to the peer
            self.queue(frame.encode(error_answer(request, error)))

    def queue(self, data: bytes) -> None:
        """Put a whole frame, or the head of one, behind what is to be sent."""
        self._out.append(data)
        self._unsent_bytes += len(data)

    def queue_all(self, frames: Sequence[bytes]) -> None:
        """The same for several whole frames."""
        self._out += frames
        self._unsent_bytes += sum(map(len, frames))

    def _write_now(self) -> None:
        """Send what is queued without a task, as far as that goes."""
        if not self._out or self._writing or self._woken:
            return
        if self._unsent_bytes <= _WRITTEN_NOW_BYTES:
            data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
            try:
                sent = self._stream.send_now(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self.close()
                return
            self._out = [memoryview(data)[sent:]] if sent < len(data) else []
            self._unsent_bytes -= sent
            self.last_active = trio.current_time()
        if self._out:
            self.wake_writer()

    async def _write(self) -> None:
        """Send what is queued. One task at a time writes; the others leave theirs in the queue."""
        self._woken = False
        if self._writing:
            return
        self._writing = True
        try:
            while self._out:
                parts, self._out = self._out, []
                size = self._unsent_bytes
                if len(parts) == 1:
                    await self._stream.send_all(parts[0])
                else:
                    await self._stream.send_parts(parts)
                self._unsent_bytes -= size
                self.last_active = trio.current_time()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.close()
        finally:
            self._writing = False
            self._room.unpark_all()

    def _next_opaque(self) -> int:
        self._opaque = self._opaque + 1 & 0x7FFFFFFF
        return self._opaque

    def on_response(self, command: Command) -> None:
        waiting = self._calls.get(command.opaque)
        if waiting is None:
            _log.debug("%s answered a request %s that nobody waits for", self.remote_text, command.opaque)
            return
        waiting[1].append(command)
        waiting[0].set()


class RequestServer:
    """Serves a router on listeners.

    router      request code -> processor
    rpc_hooks   around the requests they want to see, in order
    on_closed   called when a connection has ended
    name        stands in log lines
    """

    def __init__(
        self,
        router: Router,
        *,
        rpc_hooks: Iterable[RpcHook] = (),
        on_closed: Callable[[Peer], None] | None = None,
        name: str = "server",
    ) -> None:
        self.router = router
        self.peers: set[ServedPeer] = set()
        self.turns = Turns()
        self._hooks = _HooksByCode(Hooks.of("rpc hook", rpc_hooks).checked(RpcHook, ("before", "after", "before_many", "after_many")))
        self._on_closed = on_closed
        self._name = name
        self._accepting = trio.CancelScope()
        self._draining = False
        self._empty = trio.Event()

    async def serve(
        self, listeners: Sequence[trio.abc.Listener[ServerStream]], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Accept and serve until cancelled or drained. Cancelled: connections are cut."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._housekeeping)
            nursery.start_soon(self.turns.run)
            for listener in listeners:
                if isinstance(listener, WorkingListener):
                    nursery.start_soon(listener.run)
            with self._accepting:
                # It closes the listeners when it ends.
                async with trio.open_nursery() as accepting:
                    await accepting.start(partial(trio.serve_listeners, self._connection, list(listeners), handler_nursery=nursery))
                    task_status.started()
            while self.peers:
                await self._empty.wait()
            nursery.cancel_scope.cancel()

    async def drain(self, timeout_ms: int) -> None:
        """Stop accepting and reading, answer what is in flight, close. After the time-out the rest is cut."""
        self._draining = True
        self._accepting.cancel()
        for peer in list(self.peers):
            peer.stop_reading()
        with trio.move_on_after(timeout_ms / 1000):
            while self.peers:
                await self._empty.wait()
        for peer in list(self.peers):
            peer.close()

    async def _connection(self, stream: ServerStream) -> None:
        if self._draining:
            await trio.aclose_forcefully(stream)
            return
        if len(self.peers) >= MAX_CONNECTIONS:
            _log.warning("%s: more than %s connections, one from %s refused", self._name, MAX_CONNECTIONS, stream.remote[0])
            await trio.aclose_forcefully(stream)
            return
        peer = ServedPeer(self, stream)
        self.peers.add(peer)
        try:
            await peer.run()
        except* ProtocolError as group:
            _log.warning("%s: %s broke the protocol, connection closed: %s", self._name, peer.remote_text, _first(group))
        except* (trio.BrokenResourceError, trio.ClosedResourceError) as group:
            _log.debug("%s: connection from %s lost: %s", self._name, peer.remote_text, _first(group))
        except* Exception as group:  # noqa: BLE001 - one connection's trouble must not reach the others
            _log.error("%s: connection from %s failed and was closed", self._name, peer.remote_text, exc_info=_first(group))
        finally:
            self.peers.discard(peer)
            if not self.peers:
                event, self._empty = self._empty, trio.Event()
                event.set()
            if self._on_closed is not None:
                self._on_closed(peer)

    async def _housekeeping(self) -> None:
        """Close connections over which nothing has moved for IDLE_TIMEOUT_MS (Java: IdleStateHandler)."""
        while True:
            await trio.sleep(_HOUSEKEEPING_MS / 1000)
            limit = trio.current_time() - IDLE_TIMEOUT_MS / 1000
            for peer in list(self.peers):
                if peer.last_active < limit:
                    _log.info("%s: connection from %s idle for %s s, closed", self._name, peer.remote_text, IDLE_TIMEOUT_MS // 1000)
                    peer.close()

    # The request path.

    def handle(self, peer: ServedPeer, commands: Sequence[Command], at: int) -> int:
        """Run the processors for commands that arrived together, from number `at` on; answers are queued, or a deferred task will queue them.

        Returns how far it came: not to the end when the peer is congested.
        """
        find, default, hooks_of = self.router.processors.get, self.router.default, self._hooks.of
        end = len(commands)
        while at < end and not peer.congested:
            if peer.closed:
                return end
            command = commands[at]
            at += 1
            if command.flag & FLAG_RESPONSE:
                peer.on_response(command)
                continue
            processor = find(command.code, default)
            hooks = hooks_of(command.code)
            if isinstance(processor, BatchProcessor) and not hooks.one_by_one:
                start = at - 1
                while at < end:
                    follower = commands[at]
                    if follower.flag & FLAG_RESPONSE or find(follower.code, default) is not processor:
                        break
                    if follower.code != command.code and hooks_of(follower.code).entries != hooks.entries:
                        break
                    at += 1
                run = commands[start:at] if at - start < end else commands
                for entry in hooks.entries:
                    entry.tell("before_many", run, peer)
                self._finish_many(run, _process_many(processor, run, peer), peer, hooks.entries)
            else:
                self._finish(command, self._process(processor, command, peer), peer)
        return at

    def _finish_many(
        self, requests: Sequence[Command], outcomes: Sequence[Outcome], peer: ServedPeer, hooks: Sequence[HookEntry[RpcHook]]
    ) -> None:
        """As `_finish` for each, quickly for frames that are encoded already."""
        frames = [
            outcome
            for request, outcome in zip(requests, outcomes, strict=True)
            if type(outcome) is bytes and not request.flag & FLAG_ONEWAY
        ]
        if len(frames) == len(requests):
            peer.queue_all(frames)
            answered = requests
        else:
            answered = []
            for request, outcome in zip(requests, outcomes, strict=True):
                if type(outcome) is not bytes:
                    self._finish(request, outcome, peer)
                elif not request.flag & FLAG_ONEWAY:
                    peer.queue(outcome)
                    answered.append(request)
        if answered:
            for entry in hooks:
                entry.tell("after_many", answered, peer)

    def _process(self, processor: RequestProcessor, request: Command, peer: ServedPeer) -> Outcome:
        try:
            for entry in self._hooks.of(request.code).entries:
                entry.demand("before", request, peer)
            return processor.process(request, peer)
        except Exception as error:  # noqa: BLE001 - whatever a processor or hook raises must become an answer, never end the server
            return error_answer(request, error)

    def _finish(self, request: Command, outcome: Outcome, peer: ServedPeer) -> None:
        if outcome is None:
            return
        if isinstance(outcome, (Command, Reply, bytes)):
            if not request.flag & FLAG_ONEWAY:
                peer.enqueue(request, outcome)
            return
        if not peer.closed:
            peer.defer(partial(self._await, request, outcome, peer), 1)
        elif isinstance(outcome, Coroutine):
            outcome.close()

    async def _await(self, request: Command, outcome: Awaitable[Answer | None], peer: ServedPeer) -> None:
        try:
            result = await outcome
        except Exception as error:  # noqa: BLE001 - as in _process
            result = error_answer(request, error)
        if result is not None:
            peer.respond(request, result)

    def after_hooks(self, request: Command, answer: Answer, peer: Peer) -> None:
        """Show an answer to the hooks; what they raise is logged and changes nothing."""
        hooks = self._hooks.of(request.code).entries
        if hooks:
            response = answer.head if isinstance(answer, Reply) else answer
            for entry in hooks:
                if not isinstance(response, bytes):
                    entry.tell("after", request, response, peer)
                elif isinstance(entry.hook, ManyRequestsHook):
                    entry.tell("after_many", (request,), peer)


class _HooksOfCode(NamedTuple):
    """The hooks that want to see a code; `one_by_one` when one of them has to be asked about each request."""

    entries: tuple[HookEntry[RpcHook], ...]
    one_by_one: bool


class _HooksByCode:
    """Request code -> the hooks that want to see it."""

    def __init__(self, hooks: Hooks[RpcHook]) -> None:
        named = {int(code) for hook in hooks for code in hook.codes or ()}
        self._for_all = _of_code(entry for entry in hooks.entries if entry.hook.codes is None)
        self._by_code = {
            code: _of_code(entry for entry in hooks.entries if entry.hook.codes is None or code in entry.hook.codes) for code in named
        }

    def of(self, code: int) -> _HooksOfCode:
        return self._by_code.get(code, self._for_all)


def _of_code(entries: Iterable[HookEntry[RpcHook]]) -> _HooksOfCode:
    found = tuple(entries)
    return _HooksOfCode(found, not all(isinstance(entry.hook, ManyRequestsHook) for entry in found))


def _process_many(processor: BatchProcessor, run: Sequence[Command], peer: Peer) -> Sequence[Outcome]:
    try:
        outcomes = processor.process_many(run, peer)
        if len(outcomes) != len(run):
            raise ValueError(f"{type(processor).__name__} gave {len(outcomes)} outcomes for {len(run)} requests")
    except Exception as error:  # noqa: BLE001 - as in RequestServer._process
        return [error_answer(request, error) for request in run]
    return outcomes


def error_answer(request: Command, error: Exception) -> Command:
    """The answer an exception becomes: its own code and text for the kit's errors, SYSTEM_ERROR and a log line for anything else."""
    if isinstance(error, RequestRefused):
        return _failure(request, error.code, error.remark)
    if isinstance(error, DecodeError):
        return _failure(request, ResponseCode.SYSTEM_ERROR, f"the body cannot be read: {error}")
    if isinstance(error, RmqError):
        return _failure(request, wire_code(error), str(error))
    if isinstance(error, OSError):
        # The disk is full or fails; where in the code it was found says nothing.
        _log.error("request %s failed: %s", request.code, error)
        return _failure(request, ResponseCode.SYSTEM_ERROR, f"the system refused: {error.strerror or error}")
    _log.error("request %s failed", request.code, exc_info=error)
    return _failure(request, ResponseCode.SYSTEM_ERROR, f"internal error: {type(error).__name__}: {error}")


_REMARK_LIMIT = 4096


def _failure(request: Command, code: int, remark: str) -> Command:
    return answer(request, code, remark.encode("utf-8", "backslashreplace").decode()[:_REMARK_LIMIT])


def _host_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first exception inside groups of groups."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
