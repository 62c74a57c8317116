"""SendMessage: what is stored, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmqkit.broker.run.running import RunningBroker
from rmqkit.model import properties as props
from rmqkit.model.message import StoredMessage
from rmqkit.model.sysflag import COMPRESSED
from rmqkit.model.topic import TopicConfig
from rmqkit.plugin.store import ReadLimits
from rmqkit.protocol.record import unpack_all
from rmqkit.testing.broker import running_broker
from rmqkit_grpc.fifo_queue import queue_for
from rmqkit_grpc.limits import MAX_MESSAGES_PER_SEND
from tests.plugins.grpc.client import CODES, ENUMS, connected, message, resource, sending

KINDS = ENUMS["MessageType"]


def stored(running: RunningBroker, topic: str) -> list[StoredMessage]:
    """The messages of a topic, by queue."""
    store = running.context.store
    found: list[StoredMessage] = []
    with store.blocking_reads():
        for queue_id in sorted(store.queues().get(topic, ())):
            result = store.read(topic, queue_id, 0, ReadLimits(64, 1 << 22), None)
            found += [each for part in result.slices for each in unpack_all(part)]
    return found


async def test_a_message_is_stored_as_remoting_clients_see_it(tmp_path: Path) -> None:
    """Tag, keys and id are RocketMQ's properties; the answer has the id and the queue offset."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        await running.context.topics.put(
            TopicConfig(topic_name="Orders", read_queue_nums=2, write_queue_nums=2)
        )
        sent = message(
            "Orders", b"body", "01ABC", tag="new", keys=["k1", "k2"], born_timestamp_ms=1_700_000_000_123,
            born_host="client.example", trace_context="00-trace",
        )  # fmt: skip
        sent.user_properties["colour"] = "grün"
        for _ in range(2):
            answer = await client.call("SendMessage", sending(sent))
            assert answer.status.code == CODES["OK"], answer
            (entry,) = answer.entries
            assert (entry.status.code, entry.message_id, entry.transaction_id) == (CODES["OK"], "01ABC", "")
            assert entry.offset == 0
        one, _ = stored(running, "Orders")
        assert (one.body, one.born_timestamp_ms) == (b"body", 1_700_000_000_123)
        kept = {name: value for name, value in one.properties.items() if name not in _ADDED}
        assert kept == {
            "TAGS": "new", "KEYS": "k1 k2", "UNIQ_KEY": "01ABC", "PGROUP": "Orders", "colour": "grün",
            "__BORNHOST": "client.example", "BORN_TIMESTAMP": "1700000000123", "TRACE_CONTEXT": "00-trace",
        }  # fmt: skip


_ADDED = {props.MSG_REGION, props.TRACE_ON, props.CLUSTER}


async def test_messages_of_a_group_stay_in_one_queue(tmp_path: Path) -> None:
    """The queue is that which other servers choose by the same hash; others take turns."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        await running.context.topics.put(
            TopicConfig(topic_name="Ordered", read_queue_nums=8, write_queue_nums=8)
        )
        for group in ("order-1", "order-2"):
            for number in range(3):
                body = f"{group}/{number}".encode()
                sent = message("Ordered", body, message_group=group, message_type=KINDS["FIFO"])
                assert (await client.call("SendMessage", sending(sent))).status.code == CODES["OK"]
        for each in stored(running, "Ordered"):
            group, _, turn = each.body.decode().partition("/")
            assert each.queue_id == queue_for(group, 8)
            assert each.queue_offset == int(turn)
            assert each.properties[props.SHARDING_KEY] == group
        for _ in range(8):
            await client.call("SendMessage", sending(message("Ordered", b"any")))
        any_ = [each.queue_id for each in stored(running, "Ordered") if each.body == b"any"]
        assert sorted(any_) == list(range(8))


async def test_several_messages_of_one_request(tmp_path: Path) -> None:
    """Each has an entry; when results differ, the status says so."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        both = [message("T", b"one", "01A"), message("T", b"two", "01B")]
        answer = await client.call("SendMessage", sending(*both))
        assert answer.status.code == CODES["OK"]
        assert [each.message_id for each in answer.entries] == ["01A", "01B"]
        # A delay level that no message of a client may name as a property is refused by the broker alone.
        both[1].system_properties.delivery_timestamp.seconds = 1 << 40
        answer = await client.call("SendMessage", sending(*both))
        assert answer.status.code == CODES["MULTIPLE_RESULTS"]
        assert answer.entries[0].status.code == CODES["OK"]
        assert answer.entries[1].status.code != CODES["OK"]
        assert [each.body for each in sorted(stored(running, "T"), key=lambda each: each.body)] == [
            b"one", b"one", b"two",
        ]  # fmt: skip


async def test_a_compressed_body_is_kept_as_it_came(tmp_path: Path) -> None:
    """The flag tells consumers."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        sent = message("T", b"\x1f\x8bzip", body_encoding=ENUMS["Encoding"]["GZIP"])
        assert (await client.call("SendMessage", sending(sent))).status.code == CODES["OK"]
        (one,) = stored(running, "T")
        assert one.body == b"\x1f\x8bzip"
        assert one.sys_flag & COMPRESSED


async def test_a_topic_that_takes_one_type(tmp_path: Path) -> None:
    """Messages of others are refused, with the way to change it."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        await running.context.topics.put(
            TopicConfig(topic_name="Ordered", attributes={"message.type": "FIFO"})
        )
        answer = await client.call("SendMessage", sending(message("Ordered")))
        assert answer.status.code == CODES["MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"]
        assert "--type NORMAL" in answer.status.message
        fifo = message("Ordered", message_group="g", message_type=KINDS["FIFO"])
        assert (await client.call("SendMessage", sending(fifo))).status.code == CODES["OK"]


async def test_namespaces(tmp_path: Path) -> None:
    """A message for a topic in a namespace is stored where remoting clients of the namespace read."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        sent = message("Orders")
        sent.topic.CopyFrom(resource("Orders", "shop"))
        assert (await client.call("SendMessage", sending(sent))).status.code == CODES["OK"]
        assert len(stored(running, "shop%Orders")) == 1


def _with_properties(count: int, size: int = 1, name: str = "p") -> Any:
    made = message("T")
    for number in range(count):
        made.user_properties[f"{name}{number}"] = "v" * size
    return made


def _named(name: str, value: str = "v") -> Any:
    made = message("T")
    made.user_properties[name] = value
    return made


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ([], "MESSAGE_CORRUPTED"),
        ([message("T"), message("U")], "MESSAGE_CORRUPTED"),
        ([message("T")] * (MAX_MESSAGES_PER_SEND + 1), "MESSAGE_CORRUPTED"),
        ([message("a b")], "ILLEGAL_TOPIC"),
        ([message("T", b"")], "MESSAGE_BODY_EMPTY"),
        ([message("T", bytes(70_000))], "MESSAGE_BODY_TOO_LARGE"),
        ([message("T", message_id=" ")], "ILLEGAL_MESSAGE_ID"),
        ([message("T", tag="")], "ILLEGAL_MESSAGE_TAG"),
        ([message("T", tag="a|b")], "ILLEGAL_MESSAGE_TAG"),
        ([message("T", tag="a\x7fb")], "ILLEGAL_MESSAGE_TAG"),
        ([message("T", keys=["a", " "])], "ILLEGAL_MESSAGE_KEY"),
        ([message("T", keys=["a\nb"])], "ILLEGAL_MESSAGE_KEY"),
        ([message("T", message_group=" ")], "ILLEGAL_MESSAGE_GROUP"),
        ([message("T", message_group="ä" * 32)], "ILLEGAL_MESSAGE_GROUP"),
        ([_named("TAGS")], "ILLEGAL_MESSAGE_PROPERTY_KEY"),
        ([_named("__SHARDINGKEY")], "ILLEGAL_MESSAGE_PROPERTY_KEY"),
        ([_named("a\x01b")], "ILLEGAL_MESSAGE_PROPERTY_KEY"),
        ([_named("a", "b\x02c")], "ILLEGAL_MESSAGE_PROPERTY_KEY"),
        ([_named("", "c")], "ILLEGAL_MESSAGE_PROPERTY_KEY"),
        ([_with_properties(129)], "MESSAGE_PROPERTIES_TOO_LARGE"),
        ([_with_properties(17, 1_000)], "MESSAGE_PROPERTIES_TOO_LARGE"),
        ([message("T", keys=["k" * 16_385])], "MESSAGE_PROPERTIES_TOO_LARGE"),
    ],
)
async def test_what_is_refused(tmp_path: Path, wrong: list[Any], code: str) -> None:
    """Each with the code that clients know; nothing is stored."""
    async with running_broker(tmp_path, maxMessageSize=65_536) as running, connected(running) as client:
        answer = await client.call("SendMessage", sending(*wrong))
        assert answer.status.code == CODES[code], answer.status
        assert answer.status.message
        assert not stored(running, "T")


async def test_a_broker_that_takes_no_messages(tmp_path: Path) -> None:
    """The refusal of the broker is the status of the send."""
    async with running_broker(tmp_path, brokerPermission=4) as running, connected(running) as client:
        await running.context.topics.put(TopicConfig(topic_name="T", order=True))
        answer = await client.call("SendMessage", sending(message("T")))
        assert answer.status.code == CODES["FORBIDDEN"], answer
        assert [each.status.code for each in answer.entries] == [CODES["FORBIDDEN"]]
