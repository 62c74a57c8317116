"""Requests that waited too long in a running broker, under a clock that the test moves."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from rmqkit.limits import MAX_IN_FLIGHT_PER_CONNECTION, MAX_REQUESTS_PER_TURN
from rmqkit.model.route import KVTable
from rmqkit.plugin.request import Outcome, Peer
from rmqkit.plugin.request_hooks import RpcHook
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer, request
from rmqkit.protocol.headers import SendMessageRequestHeader
from rmqkit.testing.hooks import RpcHookContract
from rmqkit_protection.fast_failure import FastFailure, limits_ms
from rmqkit_protection.settings import ProtectionSettings
from tests.broker.desk import open_desk
from tests.remoting.parts import Gate, numbered, until
from tests.remoting.wire import Client, Handler, Served, served

SLOW, HELD = 31_001, 31_002
TURN = MAX_REQUESTS_PER_TURN


def slow(wait_ms: int) -> Command:
    return request(SLOW, body=str(wait_ms).encode())


class TestContract(RpcHookContract):
    """A broker with the hook answers all kinds of requests."""

    def make_hook(self) -> RpcHook:
        return FastFailure()


def first_turn(wait_ms: int) -> list[Command]:
    """Small requests that are processed before the next ones; the first takes so long."""
    return [slow(wait_ms), *[slow(0) for _ in range(TURN - 1)]]


def send() -> Command:
    return request(
        RequestCode.SEND_MESSAGE,
        SendMessageRequestHeader(producer_group="p", topic="T", queue_id=0, properties=""),
        b"body",
    )


@asynccontextmanager
async def port(
    directory: Path, clock: trio.testing.MockClock, held: Gate | None = None, **keys: Any
) -> AsyncIterator[Served]:
    """A broker; a request with the code SLOW takes as many milliseconds as its body says, and those with the
    code HELD are answered when `held` opens."""

    def act(asked: Command, peer: Peer) -> Outcome:
        clock.jump(int(asked.body) / 1000)
        return answer(asked)

    async with open_desk(directory, **keys) as desk:
        broker, processors = desk.broker, {**desk.router.processors, SLOW: Handler(act)}
        if held is not None:
            processors[HELD] = Handler(held)
        hooks, default = broker.registry.rpc_hooks, desk.router.default
        async with (
            served(processors, rpc_hooks=hooks, waiting=broker.waiting, default=default) as there,
            trio.open_nursery() as nursery,
        ):
            await nursery.start(broker.registry.services["water-marks"].run, broker)
            yield there
            nursery.cancel_scope.cancel()


async def asked(client: Client, *commands: Command) -> list[Command]:
    """The answers to requests that arrive together."""
    await client.send(*commands)
    return [await client.receive() for _ in commands]


@pytest.mark.row("S039", "S095", "S350")
async def test_sends_that_waited_too_long_are_refused(
    tmp_path: Path, mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """With Java's code and its remark; what was processed in the first turn is stored. The log has a line."""
    async with port(tmp_path, mock_clock) as there, there.client() as client:
        answers = await asked(client, *first_turn(200), *[send() for _ in range(10)])
    assert [each.code for each in answers] == [0] * TURN + [ResponseCode.SYSTEM_BUSY] * 10
    assert answers[-1].remark == (
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 200ms,"
        " size of queue: 0"
    )
    (line,) = [each.getMessage() for each in caplog.records if "refused after" in each.getMessage()]
    assert line.endswith("refused after they had waited for 200 ms: 10 send")


@pytest.mark.parametrize(
    ("wait_ms", "keys"),
    [(199, {}), (10_000, {"brokerFastFailureEnable": False}), (4_000, {"waitTimeMillsInSendQueue": 4_001})],
)
async def test_sends_that_waited_within_the_limit_are_stored(
    tmp_path: Path, mock_clock: trio.testing.MockClock, wait_ms: int, keys: dict[str, Any]
) -> None:
    """The limit is a setting, and so is whether there is one."""
    async with port(tmp_path, mock_clock, **keys) as there, there.client() as client:
        answers = await asked(client, *first_turn(wait_ms), *[send() for _ in range(10)])
    assert {each.code for each in answers} == {0}


async def test_each_kind_of_request_has_its_limit(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    """Sends wait for 200 ms at most, administration for 5 s, questions for members without a limit."""
    members = request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, body=b"")
    members.ext = {"consumerGroup": "g"}
    late = [send(), request(RequestCode.GET_BROKER_RUNTIME_INFO), members]
    for opaque, each in enumerate(late, 1):
        each.opaque = opaque
    async with port(tmp_path, mock_clock) as there, there.client() as client:
        for wait_ms, busy in ((4_999, {1}), (5_000, {1, 2})):
            answers = await asked(client, *first_turn(wait_ms), *late)
            found = {each.opaque for each in answers if each.code == ResponseCode.SYSTEM_BUSY}
            assert found == busy


@pytest.mark.row("S081")
async def test_what_waits_is_told_and_logged(
    tmp_path: Path, mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Sends wait on a connection to which too many answers are owed. The run-time information has their
    number where Java has the sizes of its queues, and each second they are logged; else nothing is."""
    caplog.set_level(logging.INFO)
    held, info = Gate(), request(RequestCode.GET_BROKER_RUNTIME_INFO)
    async with port(tmp_path, mock_clock, held) as there, there.client() as client, there.client() as other:
        await client.send(*[numbered(HELD)] * (MAX_IN_FLIGHT_PER_CONNECTION - 1))
        await until(lambda: held.waiting == MAX_IN_FLIGHT_PER_CONNECTION - 1)
        await client.send(*[numbered(HELD)] * 3, send())
        await until(lambda: bool(there.server.context.waiting.by(str, 0)))
        mock_clock.jump(1.5)
        figures = loose_json.decode((await other.ask(info)).body, KVTable).table
        assert figures["sendThreadPoolQueueSize"] == "1"
        assert figures["sendThreadPoolQueueHeadWaitTimeMills"] == "1500"
        assert figures["ackThreadPoolQueueSize"] == "0"
        held.event.set()
        await until(lambda: not there.server.context.waiting.by(str, 0))
        mock_clock.jump(1)
        await trio.testing.wait_all_tasks_blocked()
    lines = [each.getMessage() for each in caplog.records if "requests wait" in each.getMessage()]
    assert lines == ["requests wait: 2 admin (the first for 1500 ms), 1 send (the first for 1500 ms)"]


def test_no_limits_where_fast_failure_is_off() -> None:
    """Nothing is ever refused then."""
    assert limits_ms(ProtectionSettings(broker_fast_failure_enable=False)) == {}
