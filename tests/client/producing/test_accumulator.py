"""Sends of many tasks gathered into batches (Java: ProduceAccumulator; behaviour sheet, A10)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import pytest

from rmqkit.client import (
    BrokerError,
    ClientError,
    Message,
    MessageIllegal,
    MessageQueue,
    Producer,
    SendFailed,
    SendResult,
)
from rmqkit.client.hooks import CheckForbiddenContext, CheckForbiddenHook, ClientSendContext, ClientSendHook
from rmqkit.client.producing.accumulator import Accumulator, Entry, GatheringKey
from rmqkit.client.producing.queue_choice import by_key
from rmqkit.model import properties as props
from rmqkit.protocol import batch, record
from rmqkit.protocol.batch import BatchItem
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import SendMessageRequestHeaderV2
from rmqkit.remoting.backend import async_backend
from tests.client.fake_cluster import FakeBroker, cluster
from tests.client.fakes import on_both_backends, run, settled

ALONE, TOGETHER = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE


async def send_all(producer: Producer, messages: list[Message], **options: Any) -> list[Any]:
    """Send from a task for each message; returns the results or errors in the order of the messages."""
    outcomes: list[Any] = [None] * len(messages)

    async def send(number: int) -> None:
        try:
            outcomes[number] = await producer.send(messages[number], **options)
        except ClientError as error:
            outcomes[number] = error

    async with anyio.create_task_group() as group:
        for number in range(len(messages)):
            group.start_soon(send, number)
    return outcomes


def batches(broker: FakeBroker) -> list[list[bytes]]:
    """The bodies in each batch request."""
    return [[item.body for item in batch.decode(command.body)] for command in broker.server.seen(TOGETHER)]


def messages(count: int, **parts: Any) -> list[Message]:
    return [Message("T", b"m%d" % number, **parts) for number in range(count)]


@on_both_backends
@pytest.mark.parametrize("linger_ms", [0, 5])
def test_sends_of_many_tasks_are_one_request_with_a_result_each(backend: str, linger_ms: int) -> None:
    """Each result names the place of its own message: a read at its offset finds body and id."""

    async def body() -> None:
        async with cluster() as (fake, client), client.producer("pg", linger_ms=linger_ms) as producer:
            await producer.queues("T")
            broker = fake.brokers["broker-a"]
            results = await send_all(producer, messages(10))
            assert len(broker.server.seen(TOGETHER)) == 1
            assert broker.server.seen(ALONE) == []
            assert sorted(result.queue_offset for result in results) == list(range(10))
            for number, result in enumerate(results):
                stored = record.unpack(broker.log["T", result.queue.queue_id][result.queue_offset])
                assert stored.body == b"m%d" % number
                assert stored.properties[props.UNIQ_KEY] == result.message_id
            assert len({result.offset_message_id for result in results}) == 10

    run(backend, body)


@on_both_backends
def test_without_linger_every_send_is_a_request(backend: str) -> None:
    """Nothing is gathered by default."""

    async def body() -> None:
        async with cluster() as (fake, client), client.producer("pg") as producer:
            await send_all(producer, messages(5))
            broker = fake.brokers["broker-a"]
            assert len(broker.server.seen(ALONE)) == 5
            assert broker.server.seen(TOGETHER) == []

    run(backend, body)


def test_the_first_message_waits_for_others_during_the_linger_time() -> None:
    """A batch departs when the linger time of its first message is over; one message alone is an ordinary
    send."""

    async def body() -> None:
        async with cluster() as (fake, client), client.producer("pg", linger_ms=1000) as producer:
            await producer.queues("T")
            broker = fake.brokers["broker-a"]
            began_s = anyio.current_time()
            await producer.send("T", b"alone")
            assert anyio.current_time() - began_s == pytest.approx(1, abs=0.01)
            async with anyio.create_task_group() as group:
                group.start_soon(producer.send, "T", b"first")
                await anyio.sleep(0.6)
                group.start_soon(producer.send, "T", b"second")
                await anyio.sleep(0.6)
                group.start_soon(producer.send, "T", b"third")
            assert batches(broker) == [[b"first", b"second"]]
            assert [command.body for command in broker.server.seen(ALONE)] == [b"alone", b"third"]

    run("trio", body)


def test_a_full_batch_departs_at_once() -> None:
    """No batch is larger than `batch_bytes`, and a larger message goes by itself; neither waits."""

    async def body() -> None:
        async with (
            cluster() as (fake, client),
            client.producer("pg", linger_ms=30_000, batch_bytes=1000, timeout_ms=60_000) as producer,
        ):
            await producer.queues("T")
            broker = fake.brokers["broker-a"]
            began_s = anyio.current_time()
            async with anyio.create_task_group() as group:
                for number in range(9):
                    group.start_soon(producer.send, "T", bytes([number]) * 300)
                group.start_soon(producer.send, "T", b"large" * 400)
                while len(broker.server.seen(TOGETHER)) < 4 or not broker.server.seen(ALONE):
                    await anyio.lowlevel.checkpoint()
                assert anyio.current_time() - began_s < 30
                assert {len(each) for each in batches(broker)} == {2}
                assert max(len(each.body) for each in broker.server.seen(TOGETHER)) <= 1000
                assert [each.body for each in broker.server.seen(ALONE)] == [b"large" * 400]
            assert anyio.current_time() - began_s == pytest.approx(30, abs=0.1)

    run("trio", body)


@on_both_backends
def test_closing_sends_what_is_gathered_and_waits_for_it(backend: str) -> None:
    """`aclose` does not wait for the linger time, and returns when the broker has answered."""

    async def body() -> None:
        async with cluster() as (fake, client):
            producer = await client.producer("pg", linger_ms=30_000).start()
            await producer.queues("T")
            async with anyio.create_task_group() as group:
                group.start_soon(send_all, producer, messages(3))
                await settled()
                with anyio.fail_after(20):
                    await producer.aclose()
                assert [len(each) for each in batches(fake.brokers["broker-a"])] == [3]
                with pytest.raises(ClientError, match="not open"):
                    await producer.send("T", b"late")

    run(backend, body)


@on_both_backends
def test_what_may_not_travel_together_is_kept_apart(backend: str) -> None:
    """A batch has one topic, one value of wait_store, one time-out and one queue. Delayed messages, halves of
    transactions, retry topics and bodies that are compressed go by themselves."""

    async def body() -> None:
        topics = {"T": {"broker-a": 2}, "U": {"broker-a": 2}, "%RETRY%g": {"broker-a": 1}}
        async with cluster("a", topics) as (fake, client), client.producer("pg", linger_ms=5) as producer:
            for topic in topics:
                await producer.queues(topic)
            lonely = [
                Message("T", b"delayed", delay_level=2),
                Message("T", b"first", priority=1),
                Message("T", b"timed", properties={props.TIMER_DELAY_SEC: "5"}),
                Message("T", b"half", properties={props.TRANSACTION_PREPARED: "true"}),
                Message("%RETRY%g", b"again"),
                Message("T", b"big" * 2000),
            ]
            grouped = [
                Message("T", b"0"),
                Message("T", b"1"),
                Message("U", b"2"),
                Message("U", b"3"),
                Message("T", b"4", wait_store=False),
                Message("T", b"5", wait_store=False),
            ]
            results = await send_all(producer, lonely + grouped)
            assert all(isinstance(result, SendResult) for result in results), results
            broker = fake.brokers["broker-a"]
            assert len(broker.server.seen(ALONE)) == len(lonely)
            assert sorted(map(sorted, batches(broker))) == [[b"0", b"1"], [b"2", b"3"], [b"4", b"5"]]

    run(backend, body)


@on_both_backends
def test_ordering_keys_and_queues_are_respected(backend: str) -> None:
    """Messages with an ordering key, or with a given queue, share batches with all others to that queue, and
    with no message to another one."""

    async def body() -> None:
        async with (
            cluster("ab", {"T": {"broker-a": 2, "broker-b": 2}}) as (fake, client),
            client.producer("pg", linger_ms=5) as producer,
        ):
            queues = await producer.queues("T")
            keyed = [Message("T", b"x", ordering_key=f"order-{number}") for number in range(40)]
            results = await send_all(producer, keyed)
            for message, result in zip(keyed, results, strict=True):
                assert message.ordering_key is not None
                assert result.queue == by_key(queues, message.ordering_key)
            requests = [
                command for broker in fake.brokers.values() for command in broker.server.seen(TOGETHER)
            ]
            assert len(requests) == len({result.queue for result in results})
            chosen = MessageQueue("T", "broker-b", 1)
            together = await send_all(producer, messages(3), queue=chosen)
            assert {result.queue for result in together} == {chosen}
            assert len({result.queue_offset for result in together}) == 3

    run(backend, body)


@on_both_backends
def test_a_wrong_message_fails_alone(backend: str) -> None:
    """What the client can check is raised by that send; the others go out."""

    async def body() -> None:
        async with cluster() as (fake, client), client.producer("pg", linger_ms=5) as producer:
            await producer.queues("T")
            async with anyio.create_task_group() as group:
                group.start_soon(send_all, producer, messages(2))
                for wrong in (Message("T", b""), Message("T", b"x", keys=["a b"])):
                    with pytest.raises(MessageIllegal):
                        await producer.send(wrong)
            assert [len(each) for each in batches(fake.brokers["broker-a"])] == [2]

    run(backend, body)


@on_both_backends
def test_a_refused_batch_is_sent_message_by_message(backend: str) -> None:
    """A broker stores all or nothing of a batch, so only the message that it refuses fails, with the broker's
    answer."""

    async def body() -> None:
        async with (
            cluster("a", {"T": {"broker-a": 1}}) as (fake, client),
            client.producer("pg", linger_ms=5) as producer,
        ):
            await producer.queues("T")
            broker = fake.brokers["broker-a"]

            def refuse(command: Command) -> Command:
                bad = b"bad" in command.body
                return answer(command, ResponseCode.MESSAGE_ILLEGAL, "bad") if bad else broker.send(command)

            broker.overrides[ALONE] = broker.overrides[TOGETHER] = refuse
            outcomes = await send_all(
                producer, [Message("T", b"good"), Message("T", b"bad"), Message("T", b"fine")]
            )
            assert isinstance(outcomes[1], BrokerError)
            assert outcomes[1].code == ResponseCode.MESSAGE_ILLEGAL
            for number, text in ((0, b"good"), (2, b"fine")):
                stored = record.unpack(broker.log["T", 0][outcomes[number].queue_offset])
                assert (stored.body, stored.properties[props.UNIQ_KEY]) == (text, outcomes[number].message_id)
            assert len(broker.log["T", 0]) == 2

    run(backend, body)


@on_both_backends
def test_a_failed_batch_is_tried_on_another_broker_and_fails_for_each_sender(backend: str) -> None:
    """The attempts of a batch are those of a send: another broker is tried; when all fail, each sender gets
    an error object of its own."""

    async def body() -> None:
        async with cluster("ab") as (fake, client), client.producer("pg", linger_ms=5) as producer:
            await producer.queues("T")
            busy: list[str] = []

            def refuse(command: Command) -> Command:
                busy.append(command.header(SendMessageRequestHeaderV2).bname or "")
                return answer(command, ResponseCode.SYSTEM_BUSY, "busy")

            for broker in fake.brokers.values():
                broker.overrides[TOGETHER] = refuse
            outcomes = await send_all(producer, messages(3))
            assert len(busy) == 3
            assert busy[0] != busy[1] != busy[2]
            assert all(isinstance(outcome, SendFailed) for outcome in outcomes)
            assert {outcome.code for outcome in outcomes} == {ResponseCode.SYSTEM_BUSY}
            assert len({id(outcome) for outcome in outcomes}) == 3
            del fake.brokers["broker-a"].overrides[TOGETHER]
            results = await send_all(producer, messages(3))
            assert {result.queue.broker_name for result in results} == {"broker-a"}

    run(backend, body)


@on_both_backends
def test_a_cancelled_send_takes_its_message_back_until_its_batch_departs(backend: str) -> None:
    """The others of the batch are sent; afterwards a cancelled send changes nothing for them."""

    async def body() -> None:
        async with (
            cluster("a", {"T": {"broker-a": 1}}) as (fake, client),
            client.producer("pg", linger_ms=30_000, timeout_ms=60_000) as producer,
        ):
            await producer.queues("T")
            broker: FakeBroker = fake.brokers["broker-a"]
            answers = anyio.Event()

            async def slowly(command: Command) -> Command:
                await answers.wait()
                return broker.send(command)

            broker.overrides[TOGETHER] = slowly
            before, after = anyio.CancelScope(), anyio.CancelScope()

            async def cancelled(scope: anyio.CancelScope, text: bytes) -> None:
                with scope:
                    await producer.send("T", text)

            async with anyio.create_task_group() as group:
                group.start_soon(cancelled, before, b"taken back")
                group.start_soon(cancelled, after, b"departed")
                group.start_soon(send_all, producer, messages(2))
                await settled()
                before.cancel()
                await settled()
                group.start_soon(producer.aclose)
                while not broker.server.seen(TOGETHER):
                    await anyio.lowlevel.checkpoint()
                after.cancel()
                answers.set()
            assert [sorted(each) for each in batches(broker)] == [[b"departed", b"m0", b"m1"]]
            assert len(broker.log["T", 0]) == 3

    run(backend, body)


@on_both_backends
def test_a_batch_whose_senders_are_all_cancelled_is_not_sent(backend: str) -> None:
    """No request goes out, and the producer closes."""

    async def body() -> None:
        async with cluster() as (fake, client):
            producer = await client.producer("pg", linger_ms=30_000).start()
            await producer.queues("T")
            async with anyio.create_task_group() as group:
                group.start_soon(send_all, producer, messages(3))
                await settled()
                group.cancel_scope.cancel()
            with anyio.fail_after(20):
                await producer.aclose()
            await settled()
            broker = fake.brokers["broker-a"]
            assert broker.server.seen(TOGETHER) == broker.server.seen(ALONE) == []

    run(backend, body)


@on_both_backends
def test_closing_the_client_ends_gathered_sends(backend: str) -> None:
    """No sender hangs when its client closes before the batch has departed."""

    async def body() -> None:
        async with cluster() as (_, client), anyio.create_task_group() as group:
            producer = await client.producer("pg", linger_ms=30_000).start()
            await producer.queues("T")
            outcomes: list[Any] = []

            async def send() -> None:
                outcomes.extend(await send_all(producer, messages(2)))

            group.start_soon(send)
            await settled()
            await client.aclose()
            while len(outcomes) < 2:
                await anyio.lowlevel.checkpoint()
            assert all("client was closed" in str(outcome) for outcome in outcomes)

    run(backend, body)


class Seen(ClientSendHook):
    def __init__(self) -> None:
        self.contexts: list[ClientSendContext] = []

    def before_send(self, context: ClientSendContext) -> None:
        context.set_property("trace", "t")

    def after_send(self, context: ClientSendContext) -> None:
        self.contexts.append(context)


class Forbids(CheckForbiddenHook):
    def check_forbidden(self, context: CheckForbiddenContext) -> None:
        if context.messages[0].body == b"m1":
            raise PermissionError("not this one")


@on_both_backends
def test_hooks_see_each_send_and_not_the_batch(backend: str) -> None:
    """A send hook gets one context for each send, with its own result, and its properties are stored."""

    async def body() -> None:
        seen = Seen()
        async with (
            cluster("a", {"T": {"broker-a": 1}}, hooks=[seen]) as (fake, client),
            client.producer("pg", linger_ms=5) as producer,
        ):
            await producer.queues("T")
            results = await send_all(producer, messages(3))
            broker = fake.brokers["broker-a"]
            assert [len(each) for each in batches(broker)] == [3]
            assert {context.message_ids for context in seen.contexts} == {
                (result.message_id,) for result in results
            }
            for context in seen.contexts:
                assert context.result is not None
                assert context.message_ids == (context.result.message_id,)
                assert (context.attempts, context.address) == (1, broker.address)
            assert {record.unpack(each).properties["trace"] for each in broker.log["T", 0]} == {"t"}

    run(backend, body)


@on_both_backends
def test_a_forbidding_hook_decides_on_single_messages(backend: str) -> None:
    """While there is such a hook nothing is gathered."""

    async def body() -> None:
        async with (
            cluster(hooks=[Forbids()]) as (fake, client),
            client.producer("pg", linger_ms=5) as producer,
        ):
            await producer.send("T", b"m0")
            with pytest.raises(PermissionError):
                await producer.send("T", b"m1")
            assert batches(fake.brokers["broker-a"]) == []

    run(backend, body)


@on_both_backends
def test_one_task_sends_batch_after_batch(backend: str) -> None:
    """Sends that follow each other are sent by the task of the first; closing the producer ends it."""

    async def body() -> None:
        async with cluster() as (_, client), client.producer("pg", linger_ms=0) as producer:
            started: list[object] = []
            start_soon = producer.start_soon
            assert producer._accumulator is not None

            def noted(run: Callable[[Any], Awaitable[None]], courier: object) -> None:
                started.append(courier)
                start_soon(run, courier)

            producer._accumulator._start_soon = noted
            for _ in range(5):
                assert all(result.is_ok for result in await send_all(producer, messages(3)))
            assert len(started) == 1
            assert len(producer._accumulator._idle) == 1
            await producer.aclose()
            await settled()
            assert producer._accumulator._idle == []

    run(backend, body)


@on_both_backends
@pytest.mark.parametrize("handed_over", [True, False])
def test_senders_do_not_wait_for_a_task_that_was_cancelled(backend: str, handed_over: bool) -> None:
    """A task that is cancelled between two batches sends the one that it was given, or leaves the next one to
    another task."""

    async def body() -> None:
        loop, delivered = async_backend(), []

        async def deliver(entries: Sequence[Entry], key: GatheringKey, deadline_s: float) -> None:
            delivered.append(len(entries))

        def added() -> Entry:
            entry = Entry(Message("T", b"x"), "key", BatchItem(0, b"x", b""), 23, None, loop.wakeup())
            accumulator.add(entry, ("T", None, True, 3000), loop.current_time() + 3)
            return entry

        async with anyio.create_task_group() as outer, anyio.create_task_group() as group:
            groups: list[Any] = [group]
            accumulator = Accumulator(
                0, 1000, deliver, loop.wakeup, loop.wake, lambda run, each: groups[-1].start_soon(run, each)
            )
            await added().done
            await settled()
            if handed_over:
                entry = added()
                group.cancel_scope.cancel()
            else:
                group.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await settled()
                groups.append(outer)
                entry = added()
            with anyio.CancelScope(shield=True), anyio.fail_after(5):
                await entry.done
            accumulator.close()
        assert delivered == [1, 1]

    run(backend, body)


@pytest.mark.parametrize(
    "options", [{"linger_ms": -1}, {"linger_ms": 30_001}, {"linger_ms": 1, "batch_bytes": 0}]
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    """The error names the option."""

    async def body() -> None:
        async with cluster() as (_, client):
            with pytest.raises(ClientError, match=r"linger_ms=|batch_bytes="):
                client.producer("pg", **options)

    run("trio", body)
