"""Every example the wire-protocol sheet marks as verified against Java, byte for byte where we write and value for value where we read."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from zlib import crc32

import msgspec
import pytest

from rmqkit.model.queue import MessageQueue
from rmqkit.model.route import ClusterInfo, RegisterBrokerBody, TopicRouteData, compact
from rmqkit.model.subscription import HeartbeatData, tag_subscription
from rmqkit.model.topic import ConsumerOffsetFile, DataVersion
from rmqkit.protocol import batch, loose_json, record
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer, request
from rmqkit.protocol.frame import FrameDecoder, encode
from rmqkit.protocol.headers import GetRouteInfoRequestHeader, LockBatchMqBody
from rmqkit.protocol.message_id import offset_message_id, pack_host, parse_offset_message_id
from rmqkit.protocol.tags import java_hash
from tests import vectors

QUEUE = MessageQueue("TopicTest", "b-a", 0)
QUEUE_KEY = '{"brokerName":"b-a","queueId":0,"topic":"TopicTest"}'


def route_request(codec: int) -> Command:
    command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic="TopicTest"), opaque=7)
    command.language = "JAVA"
    command.codec = codec
    return command


def test_every_vector_is_used() -> None:
    """A recorded example that no test reads proves nothing."""
    source = Path(__file__).read_text(encoding="utf-8")
    used = set(re.findall(r'vectors\.\w+\("(\w+)"\)', source))
    assert used == set(vectors.names())


@pytest.mark.row("S316", "S317", "S320", "S321", "S322", "S323")
def test_json_request_frame() -> None:
    """A JSON request is the bytes Java sends: two length words, alphabetical compact members, header fields as text."""
    expected = vectors.frame("request_json")
    assert len(expected) == 139
    assert encode(route_request(0)) == expected
    (command,) = FrameDecoder().feed(expected)
    assert (command.code, command.opaque, command.flag, command.version, command.language) == (105, 7, 0, 479, "JAVA")
    assert not command.is_response
    assert not command.is_oneway
    assert command.header(GetRouteInfoRequestHeader).topic == "TopicTest"
    assert command.body == b""


@pytest.mark.row("S317", "S321", "S323")
def test_json_response_header() -> None:
    """A response echoes the opaque, sets bit 0, and has no extFields member when it has no fields."""
    reply = answer(route_request(0), ResponseCode.TOPIC_NOT_EXIST, "no route")
    reply.language = "JAVA"
    framed = encode(reply)
    assert framed[8:] == vectors.text("response_json")
    (read,) = FrameDecoder().feed(framed)
    assert read.is_response
    assert (read.code, read.opaque, read.remark, read.fields()) == (17, 7, "no route", {})


@pytest.mark.row("S316", "S320", "S321")
def test_binary_request_frame() -> None:
    """The same request in the binary form, high byte of the header-length word 1."""
    expected = vectors.raw("request_binary")
    assert len(expected) == 49
    assert encode(route_request(1)) == expected
    (command,) = FrameDecoder().feed(expected)
    assert (command.code, command.opaque, command.version, command.language, command.codec) == (105, 7, 479, "JAVA", 1)
    assert command.remark is None
    assert command.header(GetRouteInfoRequestHeader).topic == "TopicTest"


def test_heartbeat() -> None:
    """A Java heartbeat reads into the typed body and back to the same JSON value; its tag codes are ours."""
    beat = loose_json.decode(vectors.text("heartbeat"), HeartbeatData)
    assert beat.client_id == "10.0.0.1@4321"
    assert beat.producer_data_set is not None
    assert [producer.group_name for producer in beat.producer_data_set] == ["PG"]
    assert beat.consumer_data_set is not None
    subscriptions = beat.consumer_data_set[0].subscription_data_set
    assert subscriptions == [tag_subscription("TopicTest", "TagA || TagB", 1700000000000)]
    assert msgspec.json.decode(compact(beat)) == msgspec.json.decode(vectors.text("heartbeat"))


def test_route_in_both_forms() -> None:
    """Unquoted and quoted broker ids read to the same route; what we write is the quoted form without whitespace."""
    raw = loose_json.decode(vectors.text("route_raw"), TopicRouteData)
    strict = loose_json.decode(vectors.text("route_strict"), TopicRouteData)
    assert raw == strict
    assert raw.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}
    assert raw.broker_datas[0].master == "10.0.0.1:10911"
    written = compact(raw)
    assert msgspec.json.decode(written) == msgspec.json.decode(vectors.text("route_strict"))
    assert b'"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"}' in written
    assert b"orderTopicConf" not in written


def test_cluster_info() -> None:
    """A name server's cluster table, whose broker ids are always unquoted."""
    info = loose_json.decode(vectors.text("cluster_info"), ClusterInfo)
    assert info.cluster_addr_table == {"c": ["b-a"]}
    assert info.broker_addr_table["b-a"].broker_addrs == {0: "10.0.0.1:10911"}
    rewritten = loose_json.dumps(info, raw_keys=True)
    assert b"{0:" in rewritten
    assert loose_json.decode(rewritten, ClusterInfo) == info


def test_offset_table() -> None:
    """The offset table of a broker: text keys outside, unquoted queue ids inside, and a data version."""
    table = loose_json.decode(vectors.text("offset_table"), ConsumerOffsetFile)
    assert table.offset_table == {"TopicTest@CG": {0: 23, 1: 7}}
    assert table.data_version.same(DataVersion(counter=3, state_version=0, timestamp=1700000000000))
    assert loose_json.loads(loose_json.dumps(table, raw_keys=True)) == loose_json.loads(vectors.text("offset_table"))


def test_registration_body() -> None:
    """A registration body reads and is written back to the same JSON value."""
    body = loose_json.decode(vectors.text("register_body"), RegisterBrokerBody)
    config = body.topic_config_serialize_wrapper.topic_config_table["TopicTest"]
    assert (config.perm, config.read_queue_nums, config.write_queue_nums) == (6, 4, 4)
    assert config.attributes == {"message.type": "FIFO"}
    assert body.topic_config_serialize_wrapper.data_version.counter == 3
    assert msgspec.json.decode(compact(body)) == msgspec.json.decode(vectors.text("register_body"))


def test_inflated_registration() -> None:
    """The lengths of the inflated registration count the bytes of the texts behind them, and its JSON parts parse."""
    parts = vectors.vector("register_inflated")["parts"]
    assert [int(parts[at], 16) for at in (0, 3, 5)] == [len(parts[at + 1].encode()) for at in (0, 3, 5)]
    assert loose_json.decode(parts[1], DataVersion) == DataVersion(counter=3, timestamp=1700000000000)
    assert loose_json.loads(parts[4].split(" ", 5)[5]) == {"message.type": "FIFO"}


def test_topic_stats() -> None:
    """Objects as keys come back as their compact JSON text and are written bare again, byte for byte."""
    tree = loose_json.loads(vectors.text("topic_stats"))
    assert tree == {"offsetTable": {QUEUE_KEY: {"lastUpdateTimestamp": 9, "maxOffset": 5, "minOffset": 0}}, "topicPutTps": 0.0}
    assert loose_json.decode(next(iter(tree["offsetTable"])), MessageQueue) == QUEUE
    assert loose_json.dumps(tree, raw_keys=True) == vectors.text("topic_stats")


def test_consume_stats() -> None:
    """The same for consume statistics; floats keep their decimal point."""
    tree = loose_json.loads(vectors.text("consume_stats"))
    assert tree["offsetTable"][QUEUE_KEY]["consumerOffset"] == 7
    assert loose_json.dumps(tree, raw_keys=True) == vectors.text("consume_stats")


def test_reset_offset_body() -> None:
    """The Go client parses this body by string search: object keys bare, no whitespace."""
    body = {"offsetTable": {QUEUE_KEY: 11, QUEUE_KEY.replace(":0", ":1"): 12}}
    assert loose_json.dumps(body, raw_keys=True) == vectors.text("reset_offset")
    assert loose_json.loads(vectors.text("reset_offset")) == body


def test_lock_request() -> None:
    """The body of a queue lock, with `clientId` spelled so (the heartbeat has clientID)."""
    body = loose_json.decode(vectors.text("lock_request"), LockBatchMqBody)
    assert body == LockBatchMqBody(client_id="cid", consumer_group="CG", mq_set=[QUEUE], only_this_broker=False)
    assert msgspec.json.decode(compact(body)) == msgspec.json.decode(vectors.text("lock_request"))


def test_batch_ack() -> None:
    """A batch ack body is strict JSON; its bit set is little-endian bytes in base64."""
    (ack,) = loose_json.loads(vectors.text("batch_ack"))["acks"]
    bits = int.from_bytes(base64.b64decode(ack["b"]), "little")
    assert [bit for bit in range(16) if bits >> bit & 1] == [0, 3, 9]
    assert loose_json.dumps(loose_json.loads(vectors.text("batch_ack"))) == vectors.text("batch_ack")


def test_batch_body() -> None:
    """Two messages of a batch, byte for byte in both directions."""
    items = [batch.BatchItem(0, b"hello", b"TAGS\x01TagA\x02"), batch.BatchItem(0, b"w", b"")]
    assert batch.encode(items) == vectors.raw("batch")
    assert batch.decode(vectors.raw("batch")) == items


def test_offset_message_id() -> None:
    """Store host and commit-log offset in upper-case hexadecimal."""
    expected = vectors.text("offset_message_id").decode()
    assert offset_message_id(pack_host("10.0.0.1", 10911), 1234) == expected
    assert parse_offset_message_id(expected) == ("10.0.0.1", 10911, 1234)


def test_tag_hash() -> None:
    """Java's String.hashCode, also beyond ASCII and beyond the basic plane."""
    for tag, code in vectors.values("tag_hash").items():
        assert java_hash(tag) == code


def test_crc() -> None:
    """CRC-32 is masked to 31 bits."""
    for body, code in vectors.values("crc").items():
        assert crc32(body.encode()) & record.CRC_MASK == code


def test_record_crc_field() -> None:
    """The record's CRC field is that masked number."""
    stored = record.unpack(vectors.raw("record"))
    assert stored.body_crc == vectors.values("crc")["hello"]
