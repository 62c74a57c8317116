"""A port by which programs in any language control the servers of a test: their clock and their faults.

Requests are POSTs with JSON, answers are JSON:

    /clock/advance  {"ms": 60000}                 put the clock forward, until what was due is done
    /faults/fail    {"code": 2, "times": 1, ...}  `RocketMQ.fail_next`
    /faults/delay   {"ms": 500, "times": 1, ...}  `RocketMQ.delay`
    /faults/drop    {"times": 1, ...}             `RocketMQ.drop_answer`
    /faults/cut     {"times": 1, ...}             `RocketMQ.cut_next`
    /faults/heal    {}                            `RocketMQ.heal`
    /cut            {"server": "broker-a"}        `RocketMQ.cut`
    /away           {"server": "broker-a"}        the broker cannot be reached, until `/back`
    /back           {"server": "broker-a"}        it is there again

Faults take `request`, `topic`, `server` and `queue` as `WhichRequests`. GET /clock answers the time.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Annotated, TypeVar

import msgspec
import trio

from rmqkit.testing.clock import SettableClock
from rmqkit.testing.faults import WhichRequests
from rmqkit.testing.rocketmq import RocketMQ
from rmqkit.toolkit.http import Action, Page, Responder

T = TypeVar("T", bound=msgspec.Struct)

_MAX_AHEAD_MS = 10 * 365 * 86_400_000


class _Advance(msgspec.Struct, forbid_unknown_fields=True):
    ms: Annotated[int, msgspec.Meta(ge=0, le=_MAX_AHEAD_MS)]


class _Which(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    times: Annotated[int, msgspec.Meta(ge=1)] | None = 1
    request: str | int | list[str | int] = "send"
    topic: str | None = None
    server: str | None = None
    queue: int | None = None

    @property
    def which(self) -> WhichRequests:
        wanted = tuple(self.request) if isinstance(self.request, list) else self.request
        return WhichRequests(request=wanted, topic=self.topic, server=self.server, queue=self.queue)


class _Fail(_Which, forbid_unknown_fields=True, kw_only=True):
    code: int


class _Delay(_Which, forbid_unknown_fields=True, kw_only=True):
    ms: Annotated[int, msgspec.Meta(ge=0)]


class _Server(msgspec.Struct, forbid_unknown_fields=True):
    server: str | None = None


class _Nothing(msgspec.Struct, forbid_unknown_fields=True):
    pass


class Control:
    """Serves the control port of the servers of a test, in their loop, whose clock is a SettableClock."""

    def __init__(self, servers: RocketMQ, clock: SettableClock) -> None:
        self._servers = servers
        self._clock = clock
        self._absences: dict[str | None, AbstractAsyncContextManager[None]] = {}
        actions: Mapping[str, Action] = {
            "/clock/advance": self._taking(_Advance, self._advance),
            "/faults/fail": self._taking(_Fail, self._fail),
            "/faults/delay": self._taking(_Delay, self._delay),
            "/faults/drop": self._taking(_Which, self._drop),
            "/faults/cut": self._taking(_Which, self._cut_next),
            "/faults/heal": self._taking(_Nothing, self._heal),
            "/cut": self._taking(_Server, self._cut),
            "/away": self._taking(_Server, self._away),
            "/back": self._taking(_Server, self._back),
        }
        self.responder = Responder("control", {"/clock": Page("application/json", self._time)}, actions)

    def _taking(self, kind: type[T], act: Callable[[T], Awaitable[None]]) -> Action:
        """An action whose request is JSON of a kind; its answer is the time."""

        async def action(body: bytes) -> bytes:
            # What msgspec raises are ValueErrors.
            await act(msgspec.json.decode(body or b"{}", type=kind))
            return self._stamp()

        return action

    def _stamp(self) -> bytes:
        return msgspec.json.encode({"now_ms": self._servers.now_ms()})

    async def _time(self) -> AsyncGenerator[str]:
        yield self._stamp().decode()

    async def _advance(self, asked: _Advance) -> None:
        await self._clock.advance(asked.ms)

    async def _fail(self, asked: _Fail) -> None:
        self._servers.fail_next(asked.code, asked.times, **asked.which)
        await trio.lowlevel.checkpoint()

    async def _delay(self, asked: _Delay) -> None:
        self._servers.delay(asked.ms / 1_000, asked.times, **asked.which)
        await trio.lowlevel.checkpoint()

    async def _drop(self, asked: _Which) -> None:
        self._servers.drop_answer(asked.times, **asked.which)
        await trio.lowlevel.checkpoint()

    async def _cut_next(self, asked: _Which) -> None:
        self._servers.cut_next(asked.times, **asked.which)
        await trio.lowlevel.checkpoint()

    async def _heal(self, asked: _Nothing) -> None:
        self._servers.heal()
        await trio.lowlevel.checkpoint()

    async def _cut(self, asked: _Server) -> None:
        self._servers.cut(asked.server)
        await trio.lowlevel.checkpoint()

    async def _away(self, asked: _Server) -> None:
        if asked.server in self._absences:
            raise ValueError(f"{asked.server} is away already")
        absence = self._servers.away(asked.server)
        await absence.__aenter__()
        self._absences[asked.server] = absence

    async def _back(self, asked: _Server) -> None:
        absence = self._absences.pop(asked.server, None)
        if absence is None:
            raise ValueError(f"{asked.server} is not away")
        await absence.__aexit__(None, None, None)


__all__ = ["Control"]
