"""The same bytes sent to Apache's broker and to ours: both store the same."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Mapping

import pytest

from rmqkit.model import properties as props
from rmqkit.protocol import batch
from rmqkit.protocol.codes import RequestCode, ResponseCode, SerializeType
from rmqkit.protocol.command import Command
from rmqkit.protocol.frame import FrameDecoder
from rmqkit.protocol.record import unpack_all
from tests.interop import peers
from tests.raw_headers import raw_frame, send_fields

JSON, BINARY = SerializeType.JSON, SerializeType.ROCKETMQ
PATIENCE_S = 30
#: What brokers add.
_ADDED = {props.MSG_REGION, props.TRACE_ON, props.CLUSTER, props.REAL_TOPIC, props.REAL_QUEUE_ID, props.DELAY}
#: Half an emoji: in JSON its escape, which only a text can express.
HALF = b"\\ud83d"
_numbers = itertools.count()

#: Values of a property that is sent.
VALUES = {
    "separator": b"a\x01b\x01",
    "gbk": "编号".encode("gbk") + b"\xa4",
    "cut": "编号".encode()[:-1],
    "overlong": b"\xc0\x80x\xe0\x80\x80",
    "surrogates": b"\xed\xa0\xbd\xed\xb8\x80\xed\xa0y",
    "beyond": b"\xf4\x90\x80\x80\xf0\x9f\x98",
    "blanks": " \t\u3000\u00a0\x00\n".encode(),
    "pair": "😀".encode(),
}


def ask(server: peers.Server, request: bytes) -> Command | None:
    """The answer, or None when the connection was closed instead."""
    host, port = server.broker.rsplit(":", 1)
    decoder = FrameDecoder()
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as peer:
        peer.sendall(request)
        while True:
            try:
                data = peer.recv(65_536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            for answer in decoder.feed(data):
                return answer


def called(server: peers.Server, code: int, fields: Mapping[str, object], body: bytes = b"") -> Command:
    texts = {name: str(value).encode() for name, value in fields.items()}
    answer = ask(server, raw_frame(JSON, code, texts, body))
    assert answer is not None
    return answer


def accepted(server: peers.Server, request: bytes) -> None:
    answer = ask(server, request)
    assert answer is not None, "the connection was closed"
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def created(server: peers.Server, topic: str) -> None:
    fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
    assert called(server, RequestCode.UPDATE_AND_CREATE_TOPIC, fields).code == ResponseCode.SUCCESS


def stored(server: peers.Server, topic: str, count: int) -> list[tuple[int, bytes]]:
    """Log offset and properties of so many messages, once they can be read."""
    fields: dict[str, object] = {"consumerGroup": "text_readers", "topic": topic, "queueId": 0}
    fields |= {"maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0}
    fields |= {"subscription": "*", "subVersion": 0, "queueOffset": 0}
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = called(server, RequestCode.PULL_MESSAGE, fields)
        found = list(unpack_all(answer.body)) if answer.code == ResponseCode.SUCCESS else []
        if len(found) >= count:
            return [(message.physical_offset, message.properties_bytes) for message in found]
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages of {topic}: {answer.remark}"


def own(properties: bytes) -> list[bytes]:
    """The items of the application; Java stores them in no order."""
    items = [item for item in properties.split(b"\x02") if item]
    return sorted(
        item for item in items if item.partition(b"\x01")[0].decode("utf-8", "replace") not in _ADDED
    )


def property_of(value: bytes, number: int) -> bytes:
    return b"UNIQ_KEY\x01ID%d\x02row\x01%b\x02KEYS\x01k%b\x02TAGS\x01%b\x02" % (number, value, value, value)


@pytest.fixture(scope="module")
def both(rmqkit_server: peers.Server, apache_cluster: peers.Server) -> tuple[peers.Server, peers.Server]:
    """Ours and Apache's."""
    return rmqkit_server, apache_cluster


@pytest.mark.parametrize("value", VALUES)
def test_both_store_the_same(both: tuple[peers.Server, peers.Server], value: str) -> None:
    """In a binary header, delayed, in a batch, and as a dead letter: Apache's broker replaces what is no
    UTF-8 in a header, and stores the bytes of a batch as they are; so does ours."""
    topic, group = f"text_{next(_numbers)}", f"text_group_{next(_numbers)}"
    sent = [property_of(VALUES[value], number) for number in range(3)]
    found = []
    for server in both:
        created(server, topic)
        for more in (b"", b"DELAY\x011\x02"):
            fields = send_fields(topic, more + sent[0])
            accepted(server, raw_frame(BINARY, RequestCode.SEND_MESSAGE_V2, fields, b"one"))
        body = batch.encode(batch.BatchItem(0, b"many", each) for each in sent[1:])
        fields = send_fields(topic, b"", m=b"true")
        accepted(server, raw_frame(BINARY, RequestCode.SEND_BATCH_MESSAGE, fields, body))
        messages = stored(server, topic, 4)
        for offset, _ in messages:
            back = {"offset": offset, "group": group, "delayLevel": -1, "maxReconsumeTimes": 3}
            back |= {"originMsgId": "ID", "originTopic": topic, "unitMode": "false"}
            done = called(server, RequestCode.CONSUMER_SEND_MSG_BACK, back)
            assert done.code == ResponseCode.SUCCESS, done.remark
        dead = [props.decode_bytes(each) for _, each in stored(server, f"%DLQ%{group}", 4)]
        found.append(
            (
                [own(properties) for _, properties in messages],
                # Java writes its reading of a batch's text, we write the bytes that were stored.
                [(each["row"], each["KEYS"], each["TAGS"]) for each in dead],
            )
        )
    ours, theirs = found
    assert ours == theirs
    assert len(ours[0]) == 4


@pytest.mark.parametrize("value", ["separator", "blanks", "pair", "half"])
def test_both_read_json_alike(both: tuple[peers.Server, peers.Server], value: str) -> None:
    """Text in a JSON header, half of a surrogate pair among it, is stored alike."""
    topic = f"text_{next(_numbers)}"
    given = b"half" if value == "half" else VALUES[value]
    found = []
    for server in both:
        created(server, topic)
        request = raw_frame(
            JSON, RequestCode.SEND_MESSAGE_V2, send_fields(topic, property_of(b"%b!" % given, 1)), b"one"
        )
        if value == "half":
            request = _with_half(request)
        accepted(server, request)
        found += [[own(properties) for _, properties in stored(server, topic, 1)]]
    assert found[0] == found[1]
    assert value != "half" or b"row\x01?!" in found[0][0]


def _with_half(request: bytes) -> bytes:
    """The frame with the escape of half a surrogate pair in place of `half`."""
    content = request[8:].replace(b"half", HALF)
    growth = len(content) - len(request) + 8
    total, header = (int.from_bytes(request[at : at + 4], "big") + growth for at in (0, 4))
    return total.to_bytes(4, "big") + header.to_bytes(4, "big") + content


def test_a_json_header_that_is_no_utf8(both: tuple[peers.Server, peers.Server]) -> None:
    """Apache's broker up to 5.3 reads it with replacement, and 5.5 closes the connection. Ours stores what
    Apache's stores of the same bytes in a binary header."""
    topic = f"text_{next(_numbers)}"
    found = []
    for server, codec in zip(both, (JSON, BINARY), strict=True):
        created(server, topic)
        fields = send_fields(topic, property_of(VALUES["gbk"], 1))
        accepted(server, raw_frame(codec, RequestCode.SEND_MESSAGE_V2, fields, b"one"))
        found += [[own(properties) for _, properties in stored(server, topic, 1)]]
    assert found[0] == found[1]
