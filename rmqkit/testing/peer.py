"""A peer without a connection, for testing processors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable

import trio

from rmqkit.abc import Answer, Outcome, Peer, Postponed, Reply, RequestProcessor
from rmqkit.errors import ConnectionLost
from rmqkit.protocol import frame
from rmqkit.protocol.command import Command
from rmqkit.protocol.message_id import pack_host
from rmqkit.remoting.serve import error_answer


class FakePeer(Peer):
    """Collects what is sent to it: `answers` to requests, `pushed` one-way commands. `on_call` plays the other end of `call`, `owed` counts postponed
    answers."""

    def __init__(self, host: str = "127.0.0.1", port: int = 40_000, on_call: Callable[[Command], Command] | None = None) -> None:
        self.remote_host = pack_host(host, port)
        self.remote_text = f"{host}:{port}"
        self.closed = False
        self.answers: list[Command] = []
        self.pushed: list[Command] = []
        self.deferred: list[Callable[[], Awaitable[None]]] = []
        self.owed = 0
        self._on_call = on_call
        self._paid = trio.Event()

    def respond(self, request: Command, answer: Answer) -> None:
        if not self.closed and not request.is_oneway:
            self.answers.append(whole(answer))

    def postpone(self, requests: int) -> Postponed:
        self.owed += requests

        def answered(answers: Sequence[tuple[Command, Answer]]) -> None:
            for request, answer in answers:
                self.respond(request, answer)
            self.owed -= requests
            self._paid.set()
            self._paid = trio.Event()

        return answered

    async def all_answered(self) -> None:
        """Wait until everything that was postponed is answered."""
        while self.owed:
            await self._paid.wait()

    def defer(self, work: Callable[[], Awaitable[None]], requests: int) -> None:
        self.deferred.append(work)

    async def run_deferred(self) -> None:
        """Do the work that was deferred so far, in order."""
        work, self.deferred = self.deferred, []
        for item in work:
            await item()

    def push(self, command: Command) -> bool:
        if self.closed:
            return False
        self.pushed.append(command)
        return True

    async def call(self, command: Command, timeout_ms: int) -> Command:
        if self.closed or self._on_call is None:
            raise ConnectionLost(self.remote_text)
        return self._on_call(command)

    def close(self) -> None:
        self.closed = True


def whole(answer: Answer) -> Command:
    """Any form of answer as one command with its body."""
    if isinstance(answer, bytes):
        (command,) = frame.FrameDecoder().feed(answer)
        return command
    if isinstance(answer, Reply):
        answer.head.body = b"".join(bytes(part) for part in answer.slices)
        return answer.head
    return answer


async def ask(processor: RequestProcessor, request: Command, peer: Peer) -> Command | None:
    """What a server would answer: errors become their answers, awaitables are awaited. None when nothing is answered now."""
    try:
        outcome: Outcome = processor.process(request, peer)
        if outcome is not None and not isinstance(outcome, (Command, Reply, bytes)) and isawaitable(outcome):
            outcome = await outcome
    except Exception as error:  # noqa: BLE001 - as the server does
        return error_answer(request, error)
    return None if outcome is None else whole(outcome)
