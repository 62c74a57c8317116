"""The types of topics: enforced when the setting says so, with RocketMQ's code and text."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rmqkit.model import properties as props
from rmqkit.model.topic import TopicConfig
from rmqkit.protocol import batch
from rmqkit.protocol.batch import BatchItem
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import RecallMessageRequestHeader, SendMessageRequestHeaderV2
from rmqkit.testing.broker import running_broker
from rmqkit.testing.calls import calling_broker
from tests.broker.desk import BrokerHarness, open_desk

#: A message of each type, by its properties. Nothing here keeps transactions, so that one is not stored.
MESSAGES = {
    "NORMAL": {"TAGS": "a"},
    "FIFO": {"__SHARDINGKEY": "k"},
    "DELAY": {"DELAY": "1"},
    "TRANSACTION": {"TRAN_MSG": "true"},
}
NOT_ITS_TYPE = int(ResponseCode.MESSAGE_ILLEGAL)


async def declared(desk: BrokerHarness, kind: str, topic: str = "Typed") -> None:
    """Let a topic declare a type."""
    attributes = {"message.type": kind} if kind else {}
    await desk.broker.topics.put(TopicConfig(topic_name=topic, write_queue_nums=4, attributes=attributes))


async def sent_together(desk: BrokerHarness, body: bytes) -> Command:
    """The answer to a batch."""
    header = SendMessageRequestHeaderV2(producer_group="p", topic="Typed", queue_id=0, batch=True)
    return await desk.ask(RequestCode.SEND_BATCH_MESSAGE, header, body)


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[BrokerHarness]:
    async with open_desk(tmp_path, enableTopicMessageTypeCheck=True) as found:
        yield found


@pytest.mark.parametrize("kind", [*MESSAGES, "MIXED", "UNSPECIFIED", ""])
async def test_a_topic_takes_messages_of_its_type(desk: BrokerHarness, kind: str) -> None:
    """Messages of another type are refused with Java's text and are not stored; a topic that is MIXED, or
    declares no type, takes them all."""
    await declared(desk, kind)
    for sent, properties in MESSAGES.items():
        answer = await desk.send("Typed", properties=properties | {"UNIQ_KEY": sent})
        if kind in MESSAGES and sent != kind:
            assert answer.code == NOT_ITS_TYPE
            assert (answer.remark or "").startswith(
                f"TopicMessageType validate failed, the expected type is {kind}, but actual type is {sent}: "
            )
        else:
            assert "TopicMessageType" not in (answer.remark or "")
    taken = [message.properties["UNIQ_KEY"] for message in desk.stored("Typed")]
    assert taken == [name for name in ("NORMAL", "FIFO") if kind not in MESSAGES or name == kind]


async def test_a_change_of_the_type_counts_at_once(desk: BrokerHarness) -> None:
    """The next message is checked against the new type."""
    await declared(desk, "NORMAL")
    assert (await desk.send("Typed")).code == 0
    await declared(desk, "FIFO")
    assert (await desk.send("Typed")).code == NOT_ITS_TYPE
    await declared(desk, "")
    assert (await desk.send("Typed")).code == 0


async def test_a_batch_is_of_the_type_of_its_messages(desk: BrokerHarness) -> None:
    """One message of another type refuses its batch, wherever it stands; the properties of the request alone
    do not count."""
    await declared(desk, "FIFO")
    fifo = BatchItem(0, b"x", props.encode(MESSAGES["FIFO"]).encode())
    normal = BatchItem(0, b"x", b"")

    async def code(*items: BatchItem) -> int:
        return (await sent_together(desk, batch.encode(items))).code

    assert await code(fifo, fifo) == 0
    for items in ((normal,), (fifo, normal), (normal, fifo)):
        assert await code(*items) == NOT_ITS_TYPE
    assert len(desk.stored("Typed")) == 2


async def test_a_batch_that_cannot_be_read_has_the_answer_of_the_broker(desk: BrokerHarness) -> None:
    """The check does not look further than a batch can be read."""
    await declared(desk, "NORMAL")
    items = batch.encode([BatchItem(0, b"x", b""), BatchItem(0, b"y", b"")])
    answer = await sent_together(desk, items[:-1])
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "the batch cannot be read" in (answer.remark or "")


async def test_what_is_not_checked(desk: BrokerHarness) -> None:
    """Retries and dead letters, which were checked when they were first sent; what a proxy passes on; topics
    that do not exist yet."""
    await declared(desk, "FIFO", "%RETRY%g")
    await declared(desk, "FIFO", "%DLQ%g")
    await declared(desk, "FIFO")
    assert (await desk.send("%RETRY%g")).code == 0
    assert (await desk.send("%DLQ%g")).code == 0
    assert (await desk.send("Typed", properties={"TRANSFER_FLAG": "1"})).code == 0
    assert (await desk.send("Unknown")).code == 0


@pytest.mark.parametrize("kind", ["NORMAL", "FIFO", "TRANSACTION", "DELAY", ""])
async def test_recalls_are_of_delayed_messages(tmp_path: Path, kind: str) -> None:
    """A recall from a topic that cannot have delayed messages is refused like one of them."""
    async with (
        running_broker(tmp_path, scheme="memory", enableTopicMessageTypeCheck=True) as broker,
        calling_broker(broker) as call,
    ):
        attributes = {"message.type": kind} if kind else {}
        await broker.context.topics.put(TopicConfig(topic_name="Typed", attributes=attributes))
        header = RecallMessageRequestHeader(topic="Typed", recall_handle="x")
        answer = await call(request(RequestCode.RECALL_MESSAGE, header))
    refused = "but actual type is DELAY" in (answer.remark or "")
    assert refused is (kind in ("NORMAL", "FIFO", "TRANSACTION"))
    assert (answer.code == NOT_ITS_TYPE) is refused


async def test_nothing_is_checked_unless_the_setting_says_so(tmp_path: Path) -> None:
    """As in Apache's broker, the type of a topic is only kept."""
    async with open_desk(tmp_path) as desk:
        await declared(desk, "FIFO")
        assert (await desk.send("Typed")).code == 0
        assert not desk.broker.registry.send_message_hooks.entries
        names = [entry.plugin for entry in desk.broker.registry.rpc_hooks.entries]
        assert "message-type" not in names
