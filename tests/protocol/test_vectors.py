"""Every example of the wire-protocol sheet verified against Java, byte for byte in encoding and value for
value in decoding."""

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
from rmqkit.protocol.headers import GetRouteInfoRequestHeader, LockBatchMqBody, LockBatchMqResponseBody
from rmqkit.protocol.message_id import offset_message_id, pack_host, parse_offset_message_id
from rmqkit.protocol.tags import java_hash
from tests import vectors

QUEUE = MessageQueue("TopicTest", "b-a", 0)
QUEUE_KEY = '{"brokerName":"b-a","queueId":0,"topic":"TopicTest"}'


def route_request(codec: int) -> Command:
    command = request(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic="TopicTest"), opaque=7
    )
    command.language = "JAVA"
    command.codec = codec
    return command


def test_every_vector_is_used() -> None:
    """Every recorded example is used by a test."""
    source = Path(__file__).read_text(encoding="utf-8")
    used = set(re.findall(r'vectors\.\w+\("(\w+)"\)', source))
    assert used == set(vectors.names())


@pytest.mark.row("S316", "S317", "S320", "S321", "S322", "S323")
def test_json_request_frame() -> None:
    """A JSON request has the bytes that Java sends: two length words, alphabetical compact members, header
    fields as text."""
    expected = vectors.frame("request_json")
    assert len(expected) == 139
    assert encode(route_request(0)) == expected
    (command,) = FrameDecoder().feed(expected)
    assert (command.code, command.opaque, command.flag, command.version, command.language) == (
        105,
        7,
        0,
        479,
        "JAVA",
    )
    assert not command.is_response
    assert not command.is_oneway
    assert command.header(GetRouteInfoRequestHeader).topic == "TopicTest"
    assert command.body == b""


@pytest.mark.row("S317", "S321", "S323")
def test_json_response_header() -> None:
    """A response repeats the opaque, sets bit 0, and has no extFields member without fields."""
    reply = answer(route_request(0), ResponseCode.TOPIC_NOT_EXIST, "no route")
    reply.language = "JAVA"
    framed = encode(reply)
    assert framed[8:] == vectors.text("response_json")
    (read,) = FrameDecoder().feed(framed)
    assert read.is_response
    assert (read.code, read.opaque, read.remark, read.fields()) == (17, 7, "no route", {})


@pytest.mark.row("S316", "S320", "S321")
def test_binary_request_frame() -> None:
    """The same request in the binary form has 1 in the high byte of the header-length word."""
    expected = vectors.raw("request_binary")
    assert len(expected) == 49
    assert encode(route_request(1)) == expected
    (command,) = FrameDecoder().feed(expected)
    assert (command.code, command.opaque, command.version, command.language, command.codec) == (
        105,
        7,
        479,
        "JAVA",
        1,
    )
    assert command.remark is None
    assert command.header(GetRouteInfoRequestHeader).topic == "TopicTest"


def test_heartbeat() -> None:
    """A Java heartbeat is decoded into the typed body and encoded to the same JSON value; its tag codes are
    those computed here."""
    beat = loose_json.decode(vectors.text("heartbeat"), HeartbeatData)
    assert beat.client_id == "10.0.0.1@4321"
    assert beat.producer_data_set is not None
    assert [producer.group_name for producer in beat.producer_data_set] == ["PG"]
    assert beat.consumer_data_set is not None
    subscriptions = beat.consumer_data_set[0].subscription_data_set
    assert subscriptions == [tag_subscription("TopicTest", "TagA || TagB", 1700000000000)]
    assert msgspec.json.decode(compact(beat)) == msgspec.json.decode(vectors.text("heartbeat"))


def test_route_in_both_forms() -> None:
    """Unquoted and quoted broker ids are decoded to the same route, which is encoded with quotes and without
    whitespace."""
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
    """The broker ids in a name server's cluster table are always unquoted."""
    info = loose_json.decode(vectors.text("cluster_info"), ClusterInfo)
    assert info.cluster_addr_table == {"c": ["b-a"]}
    assert info.broker_addr_table["b-a"].broker_addrs == {0: "10.0.0.1:10911"}
    rewritten = loose_json.dumps(info, raw_keys=True)
    assert b"{0:" in rewritten
    assert loose_json.decode(rewritten, ClusterInfo) == info


def test_offset_table() -> None:
    """A broker's offset table has text keys outside, unquoted queue ids inside, and a data version."""
    table = loose_json.decode(vectors.text("offset_table"), ConsumerOffsetFile)
    assert table.offset_table == {"TopicTest@CG": {0: 23, 1: 7}}
    assert table.data_version.same(DataVersion(counter=3, state_version=0, timestamp=1700000000000))
    assert loose_json.loads(loose_json.dumps(table, raw_keys=True)) == loose_json.loads(
        vectors.text("offset_table")
    )


def test_registration_body() -> None:
    """A registration body is decoded and encoded to the same JSON value."""
    body = loose_json.decode(vectors.text("register_body"), RegisterBrokerBody)
    config = body.topic_config_serialize_wrapper.topic_config_table["TopicTest"]
    assert (config.perm, config.read_queue_nums, config.write_queue_nums) == (6, 4, 4)
    assert config.attributes == {"message.type": "FIFO"}
    assert body.topic_config_serialize_wrapper.data_version.counter == 3
    assert msgspec.json.decode(compact(body)) == msgspec.json.decode(vectors.text("register_body"))


def test_inflated_registration() -> None:
    """The lengths in the decompressed registration are those of the following texts, and its JSON parts can
    be parsed."""
    parts = vectors.vector("register_inflated")["parts"]
    assert [int(parts[at], 16) for at in (0, 3, 5)] == [len(parts[at + 1].encode()) for at in (0, 3, 5)]
    assert loose_json.decode(parts[1], DataVersion) == DataVersion(counter=3, timestamp=1700000000000)
    assert loose_json.loads(parts[4].split(" ", 5)[5]) == {"message.type": "FIFO"}


JAVA_VERSIONS = ("5.5.0", "5.3.3", "4.9.8")


@pytest.mark.parametrize("version", JAVA_VERSIONS)
def test_tables_of_queues_are_read(version: str) -> None:
    """The tables of queues written by each version of Java are decoded to the same queues and values."""
    bodies = {name: loose_json.loads(text) for name, text in vectors.java_bodies(version).items()}
    stats = bodies["TopicStatsTable"]["offsetTable"]
    assert stats == {QUEUE_KEY: {"lastUpdateTimestamp": 9, "maxOffset": 5, "minOffset": 0}}
    assert [loose_json.decode(key, MessageQueue) for key in stats] == [QUEUE]
    assert bodies["ConsumeStats"]["offsetTable"][QUEUE_KEY]["consumerOffset"] == 7
    assert bodies["ResetOffsetBody"]["offsetTable"] == {QUEUE_KEY: 11, QUEUE_KEY.replace(":0", ":1"): 12}
    assert bodies["GetConsumerStatusBody"]["messageQueueTable"] == {QUEUE_KEY: 11}
    assert bodies["ConsumerRunningInfo"]["mqTable"][QUEUE_KEY]["commitOffset"] == 4
    assert loose_json.convert(bodies["LockBatchResponseBody"], LockBatchMqResponseBody).lock_ok_mq_set == [
        QUEUE
    ]
    offsets = loose_json.convert(bodies["ConsumerOffsetSerializeWrapper"], ConsumerOffsetFile)
    assert offsets.offset_table == {"TopicTest@CG": {0: 23, 1: 7}}


def test_topic_stats() -> None:
    """Queues as keys are written bare, byte for byte as in the newest Java version."""
    table = {QUEUE: {"lastUpdateTimestamp": 9, "maxOffset": 5, "minOffset": 0}}
    written = loose_json.dumps({"offsetTable": table, "topicPutTps": 0.0}, raw_keys=True)
    assert written == vectors.text("topic_stats") == vectors.java_bodies("5.5.0")["TopicStatsTable"]


def test_consume_stats() -> None:
    """Consume statistics are written the same way; floats keep their decimal point."""
    table = {QUEUE: {"brokerOffset": 10, "consumerOffset": 7, "lastTimestamp": 3, "pullOffset": 0}}
    written = loose_json.dumps({"consumeTps": 0.0, "offsetTable": table}, raw_keys=True)
    assert written == vectors.java_bodies("5.5.0")["ConsumeStats"]
    assert loose_json.loads(vectors.text("consume_stats"))["offsetTable"][QUEUE_KEY]["consumerOffset"] == 7


def test_reset_offset_body() -> None:
    """The Go client parses this body by text search: object keys are bare, without whitespace."""
    body = {"offsetTable": {QUEUE: 11, msgspec.structs.replace(QUEUE, queue_id=1): 12}}
    written = loose_json.dumps(body, raw_keys=True)
    assert written == vectors.text("reset_offset") == vectors.java_bodies("5.5.0")["ResetOffsetBody"]


def test_lock_request() -> None:
    """The body of a queue lock has `clientId` (the heartbeat has clientID)."""
    body = loose_json.decode(vectors.text("lock_request"), LockBatchMqBody)
    assert body == LockBatchMqBody(
        client_id="cid", consumer_group="CG", mq_set=[QUEUE], only_this_broker=False
    )
    assert msgspec.json.decode(compact(body)) == msgspec.json.decode(vectors.text("lock_request"))


def test_batch_ack() -> None:
    """A batch ack body is strict JSON; its bit set is little-endian bytes in base64."""
    (ack,) = loose_json.loads(vectors.text("batch_ack"))["acks"]
    bits = int.from_bytes(base64.b64decode(ack["b"]), "little")
    assert [bit for bit in range(16) if bits >> bit & 1] == [0, 3, 9]
    assert loose_json.dumps(loose_json.loads(vectors.text("batch_ack"))) == vectors.text("batch_ack")


def test_batch_body() -> None:
    """Two messages of a batch have these bytes in both directions."""
    items = [batch.BatchItem(0, b"hello", b"TAGS\x01TagA\x02"), batch.BatchItem(0, b"w", b"")]
    assert batch.encode(items) == vectors.raw("batch")
    assert batch.decode(vectors.raw("batch")) == items


def test_offset_message_id() -> None:
    """The id is store host and commit-log offset in upper-case hexadecimal."""
    expected = vectors.text("offset_message_id").decode()
    assert offset_message_id(pack_host("10.0.0.1", 10911), 1234) == expected
    assert parse_offset_message_id(expected) == ("10.0.0.1", 10911, 1234)


def test_tag_hash() -> None:
    """The hash is Java's String.hashCode, also beyond ASCII and beyond the basic plane."""
    for tag, code in vectors.values("tag_hash").items():
        assert java_hash(tag) == code


def test_crc() -> None:
    """CRC-32 is masked to 31 bits."""
    for body, code in vectors.values("crc").items():
        assert crc32(body.encode()) & record.CRC_MASK == code


def test_record_crc_field() -> None:
    """The record's CRC field contains the masked number."""
    stored = record.unpack(vectors.raw("record"))
    assert stored.body_crc == vectors.values("crc")["hello"]
