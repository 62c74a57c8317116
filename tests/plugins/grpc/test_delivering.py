"""Stored messages as clients get them."""

from __future__ import annotations

import gzip
import zlib
from hashlib import md5
from typing import Any

import msgspec
import pytest

from rmqkit.model.message import StoredMessage
from rmqkit.model.sysflag import COMPRESSED
from rmqkit.protocol.message_id import offset_message_id, pack_host
from rmqkit_grpc.delivering import Delivery, set_time
from rmqkit_grpc.limits import MAX_INFLATED_BYTES
from rmqkit_grpc.messages import V2
from tests.plugins.grpc.client import ENUMS, resource

HOST = pack_host("10.0.0.1", 4_711)
STORED = StoredMessage(
    topic="Orders",
    queue_id=3,
    queue_offset=17,
    physical_offset=4_096,
    body=b"body",
    properties={},
    properties_bytes=b"",
    flag=0,
    sys_flag=0,
    born_timestamp_ms=1_700_000_000_123,
    born_host=HOST,
    store_timestamp_ms=1_700_000_000_456,
    store_host=HOST,
    reconsume_times=2,
    prepared_offset=0,
    body_crc=0,
    size_bytes=100,
)


def delivered(**changes: Any) -> Any:
    return Delivery(resource("Orders", "shop")).message(msgspec.structs.replace(STORED, **changes))


def test_places_and_times() -> None:
    """Where and when a message was born and stored, and how often it was delivered."""
    message = delivered()
    system = message.system_properties
    assert (message.topic.name, message.topic.resource_namespace) == ("Orders", "shop")
    assert (message.body, system.queue_id, system.queue_offset) == (b"body", 3, 17)
    assert (system.born_timestamp.seconds, system.born_timestamp.nanos) == (1_700_000_000, 123_000_000)
    assert (system.store_timestamp.seconds, system.store_timestamp.nanos) == (1_700_000_000, 456_000_000)
    assert (system.born_host, system.store_host) == ("10.0.0.1:4711", "10.0.0.1:4711")
    assert system.delivery_attempt == 3
    assert system.message_id == offset_message_id(HOST, 4_096)
    assert system.message_type == ENUMS["MessageType"]["NORMAL"]
    for name in ("tag", "message_group", "delivery_timestamp", "dead_letter_queue", "priority", "lite_topic"):
        assert not system.HasField(name)


def test_properties() -> None:
    """Fields have what the sender has said by them; only the application's own properties are properties."""
    properties = {
        "TAGS": "new", "KEYS": "k1 k2", "UNIQ_KEY": "01AB", "__SHARDINGKEY": "g", "TRACE_CONTEXT": "t",
        "TIMER_DELIVER_MS": "1700000000123", "_SYS_MSG_PRIORITY_": "4", "__LITE_TOPIC": "l",
        "__BORNHOST": "client:1", "DLQ_ORIGIN_TOPIC": "shop%Old", "DLQ_ORIGIN_MESSAGE_ID": "01CD",
        "colour": "grün", "CLUSTER": "c", "MSG_REGION": "r", "TRACE_ON": "true",
    }  # fmt: skip
    message = delivered(properties=properties)
    system = message.system_properties
    assert dict(message.user_properties) == {"colour": "grün"}
    assert (system.tag, list(system.keys), system.message_id) == ("new", ["k1", "k2"], "01AB")
    assert (system.message_group, system.trace_context, system.lite_topic) == ("g", "t", "l")
    assert (system.priority, system.delivery_timestamp.seconds) == (4, 1_700_000_000)
    assert system.born_host == "client:1"
    assert (system.dead_letter_queue.topic, system.dead_letter_queue.message_id) == ("Old", "01CD")


@pytest.mark.parametrize("text", ["", "x", "1e3", "99999999999999999999", "--1", "١"])
def test_numbers_that_are_none(text: str) -> None:
    """A property of another sender may have any text; the message is delivered without the field."""
    system = delivered(properties={"TIMER_DELIVER_MS": text}).system_properties
    assert not system.HasField("delivery_timestamp")
    assert not delivered(properties={"_SYS_MSG_PRIORITY_": text}).system_properties.HasField("priority")


def test_a_priority_beyond_the_field() -> None:
    """The field has 32 bits."""
    properties = {"_SYS_MSG_PRIORITY_": "99999999999"}
    assert not delivered(properties=properties).system_properties.HasField("priority")


def test_bodies_are_sent_plain_with_their_digest() -> None:
    """Whatever a remoting client has compressed with, and whoever reads; some clients check the digest."""
    body = b"text " * 100
    for packed in (zlib.compress(body), gzip.compress(body)):
        message = delivered(body=packed, sys_flag=COMPRESSED)
        assert message.body == body
        assert message.system_properties.body_encoding == ENUMS["Encoding"]["IDENTITY"]
        digest = message.system_properties.body_digest
        assert digest.type == ENUMS["DigestType"]["MD5"]
        assert digest.checksum == md5(body, usedforsecurity=False).hexdigest().upper()


def test_bodies_that_become_very_long() -> None:
    """All bodies of an answer together are inflated up to a limit; the others stay as they are."""
    size = MAX_INFLATED_BYTES // 2
    stored = msgspec.structs.replace(STORED, body=zlib.compress(bytes(size)), sys_flag=COMPRESSED)
    delivery = Delivery(resource("Orders"))
    assert [len(delivery.message(stored).body) for _ in range(3)] == [size, size, len(stored.body)]
    bomb = msgspec.structs.replace(stored, body=zlib.compress(bytes(MAX_INFLATED_BYTES + 1)))
    message = Delivery(resource("Orders")).message(bomb)
    assert message.body == bomb.body
    assert message.system_properties.body_encoding == ENUMS["Encoding"]["GZIP"]


def test_a_body_that_is_not_what_its_flag_says() -> None:
    """It is delivered as it is stored, said to be compressed, and does not stop the others."""
    for body in (b"no zlib", zlib.compress(b"cut off")[:-3]):
        message = delivered(body=body, sys_flag=COMPRESSED)
        assert message.body == body
        assert message.system_properties.body_encoding == ENUMS["Encoding"]["GZIP"]


@pytest.mark.parametrize("time_ms", [0, 1, 999, 1_000, 1_700_000_000_123])
def test_times(time_ms: int) -> None:
    """Seconds and the rest."""
    stamp = V2.messages["ReceiveMessageResponse"]().delivery_timestamp
    set_time(stamp, time_ms)
    assert stamp.seconds * 1_000 + stamp.nanos // 1_000_000 == time_ms
