"""Records that cannot be decoded: they stop no queue, and go to the dead letters or to the application."""

from __future__ import annotations

import itertools
import math
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from rmqkit.client import (
    BlockingClient,
    ClientError,
    LitePullConsumer,
    Prefetch,
    PushConsumer,
    ReceivedMessage,
)
from rmqkit.client.consumer import bad_records
from rmqkit.model.queue import MessageQueue
from rmqkit.model.sysflag import COMPRESSED
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import ConsumerSendMsgBackRequestHeader
from rmqkit.testing.rocketmq import ThreadedRocketMQ
from tests.client.consumer.test_requests import QUEUE, consuming, until
from tests.client.fake_cluster import FakeBroker, cluster, serve_group
from tests.client.fakes import on_both_backends, run
from tests.raw_sends import send_raw

GOOD = [b"0", b"2", b"3"]


def put_all(broker: FakeBroker, *, damaged: bool = False) -> None:
    """Four messages, the second of which cannot be decompressed, or is damaged in its lengths."""
    broker.put("T", 0, b"0")
    broker.put("T", 0, b"no zlib", sys_flag=COMPRESSED)
    broker.put("T", 0, b"2")
    broker.put("T", 0, b"3")
    if damaged:
        record = bytearray(broker.log["T", 0][1])
        struct.pack_into(">i", record, 84, 1 << 20)
        broker.log["T", 0][1] = bytes(record)


def put_away(broker: FakeBroker) -> list[tuple[int, int, str]]:
    """Log offset, delay level and group of the messages that were sent back."""
    headers = [
        each.header(ConsumerSendMsgBackRequestHeader)
        for each in broker.server.seen(RequestCode.CONSUMER_SEND_MSG_BACK)
    ]
    return [(header.offset, header.delay_level, header.group) for header in headers]


async def iterated(consumer: PushConsumer, seen: Callable[[ReceivedMessage], None]) -> None:
    async for delivery in consumer:
        async with delivery as message:
            seen(message)


async def batched(consumer: PushConsumer, seen: Callable[[ReceivedMessage], None]) -> None:
    async for batch in consumer.batches(2):
        async with batch as messages:
            for message in messages:
                seen(message)


async def handled(consumer: PushConsumer, seen: Callable[[ReceivedMessage], None]) -> None:
    async def handle(message: ReceivedMessage) -> None:
        seen(message)

    await consumer.run(handle)


async def polled(consumer: LitePullConsumer, seen: Callable[[ReceivedMessage], None]) -> None:
    while found := await consumer.poll(2, timeout_s=math.inf):
        for message in found:
            seen(message)


async def read(consumer: LitePullConsumer, seen: Callable[[ReceivedMessage], None]) -> None:
    async for message in consumer:
        seen(message)


FACES: list[tuple[str, Any, dict[str, Any]]] = [
    ("push_consumer", handled, {}),
    ("push_consumer", handled, {"order": "queue"}),
    ("push_consumer", handled, {"order": "key"}),
    ("push_consumer", iterated, {}),
    ("push_consumer", batched, {}),
    ("push_consumer", batched, {"order": "queue"}),
    ("lite_pull_consumer", polled, {}),
    ("lite_pull_consumer", read, {}),
]


@pytest.mark.parametrize("damaged", [False, True], ids=["body", "lengths"])
@pytest.mark.parametrize(
    ("kind", "face", "options"), FACES, ids=[f"{face.__name__}-{options}" for _, face, options in FACES]
)
@on_both_backends
def test_the_others_arrive_and_the_bad_one_is_a_dead_letter(
    backend: str, kind: str, face: Any, options: dict[str, Any], damaged: bool
) -> None:
    """The broker is asked to move the record as it is, the application sees the good messages in order, and
    the whole queue is committed."""

    async def body() -> None:
        async with cluster("a", {"T": {"broker-a": 1}}) as (fake, client):
            broker = serve_group(fake, client)
            put_all(broker, damaged=damaged)
            seen: list[bytes] = []
            async with (
                getattr(client, kind)("cg", subscribe="T", start="first", **options) as consumer,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(face, consumer, lambda message: seen.append(message.body))
                await until(lambda: seen == GOOD and broker.offsets.get(("cg", "T", 0)) == 4)
                consumer.stop()
            assert put_away(broker) == [(1000, -1, "cg")]

    run(backend, body)


@pytest.mark.parametrize(
    ("kind", "face", "options"), FACES, ids=[f"{face.__name__}-{options}" for _, face, options in FACES]
)
@on_both_backends
def test_the_application_may_have_the_bad_one(
    backend: str, kind: str, face: Any, options: dict[str, Any]
) -> None:
    """It comes in its turn, with the bytes that are stored and the reason."""

    async def body() -> None:
        async with cluster("a", {"T": {"broker-a": 1}}) as (fake, client):
            broker = serve_group(fake, client)
            put_all(broker)
            seen: list[tuple[bytes, bool]] = []
            deliver = {"bad_records": "deliver", "start": "first", **options}
            async with (
                getattr(client, kind)("cg", subscribe="T", **deliver) as consumer,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(
                    face, consumer, lambda message: seen.append((message.body, message.fault is None))
                )
                await until(lambda: broker.offsets.get(("cg", "T", 0)) == 4)
                consumer.stop()
            assert seen == [(b"0", True), (b"no zlib", False), (b"2", True), (b"3", True)]
            assert put_away(broker) == []

    run(backend, body)


@pytest.mark.parametrize("chosen", ["dead_letter", "deliver"])
@on_both_backends
def test_members_of_a_broadcast_pass_it_over_or_get_it(
    backend: str, chosen: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing goes to the broker, as with other failures there; an error in the log names the place."""
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)

    async def body() -> None:
        options: dict[str, Any] = {"broadcast": True, "offsets_folder": tmp_path, "bad_records": chosen}
        async with consuming(handle, **options) as (broker, consumer):
            put_all(broker)
            await until(lambda: consumer.offsets("T").get(QUEUE) == 4)
        assert put_away(broker) == []

    run(backend, body)
    assert seen == (GOOD if chosen == "dead_letter" else [b"0", b"no zlib", b"2", b"3"])
    told = "the record at offset 1 of T@broker-a:0, log offset 1000, cannot be decoded" in caplog.text
    assert told is (chosen == "dead_letter")


@on_both_backends
def test_a_pull_consumer(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    """A pull gives the good messages, and the bad one when the broker does not keep it."""

    async def body() -> None:
        async with cluster("a", {"T": {"broker-a": 1}}) as (fake, client):
            broker = serve_group(fake, client)
            put_all(broker)
            async with client.pull_consumer("cg") as consumer:
                result = await consumer.pull(QUEUE, 0)
                assert ([each.body for each in result.messages], result.next_offset) == (GOOD, 4)
                assert put_away(broker) == [(1000, -1, "cg")]
                broker.overrides[RequestCode.CONSUMER_SEND_MSG_BACK] = refused
                result = await consumer.pull(QUEUE, 1)
                bad, *good = result.messages
                assert bad.fault is not None
                assert [each.body for each in good] == GOOD[1:]
            with pytest.raises(ClientError, match="bad_records='skip': must be dead_letter or deliver"):
                client.pull_consumer("cg", bad_records="skip")
            with pytest.raises(ClientError, match="bad_records='skip': must be dead_letter or deliver"):
                client.push_consumer("cg", subscribe="T", bad_records="skip")

    run(backend, body)
    assert "it is not a dead letter and is delivered" in caplog.text


def refused(command: Command) -> Command:
    return answer(command, ResponseCode.SYSTEM_ERROR, "no message begins there")


@pytest.mark.parametrize("damaged", [False, True], ids=["body", "lengths"])
@on_both_backends
def test_a_pull_goes_on_behind_the_bad_one(backend: str, damaged: bool) -> None:
    """Behind a record whose lengths are damaged nothing can be found, so the next pull begins there. An
    offset that the damaged record cannot have is not believed."""

    async def body() -> None:
        async with cluster("a", {"T": {"broker-a": 1}}) as (fake, client):
            broker = serve_group(fake, client)
            put_all(broker, damaged=damaged)
            if damaged:
                record = bytearray(broker.log["T", 0][1])
                struct.pack_into(">q", record, 20, 1 << 40)
                broker.log["T", 0][1] = bytes(record)
            async with client.pull_consumer("cg", bad_records="deliver") as consumer:
                offset, seen = 0, []
                pulls = 0
                while offset < 4:
                    result = await consumer.pull(QUEUE, offset)
                    seen += [(each.queue_offset, each.fault is None) for each in result.messages]
                    offset = result.next_offset
                    pulls += 1
            assert (seen, offset) == ([(0, True), (1, False), (2, True), (3, True)], 4)
            assert pulls == (3 if damaged else 1)

    run(backend, body)


@pytest.mark.parametrize("busy", [False, True], ids=["refused", "busy"])
def test_a_broker_that_does_not_keep_it(busy: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A busy one is asked until it does. One that refuses cannot read the record either: it is passed over
    after some times, and the queue is committed."""
    times: list[float] = []

    def reaction(command: Command) -> Command:
        times.append(anyio.current_time())
        if busy and len(times) > bad_records.MAX_REFUSALS:
            return answer(command)
        return answer(command, ResponseCode.SYSTEM_BUSY, "busy") if busy else refused(command)

    async def handle(message: ReceivedMessage) -> None:
        assert message.fault is None

    async def body() -> None:
        async with consuming(handle, order="queue") as (broker, _):
            broker.overrides[RequestCode.CONSUMER_SEND_MSG_BACK] = reaction
            put_all(broker)
            await until(lambda: broker.offsets.get(("cg", "T", 0)) == 4)

    run("trio", body)
    assert len(times) == bad_records.MAX_REFUSALS + busy
    assert all(after - before >= bad_records.AGAIN_S for before, after in itertools.pairwise(times))
    assert ("it is passed over, because the broker refuses" in caplog.text) is not busy
    assert ("among the dead letters of group cg" in caplog.text) is busy


@on_both_backends
def test_a_lost_queue_keeps_the_bad_one_unfinished(backend: str) -> None:
    """Its next owner puts it away: the offset is not committed beyond it."""

    async def body() -> None:
        async with consuming(nothing) as (broker, consumer):
            broker.overrides[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda command: None
            put_all(broker)
            await until(lambda: len(put_away(broker)) == 1 and consumer.offsets("T") == {QUEUE: 1})
            consumer.reset_offsets({QUEUE: 2})
            await until(lambda: broker.offsets.get(("cg", "T", 0)) == 4)
        assert len(put_away(broker)) == 1

    run(backend, body)


async def nothing(message: ReceivedMessage) -> None:
    return None


@on_both_backends
def test_bodies_are_decompressed_when_there_is_room(backend: str) -> None:
    """A pull of many small compressed records does not take more than the prefetch limit and one body."""

    async def body() -> None:
        release = anyio.Event()
        sizes: list[int] = []

        async def handle(message: ReceivedMessage) -> None:
            sizes.append(len(message.body))
            await release.wait()

        async with consuming(handle, prefetch=Prefetch(mib=4)) as (broker, consumer):
            packed = zlib.compress(bytes(3 << 20))
            for _ in range(10):
                broker.put("T", 0, packed, sys_flag=COMPRESSED)
            await until(lambda: len(sizes) == 2)
            state = consumer.running_info()["mqTable"][QUEUE]
            assert (state["cachedMsgCount"], state["cachedMsgSizeInMiB"]) == (2, 6)
            release.set()
            await until(lambda: broker.offsets.get(("cg", "T", 0)) == 10)
        assert sizes == [3 << 20] * 10

    run(backend, body)


@pytest.fixture
def topic(rocketmq: ThreadedRocketMQ) -> str:
    """A topic of a real broker with good messages before and behind bad ones."""
    name = "Bad-blocking"
    with BlockingClient(rocketmq.namesrv_text) as client:
        client.admin.create_topic(name, queues=1)
    send_raw(rocketmq.address(), name, b"0")
    send_raw(rocketmq.address(), name, b"no zlib", sys_flag=COMPRESSED)
    send_raw(rocketmq.address(), name, b"unknown type", sys_flag=COMPRESSED | 0x500)
    send_raw(rocketmq.address(), name, b"2")
    return name


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_blocking_consumers_with_a_real_broker(rocketmq: ThreadedRocketMQ, topic: str, backend: str) -> None:
    """Push, lite and explicit pulls give the good messages, and the bad ones are dead letters of the group,
    byte by byte."""
    with BlockingClient(rocketmq.namesrv_text, backend=backend) as client:
        seen: list[bytes] = []
        push = client.push_consumer(f"push-{backend}", subscribe=topic, start="first")

        def handle(message: ReceivedMessage) -> None:
            seen.append(message.body)
            if len(seen) == 2:
                push.stop()

        push.run(handle, threads=1)
        assert seen == [b"0", b"2"]
        with client.lite_pull_consumer(f"lite-{backend}", subscribe=topic, start="first") as lite:
            found: list[bytes] = []
            while len(found) < 2:
                found += [message.body for message in lite.poll(timeout_s=30)]
        with client.pull_consumer(f"pull-{backend}") as pull:
            (queue,) = pull.queues(topic)
            assert found == [message.body for message in pull.pull(queue, 0).messages] == [b"0", b"2"]
        for kind in ("push", "lite", "pull"):
            with client.pull_consumer("reader", bad_records="deliver") as reader:
                dead = MessageQueue(f"%DLQ%{kind}-{backend}", queue.broker_name, 0)
                messages = reader.pull(dead, 0, block=True, suspend_ms=5000).messages
            assert sorted(message.body for message in messages) == [b"no zlib", b"unknown type"], kind
            assert all(message.fault is not None for message in messages)
