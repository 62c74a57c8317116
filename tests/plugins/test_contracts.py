"""The contracts of flush policies, servers, services and verbs over the built-in ones, and over broken ones
that must fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from rmqkit.cli.info import CONFIG, PLUGINS
from rmqkit.config import Config
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.flush import Flushable, FlushPolicy, Level
from rmqkit.plugin.request import EachRequest, JoinedProcessor, Outcome, Peer, RequestProcessor
from rmqkit.plugin.server import Server
from rmqkit.plugin.service import Service
from rmqkit.protocol.command import Command, answer
from rmqkit.testing.command import CommandContract
from rmqkit.testing.flush import FlushPolicyContract
from rmqkit.testing.processor import ProcessorContract
from rmqkit.testing.server import ServerContract
from rmqkit.testing.service import ServiceContract
from rmqkit_filter_server.server import FilterServerRole
from rmqkit_flush.policies import AsyncFlush, BufferedAsyncFlush, SyncFlush
from rmqkit_namesrv.server import NameServer

CODE = 31_001


class TestAsyncFlush(FlushPolicyContract):
    def make_policy(self, config: Config) -> FlushPolicy:
        return AsyncFlush(config)


class TestBufferedAsyncFlush(FlushPolicyContract):
    def make_policy(self, config: Config) -> FlushPolicy:
        return BufferedAsyncFlush(config)


class TestSyncFlush(FlushPolicyContract):
    def make_policy(self, config: Config) -> FlushPolicy:
        return SyncFlush(config)


class TestNameServer(ServerContract):
    def make_server(self) -> Server:
        return NameServer()


class TestFilterServer(ServerContract):
    """Its broker does not answer."""

    def make_server(self) -> Server:
        return FilterServerRole()


class TestPluginsVerb(CommandContract):
    verb = PLUGINS
    good = ([], ["--json"], ["--explain"], ["--explain", "--json", "--set", "store=memory"])
    bad = (["--set", "store"], ["--set", "disabledPlugins=none"], ["more"])


class TestConfigVerb(CommandContract):
    verb = CONFIG
    good = ([], ["show", "--json"])
    bad = (["check"], ["nonsense"], ["--set", "listenPort=-1"])


class Echo(EachRequest):
    def handle(self, request: Command, peer: Peer) -> Outcome:
        return answer(request, body=request.body)


class Waits(EachRequest):
    def handle(self, request: Command, peer: Peer) -> Outcome:
        async def later() -> Command:
            await trio.lowlevel.checkpoint()
            return answer(request, body=request.body)

        return peer.answer_async(request, later)


class TestEcho(ProcessorContract):
    code = CODE

    def make_processor(self, broker: Broker) -> RequestProcessor:
        return Echo()

    def good(self) -> Command:
        return Command(code=CODE, body=b"ping")

    def check(self, answer: Command) -> None:
        assert answer.body == b"ping"


class TestWaits(TestEcho):
    def make_processor(self, broker: Broker) -> RequestProcessor:
        return Waits()


class Joins(JoinedProcessor):
    """Answers the first request of a run at once, and the others by a ticket each."""

    def process_joined(self, requests: Sequence[Command], peers: Sequence[Peer]) -> Sequence[Outcome]:
        answers = [answer(request, body=request.body) for request in requests]
        tickets = [peer.postpone((request,)) for peer, request in zip(peers[1:], requests[1:], strict=True)]
        for ticket, late in zip(tickets, answers[1:], strict=True):
            ticket.complete((late,))
        return [answers[0], *tickets]


class TestJoins(TestEcho):
    def make_processor(self, broker: Broker) -> RequestProcessor:
        return Joins()


async def test_a_joined_processor_that_answers_another_connection_fails(tmp_path: Path) -> None:
    """The contract counts the answers of each connection."""

    class Confused(Joins):
        def process_joined(self, requests: Sequence[Command], peers: Sequence[Peer]) -> Sequence[Outcome]:
            return super().process_joined(requests, [peers[0]] * len(peers))

    class Contract(TestEcho):
        def make_processor(self, broker: Broker) -> RequestProcessor:
            return Confused()

    with pytest.raises(ExceptionGroup) as caught:
        await Contract().test_requests_of_several_connections(tmp_path)
    assert caught.group_contains(AssertionError)


class Broken(FlushPolicy):
    """A broken policy; `how` selects the fault."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.acknowledge_at = Level.FLUSHED

    async def run(
        self, log: Flushable, wanted: Callable[[], Awaitable[None]], task_status: trio.TaskStatus[None]
    ) -> None:
        task_status.started()
        while True:
            if self.how == "only once":
                await wanted()
                await log.flush()
                await trio.sleep_forever()
            elif self.how == "when wanted":
                await wanted()
                await log.flush()


@pytest.mark.parametrize(
    ("how", "rule"),
    [
        ("only once", "test_who_waits_is_acknowledged"),
        ("when wanted", "test_what_nobody_waits_for_reaches_the_device_too"),
    ],
)
async def test_a_broken_flush_policy_is_found(
    how: str, rule: str, autojump_clock: trio.testing.MockClock
) -> None:
    """Each rule of the contract fails for a policy that breaks it."""
    contract = TestAsyncFlush()
    with pytest.raises((AssertionError, ExceptionGroup)) as caught:
        await getattr(contract, rule)(Broken(how), autojump_clock)
    assert (
        caught.group_contains(AssertionError)
        if isinstance(caught.value, ExceptionGroup)
        else caught.type is AssertionError
    )


class Wrong(EachRequest):
    def __init__(self, how: str) -> None:
        self.how = how
        self.before: Command | None = None

    def handle(self, request: Command, peer: Peer) -> Outcome:
        if self.how == "mute about errors" and request.body != b"ping":
            return answer(request, 1)
        if self.how == "mixed up":
            self.before = self.before or request
            return answer(request, body=b"%d" % (self.before is request))
        return answer(request, body=request.body)


@pytest.mark.parametrize(
    ("how", "rule"),
    [
        ("mute about errors", "test_bad_requests_are_answered_and_do_no_harm"),
        ("mixed up", "test_many_at_a_time"),
    ],
)
async def test_a_broken_processor_is_found(how: str, rule: str, tmp_path: Any) -> None:
    """Answers without a reason, and answers to another request, are detected."""

    class Contract(TestEcho):
        def make_processor(self, broker: Broker) -> RequestProcessor:
            return Wrong(how)

    with pytest.raises((AssertionError, ExceptionGroup)) as caught:
        await getattr(Contract(), rule)(tmp_path)
    assert (
        caught.group_contains(AssertionError)
        if isinstance(caught.value, ExceptionGroup)
        else caught.type is AssertionError
    )


class Stubborn(Service):
    name = "stubborn"

    async def run(self, broker: Broker, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await trio.sleep_forever()

    async def stop(self, broker: Broker) -> None:
        await trio.sleep(3_600)


async def test_a_service_that_does_not_stop_is_found(
    tmp_path: Any, autojump_clock: trio.testing.MockClock
) -> None:
    """The contract has a time limit for stopping."""

    class Contract(ServiceContract):
        def make_service(self, config: Config) -> Service:
            return Stubborn()

    with pytest.raises((trio.TooSlowError, ExceptionGroup)) as caught:
        await Contract().test_stopping_is_brief_and_may_come_at_any_time(tmp_path)
    assert (
        caught.group_contains(trio.TooSlowError)
        if isinstance(caught.value, ExceptionGroup)
        else caught.type is trio.TooSlowError
    )
