"""A clock that is set back, by a little and by a year."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from rmqkit.broker.run.running import run_broker
from rmqkit.client import Client
from rmqkit.client.consumer.pull_consumer import PullConsumer
from rmqkit.client.consumer.pulling import PullStatus
from rmqkit.config import with_values
from rmqkit.model.queue import MessageQueue
from rmqkit.plugin import loader
from rmqkit.plugin.transport import Address
from rmqkit.remoting.serving import listen_on
from rmqkit.testing.broker import test_config
from rmqkit.testing.clock import FakeClock
from tests.faults.kit import PATIENCE_S, read_all

_YEAR_MS = 365 * 86_400_000
_HOUR_MS = 3_600_000


@asynccontextmanager
async def client_of(directory: Path, clock: FakeClock) -> AsyncIterator[Client]:
    """A client of a cluster whose broker uses this clock and the mmap store."""
    config = test_config(directory, store="mmap")
    registry = loader.load(config)
    async with trio.open_nursery() as outer:
        handle = await outer.start(
            registry.chosen("servers", "namesrv").run,
            config,
            registry,
            listen_on(registry, [Address.parse(config.namesrv_listen)], "namesrv"),
        )
        async with trio.open_nursery() as nursery:
            config = with_values(config, namesrv_addr=str(handle.addresses[0]))
            running = await nursery.start(partial(run_broker, config, registry, clock=clock))
            async with Client(config.namesrv_addr) as client:
                yield client
            running.stop.set()
        outer.cancel_scope.cancel()


async def await_messages(consumer: PullConsumer, queue: MessageQueue, offset: int) -> list[bytes]:
    """Wait until the broker has a message at the offset."""
    with trio.fail_after(PATIENCE_S):
        while True:
            result = await consumer.pull(queue, offset, block=True, suspend_ms=500)
            if result.status is PullStatus.FOUND:
                return [one.body for one in result.messages]


@pytest.mark.parametrize("back_ms", [1, _HOUR_MS, _YEAR_MS])
async def test_a_clock_that_is_set_back_stops_nothing(tmp_path: Path, back_ms: int) -> None:
    """Sends continue in order, look-ups by time return an offset of the queue, and all messages exist after a
    restart with the clock still behind."""
    clock = FakeClock()
    start_ms = clock.now_ms()
    sent = 0
    for _ in range(2):
        async with client_of(tmp_path, clock) as client, client.producer("senders") as producer:
            if not sent:
                await client.admin.create_topic("Kept", queues=1)
            async with client.pull_consumer("readers") as consumer:
                (queue,) = await consumer.queues("Kept")
                for step_ms in (1000, -back_ms, 1000):
                    clock.advance(step_ms)
                    for _ in range(20):
                        result = await producer.send("Kept", b"%d" % sent, queue=queue)
                        assert (result.is_ok, result.queue_offset) == (True, sent)
                        sent += 1
                times = (
                    0,
                    start_ms - _YEAR_MS,
                    start_ms - back_ms,
                    start_ms - 1,
                    start_ms,
                    start_ms + 1,
                    clock.now_ms(),
                    1 << 60,
                )
                for time_ms in times:
                    assert 0 <= await consumer.offset_for_time(queue, time_ms) <= sent
                assert await consumer.offset_for_time(queue, 0) == 0
                assert await consumer.offset_for_time(queue, 1 << 60) == sent
            assert [one.body for one in (await read_all(client, "Kept"))[queue]] == [
                b"%d" % number for number in range(sent)
            ]
            key_found = await client.admin.query_by_message_id("Kept", result.message_id)
            assert [one.queue_offset for one in key_found] == [sent - 1]


@pytest.mark.parametrize("back_ms", [_HOUR_MS, _YEAR_MS])
async def test_delayed_messages_come_although_the_clock_is_set_back(tmp_path: Path, back_ms: int) -> None:
    """A message parked before the clock is set back does not wait until the clock has caught up; one parked
    afterwards waits for its time."""
    clock = FakeClock()
    async with (
        client_of(tmp_path, clock) as client,
        client.producer("senders") as producer,
        client.pull_consumer("readers") as consumer,
    ):
        await client.admin.create_topic("Kept", queues=1)
        (queue,) = await consumer.queues("Kept")
        assert (await producer.send("Kept", b"before", delay_level=3)).is_ok
        assert await consumer.max_offset(queue) == 0
        clock.advance(-back_ms)
        assert await await_messages(consumer, queue, 0) == [b"before"]
        assert (await producer.send("Kept", b"after", delay_level=3)).is_ok
        assert (await consumer.pull(queue, 1)).status is PullStatus.NO_NEW_MESSAGE
        clock.advance(10_000)
        assert await await_messages(consumer, queue, 1) == [b"after"]
