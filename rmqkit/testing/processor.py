"""Contract of a request processor as tests. Subclass `ProcessorContract` and define how the processor is made
and what it answers; pytest then runs the tests in a real broker.

    class TestMine(ProcessorContract):
        code = 31_000

        def make_processor(self, broker: RequestBroker) -> RequestProcessor:
            return MyProcessor(broker)

        def good(self) -> Command:
            return request(self.code, body=b"ping")

        def check(self, answer: Command) -> None:
            assert answer.body == b"pong"
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import trio
import trio.testing
from attrs import frozen

from rmqkit import hookimpl
from rmqkit.broker.run.running import RunningBroker
from rmqkit.plugin.hookspecs import RegisterProcessor
from rmqkit.plugin.request import JoinedProcessor, RequestProcessor, Ticket
from rmqkit.plugin.request_broker import RequestBroker
from rmqkit.protocol.codes import FLAG_ONEWAY, ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.testing.broker import running_broker
from rmqkit.testing.calls import Call, calling, calling_broker
from rmqkit.testing.listening import until
from rmqkit.testing.peer import FakePeer

_ODD_FIELDS: tuple[dict[str, str], ...] = (
    {},
    {"": ""},
    {"topic": "../../etc"},
    {"queueId": "-1", "offset": "x"},
    {"a": "\x00" * 100},
)


@frozen
class _Plugin:
    contract: ProcessorContract

    @hookimpl
    def rmqkit_register_processors(self, register: RegisterProcessor, broker: RequestBroker) -> None:
        register(self.contract.code, self.contract.make_processor(broker))


class ProcessorContract(ABC):
    """Tests of every request processor."""

    #: A request code for which it is registered.
    code: ClassVar[int]

    @abstractmethod
    def make_processor(self, broker: RequestBroker) -> RequestProcessor:
        """The processor as the plugin registers it."""

    def settings(self) -> dict[str, Any]:
        """Settings of the broker in addition to those of `rmqkit.testing.broker.test_config`."""
        return {}

    def plugins(self) -> Iterable[tuple[str, object]]:
        """Plugins of the broker besides the installed ones, as (name, plugin)."""
        return ()

    @abstractmethod
    def good(self) -> Command:
        """A new request that is answered with SUCCESS."""

    def check(self, answer: Command) -> None:
        """Check the answer to `good`; accepts every one unless overridden. Raises AssertionError if this is
        not the answer to `good`."""
        return

    def waiting(self) -> Command | None:
        """A new request that the processor holds (`RequestBroker.held`), for messages that do not come; None
        unless overridden, for a processor that holds none."""
        return None

    @asynccontextmanager
    async def serving(self, directory: Path) -> AsyncIterator[tuple[RunningBroker, Call]]:
        async with (
            running_broker(
                directory,
                extra=[("under-test", _Plugin(self)), *self.plugins()],
                scheme="memory",
                **self.settings(),
            ) as broker,
            calling_broker(broker) as call,
        ):
            yield broker, call

    def _check(self, answer: Command) -> None:
        assert answer.code == ResponseCode.SUCCESS, (
            f"a good request is answered with {answer.code}: {answer.remark}"
        )
        assert answer.is_response
        self.check(answer)

    async def test_a_good_request_is_answered(self, tmp_path: Path) -> None:
        """A good request gets its answer, also when it is repeated."""
        async with self.serving(tmp_path) as (_, call):
            for _ in range(3):
                self._check(await call(self.good()))

    async def test_many_at_a_time(self, tmp_path: Path) -> None:
        """Each of many simultaneous requests on a connection gets its own answer."""
        answers: list[Command] = []
        async with self.serving(tmp_path) as (_, call), trio.open_nursery() as nursery:

            async def ask() -> None:
                answers.append(await call(self.good()))

            for _ in range(50):
                nursery.start_soon(ask)
        assert len(answers) == 50
        for answer in answers:
            self._check(answer)

    async def test_bad_requests_are_answered_and_do_no_harm(self, tmp_path: Path) -> None:
        """Odd fields and bodies get an answer, errors with a text, and the processor continues to work."""
        random = Random(7)
        async with self.serving(tmp_path) as (_, call):
            for fields in _ODD_FIELDS:
                for body in (b"", b"\x00", b"{", random.randbytes(1_000)):
                    answer = await call(Command(code=self.code, ext=dict(fields), body=body))
                    assert answer.code == ResponseCode.SUCCESS or answer.remark, (
                        f"{fields} {body[:9]!r} is refused without a reason"
                    )
            self._check(await call(self.good()))

    async def test_a_one_way_request_is_taken_without_an_answer(self, tmp_path: Path) -> None:
        """A one-way request gets no answer: the next answer on the connection belongs to the next request."""
        async with self.serving(tmp_path) as (broker, _):
            context = broker.context
            async with calling(broker.address, context.config, context.registry) as (call, pool):
                silent = self.good()
                silent.flag |= FLAG_ONEWAY
                await pool.oneway(str(broker.address), silent, 1_000)
                self._check(await call(self.good()))

    async def test_several_requests_that_arrived_together(self, tmp_path: Path) -> None:
        """A processor returns an outcome for each request of a run, in order, and raises for none of them."""
        async with self.serving(tmp_path) as (broker, _):
            processor = self.make_processor(broker.context)
            requests = [self.good(), Command(code=self.code, ext={"": ""}, body=b"\x00"), self.good()]
            peer = FakePeer()
            assert len(processor.process(requests, peer)) == len(requests)
            await peer.all_answered()

    async def test_a_held_request_ends_with_its_connection(self, tmp_path: Path) -> None:
        """A request that waits delays no other one of its connection, and is forgotten when that ends. Says
        nothing of processors that hold no requests."""
        waiting = self.waiting()
        if waiting is None:
            return
        async with self.serving(tmp_path) as (broker, _):
            context = broker.context
            async with (
                calling(broker.address, context.config, context.registry) as (call, _),
                trio.open_nursery() as nursery,
            ):
                # What the requests need is on the device then, so none of them waits for that.
                self._check(await call(self.good()))
                nursery.start_soon(call, waiting)
                await trio.testing.wait_all_tasks_blocked()
                self._check(await call(self.good()))
                assert len(context.held) == 1, "the request does not wait among the broker's held requests"
                nursery.cancel_scope.cancel()
            await until(lambda: len(context.held) == 0)

    async def test_requests_of_several_connections(self, tmp_path: Path) -> None:
        """A processor that joins runs returns an outcome for each request, and each connection gets as many
        answers as it has requests. Says nothing of other processors."""
        async with self.serving(tmp_path) as (broker, _):
            processor = self.make_processor(broker.context)
            if not isinstance(processor, JoinedProcessor):
                return
            bad = Command(code=self.code, ext={"": ""}, body=b"\x00")
            requests, first, second = [self.good(), bad, self.good()], FakePeer(), FakePeer()
            outcomes = processor.process_joined(requests, [first, second, second])
            for peer, own in ((first, outcomes[:1]), (second, outcomes[1:])):
                await peer.all_answered()
                at_once = [each for each in own if not isinstance(each, Ticket)]
                assert len(at_once) + len(peer.answers) == len(own)
