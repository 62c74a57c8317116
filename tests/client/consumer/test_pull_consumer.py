"""Explicit pulls, offsets, and decoding of stored messages."""

from __future__ import annotations

import re
import sys
import zlib
from types import ModuleType

import anyio
import pytest

from rmqkit.client import (
    BrokerError,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    MessageQueue,
    NoRoute,
    PullStatus,
)
from rmqkit.limits import MAX_INFLATED_BODY_BYTES
from rmqkit.protocol import batch
from rmqkit.protocol import compressed_body as module
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import PullMessageRequestHeader, SearchOffsetRequestHeader
from rmqkit.protocol.headers.offset import OffsetResponseHeader
from tests.client.fake_cluster import cluster
from tests.client.fakes import on_both_backends, run, settled

QUEUE = MessageQueue("T", "broker-a", 0)


@pytest.mark.row("S165", "S196", "S210")
@on_both_backends
def test_a_pull_brings_messages_as_they_were_sent(backend: str) -> None:
    """The request contains the subscription (flag 4); the messages have every field of the record, and the
    result has next offset and bounds."""

    async def body() -> None:
        async with cluster() as (fake, client), client.pull_consumer("cg") as consumer:
            broker = fake.brokers["broker-a"]
            broker.put(
                "T",
                0,
                b"hello",
                {"TAGS": "A", "KEYS": "k1 k2", "UNIQ_KEY": "ID1", "__SHARDINGKEY": "o", "x": "y"},
            )
            broker.put("T", 0, b"again")
            assert await consumer.queues("T") == [QUEUE, MessageQueue("T", "broker-a", 1)]
            result = await consumer.pull(QUEUE, 0)
            header = broker.server.seen(RequestCode.PULL_MESSAGE)[0].header(PullMessageRequestHeader)
            assert (
                header.sys_flag,
                header.subscription,
                header.max_msg_nums,
                header.suspend_timeout_millis,
            ) == (4, "*", 32, 0)
            assert (result.status, result.next_offset, result.min_offset, result.max_offset) == (
                PullStatus.FOUND,
                2,
                0,
                2,
            )
            first, second = result.messages
            assert (first.topic, first.body, first.tag, first.keys, first.ordering_key) == (
                "T",
                b"hello",
                "A",
                ("k1", "k2"),
                "o",
            )
            assert (first.message_id, first.offset_message_id) == ("ID1", "0A00000100002A9F0000000000000000")
            assert (first.queue, first.queue_offset, first.born_host, first.store_host) == (
                QUEUE,
                0,
                "10.1.1.1:4000",
                "10.0.0.1:10911",
            )
            assert first.store_timestamp_ms == 1_700_000_000_000
            assert first.properties["x"] == "y"
            assert [
                (each.properties["MIN_OFFSET"], each.properties["MAX_OFFSET"]) for each in (first, second)
            ] == [("0", "2")] * 2
            assert (second.tag, second.keys, second.message_id) == (None, (), second.offset_message_id)
            with pytest.raises(AttributeError):
                first.body = b""
            assert (await consumer.pull(QUEUE, 2)).status is PullStatus.NO_NEW_MESSAGE

    run(backend, body)


@on_both_backends
def test_a_blocking_pull_waits_for_a_message(backend: str) -> None:
    """Flag 2 and the hold time are sent; the answer arrives with a message, or empty after the hold time."""

    async def body() -> None:
        async with cluster() as (fake, client), client.pull_consumer("cg") as consumer:
            assert (
                await consumer.pull(QUEUE, 0, block=True, suspend_ms=30)
            ).status is PullStatus.NO_NEW_MESSAGE
            async with anyio.create_task_group() as group:

                async def wait() -> None:
                    result = await consumer.pull(QUEUE, 0, block=True)
                    assert [message.body for message in result.messages] == [b"now"]

                group.start_soon(wait)
                await settled()
                fake.brokers["broker-a"].put("T", 0, b"now")
            held = (
                fake.brokers["broker-a"]
                .server.seen(RequestCode.PULL_MESSAGE)[1]
                .header(PullMessageRequestHeader)
            )
            assert (held.sys_flag, held.suspend_timeout_millis) == (6, 20_000)

    run(backend, body)


@pytest.mark.row("S196")
@on_both_backends
def test_tags_are_compared_exactly(backend: str) -> None:
    """`Aa` and `BB` have the same Java hash; the broker returns both, and the client drops the wrong one."""

    async def body() -> None:
        async with cluster() as (fake, client), client.pull_consumer("cg") as consumer:
            for tag in ("Aa", "BB", "C"):
                fake.brokers["broker-a"].put("T", 0, tag.encode(), {"TAGS": tag})
            result = await consumer.pull(QUEUE, 0, expression="Aa || D")
            assert [message.tag for message in result.messages] == ["Aa"]
            assert result.next_offset == 3
            assert (await consumer.pull(QUEUE, 0, expression="D")).status is PullStatus.NO_MATCHED_MESSAGE
            with pytest.raises(ClientError, match="names no tag"):
                await consumer.pull(QUEUE, 0, expression="||")
            await consumer.pull(QUEUE, 0, expression="a > 1", expression_type="SQL92")
            header = (
                fake.brokers["broker-a"]
                .server.seen(RequestCode.PULL_MESSAGE)[-1]
                .header(PullMessageRequestHeader)
            )
            assert (header.expression_type, header.subscription, header.sub_version > 0) == (
                "SQL92",
                "a > 1",
                True,
            )

    run(backend, body)


@on_both_backends
def test_an_offset_out_of_range_is_a_status(backend: str) -> None:
    """The status is OFFSET_ILLEGAL, with the offset to continue at."""

    async def body() -> None:
        async with cluster() as (fake, client), client.pull_consumer("cg") as consumer:
            for _ in range(5):
                fake.brokers["broker-a"].put("T", 0, b"x")
            fake.brokers["broker-a"].min_offsets["T", 0] = 3
            low, high = await consumer.pull(QUEUE, 1), await consumer.pull(QUEUE, 99)
            assert (low.status, low.next_offset, high.status, high.next_offset) == (
                PullStatus.OFFSET_ILLEGAL,
                3,
                PullStatus.OFFSET_ILLEGAL,
                5,
            )

    run(backend, body)


@pytest.mark.row("S165")
@on_both_backends
def test_offsets_of_queue_and_group(backend: str) -> None:
    """Minimum, maximum, offset by time, committed offset (None when there is none) and commit use the right
    requests."""

    async def body() -> None:
        async with cluster() as (fake, client), client.pull_consumer("cg") as consumer:
            broker = fake.brokers["broker-a"]

            def by_time(command: Command) -> Command:
                return answer(
                    command,
                    header=OffsetResponseHeader(
                        offset=command.header(SearchOffsetRequestHeader).timestamp // 10
                    ),
                )

            broker.overrides[RequestCode.SEARCH_OFFSET_BY_TIMESTAMP] = by_time
            broker.put("T", 0, b"x")
            assert (
                await consumer.min_offset(QUEUE),
                await consumer.max_offset(QUEUE),
                await consumer.offset_for_time(QUEUE, 70),
            ) == (0, 1, 7)
            assert await consumer.committed(QUEUE) is None
            await consumer.commit(QUEUE, 1)
            assert await consumer.committed(QUEUE) == 1
            assert broker.offsets == {("cg", "T", 0): 1}
            with pytest.raises(ClientError, match="cannot be committed"):
                await consumer.commit(QUEUE, -1)

    run(backend, body)


@pytest.mark.row("S196")
@on_both_backends
def test_a_slave_is_read_when_the_broker_suggests_it(backend: str) -> None:
    """suggestWhichBrokerId is followed; after a failure the master is used again."""

    async def body() -> None:
        async with (
            cluster("ab", {"T": {"broker-a": 1}}) as (fake, client),
            client.pull_consumer("cg") as consumer,
        ):
            master, slave = fake.brokers["broker-a"], fake.brokers["broker-b"]
            plain = fake.route("T")
            fake.overrides[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda command: answer(
                command,
                body=plain.replace(b'{0:"10.0.0.1:10911"}', b'{0:"10.0.0.1:10911",1:"10.0.0.2:10911"}'),
            )
            pulled = master.pulled
            master.overrides[RequestCode.PULL_MESSAGE] = lambda command: suggest(pulled(command, 19, 0, 0, 0))

            def suggest(response: Command) -> Command:
                response.fields()["suggestWhichBrokerId"] = "1"
                return response

            await consumer.pull(QUEUE, 0)
            await consumer.pull(QUEUE, 0)
            assert [len(broker.server.seen(RequestCode.PULL_MESSAGE)) for broker in (master, slave)] == [1, 1]
            await consumer.pull(QUEUE, 0)
            del fake.network.servers[slave.address]
            await slave.server.hang_up()
            with pytest.raises((ConnectFailed, ConnectionLost)):
                await consumer.pull(QUEUE, 0)
            await consumer.pull(QUEUE, 0)
            assert [len(broker.server.seen(RequestCode.PULL_MESSAGE)) for broker in (master, slave)] == [3, 1]

    run(backend, body)


@on_both_backends
@pytest.mark.parametrize("size", [5000, 10_000_000])
@pytest.mark.parametrize("flags", [0x1, 0x301])
def test_compressed_bodies_are_inflated(backend: str, size: int, flags: int) -> None:
    """Old producers set bit 0 only, new ones the type as well; both mean zlib. Large bodies are decompressed
    in a thread."""

    async def body() -> None:
        async with cluster() as (fake, client), client.pull_consumer("cg") as consumer:
            fake.brokers["broker-a"].put(
                "T", 0, zlib.compress(bytes(size), 0 if size < 6000 else 1), sys_flag=flags
            )
            (message,) = (await consumer.pull(QUEUE, 0)).messages
            assert message.body == bytes(size)
            assert not message.sys_flag & 1

    run(backend, body)


@on_both_backends
@pytest.mark.parametrize(
    ("packed", "flags", "why"),
    [
        (b"no zlib", 0x301, "damaged"),
        (zlib.compress(b"x" * 500)[:10], 0x301, "truncated"),
        (zlib.compress(bytes(2000)), 0x301, "more than 1000 bytes"),
        (b"x", 0x401, "unknown compression type"),
        (b"x", 0x101, r"LZ4: pip install '\.\[compression\]'"),
        (b"x", 0x201, r"Zstandard: pip install '\.\[compression\]'"),
    ],
)
def test_bodies_that_cannot_be_inflated(
    backend: str, packed: bytes, flags: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decompression bombs, damaged bodies and missing packages are faults of their messages; the others of
    the pull are good."""
    monkeypatch.setattr(module, "MAX_INFLATED_BODY_BYTES", 1000)
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    monkeypatch.setitem(sys.modules, "zstandard", None)

    async def body() -> None:
        async with cluster() as (fake, client), client.pull_consumer("cg", bad_records="deliver") as consumer:
            fake.brokers["broker-a"].put("T", 0, b"fine")
            fake.brokers["broker-a"].put("T", 0, packed, sys_flag=flags)
            fake.brokers["broker-a"].put("T", 0, b"fine, too")
            result = await consumer.pull(QUEUE, 0)
            before, bad, after = result.messages
            assert (before.body, after.body, result.next_offset) == (b"fine", b"fine, too", 3)
            assert (bad.body, bad.sys_flag, bad.queue_offset) == (packed, flags, 1)
            assert bad.fault is not None
            assert re.search(why, bad.fault)

    run(backend, body)


def test_packages_for_other_compressions_are_used_when_present(monkeypatch: pytest.MonkeyPatch) -> None:
    """LZ4 frames are decompressed by `lz4.frame`, with the size limit."""

    class Decompressor:
        eof = True

        def decompress(self, data: bytes, limit: int) -> bytes:
            assert limit == MAX_INFLATED_BODY_BYTES + 1
            return data[::-1]

    fake = ModuleType("lz4.frame")
    fake.LZ4FrameDecompressor = Decompressor  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lz4", ModuleType("lz4"))
    monkeypatch.setitem(sys.modules, "lz4.frame", fake)
    assert module.inflate(b"olleh", 0x101) == b"hello"


@on_both_backends
def test_a_batch_stored_as_one_record_is_unfolded(backend: str) -> None:
    """Message i of the batch has the record's offset + i (wire-protocol sheet, 5.6)."""

    async def body() -> None:
        async with cluster() as (fake, client), client.pull_consumer("cg") as consumer:
            items = [batch.BatchItem(7, b"one", b"TAGS\x01A\x02"), batch.BatchItem(8, b"two", b"")]
            fake.brokers["broker-a"].put("T", 0, batch.encode(items), {"INNER_NUM": "2"}, sys_flag=0xC0)
            one, two = (await consumer.pull(QUEUE, 0)).messages
            assert [(each.body, each.queue_offset, each.tag, each.flag) for each in (one, two)] == [
                (b"one", 0, "A", 7),
                (b"two", 1, None, 8),
            ]

    run(backend, body)


@on_both_backends
def test_refusals_and_misuse(backend: str) -> None:
    """Errors name the operation; wrong arguments are refused before anything is sent."""

    async def body() -> None:
        async with cluster() as (fake, client), client.pull_consumer("cg") as consumer:
            fake.brokers["broker-a"].overrides[RequestCode.PULL_MESSAGE] = lambda command: answer(
                command, 26, "subscription group [cg] does not exist"
            )
            with pytest.raises(
                BrokerError,
                match=(
                    r"pulling from T@broker-a:0: .*SUBSCRIPTION_GROUP_NOT_EXIST"
                    r" \(26\).*autoCreateSubscriptionGroup"
                ),
            ):
                await consumer.pull(QUEUE, 0)
            fake.brokers["broker-a"].overrides[RequestCode.PULL_MESSAGE] = lambda command: answer(command, 0)
            with pytest.raises(ClientError, match="cannot be read"):
                await consumer.pull(QUEUE, 0)
            with pytest.raises(ClientError, match="max_messages"):
                await consumer.pull(QUEUE, 0, max_messages=0)
            with pytest.raises(ClientError, match="too late"):
                await consumer.pull(QUEUE, 0, block=True, timeout_ms=100)
            with pytest.raises(ClientError, match="positive"):
                await consumer.pull(QUEUE, 0, block=True, suspend_ms=0)
            with pytest.raises(NoRoute, match="rmqkit topic create Missing"):
                await consumer.queues("Missing")
            with pytest.raises(ClientError, match="no address of broker 'gone'"):
                await consumer.pull(MessageQueue("T", "gone", 0), 0)
        with pytest.raises(ClientError, match="not open"):
            await consumer.queues("T")

    run(backend, body)


@on_both_backends
def test_a_topic_that_this_client_creates_by_sending_can_be_read_at_once(backend: str) -> None:
    """The reader retries for a while, because the broker registers the topic with a delay. A topic to which
    nothing was sent is missing at once."""

    async def body() -> None:
        async with (
            cluster(topics={"TBW102": {"broker-a": 1}}) as (fake, client),
            client.pull_consumer("cg") as consumer,
        ):
            async with client.producer("pg") as producer:
                await producer.send("New", b"x")
            plain, asked = fake.handle, len(fake.namesrv.requests)

            def later(command: Command) -> Command:
                if len(fake.namesrv.requests) == asked + 3:
                    fake.topics["New"] = {"broker-a": 1}
                del fake.overrides[RequestCode.GET_ROUTEINFO_BY_TOPIC]
                try:
                    response: Command = plain(command)
                finally:
                    fake.overrides[RequestCode.GET_ROUTEINFO_BY_TOPIC] = later
                return response

            fake.overrides[RequestCode.GET_ROUTEINFO_BY_TOPIC] = later
            (queue,) = await consumer.queues("New")
            assert [message.body for message in (await consumer.pull(queue, 0)).messages] == [b"x"]
            assert len(fake.namesrv.requests) == asked + 3
            with pytest.raises(NoRoute):
                await consumer.queues("Other")
            assert len(fake.namesrv.requests) == asked + 4

    run(backend, body)


def test_a_topic_that_never_comes_up_is_missing_after_a_while() -> None:
    """The error is raised after two seconds and contains a remedy."""

    async def body() -> None:
        async with (
            cluster(topics={"TBW102": {"broker-a": 1}}) as (_fake, client),
            client.pull_consumer("cg") as consumer,
        ):
            async with client.producer("pg") as producer:
                await producer.queues("New")
            began_s = anyio.current_time()
            with pytest.raises(NoRoute, match="rmqkit topic create New"):
                await consumer.queues("New")
            assert anyio.current_time() - began_s == pytest.approx(2.0)

    run("trio", body)
