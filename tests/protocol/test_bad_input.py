"""Hostile and broken input: only the errors the callers know how to answer, in bounded time and memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from random import Random
from struct import pack

import msgspec
import pytest

from rmqkit.errors import DecodeError, HeaderError, ProtocolError
from rmqkit.limits import MAX_HEADER_BYTES, MAX_JSON_DEPTH
from rmqkit.model import properties
from rmqkit.model.route import RegisterBrokerBody, TopicRouteData
from rmqkit.model.subscription import HeartbeatData
from rmqkit.model.topic import ConsumerOffsetFile
from rmqkit.protocol import batch, headers, loose_json, record
from rmqkit.protocol.command import Command
from rmqkit.protocol.frame import FrameDecoder, encode
from rmqkit.protocol.headers import (
    GetRouteInfoRequestHeader,
    PullMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from rmqkit.protocol.message_id import pack_host, parse_offset_message_id
from rmqkit.protocol.value_frames import decode_header
from tests import vectors

BRACKETS = 100_000
BODIES: tuple[type[msgspec.Struct], ...] = (
    HeartbeatData,
    TopicRouteData,
    RegisterBrokerBody,
    ConsumerOffsetFile,
    headers.LockBatchMqBody,
)
HEADERS: tuple[type[msgspec.Struct], ...] = (
    GetRouteInfoRequestHeader,
    PullMessageRequestHeader,
    SendMessageRequestHeaderV2,
    headers.EndTransactionRequestHeader,
)
SPLICES = (
    b"\x00",
    b"\xff",
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"\\",
    b"\\u",
    b"\\ud800",
    b"null",
    b"1e999",
    b"-",
    b"9" * 30,
    b"/*",
    b"//",
)


def mutated(random: Random, data: bytes) -> bytes:
    """The bytes after one to four random changes."""
    result = bytearray(data)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(result) + 1)
        match random.randrange(5):
            case 0 if at < len(result):
                result[at] = random.randrange(256)
            case 1 if at < len(result):
                result[at] ^= 1 << random.randrange(8)
            case 2:
                del result[at : at + random.randint(1, 8)]
            case 3:
                result[at:at] = random.choice(SPLICES)
            case _:
                begin = random.randrange(len(result) + 1)
                result[at:at] = result[begin : begin + random.randint(1, 20)]
    return bytes(result)


def fix_lengths(data: bytes) -> bytes:
    """The frame with a correct total length, so that the mutation reaches the bytes after it."""
    return pack(">i", len(data) - 4) + data[4:] if len(data) > 4 else data


def examine(command: Command, random: Random) -> None:
    """Do everything that a server does with a command."""
    for read in (
        command.fields,
        lambda: command.header(random.choice(HEADERS)),
        lambda: command.decode_body(random.choice(BODIES)),
    ):
        try:
            read()
        except (HeaderError, DecodeError):
            continue


SEEDS = [
    vectors.frame("request_json"),
    vectors.raw("request_binary"),
    encode(Command(code=34, body=vectors.text("heartbeat"))),
    encode(
        Command(
            code=103, ext={"brokerName": "b", "brokerId": "0"}, body=vectors.text("route_raw"), remark="ü😀"
        )
    ),
    encode(
        Command(
            code=310,
            ext={"a": "PG", "b": "T", "e": "0", "i": "TAGS\x01TagA\x02"},
            body=b"hello",
            codec=1,
            remark="r",
        )
    ),
    encode(Command(code=11, ext={"consumerGroup": "g", "topic": "T", "queueId": "1", "queueOffset": "-1"})),
]


def test_mutated_frames() -> None:
    """For 20 000 damaged frames the decoder returns commands, waits, or raises ProtocolError; reading a
    command raises only errors with an answer."""
    random = Random(20_000)
    refused = commands = 0
    for number in range(20_000):
        data = mutated(random, random.choice(SEEDS))
        if number % 2:
            data = fix_lengths(data)
        try:
            read = FrameDecoder().feed(data)
        except ProtocolError:
            refused += 1
            continue
        for command in read:
            commands += 1
            examine(command, random)
    assert refused > 1000
    assert commands > 1000


def test_garbage_streams() -> None:
    """Random bytes, also after a valid prefix, raise nothing but ProtocolError."""
    random = Random(7)
    refused = 0
    for _ in range(3000):
        garbage = random.randbytes(random.randint(1, 60))
        for data in (
            garbage,
            pack(">iI", len(garbage) + 4, random.randrange(2) << 24 | random.randint(0, len(garbage)))
            + garbage,
        ):
            try:
                for command in FrameDecoder().feed(data):
                    examine(command, random)
            except ProtocolError:
                refused += 1
    assert refused > 3000


def test_damaged_binaries() -> None:
    """Damaged records, batches and ids raise DecodeError or are decoded; they raise nothing else."""
    random = Random(11)
    whole, together = vectors.raw("record"), vectors.raw("batch")
    refused = 0
    readers: list[Callable[[], object]]
    for _ in range(5000):
        bad_record, bad_batch, bad_id = (
            mutated(random, whole),
            mutated(random, together),
            mutated(random, vectors.text("offset_message_id")),
        )
        readers = [
            lambda data=bad_record: list(record.unpack_all(data)),  # type: ignore[misc]
            lambda data=bad_record: list(record.unpack_all(memoryview(data), check_crc=False)),  # type: ignore[misc]
            lambda data=bad_record: record.peek_store_timestamp(data),  # type: ignore[misc]
            lambda data=bad_batch: batch.decode(data),  # type: ignore[misc]
            lambda data=bad_id: parse_offset_message_id(data.decode("latin-1")),  # type: ignore[misc]
        ]
        for read in readers:
            try:
                read()
            except DecodeError:
                refused += 1
    assert refused > 5000


def test_damaged_json() -> None:
    """Damaged bodies raise DecodeError or are decoded as the typed body; property text is always decoded."""
    random = Random(13)
    refused = 0
    names = [name for name in vectors.names() if "text" in vectors.vector(name)]
    for _ in range(8000):
        data = mutated(random, vectors.text(random.choice(names)))
        try:
            loose_json.decode(data, random.choice(BODIES))
        except DecodeError:
            refused += 1
        properties.decode(data.decode("latin-1"))
    assert refused > 4000


BOMBS = {
    "arrays": b"[" * BRACKETS,
    "closed arrays": b"[" * BRACKETS + b"]" * BRACKETS,
    "objects": b'{"a":' * BRACKETS + b"1" + b"}" * BRACKETS,
    "bare objects": b"{a:" * BRACKETS,
    "object keys": b"{" * BRACKETS,
    "just over the limit, loose": b"[" * (MAX_JSON_DEPTH + 2) + b"]" * (MAX_JSON_DEPTH + 1) + b",]",
    "parser's own limit": b"[" * 5_000 + b"]" * 5_000,
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
def test_json_bombs(bomb: bytes) -> None:
    """A hundred thousand brackets, as a body, as a header, inside a header and as a header field, are
    refused without a deep stack."""
    with pytest.raises(DecodeError):
        loose_json.loads(bomb)
    with pytest.raises(DecodeError):
        Command(body=bomb).decode_body(HeartbeatData)
    for header in (bomb, b'{"code":' + bomb + b"}", b'{"remark":' + bomb + b"}"):
        assert len(header) < MAX_HEADER_BYTES
        if header == BOMBS["objects"] and sys.version_info >= (3, 14):
            # The parser skips the unknown field: Python looks at the real stack, and the parser needs little.
            assert decode_header(header, 0).code == 0
            continue
        with pytest.raises(ProtocolError):
            decode_header(header, 0)
    # Header fields are parsed on use, if Python's version lets the parser skip them.
    for header in (b'{"code":1,"extFields":' + bomb + b"}", b'{"code":1,"extFields":{"a":' + bomb + b"}}"):
        with pytest.raises((ProtocolError, HeaderError)):
            decode_header(header, 0).fields()


@pytest.mark.parametrize("depth", [MAX_JSON_DEPTH + 1, 300, 900])
def test_deep_strict_json(depth: int) -> None:
    """Nesting that the strict parser accepts but a typed body does not permit raises DecodeError, and in a
    remark one of rmqkit's errors."""
    nested = b"[" * depth + b"]" * depth
    with pytest.raises(DecodeError):
        loose_json.decode(b'{"clientID":' + nested + b"}", HeartbeatData)
    with pytest.raises(HeaderError):
        decode_header(b'{"extFields":{"topic":' + nested + b"}}", 0).header(GetRouteInfoRequestHeader)
    try:
        remark = decode_header(b'{"code":null,"remark":' + nested + b"}", 0).remark
    except ProtocolError:
        return
    assert remark == nested.decode()


def test_object_keys_do_not_multiply() -> None:
    """An object key inside an object key is refused: quoting doubles the text at each level, so that sixty
    levels would fill any memory."""
    assert loose_json.loads("{{a:1}:1}") == {'{"a":1}': 1}
    assert loose_json.loads("{{a:{b:1}}:{{c:1}:2}}") == {'{"a":{"b":1}}': {'{"c":1}': 2}}
    for levels in (2, 3, 30, 60):
        with pytest.raises(DecodeError, match="object key inside an object key"):
            loose_json.loads("{" * levels + "{a:1}" + ":1}" * levels)


@pytest.mark.parametrize("digits", [401, 5_000, 300_000])
def test_huge_numbers(digits: int) -> None:
    """A number of thousands of digits is refused in any position."""
    number = b"9" * digits
    if digits > 4_300:
        with pytest.raises(DecodeError):
            loose_json.loads(number)
        with pytest.raises(ProtocolError):
            decode_header(b'{"code":%s}' % number, 0)
        with pytest.raises(ProtocolError):
            decode_header(b'{"code":"%s"}' % number, 0)
    with pytest.raises(DecodeError):
        loose_json.loads(b"{a:%s}" % number)
    with pytest.raises(HeaderError):
        decode_header(b'{"extFields":{"topic":"t","queueId":%s}}' % number, 0).header(
            headers.QueueRequestHeader
        )
    with pytest.raises(HeaderError):
        decode_header(b'{"extFields":{"topic":"t","queueId":"%s"}}' % number, 0).header(
            headers.QueueRequestHeader
        )


@pytest.mark.parametrize("value", [b"1e400", b"-1e999", b'"x"', b'"NaN"', b"[]", b"[1]", b"{}", b'{"a":1}'])
@pytest.mark.parametrize("member", [b"code", b"opaque", b"flag", b"version"])
def test_header_numbers_of_a_wrong_kind(member: bytes, value: bytes) -> None:
    """Infinity, words, lists and objects in place of a header number end the connection."""
    with pytest.raises(ProtocolError, match="header number"):
        decode_header(b'{"%s":%s}' % (member, value), 0)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"null",
        b"5",
        b'"text"',
        b"[]",
        b"[{}]",
        b"tru",
        b'{"code":1',
        b'{"code":1}}',
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
    ],
)
def test_headers_that_are_no_object(header: bytes) -> None:
    """A JSON header is an object with nothing after it."""
    with pytest.raises(ProtocolError):
        decode_header(header, 0)


def test_invalid_utf8() -> None:
    """Bytes that are not UTF-8 are read with replacement in header, field, body, binary header and record, as
    Java reads them."""
    assert decode_header(b'{"code":1,"remark":"a\xff"}', 0).remark == "a\ufffd"
    assert decode_header(b'{"language":"\xc3"}', 0).language is None
    command = decode_header(b'{"code":105,"extFields":{"topic":"\xff\xe7\xbc"}}', 0)
    assert command.header(GetRouteInfoRequestHeader).topic == "\ufffd\ufffd"
    assert command.fields() == {"topic": "\ufffd\ufffd"}
    assert loose_json.loads(b'"\xff"') == loose_json.loads(b"'\xff'") == "\ufffd"
    assert loose_json.loads(b"{1:'\xff',}") == {"1": "\ufffd"}
    assert loose_json.loads(b'"' + b"\xff" * 9 + b'"', max_loose_bytes=1) == "\ufffd" * 9
    assert decode_header(pack(">hBhiii", 1, 0, 0, 0, 0, 1) + b"\xff" + pack(">i", 0), 1).remark == "\ufffd"
    ext = b"".join((pack(">h", 2), b"k\xff", pack(">i", 2), b"v\xff"))
    binary = pack(">hBhiii", 1, 0, 0, 0, 0, 0) + pack(">i", len(ext)) + ext
    assert decode_header(binary, 1).fields() == {"k\ufffd": "v\ufffd"}
    for part, field in ((b"TopicTest", "topic"), (b"TagA", "properties")):
        whole = vectors.raw("record").replace(part, b"\xff" * len(part))
        found = record.unpack(whole)
        assert getattr(found, field) if field == "topic" else found.properties["TAGS"] == "\ufffd" * len(part)
        assert found.properties_bytes in whole


def test_lone_surrogates() -> None:
    """Half of a surrogate pair is `?`, which Java writes for it; whole pairs are one character."""
    for half, read in (
        ("\\ud800", "?"),
        ("\\udc00", "?"),
        ("\\ud800x", "?x"),
        ("\\udc00\\ud800", "??"),
        ("\\ud83d\\ud83d\\ude00", "?\U0001f600"),
    ):
        assert loose_json.loads(f'"{half}"') == read
        assert loose_json.loads(f"{{a:'{half}'}}") == {"a": read}
        assert decode_header(f'{{"remark":"{half}"}}'.encode(), 0).remark == read
        command = decode_header(f'{{"extFields":{{"topic":"{half}"}}}}'.encode(), 0)
        assert command.header(GetRouteInfoRequestHeader).topic == read
        assert command.fields() == {"topic": read}
    assert loose_json.loads('"\ud800"') == loose_json.loads("'\ud800'") == "?"
    assert loose_json.loads('"\\ud83d\\ude00"') == loose_json.loads("'\\ud83d\\ude00'") == "😀"


@pytest.mark.parametrize(
    "header",
    [
        pack(">hBhi", 1, 0, 0, 0),
        pack(">hBhiii", 1, 0, 0, 0, 0, -1) + pack(">i", 0),
        pack(">hBhiii", 1, 0, 0, 0, 0, 2**31 - 1) + pack(">i", 0),
        pack(">hBhiiii", 1, 0, 0, 0, 0, 0, -1),
        pack(">hBhiiii", 1, 0, 0, 0, 0, 0, 1),
        pack(">hBhiiii", 1, 0, 0, 0, 0, 0, 2) + pack(">h", -1),
        pack(">hBhiiii", 1, 0, 0, 0, 0, 0, 2) + pack(">h", 100),
        pack(">hBhiiii", 1, 0, 0, 0, 0, 0, 3) + pack(">h", 1) + b"k",
        pack(">hBhiiii", 1, 0, 0, 0, 0, 0, 7) + pack(">h", 1) + b"k" + pack(">i", -1),
        pack(">hBhiiii", 1, 0, 0, 0, 0, 0, 7) + pack(">h", 1) + b"k" + pack(">i", 9),
        b"",
    ],
)
def test_binary_headers_that_lie(header: bytes) -> None:
    """Every length in a binary header is checked against the available bytes."""
    with pytest.raises(ProtocolError):
        decode_header(header, 1)


def test_messages_of_a_batch_are_counted() -> None:
    """As many as are decoded; a broken batch has those up to its fault, and no more than a batch may have."""
    item = batch.encode([batch.BatchItem(0, b"body", b"TAGS\x01a\x02")])
    for number in (0, 1, 3):
        assert batch.count(item * number) == number
    assert batch.count(item * 2 + pack(">i", 21) + item) == 2
    assert batch.count(item + pack(">i", -1)) == 1
    assert batch.count(item + b"\0\0\0") == 1
    assert batch.count(item * 2 + item[:-1]) == 2
    assert batch.count(batch.encode([batch.BatchItem(0, b"", b"")] * 16_385)) == 16_384


def test_batch_that_lies() -> None:
    """Every length in a batch is checked, and the number of messages is limited."""
    whole = vectors.raw("batch")
    for cut in range(1, len(whole)):
        if cut == 37:
            continue
        with pytest.raises(DecodeError):
            batch.decode(whole[:cut])
    for at in (0, 16):
        for number in (-1, 0, 2**31 - 1, -(2**31)):
            with pytest.raises(DecodeError):
                batch.decode(whole[:at] + pack(">i", number) + whole[at + 4 :])
    for lengths_that_add_up in (pack(">iiiii", 20, 0, 0, 4, -6), pack(">iiiiih", 0, 0, 0, 0, 0, -22)):
        with pytest.raises(DecodeError, match="claims"):
            batch.decode(lengths_that_add_up)
    assert len(batch.decode(batch.encode([batch.BatchItem(0, b"", b"")] * 16_384))) == 16_384
    with pytest.raises(DecodeError, match="more than"):
        batch.decode(batch.encode([batch.BatchItem(0, b"", b"")] * 16_385))
    with pytest.raises(DecodeError, match="properties of"):
        batch.encode([batch.BatchItem(0, b"", bytes(32_768))])


@pytest.mark.parametrize(
    "address", ["1.2.3", "localhost", "", "1.2.3.4\0", "::g", "1.2.3.4:5", "ä", "1.2.3.4\ud800"]
)
def test_hosts_that_are_none(address: str) -> None:
    """A text that is not an IP address, for example with a NUL, raises DecodeError."""
    with pytest.raises(DecodeError):
        pack_host(address, 1)
    with pytest.raises(DecodeError):
        pack_host("1.2.3.4", 2**31)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0A",
        "0A00000100002A9F00000000000004D",
        "0A 0000010000 2A9F00000000000004D2",
        "zz" * 16,
        "é" * 32,
        "0" * 58,
    ],
)
def test_message_ids_that_are_none(text: str) -> None:
    """A message id has 32 or 56 hexadecimal characters without separators."""
    with pytest.raises(DecodeError):
        parse_offset_message_id(text)
    with pytest.raises(DecodeError):
        parse_offset_message_id(f"{'0A 00 00 01 00 00 2A 9F 00 00 00 00 00 00 04 D2':<56}")


@pytest.mark.parametrize("fields", ["[1]", '"text"', "5", '{"topic":[1]}', '{"topic":{"a":1}}'])
@pytest.mark.parametrize(
    "header", ['{"code":105,"opaque":7,"extFields":%s}', "{'code':105,'opaque':7,'extFields':%s}"]
)
def test_fields_that_are_none(header: str, fields: str) -> None:
    """Fields of a wrong shape are a fault of their request, which is answered; the connection goes on."""
    command = decode_header((header % fields).encode(), 0)
    assert (command.code, command.opaque) == (105, 7)
    with pytest.raises(HeaderError):
        command.header(GetRouteInfoRequestHeader)
