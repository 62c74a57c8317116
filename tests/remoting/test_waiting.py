"""Requests that wait behind others: they are counted, and hooks may refuse them."""

from __future__ import annotations

from collections.abc import Sequence

import trio
import trio.testing

from rmqkit.errors import RequestRefused
from rmqkit.limits import MAX_IN_FLIGHT_PER_CONNECTION, MAX_REQUESTS_PER_TURN
from rmqkit.plugin.hooks import Refusals
from rmqkit.plugin.request import Outcome, Peer, Waiting
from rmqkit.plugin.request_hooks import RpcHook
from rmqkit.protocol.codes import FLAG_RESPONSE, ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.remoting.waiting import MayWait, WaitingRequests
from tests.remoting.parts import ECHO, LATE, Gate, echo, numbered, until
from tests.remoting.wire import Handler, Served, served

_SLOW_S = 0.5
SLOW = 77


class Hasty(RpcHook):
    """Refuses what has waited for `patience_s`, of the codes given, and notes what it sees."""

    patience_s = _SLOW_S

    def __init__(self, codes: frozenset[int] | None = None) -> None:
        self.codes = codes
        self.seen: list[tuple[int, float]] = []
        self.there: Served | None = None
        self.counts: dict[str, Waiting] = {}

    def waited(self, requests: Sequence[Command], peer: Peer, waited_s: float) -> Refusals | None:
        self.seen.append((len(requests), waited_s))
        assert self.there is not None
        self.counts |= self.there.server.context.waiting.by(str, trio.current_time())
        return dict.fromkeys(range(len(requests)), RequestRefused(ResponseCode.SYSTEM_BUSY, "busy"))


def slow(clock: trio.testing.MockClock) -> Handler:
    """A processor that takes half a second."""

    def act(request: Command, peer: Peer) -> Outcome:
        clock.jump(_SLOW_S)
        return echo(request, peer)

    return Handler(act)


async def test_what_has_waited_too_long_is_refused(mock_clock: trio.testing.MockClock) -> None:
    """Requests of the first turn are processed; the rest of what arrived with them waits meanwhile, and is
    refused before any processor sees it. Later requests are processed as before."""
    hook, after = Hasty(), MAX_REQUESTS_PER_TURN + 36
    async with (
        served({SLOW: slow(mock_clock), ECHO: Handler(echo)}, rpc_hooks=(hook,)) as there,
        there.client() as client,
    ):
        hook.there = there
        await client.send(numbered(SLOW), *(numbered(ECHO, opaque=at) for at in range(1, after)))
        codes = [(await client.receive()).code for _ in range(after)]
        assert codes == [0] * MAX_REQUESTS_PER_TURN + [ResponseCode.SYSTEM_BUSY] * 36
        assert hook.seen == [(36, _SLOW_S)]
        assert hook.counts == {str(ECHO): Waiting(36, _SLOW_S)}
        assert there.server.context.waiting.by(str, 0) == {}
        assert (await client.ask(numbered(ECHO))).code == 0


async def test_a_hook_sees_the_codes_that_it_names(mock_clock: trio.testing.MockClock) -> None:
    """The others are processed, however long they have waited, and a one-way request that is refused has no
    answer."""
    hook, first = Hasty(frozenset({LATE})), [numbered(SLOW)] * MAX_REQUESTS_PER_TURN
    processors = {SLOW: slow(mock_clock), ECHO: Handler(echo), LATE: Handler(echo)}
    async with served(processors, rpc_hooks=(hook,)) as there, there.client() as client:
        hook.there = there
        rest = [(LATE, False, 1), (ECHO, False, 2), (LATE, True, 3), (ECHO, False, 4)]
        late = [numbered(code, oneway=oneway, opaque=opaque) for code, oneway, opaque in rest]
        await client.send(*first, *late)
        answers = [await client.receive() for _ in range(len(first) + 3)][len(first) :]
        assert [(each.opaque, each.code) for each in answers] == [
            (1, ResponseCode.SYSTEM_BUSY),
            (2, 0),
            (4, 0),
        ]
        assert [count for count, _ in hook.seen] == [2]


async def test_nobody_asks_before_the_time_is_up(mock_clock: trio.testing.MockClock) -> None:
    """A hook that is more patient sees nothing."""
    hook = Hasty()
    hook.patience_s = _SLOW_S * 2
    async with (
        served({SLOW: slow(mock_clock), ECHO: Handler(echo)}, rpc_hooks=(hook,)) as there,
        there.client() as client,
    ):
        await client.send(numbered(SLOW), *[numbered(ECHO)] * MAX_REQUESTS_PER_TURN)
        assert {(await client.receive()).code for _ in range(MAX_REQUESTS_PER_TURN + 1)} == {0}
        assert hook.seen == []


async def test_requests_wait_while_too_many_answers_are_under_way(mock_clock: trio.testing.MockClock) -> None:
    """The connection is congested; what it has sent besides is counted with its time, until it is
    processed."""
    gate, most = Gate(), MAX_IN_FLIGHT_PER_CONNECTION
    async with served({LATE: Handler(gate)}) as there, there.client() as client:
        waiting = there.server.context.waiting
        await client.send(*[numbered(LATE)] * (most - 1))
        await until(lambda: gate.waiting == most - 1)
        await client.send(*[numbered(LATE)] * 6)
        await until(lambda: bool(waiting.by(str, 0)))
        mock_clock.jump(2)
        assert waiting.by(str, trio.current_time()) == {str(LATE): Waiting(5, 2.0)}
        gate.event.set()
        assert {(await client.receive()).code for _ in range(most + 5)} == {0}
        await until(lambda: waiting.by(str, 0) == {})


class Two(MayWait):
    """A connection with a request and an answer that wait since a second."""

    left = [Command(code=1), Command(code=0, flag=FLAG_RESPONSE)], 1.0


def test_requests_are_counted_by_kind() -> None:
    """Answers are not requests; the time is that of the first one."""
    waiting, connection = WaitingRequests(), Two()
    waiting.add(connection)
    assert waiting.by(lambda code: "all", 4.0) == {"all": Waiting(1, 3.0)}
    waiting.remove(connection)
    assert waiting.by(str, 4.0) == {}
