"""At-least-once delivery through restarts of the broker and cut connections. One seed replays a run."""

from __future__ import annotations

import random
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rmqkit.broker.run import RunningBroker
from rmqkit.client import Client, Producer, ReceivedMessage, Retry, RmqError
from rmqkit.testing.broker import dialer, running_broker, running_namesrv
from rmqkit.testing.clock import LoopClock
from tests.client.consumer.groups import Line, until

STORM_S = 120
QUEUES = 3


class Run:
    """A broker that restarts, members whose connections are cut, and a producer that goes on."""

    def __init__(self, seed: int, directory: Path, namesrv: str) -> None:
        self.chance = random.Random(seed)
        self.namesrv = namesrv
        self.acknowledged: set[bytes] = set()
        self.handled: set[bytes] = set()
        self.lines = [Line(dialer("memory")) for _ in range(3)]
        self.clock = LoopClock()
        self.port = 19_000 + 30 * seed
        self.directory = directory
        self.calm = trio.Event()
        self.broker: RunningBroker | None = None

    async def restart_now_and_then(self) -> None:
        """Run the broker, with pauses between its lives; the last life lasts."""
        while True:
            async with self._broker() as self.broker:
                with trio.move_on_after(self.chance.uniform(5, 40)) as life:
                    await self.calm.wait()
                if not life.cancelled_caught:
                    await trio.sleep_forever()
            self.broker = None
            await trio.sleep(self.chance.uniform(0, 10))

    def _broker(self) -> AbstractAsyncContextManager[RunningBroker]:
        settings: dict[str, Any] = {"store": "mmap", "listenPort": self.port, "namesrvAddr": self.namesrv}
        return running_broker(self.directory, scheme="memory", clock=self.clock, **settings)

    async def cut_now_and_then(self) -> None:
        while not self.calm.is_set():
            await trio.sleep(self.chance.uniform(1, 15))
            await self.chance.choice(self.lines).cut()

    async def handle(self, message: ReceivedMessage) -> None:
        await trio.sleep(self.chance.choice([0, 0.01, 1]))
        if self.chance.random() < 0.1:
            raise Retry(after=1)
        self.handled.add(message.body)

    async def consume(self, line: Line, name: str) -> None:
        client_id = f"10.0.0.1@{name}"
        async with (
            Client(self.namesrv, connect=line.connect, client_id=client_id) as client,
            client.push_consumer("g", subscribe="T", max_attempts=100, start="first") as consumer,
        ):
            await consumer.run(self.handle)

    async def produce(self, producer: Producer) -> None:
        """Send until the storm is over; only acknowledged messages count."""
        began_s, number = trio.current_time(), 0
        while trio.current_time() - began_s < STORM_S:
            number += 1
            body = b"%d" % number
            try:
                await producer.send("T", body)
            except RmqError:
                await trio.sleep(1)
            else:
                self.acknowledged.add(body)
            await trio.sleep(self.chance.uniform(0, 0.5))


@pytest.mark.parametrize("seed", range(3))
async def test_no_acknowledged_message_is_lost(tmp_path: Path, autojump_clock: MockClock, seed: int) -> None:
    """Every acknowledged message is handled, however often the broker restarts and connections are cut; in
    the end every offset is committed."""
    async with (
        running_namesrv(tmp_path / "namesrv", scheme="memory") as namesrv,
        trio.open_nursery() as nursery,
    ):
        run = Run(seed, tmp_path / "broker", str(namesrv))
        nursery.start_soon(run.restart_now_and_then)
        await until(lambda: run.broker is not None)
        async with (
            Client(run.namesrv, connect=run.lines[0].connect) as client,
            client.producer("producers", timeout_ms=20_000) as producer,
        ):
            await until(lambda: run.broker is not None)
            await client.admin.create_topic("T", queues=QUEUES)
            for number in (1, 2):
                nursery.start_soon(run.consume, run.lines[number], f"m{number}")
            nursery.start_soon(run.cut_now_and_then)
            await run.produce(producer)
            run.calm.set()
            assert len(run.acknowledged) > 50
            await until(lambda: run.acknowledged <= run.handled, 1)
            await until(lambda: run.broker is not None and _all_committed(run.broker), 1)
        nursery.cancel_scope.cancel()


def _all_committed(broker: RunningBroker) -> bool:
    context = broker.context
    queues = [*(("T", number) for number in range(QUEUES)), ("%RETRY%g", 0)]
    return all(context.offsets.get("g", *queue) == context.store.max_offset(*queue) for queue in queues)
