"""Processors and other parts that tests of the serving side share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from struct import pack

import pytest
import trio
import trio.testing

from rmqkit.errors import RequestRefused
from rmqkit.plugin.hooks import Refusals
from rmqkit.plugin.request import Answer, Answers, Outcome, Peer, Ticket
from rmqkit.plugin.request_hooks import RpcHook
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command, answer, request
from tests.remoting.wire import PATIENCE_S, Served

ECHO, REFUSE, BREAK, LATE, BIG, PUSH, CALL = 1, 2, 3, 4, 5, 6, 7


def echo(request: Command, peer: Peer) -> Outcome:
    response = answer(request, 0, "echo", body=request.body)
    response.ext = dict(request.fields())
    return response


def refuse(request: Command, peer: Peer) -> Outcome:
    raise RequestRefused(ResponseCode.NO_PERMISSION, "not you")


class Gate:
    """A processor that answers once it is opened, and knows which requests are waiting."""

    def __init__(self) -> None:
        self.event = trio.Event()
        self.waiting = 0
        self.cancelled = 0

    def __call__(self, request: Command, peer: Peer) -> Outcome:
        return peer.answer_async(request, partial(self._later, request))

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


def numbered(
    code: int, *, opaque: int = 0, body: bytes = b"", codec: int = 0, oneway: bool = False
) -> Command:
    command = request(code, opaque=opaque, body=body, oneway=oneway)
    command.codec = codec
    return command


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def answered(ticket: Ticket, body: bytes = b"") -> None:
    """Complete a ticket with successes."""
    ticket.complete([answer(request, body=body) for request in ticket.requests])


class NoteRuns(RpcHook):
    """Notes the runs it is given; refuses the opaques `refuses`, and raises `after` after the answers."""

    def __init__(
        self, name: str, seen: list[str], refuses: Sequence[int] = (), after: Exception | None = None
    ) -> None:
        self._name, self._seen, self._refuses, self._after = name, seen, refuses, after

    def before(self, requests: Sequence[Command], peer: Peer) -> Refusals | None:
        self._seen.append(f"{self._name} before {[request.opaque for request in requests]}")
        no = RequestRefused(ResponseCode.NO_PERMISSION, "not you")
        return {at: no for at, request in enumerate(requests) if request.opaque in self._refuses}

    def after(self, requests: Sequence[Command], answers: Answers, peer: Peer) -> None:
        opaques = [request.opaque for request in requests]
        assert [each.opaque for each in answers] == opaques
        assert [each.code for each in answers] == list(answers.codes)
        self._seen.append(f"{self._name} after {opaques}: {list(answers.codes)}")
        if self._after is not None:
            raise self._after


def binary(body: bytes) -> bytes:
    return pack(">iI", len(body) + 4, 1 << 24 | len(body)) + body


async def drained(there: Served, timeout_ms: int = 60_000) -> None:
    with trio.fail_after(PATIENCE_S):
        await there.server.drain(timeout_ms)
        await there.ended.wait()
