"""Text that is not UTF-8, or holds separators and blanks, on each road that a message takes through a broker:
the bytes that arrived are stored, and stored again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from struct import pack

import pytest
import trio
from anyio.abc import ByteStream

from rmqkit.broker.run.running import RunningBroker
from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.message import StoredMessage
from rmqkit.model.text import text_of
from rmqkit.protocol import batch, frame
from rmqkit.protocol.codes import RequestCode, ResponseCode, SerializeType
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import PushReplyMessageRequestHeader
from rmqkit.protocol.record import unpack
from rmqkit.testing.broker import dialer, running_broker
from rmqkit.testing.clock import FakeClock, SettableClock
from tests.raw_headers import raw_frame, send_fields

LIMIT_S = 60
GROUP = "odd_group"
#: What odd text is made of.
_PIECES = (
    b"\x01", b"\xa4", "编号".encode("gbk"), "编号".encode(), b"\xe7\xbc", b"\xed\xa0\xbd", b"\xf0\x9f\x98",
    b"\xff", b"\x00", b"\t", b" ", b"\n", "\u3000\u00a0".encode(), b'"', b"\\", b"a", b"0", "😀".encode(),
)  # fmt: skip


def odd_properties(random: Random) -> bytes:
    """Properties of an application in which anything may stand but the separators' own places."""
    items = []
    for number in range(random.randint(1, 4)):
        value = b"".join(random.choices(_PIECES, k=random.randint(1, 5)))
        name = b"p%d" % number + random.choice((b"", b"\xa4", b"\xe7\xbc", "中".encode(), b" "))
        items.append(name + b"\x01" + value + b"\x02")
    keys = b" ".join(random.choice((b"k\xa4", b"k\t1", "k\u30002".encode(), b"k3")) for _ in range(2))
    return b"".join(items) + b"KEYS\x01" + keys + b"\x02TAGS\x01" + random.choice(_PIECES) + b"t\x02"


def items_of(properties: bytes) -> set[bytes]:
    return {item for item in properties.split(b"\x02") if item}


class Connection:
    """Frames over one connection, one request at a time."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._decoder = frame.FrameDecoder()

    async def next(self) -> Command:
        found: list[Command] = []
        while not found:
            found = self._decoder.feed(await self._stream.receive())
        return found[0]

    async def write(self, command: Command) -> None:
        await self._stream.send(frame.encode(command))

    async def ask(
        self, codec: SerializeType, code: int, fields: Mapping[str, bytes], body: bytes = b""
    ) -> Command:
        return await self.send(raw_frame(codec, code, fields, body))

    async def send(self, request: bytes) -> Command:
        await self._stream.send(request)
        return await self.next()


@asynccontextmanager
async def connected(running: RunningBroker) -> AsyncIterator[Connection]:
    async with await dialer()(running.address, LIMIT_S * 1000) as stream:
        yield Connection(stream)


def stored(running: RunningBroker, topic: str) -> list[StoredMessage]:
    store = running.context.store
    found = []
    for offset in range(store.max_offset(topic, 0)):
        (unit,) = store.read_units(topic, 0, offset, 1)
        data = store.read_record(unit.physical_offset)
        assert data is not None
        found.append(unpack(data))
    return found


async def arrived(running: RunningBroker, topic: str, count: int) -> list[StoredMessage]:
    """The messages of queue 0, once there are so many."""
    with trio.fail_after(LIMIT_S):
        while running.context.store.max_offset(topic, 0) < count:
            await trio.lowlevel.checkpoint()
    return stored(running, topic)


async def send_back(to: Connection, message: StoredMessage, level: int) -> None:
    fields = {"offset": b"%d" % message.physical_offset, "group": GROUP.encode(), "delayLevel": b"%d" % level}
    got = await to.ask(SerializeType.JSON, RequestCode.CONSUMER_SEND_MSG_BACK, fields)
    assert got.code == ResponseCode.SUCCESS, got.remark


@pytest.fixture
def loop_clock() -> SettableClock:
    """The clock of the loop, by which delays look again: the tests do not wait for it."""
    return SettableClock()


@pytest.mark.parametrize("codec", [SerializeType.JSON, SerializeType.ROCKETMQ])
@pytest.mark.parametrize("seed", range(6))
async def test_each_road_keeps_what_arrived(
    tmp_path: Path, codec: SerializeType, seed: int, loop_clock: SettableClock
) -> None:
    """Sent, in a batch, delayed, sent back, as a retry and as a dead letter: the application's properties are
    stored as they arrived, in a header with U+FFFD for what is not UTF-8, in a batch byte for byte."""
    random, clock, unique = Random(seed), FakeClock(), b"UNIQ_KEY\x01ID\x02"
    own = [odd_properties(random) for _ in range(6)]
    read = [text_of(each).encode() for each in own]
    async with running_broker(tmp_path, clock=clock) as running, connected(running) as connection:
        expected: list[bytes] = []
        for at, more in enumerate((unique, b"", unique + b"DELAY\x011\x02", b"DELAY\x011\x02")):
            fields = send_fields("T", more + own[at])
            got = await connection.ask(codec, RequestCode.SEND_MESSAGE_V2, fields, b"%d" % at)
            assert got.code == ResponseCode.SUCCESS, got.remark
            if not more.endswith(b"DELAY\x011\x02"):
                expected.append(read[at])
        body = batch.encode(batch.BatchItem(0, b"%d" % at, own[at]) for at in (4, 5))
        got = await connection.ask(
            codec, RequestCode.SEND_BATCH_MESSAGE, send_fields("T", b"", m=b"true"), body
        )
        assert got.code == ResponseCode.SUCCESS, got.remark
        expected += own[4:]
        parked = await arrived(running, names.SCHEDULE_TOPIC, 2)
        for message, properties in zip(parked, read[2:4], strict=True):
            assert items_of(properties) <= items_of(message.properties_bytes)
        clock.advance(1_000)
        await loop_clock.advance(1_000)
        expected += read[2:4]
        whole = await arrived(running, "T", 6)
        assert [message.body for message in whole] == [b"0", b"1", b"4", b"5", b"2", b"3"]
        for message, properties in zip(whole, expected, strict=True):
            assert items_of(properties) <= items_of(message.properties_bytes)
            assert message.properties.items() >= props.decode_bytes(properties).items()
        for message in whole:
            await send_back(connection, message, 1)
            await send_back(connection, message, -1)
        clock.advance(1_000)
        await loop_clock.advance(1_000)
        for topic in (names.retry_topic(GROUP), names.dlq_topic(GROUP)):
            for message, properties in zip(await arrived(running, topic, 6), expected, strict=True):
                assert items_of(properties) <= items_of(message.properties_bytes), topic
        for message in await arrived(running, names.retry_topic(GROUP), 6):
            await send_back(connection, message, -1)
        dead = await arrived(running, names.dlq_topic(GROUP), 12)
        for message, properties in zip(dead[6:], expected, strict=True):
            assert items_of(properties) <= items_of(message.properties_bytes)


@pytest.mark.parametrize("codec", [SerializeType.JSON, SerializeType.ROCKETMQ])
@pytest.mark.parametrize("seed", range(3))
async def test_a_reply_keeps_its_text(tmp_path: Path, codec: SerializeType, seed: int) -> None:
    """The requester gets the properties of a reply as they arrived, and the time of the push."""
    properties = odd_properties(Random(seed))
    topic = "DefaultCluster_REPLY_TOPIC"
    async with (
        running_broker(tmp_path) as running,
        connected(running) as requester,
        connected(running) as responder,
        trio.open_nursery() as nursery,
    ):
        beat = b'{"clientID":"c\xa4\\u0001","producerDataSet":[{"groupName":"g"}]}'
        assert (await requester.ask(codec, RequestCode.HEART_BEAT, {}, beat)).code == ResponseCode.SUCCESS
        pushed: list[Command] = []

        async def take() -> None:
            pushed.append(await requester.next())
            await requester.write(answer(pushed[0]))

        nursery.start_soon(take)
        # A client id that is not UTF-8 is found by the same bytes.
        to = b"REPLY_TO_CLIENT\x01c\xa4\x01\x02"
        got = await responder.ask(
            codec, RequestCode.SEND_REPLY_MESSAGE_V2, send_fields(topic, properties + to), b"x"
        )
        assert got.code == ResponseCode.SUCCESS, got.remark
        found = (pushed[0].header(PushReplyMessageRequestHeader).properties or "").encode()
        assert items_of(text_of(properties).encode()) <= items_of(found)
        assert "PUSH_REPLY_TIME" in props.decode_bytes(found)


@pytest.mark.parametrize("where", ["topic", "producerGroup", "properties", "remark"])
@pytest.mark.parametrize("half", ["\\ud83d", "\\ude00", "\\ud83d\\ud83d"])
async def test_half_of_a_surrogate_pair_closes_nothing(tmp_path: Path, where: str, half: str) -> None:
    """JSON that any JavaScript client writes for a text cut within an emoji is answered: stored with `?`, or
    refused where no such text is allowed; the connection stays."""
    fields = {"topic": "T", "producerGroup": "g", "properties": "UNIQ_KEY\\u0001ID\\u0002"}
    if where == "properties":
        fields[where] += f"title\\u0001x {half}y\\u0002"
    elif where != "remark":
        fields[where] = half
    fields |= {"defaultTopic": "TBW102", "defaultTopicQueueNums": "1", "queueId": "0", "sysFlag": "0"}
    fields |= {"bornTimestamp": "1", "flag": "0"}
    members = ",".join(f'"{name}":"{value}"' for name, value in fields.items())
    remark = f'"remark":"{half}",' if where == "remark" else ""
    head = f'{{"code":10,"opaque":1,"language":"OTHER",{remark}"extFields":{{{members}}}}}'.encode()
    async with running_broker(tmp_path) as running, connected(running) as connection:
        for _ in range(2):
            got = await connection.send(pack(">iI", 5 + len(head), len(head)) + head + b"b")
            refused = where == "topic"
            assert got.code == (ResponseCode.INVALID_PARAMETER if refused else ResponseCode.SUCCESS)
        if where == "properties":
            read = f"x {'?' * (len(half) // 6)}y"
            assert [each.properties["title"] for each in stored(running, "T")] == [read, read]
