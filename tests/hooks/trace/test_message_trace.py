"""A client's message trace: when it is sent, what it leaves out, and that it never disturbs the
application."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from rmqkit.client import Client, Message, SendFailed
from rmqkit.protocol import record
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.testing.broker import running_cluster
from rmqkit_hook_trace import MessageTrace
from rmqkit_hook_trace.message_trace import BATCH_CONTEXTS, INTERVAL_MS, QUEUE_CONTEXTS
from tests.client.fake_cluster import FakeBroker, FakeCluster, cluster, serve_group
from tests.client.fakes import on_both_backends, run, settled
from tests.client.producing.transacting import asking

SEND = RequestCode.SEND_MESSAGE_V2
TRACE = "RMQ_SYS_TRACE_TOPIC"
TOPICS = {"T": {"broker-a": 1}, TRACE: {"broker-a": 1}}


class Clock:
    """Moves by 10 ms at each look."""

    def __init__(self) -> None:
        self.now = 1_000

    def __call__(self) -> int:
        self.now += 10
        return self.now


def broker_of(fake: FakeCluster, *, region: str | None = "R", trace_on: bool = True) -> FakeBroker:
    """The fake broker, which from now on reports its region."""
    broker = fake.brokers["broker-a"]

    def send(command: Command) -> Command:
        response = broker.send(command)
        if region is not None:
            response.fields().update(MSG_REGION=region, TRACE_ON="true" if trace_on else "false")
        return response

    broker.overrides[SEND] = broker.overrides[RequestCode.SEND_BATCH_MESSAGE] = send
    return broker


def traced(broker: FakeBroker) -> list[list[list[str]]]:
    """The trace messages, each with the fields of its records."""
    messages = [message for data in broker.log.get((TRACE, 0), []) for message in record.unpack_all(data)]
    return [[text.split("\x01") for text in message.body.decode().split("\x02")[:-1]] for message in messages]


@on_both_backends
def test_what_is_sent_and_consumed_is_traced(backend: str) -> None:
    """Closing the client sends the waiting records: a Pub for each message sent, a SubBefore and a SubAfter
    for each message the application processed."""

    async def body() -> None:
        trace = MessageTrace(now_ms=Clock())
        async with cluster(topics=TOPICS, hooks=[trace]) as (fake, client):
            broker = broker_of(fake)
            async with client.producer("pg") as producer:
                sent = await producer.send("T", b"hello", tag="a", keys=["k1", "k2"])
            serve_group(fake, client)
            async with client.push_consumer("cg", subscribe="T", start="first") as consumer:
                async for delivery in consumer:
                    async with delivery as message:
                        assert message.body == b"hello"
                    break
        pub, before, after = [fields for message in traced(broker) for fields in message]
        assert pub[0] == "Pub"
        assert pub[2:9] == ["R", "pg", "T", sent.message_id, "a", "k1 k2", "10.0.0.1:10911"]
        assert pub[9:] == ["5", "10", "0", sent.offset_message_id, "true"]
        assert int(pub[1]) > 1_000
        assert [before[0], *before[2:4], before[5:]] == [
            "SubBefore",
            "null",
            "cg",
            [sent.message_id, "0", "k1 k2"],
        ]
        assert [after[0], after[2:7], after[8]] == [
            "SubAfter",
            [sent.message_id, "10", "true", "k1 k2", "0"],
            "cg",
        ]
        assert before[4] == after[1]
        assert trace.dropped == 0

    run(backend, body)


def test_the_end_of_a_transaction_is_traced() -> None:
    """After the Pub of its half message, with Java's name of the outcome; also the end of an earlier process'
    transaction, if its half message allows it."""

    async def body() -> None:
        trace = MessageTrace(now_ms=Clock())
        async with asking(hooks=[trace]) as peer:
            peer.fake.topics[TRACE] = {"broker-a": 1}
            broker = broker_of(peer.fake)

            async def check(_half: object) -> bool | None:
                return None

            async with peer.client.producer("pg", check=check) as producer:
                async with producer.transaction("T", b"order", tag="a", keys=["k"]) as tx:
                    pass
                await peer.asked(peer.half(MSG_REGION="R2"))
                await peer.asked(peer.half(message_id="SILENT", TRACE_ON="false"))
        found = [fields for message in traced(broker) for fields in message]
        pub, own, early = found
        assert (pub[0], pub[5], pub[11]) == ("Pub", tx.message_id, "1")
        assert [own[0], *own[2:]] == [
            *("EndTransaction", "DefaultRegion", "pg", "T", tx.message_id, "a", "k", "10.0.0.1:10911", "2"),
            *("null", "COMMIT_MESSAGE", "false"),
        ]
        assert [early[0], *early[2:6], *early[9:]] == [
            *("EndTransaction", "R2", "pg", "T", "EARLIER"),
            *("2", "TX", "UNKNOW", "true"),
        ]

    run("trio", body)


def test_records_are_sent_when_there_are_enough_or_after_a_while() -> None:
    """Ten sends or deliveries are sent at once as one trace message; fewer wait for five seconds."""

    async def body() -> None:
        async with (
            cluster(topics=TOPICS, hooks=[MessageTrace()]) as (fake, client),
            client.producer("pg") as producer,
        ):
            broker = broker_of(fake)
            for _ in range(BATCH_CONTEXTS):
                await producer.send("T", b"x")
            await settled()
            assert [len(message) for message in traced(broker)] == [BATCH_CONTEXTS]
            began_s = anyio.current_time()
            await producer.send("T", b"x")
            await anyio.sleep(INTERVAL_MS / 1000 - 0.1)
            assert len(traced(broker)) == 1
            await anyio.sleep(0.2)
            assert [len(message) for message in traced(broker)] == [BATCH_CONTEXTS, 1]
            assert anyio.current_time() - began_s < 2 * INTERVAL_MS / 1000

    run("trio", body)


@on_both_backends
def test_each_message_of_a_batch_has_its_record(backend: str) -> None:
    """Each record has its message's own ids, so that a search by id finds it."""

    async def body() -> None:
        async with cluster(topics=TOPICS, hooks=[MessageTrace()]) as (fake, client):
            broker = broker_of(fake)
            async with client.producer("pg") as producer:
                sent = await producer.send_batch([Message("T", b"1"), Message("T", b"22")])
        ((first, second),) = traced(broker)
        assert [first[5], second[5]] == sent.message_id.split(",")
        assert [first[12], second[12]] == sent.offset_message_id.split(",")
        assert [first[9], second[9]] == ["1", "2"]

    run(backend, body)


@on_both_backends
def test_what_is_not_traced(backend: str) -> None:
    """Failed and one-way sends, a broker that switches tracing off or does not report its region, messages
    that switch it off, and the trace topic itself."""

    async def body() -> None:
        async with cluster(topics=TOPICS, hooks=[MessageTrace()]) as (fake, client):
            async with client.producer("pg") as producer:
                for region, on in ((None, True), ("R", False)):
                    broker_of(fake, region=region, trace_on=on)
                    await producer.send("T", b"x")
                broker = broker_of(fake)
                await producer.send_oneway("T", b"x")
                await producer.send(TRACE, b"Pub\x01\x02")
                broker.overrides[SEND] = lambda command: answer(command, ResponseCode.SYSTEM_BUSY, "wait")
                with pytest.raises(SendFailed):
                    await producer.send("T", b"x")
            broker.log.clear()
            broker.put("T", 0, b"x", {"TRACE_ON": "false"})
            broker_of(fake)
            async with client.pull_consumer("cg") as consumer:
                for topic in ("T", TRACE):
                    for queue in await consumer.queues(topic):
                        await consumer.pull(queue, 0)
        assert traced(broker) == []

    run(backend, body)


@on_both_backends
def test_a_trace_that_cannot_be_sent_is_lost_and_counted(
    backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    """When the broker does not have the trace topic, the application gets no error; the log has one line."""

    async def body() -> None:
        trace = MessageTrace()
        async with cluster(topics={"T": {"broker-a": 1}}, hooks=[trace]) as (fake, client):
            broker_of(fake)
            async with client.producer("pg") as producer:
                for _ in range(3):
                    assert (await producer.send("T", b"x")).is_ok
        assert trace.dropped == 3
        assert "3 records of the message trace are lost" in caplog.text

    run(backend, body)


def test_a_full_queue_drops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the trace, and it takes no more memory than so much."""

    async def body() -> None:
        trace = MessageTrace()
        async with cluster(topics=TOPICS, hooks=[trace]) as (fake, client):
            broker = broker_of(fake)
            gate = anyio.Event()
            send = broker.overrides[SEND]

            async def gated(command: Command) -> Command:
                if command.fields()["b"] == TRACE:
                    await gate.wait()
                return send(command)  # type: ignore[return-value]

            broker.overrides[SEND] = gated
            async with client.producer("pg") as producer:
                for _ in range(QUEUE_CONTEXTS + BATCH_CONTEXTS + 5):
                    await producer.send("T", b"x")
            assert trace.dropped == 5
            gate.set()

    run("trio", body)


async def test_a_trace_is_found_by_message_id(tmp_path: Path) -> None:
    """Through a real broker: the trace message has the ids and keys of its records for keys, as the
    console and mqadmin look it up."""
    async with (
        running_cluster(tmp_path, traceTopicEnable=True, regionId="Here") as there,
        Client(there.namesrv_text, connect=there.connect, hooks=[MessageTrace()]) as client,
    ):
        async with client.producer("pg") as producer:
            sent = [
                await producer.send("Orders", b"hello", keys=f"order-{at}") for at in range(BATCH_CONTEXTS)
            ]
        while not (found := await client.admin.query_by_key(TRACE, sent[3].message_id)):
            await anyio.lowlevel.checkpoint()
        assert {message.topic for message in found} == {TRACE}
        assert f"\x01{sent[3].message_id}\x01null\x01order-3\x01" in found[0].body.decode()
        assert found[0].body.decode().startswith("Pub\x01")
        assert "\x01Here\x01pg\x01Orders\x01" in found[0].body.decode()
