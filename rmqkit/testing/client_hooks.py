"""Contract of client hooks as tests. Subclass `ClientHookContract` and define how the hook is made; pytest
then runs the tests with a real cluster in this process.

    class TestMine(ClientHookContract):
        def make_hook(self) -> ClientHook:
            return MyHook()
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

import pytest
import trio

from rmqkit.client import Client, Message
from rmqkit.client.hooks import CallHook, ClientHook
from rmqkit.errors import ClientError, MessageIllegal
from rmqkit.testing.broker import Cluster, running_cluster

#: A busy machine occasionally slows any call; only a hook that is slow in every try fails.
TRIES = 3
#: Time limit for everything that a client does in these tests.
PATIENCE_S = 60


class ClientHookContract(ABC):
    """Tests of a client hook of any kind."""

    #: Whether the hook forbids or filters some of the operations of the tests.
    may_refuse: ClassVar[bool] = False

    @abstractmethod
    def make_hook(self) -> ClientHook | CallHook:
        """The hook as an application passes it to its client."""

    async def test_an_application_sees_what_it_sees_without_the_hook(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Sends of all kinds, pulls, iteration and errors give the same results with and without the hook.
        The hook raises nothing, is quick, and does not prevent the client from opening or closing."""
        async with running_cluster(tmp_path / "without", traceTopicEnable=True) as there:
            plain = await _application(there, [])
        for number in range(TRIES):
            caplog.clear()
            async with running_cluster(tmp_path / f"with-{number}", traceTopicEnable=True) as there:
                hooked = await _application(there, [self.make_hook()])
            complaints = [
                found.getMessage()
                for found in caplog.records
                if found.name in ("rmqkit.plugin.hook_runner", "rmqkit.client.hooks")
            ]
            if not complaints:
                break
        if not self.may_refuse:
            assert hooked == plain, "an application with the hook sees something else"
        assert complaints == [], f"the hook does what it may not: {caplog.text}"

    async def test_a_client_that_is_cancelled_closes_at_once(self, tmp_path: Path) -> None:
        """A cancelled client closes at once, even if the hook has unfinished work."""
        async with running_cluster(tmp_path) as there:
            hook = self.make_hook()
            with trio.fail_after(PATIENCE_S):
                with trio.CancelScope() as scope:
                    async with (
                        Client(there.namesrv_text, connect=there.connect, hooks=[hook]) as client,
                        client.producer("pg") as producer,
                    ):
                        await producer.send("T", b"x")
                        scope.cancel()
                        await trio.sleep_forever()


async def _application(there: Cluster, hooks: list[ClientHook | CallHook]) -> list[object]:
    """Use the client in many ways and return the results, without parts that differ from run to run."""
    seen: list[object] = []
    async with Client(there.namesrv_text, connect=there.connect, hooks=hooks) as client:
        async with client.producer("pg") as producer:
            for message in (
                Message("T", b"plain", tag="a", keys=["k1", "k2"]),
                Message("T", b"x" * 10_000, ordering_key="o", properties={"own": "y"}),
                Message("T", b"later", delay_level=18),
            ):
                result = await producer.send(message)
                seen.append((result.status, result.queue.topic, result.region_id, result.trace_on))
            batch = await producer.send_batch([Message("T", b"1"), Message("T", b"2", tag="a")])
            seen.append((batch.status, batch.message_id.count(",")))
            await producer.send_oneway("T", b"one-way")
            for wrong in (Message("T", b""), Message("not a topic", b"x")):
                try:
                    await producer.send(wrong)
                except (MessageIllegal, ClientError) as error:
                    seen.append(str(error))
        seen += await _consumed(client)
    return seen


async def _consumed(client: Client) -> list[object]:
    bodies: list[bytes] = []
    tagged: list[bytes] = []
    async with client.pull_consumer("cg") as consumer:
        for queue in await consumer.queues("T"):
            result = await consumer.pull(queue, 0, expression="a")
            tagged += [message.body for message in result.messages]
    async with client.push_consumer("pushed", subscribe="T", start="first") as member:
        # If the hook removes messages, the remaining ones never arrive.
        with trio.move_on_after(PATIENCE_S):
            async for delivery in member:
                async with delivery as message:
                    bodies.append(message.body)
                if len(bodies) == 5:
                    break
    return [sorted(bodies), sorted(tagged)]
