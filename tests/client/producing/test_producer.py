"""The producer: requests on the wire, choice of queue and broker, results and errors."""

from __future__ import annotations

import random
import zlib
from typing import Any

import anyio
import pytest

from rmqkit.client import (
    BrokerError,
    ClientError,
    ConnectFailed,
    Message,
    MessageIllegal,
    MessageQueue,
    NoMaster,
    NoRoute,
    RequestTimeout,
    SendFailed,
    SendStatus,
)
from rmqkit.model import properties as props
from rmqkit.protocol import record
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import SendMessageRequestHeaderV2, SendMessageResponseHeader
from rmqkit.protocol.tags import java_hash
from tests.client.fake_cluster import FakeBroker, cluster
from tests.client.fakes import on_both_backends, run, settled

SEND = RequestCode.SEND_MESSAGE_V2


def sent(broker: FakeBroker) -> list[SendMessageRequestHeaderV2]:
    return [command.header(SendMessageRequestHeaderV2) for command in broker.server.seen(SEND)]


def refusing(code: int, remark: str = "no") -> Any:
    return lambda command: answer(command, code, remark)


@on_both_backends
def test_a_send_carries_everything_and_says_where_it_landed(backend: str) -> None:
    """SEND_MESSAGE_V2 contains properties, UNIQ_KEY and WAIT; the result contains both ids, queue and
    offset."""

    async def body() -> None:
        async with (
            cluster(now_ms=lambda: 1_700_000_000_123) as (fake, client),
            client.producer("pg") as producer,
        ):
            result = await producer.send(
                "T", b"hello", tag="A", keys=["k1", "k2"], properties={"colour": "red"}, ordering_key="o"
            )
            broker = fake.brokers["broker-a"]
            (header,) = sent(broker)
            properties = props.decode(header.properties or "")
            assert properties.pop(props.UNIQ_KEY) == result.message_id
            assert properties == {
                "TAGS": "A",
                "KEYS": "k1 k2",
                "colour": "red",
                "__SHARDINGKEY": "o",
                "WAIT": "true",
            }
            assert (
                header.producer_group,
                header.topic,
                header.default_topic,
                header.default_topic_queue_nums,
            ) == ("pg", "T", "TBW102", 4)
            assert (header.born_timestamp, header.batch, header.bname) == (
                1_700_000_000_123,
                False,
                "broker-a",
            )
            assert result.status is SendStatus.SEND_OK
            assert result.queue == MessageQueue("T", "broker-a", header.queue_id)
            assert result.offset_message_id == "0A00000100002A9F0000000000000000"
            assert len(result.message_id) == 32
            assert result.queue_offset == 0

    run(backend, body)


@pytest.mark.row("S129", "S133")
@on_both_backends
def test_many_sends_at_a_time_use_one_connection_and_all_queues(backend: str) -> None:
    """Round robin starts at a random queue and gives equal shares, with one route request and one connection
    per server."""

    async def body() -> None:
        async with cluster("ab") as (fake, client), client.producer("pg") as producer:
            async with anyio.create_task_group() as group:
                for number in range(100):
                    group.start_soon(producer.send, "T", b"%d" % number)
            assert {
                key: len(queue) for broker in fake.brokers.values() for key, queue in broker.log.items()
            } == {("T", 0): 25, ("T", 1): 25}
            assert len(fake.network.connects) == 3
            assert len(fake.namesrv.seen(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == 1

    run(backend, body)


@pytest.mark.row("S134", "S359")
@on_both_backends
@pytest.mark.parametrize("code", [1, 2, 14, 16, 17, 204, 205, 1500])
def test_a_broker_that_refuses_is_avoided(backend: str, code: int) -> None:
    """After the retryable codes the producer uses another broker (behaviour sheet, A7)."""

    async def body() -> None:
        async with cluster("ab") as (fake, client), client.producer("pg") as producer:
            fake.brokers["broker-a"].overrides[SEND] = refusing(code)
            for _ in range(4):
                result = await producer.send("T", b"x")
                assert result.queue.broker_name == "broker-b"

    run(backend, body)


@pytest.mark.row("S360")
@on_both_backends
def test_other_refusals_are_raised_at_once(backend: str) -> None:
    """An illegal message is not retried; the error contains broker, code and remark."""

    async def body() -> None:
        async with cluster("ab") as (fake, client), client.producer("pg") as producer:
            for broker in fake.brokers.values():
                broker.overrides[SEND] = refusing(ResponseCode.MESSAGE_ILLEGAL, "the properties are odd")
            with pytest.raises(
                BrokerError, match=r"MESSAGE_ILLEGAL \(13\): the properties are odd \(change the message"
            ) as caught:
                await producer.send("T", b"x")
            assert caught.value.code == 13
            assert caught.value.address in str(caught.value)
            assert sum(len(sent(broker)) for broker in fake.brokers.values()) == 1

    run(backend, body)


@pytest.mark.row("S135", "S352", "S362")
@on_both_backends
def test_when_all_attempts_fail_the_error_lists_them(backend: str) -> None:
    """After 1 + 2 attempts, SendFailed has the last code and its cause."""

    async def body() -> None:
        async with cluster("ab") as (fake, client), client.producer("pg") as producer:
            for broker in fake.brokers.values():
                broker.overrides[SEND] = refusing(ResponseCode.SERVICE_NOT_AVAILABLE, "disk full")
            with pytest.raises(SendFailed, match=r"attempt 1: .*attempt 3: .*disk full") as caught:
                await producer.send("T", b"x")
            assert caught.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert isinstance(caught.value.__cause__, BrokerError)
            assert sorted(len(sent(broker)) for broker in fake.brokers.values()) == [1, 2]

    run(backend, body)


@pytest.mark.row("S358")
@on_both_backends
def test_a_broker_that_is_down_is_avoided_and_the_routes_are_asked_anew(backend: str) -> None:
    """The other broker gets the message at once."""

    async def body() -> None:
        async with cluster("ab") as (fake, client), client.producer("pg") as producer:
            fake.topics["T"] = {"broker-a": 1, "broker-b": 1}
            await producer.queues("T")
            del fake.network.servers[fake.brokers["broker-a"].address]
            for _ in range(3):
                assert (await producer.send("T", b"x")).queue.broker_name == "broker-b"
            await settled()
            assert len(fake.namesrv.seen(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == 2
            del fake.network.servers[fake.brokers["broker-b"].address]
            await fake.brokers["broker-b"].server.hang_up()
            with pytest.raises(SendFailed, match="cannot connect to") as caught:
                await producer.send("T", b"x", timeout_ms=30)
            assert isinstance(caught.value.__cause__, ConnectFailed)

    run(backend, body)


@pytest.mark.row("S355")
@on_both_backends
def test_the_time_budget_covers_all_attempts(backend: str) -> None:
    """An unresponsive broker uses up the whole time limit, and there is no attempt after that."""

    async def body() -> None:
        async with cluster("ab") as (fake, client), client.producer("pg") as producer:
            for broker in fake.brokers.values():
                broker.overrides[SEND] = lambda command: None
            with pytest.raises(
                SendFailed, match=r"within \d+ ms.*the 50 ms for the send are used up"
            ) as caught:
                await producer.send("T", b"x", timeout_ms=50)
            assert isinstance(caught.value.__cause__, RequestTimeout)
            assert sum(len(sent(broker)) for broker in fake.brokers.values()) == 1

    run(backend, body)


@pytest.mark.row("S357")
@on_both_backends
@pytest.mark.parametrize(
    ("code", "status"),
    [
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
def test_stored_but_warned_is_a_result(backend: str, code: int, status: SendStatus) -> None:
    """Codes 10, 11 and 12 are successful sends. Only on request another broker is tried, and the first result
    is kept if that fails."""

    async def body() -> None:
        async with cluster("ab") as (fake, client):

            def warned(command: Command) -> Command:
                return answer(
                    command, code, header=SendMessageResponseHeader(msg_id="0A", queue_id=1, queue_offset=5)
                )

            fake.brokers["broker-a"].overrides[SEND] = warned
            fake.brokers["broker-b"].overrides[SEND] = warned
            async with client.producer("pg") as producer:
                result = await producer.send("T", b"x")
                assert (result.status, result.queue_offset, result.is_ok) == (status, 5, False)
                assert sum(len(sent(broker)) for broker in fake.brokers.values()) == 1
            async with client.producer("pg2", retry_when_not_stored_everywhere=True) as producer:
                assert (await producer.send("T", b"x")).status is status
                assert sum(len(sent(broker)) for broker in fake.brokers.values()) == 4

    run(backend, body)


@pytest.mark.row("S139")
@on_both_backends
def test_an_ordering_key_fixes_the_queue_and_makes_one_attempt(backend: str) -> None:
    """The queue is |Java hash| modulo the queues in broker-name order; no other broker is tried, because that
    would break the order."""

    async def body() -> None:
        async with (
            cluster("ba", {"T": {"broker-b": 3, "broker-a": 2}}) as (fake, client),
            client.producer("pg") as producer,
        ):
            queues = await producer.queues("T")
            assert [str(queue) for queue in queues] == [
                "T@broker-a:0",
                "T@broker-a:1",
                "T@broker-b:0",
                "T@broker-b:1",
                "T@broker-b:2",
            ]
            for key in ("order-1", "order-1", "Bestellung-ü", "polygenelubricants"):
                assert (await producer.send("T", b"x", ordering_key=key)).queue == queues[
                    abs(java_hash(key)) % 5
                ]
            for broker in fake.brokers.values():
                broker.overrides[SEND] = refusing(2)
            with pytest.raises(SendFailed):
                await producer.send("T", b"x", ordering_key="order-1")
            assert sum(len(sent(broker)) for broker in fake.brokers.values()) == 5

    run(backend, body)


@on_both_backends
def test_an_unknown_topic_borrows_the_route_of_the_template(backend: str) -> None:
    """The route of TBW102 is used with at most 4 queues, until the real route exists (behaviour sheet,
    A5)."""

    async def body() -> None:
        template = {"TBW102": {"broker-a": 8}}
        async with (
            cluster("a", template, poll_name_server_interval_ms=20) as (fake, client),
            client.producer("pg") as producer,
        ):
            await producer.send("New", b"x")
            assert len(await producer.queues("New")) == 4
            fake.topics["New"] = {"broker-a": 2}
            await fake.namesrv.await_requests(len(fake.namesrv.requests) + 2)
            await settled()
            assert len(await producer.queues("New")) == 2

    run(backend, body)


@on_both_backends
def test_no_route_says_what_to_do(backend: str) -> None:
    """The error contains a remedy when the topic is missing without a template, or has no writable queue."""

    async def body() -> None:
        async with (
            cluster("a", {"ReadOnly": {"broker-a": 2}}) as (fake, client),
            client.producer("pg") as producer,
        ):
            with pytest.raises(NoRoute, match=r"autoCreateTopicEnable is off.*rmqkit topic route Missing"):
                await producer.send("Missing", b"x")
            fake.perms["broker-a"] = 4
            with pytest.raises(NoRoute, match="none of its queues accepts messages"):
                await producer.send("ReadOnly", b"x")

    run(backend, body)


@on_both_backends
def test_a_send_waits_for_the_master_that_is_being_elected(backend: str) -> None:
    """Its brokers have a slave only: the name server is asked again until there is a master, or the time of
    the send is over."""

    async def body() -> None:
        async with cluster() as (fake, client), client.producer("pg") as producer:
            fake.without_master.add("broker-a")

            def elect(command: Command) -> Command:
                if len(fake.namesrv.seen(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == 3:
                    fake.without_master.clear()
                return answer(command, body=fake.route("T"))

            fake.overrides[RequestCode.GET_ROUTEINFO_BY_TOPIC] = elect
            result = await producer.send("T", b"x")
            assert result.status is SendStatus.SEND_OK

    run(backend, body)


@on_both_backends
def test_a_group_without_a_master_ends_a_send_in_time(backend: str) -> None:
    """The error names what is missing; a send that is not repeated fails at once."""

    async def body() -> None:
        async with cluster() as (fake, client), client.producer("pg") as producer:
            fake.without_master.add("broker-a")
            with pytest.raises(
                SendFailed, match=r"its brokers have no master.*100 ms for the send"
            ) as caught:
                await producer.send("T", b"x", timeout_ms=100)
            assert isinstance(caught.value.__cause__, NoMaster)
            async with client.producer("once", retries=0) as hasty:
                with pytest.raises(SendFailed, match="its brokers have no master"):
                    await hasty.send("T", b"x")

    run(backend, body)


@on_both_backends
def test_an_order_configuration_names_the_queues(backend: str) -> None:
    """orderTopicConf replaces the queue list for publishing, in its own order."""

    async def body() -> None:
        async with cluster("ab") as (fake, client), client.producer("pg") as producer:
            fake.order["T"] = "broker-b:2;broker-a:1"
            assert [str(queue) for queue in await producer.queues("T")] == [
                "T@broker-b:0",
                "T@broker-b:1",
                "T@broker-a:0",
            ]

    run(backend, body)


@on_both_backends
@pytest.mark.parametrize("size", [4096, 200_000])
def test_large_bodies_are_compressed(backend: str, size: int) -> None:
    """Bodies from 4096 bytes on are compressed with zlib and flag bits 0x301, also in the worker thread; a
    body that does not shrink is sent unchanged."""

    async def body() -> None:
        async with cluster() as (fake, client), client.producer("pg") as producer:
            await producer.send("T", b"x" * (4095))
            await producer.send("T", b"x" * size)
            noise = random.Random(1).randbytes(5000)
            await producer.send("T", noise)
            plain, packed, noisy = fake.brokers["broker-a"].server.seen(SEND)
            assert (plain.header(SendMessageRequestHeaderV2).sys_flag, len(plain.body)) == (0, 4095)
            assert packed.header(SendMessageRequestHeaderV2).sys_flag == 0x301
            assert zlib.decompress(packed.body) == b"x" * size
            assert (noisy.header(SendMessageRequestHeaderV2).sys_flag, noisy.body) == (0, noise)

    run(backend, body)


@on_both_backends
@pytest.mark.parametrize(("name", "flags"), [("zlib", 0x301), ("lz4", 0x101), ("zstd", 0x201)])
@pytest.mark.parametrize("size", [5000, 200_000])
def test_each_compression_reaches_the_consumer_as_plain_body(
    backend: str, name: str, flags: int, size: int
) -> None:
    """The broker stores the compressed body with the bits of its type; sender and consumer see the plain one.
    A batch is sent as it is."""

    async def body() -> None:
        async with (
            cluster() as (fake, client),
            client.producer("pg", compression=name) as producer,
            client.pull_consumer("cg") as consumer,
        ):
            message = Message("T", b"x" * size)
            result = await producer.send(message, queue=MessageQueue("T", "broker-a", 0))
            (command,) = fake.brokers["broker-a"].server.seen(SEND)
            assert command.header(SendMessageRequestHeaderV2).sys_flag == flags
            assert len(command.body) < size / 4
            assert message.body == b"x" * size
            (received,) = (await consumer.pull(result.queue, 0)).messages
            assert (received.body, received.message_id) == (message.body, result.message_id)
            await producer.send_batch([message])
            (command,) = fake.brokers["broker-a"].server.seen(RequestCode.SEND_BATCH_MESSAGE)
            assert command.header(SendMessageRequestHeaderV2).sys_flag == 0
            assert message.body in bytes(command.body)

    run(backend, body)


@on_both_backends
def test_a_batch_is_one_request(backend: str) -> None:
    """A batch has code 320 with m=true; the result has the ids joined by commas and the first offset
    (wire-protocol sheet, 5.6)."""

    async def body() -> None:
        async with cluster() as (fake, client), client.producer("pg") as producer:
            messages = [Message(topic="T", body=b"%d" % number, tag="A", flag=number) for number in range(3)]
            result = await producer.send_batch(messages)
            broker = fake.brokers["broker-a"]
            (command,) = broker.server.seen(RequestCode.SEND_BATCH_MESSAGE)
            header = command.header(SendMessageRequestHeaderV2)
            assert (header.batch, props.decode(header.properties or "")) == (True, {"WAIT": "true"})
            stored = [record.unpack(each) for each in broker.log["T", result.queue.queue_id]]
            assert [message.body for message in stored] == [b"0", b"1", b"2"]
            assert ",".join(message.properties[props.UNIQ_KEY] for message in stored) == result.message_id
            assert len(result.offset_message_id.split(",")) == 3
            assert result.queue_offset == 0

    run(backend, body)


def test_batches_that_cannot_be() -> None:
    """A batch needs one topic, one WAIT, one ordering key, no delay, no retry topic and a bounded size;
    otherwise nothing is sent."""

    async def body() -> None:
        one = Message(topic="T", body=b"x")
        bad: list[tuple[list[Message], str]] = [
            ([], "at least one"),
            ([one, Message(topic="U", body=b"x")], "one topic"),
            ([one, Message(topic="T", body=b"x", wait_store=False)], "wait_store"),
            ([one, Message(topic="T", body=b"x", ordering_key="k")], "ordering key"),
            ([one, Message(topic="T", body=b"x", delay_level=3)], "delayed"),
            ([Message(topic="T", body=b"x", properties={"TIMER_DELIVER_MS": "1"})], "delayed"),
            ([Message(topic="%RETRY%g", body=b"x")], "retry"),
            ([Message(topic="T", body=b"x" * 3_000_000)] * 2, "several smaller"),
        ]
        async with cluster() as (fake, client), client.producer("pg") as producer:
            for messages, why in bad:
                with pytest.raises((ClientError, MessageIllegal), match=why):
                    await producer.send_batch(messages)
            assert fake.brokers["broker-a"].log == {}

    run("trio", body)


@pytest.mark.row("S351")
@pytest.mark.parametrize(
    ("message", "why"),
    [
        (Message(topic="", body=b"x"), "blank"),
        (Message(topic="a/b", body=b"x"), "characters besides"),
        (Message(topic="T" * 128, body=b"x"), "at most 127"),
        (Message(topic="SCHEDULE_TOPIC_XXXX", body=b"x"), "reserved for the broker"),
        (Message(topic="T", body=b""), "empty"),
        (Message(topic="T", body=bytes(4 * 1024 * 1024 + 1)), "at most 4194304"),
        (Message(topic="T", body=b"x", tag=" "), "blank"),
        (Message(topic="T", body=b"x", tag="a||b"), r"\|\|"),
        (Message(topic="T", body=b"x", keys="two words"), "contains a space"),
        (Message(topic="T", body=b"x", delay_level=19), "delay level 19"),
        (Message(topic="T", body=b"x", priority=-1), "priority -1 is not 0 or more"),
        (Message(topic="T", body=b"x", properties={"a": "b\x02c"}), "separator"),
        (Message(topic="T", body=b"x", properties={"a": "ü" * 20_000}), "at most 32767"),
    ],
)
def test_messages_that_cannot_be(message: Message, why: str) -> None:
    """Messages are checked before anything is sent, and the error names the remedy (behaviour sheet, A9)."""

    async def body() -> None:
        async with cluster() as (fake, client), client.producer("pg") as producer:
            with pytest.raises((ClientError, MessageIllegal), match=why):
                await producer.send(message)
            assert fake.namesrv.requests == []

    run("trio", body)


@on_both_backends
def test_oneway_is_handed_over(backend: str) -> None:
    """A one-way send has the flag and awaits no answer; closing the client sends it first."""

    async def body() -> None:
        async with cluster() as (fake, client):
            async with client.producer("pg") as producer:
                message_id = await producer.send_oneway("T", b"x")
                assert len(message_id) == 32
            await settled()
            (command,) = fake.brokers["broker-a"].server.seen(SEND)
            assert command.is_oneway

    run(backend, body)


@pytest.mark.row("S351")
@on_both_backends
def test_misuse_is_explained(backend: str) -> None:
    """A closed producer, a used group, an illegal group, mixed arguments and a queue of another topic each
    raise an explanatory error."""

    async def body() -> None:
        async with cluster() as (_fake, client):
            closed = client.producer("pg")
            with pytest.raises(ClientError, match="not open"):
                await closed.send("T", b"x")
            async with client.producer("pg") as producer:
                with pytest.raises(ClientError, match="already"):
                    await client.producer("pg").__aenter__()
                with pytest.raises(ClientError, match="has its own"):
                    await producer.send(Message(topic="T", body=b"x"), tag="A")
                with pytest.raises(ClientError, match="topic and a body"):
                    await producer.send("T")
                with pytest.raises(ClientError, match="the queue belongs to"):
                    await producer.send("T", b"x", queue=MessageQueue("U", "broker-a", 0))
                fixed = MessageQueue("T", "broker-a", 1)
                assert (await producer.send("T", b"x", queue=fixed)).queue == fixed
            async with client.producer("pg"):
                pass
            for group in ("", "a b", "x" * 121, "DEFAULT_PRODUCER"):
                with pytest.raises(ClientError):
                    client.producer(group)
            with pytest.raises(TypeError):
                client.producer("pg", retires=1)

    run(backend, body)
