"""Bulk decoding gives the same messages as scalar decoding and as the client; damaged records are refused
with their position."""

from __future__ import annotations

import pickle
import random
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import lz4.frame  # type: ignore[import-untyped]
import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_rocketmq.decode import scalar_decoder
from pyspark_rocketmq.decode.columns import DEFAULT_COLUMNS, Projection
from pyspark_rocketmq.decode.record_columns import TooMuch
from pyspark_rocketmq.decode.records import LOOK_AGAIN_S, Decoder, record_places
from pyspark_rocketmq.decode.scalar_decoder import FOLDED
from pyspark_rocketmq.read.source import BadRecord, Block, QueueKey, SourceError
from rmqkit.client.consumer.received import received
from rmqkit.model.message import PutMessage
from rmqkit.model.sysflag import (
    BORN_HOST_V6,
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    STORE_HOST_V6,
)
from rmqkit.protocol import batch
from rmqkit.protocol.message_id import pack_host
from tests.spark.kit_records import (
    ALL,
    ALL_COLUMNS,
    QUEUE,
    STORE_HOST,
    block_of,
    decoded,
    numbered,
    one_by_one,
    packed,
    put,
    schema,
)
from tests.vectors import raw

V6_HOST = pack_host("2001:db8::7", 10911)
COMPRESSORS: dict[int, Callable[[bytes], bytes]] = {
    0: zlib.compress,
    COMPRESSION_ZLIB: zlib.compress,
    COMPRESSION_LZ4: lz4.frame.compress,
    COMPRESSION_ZSTD: zstandard.ZstdCompressor().compress,
}
Record = tuple[PutMessage, bytes]

#: Parts of properties, some of which are not UTF-8: cut short, overlong, surrogates, another character set.
_PIECES = (
    *(b"KEYS\x01", b"a\x01", b"\x02", b"x", "é".encode(), "€".encode(), "😀".encode()),
    *(b"\xff", b"\xe2\x82", b"\xf0\x9f", b"\xc0\xaf", b"\xed\xa0\xbd", b"\xed\xb8\x80", "中".encode("gbk")),
)
_texts = st.text(st.sampled_from("aZ 7é😀"), max_size=6)
_names = st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "a", "é", ""])
_tidy = st.lists(st.tuples(_names, _texts), max_size=5).map(
    lambda pairs: "\x02".join(f"{name}\x01{value}" for name, value in pairs)
)
_properties = st.one_of(
    _tidy.map(lambda text: f"{text}\x02").map(str.encode),
    _tidy.map(str.encode),
    st.text(st.sampled_from("ab\x01\x02é"), max_size=12).map(str.encode),
    st.lists(st.sampled_from([*_PIECES]), max_size=10).map(b"".join),
)
_items = st.lists(
    st.builds(batch.BatchItem, st.integers(-5, 5), st.binary(max_size=9), _properties), min_size=1, max_size=4
)
_times = st.one_of(st.integers(0, 2**41), st.sampled_from([-(2**63), 2**63 - 1, 2**53]))


@st.composite
def _records(draw: st.DrawFn) -> Record:
    """Any kind of message, and the host that stores it."""
    flags = draw(st.sampled_from([0, 0, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6]))
    body = draw(st.binary(max_size=40) | _texts.map(str.encode))
    if draw(st.integers(0, 4)) == 0:
        body = batch.encode(draw(_items))
        flags |= FOLDED
    if draw(st.integers(0, 3)) == 0:
        kind = draw(st.sampled_from(list(COMPRESSORS)))
        body = COMPRESSORS[kind](body)
        flags |= COMPRESSED | kind
    message = put(
        body,
        draw(_properties),
        topic=draw(st.sampled_from(["Orders", "%RETRY%".ljust(200, "g")])),
        sys_flag=flags,
        flag=draw(st.integers(-(2**31), 2**31 - 1)),
        born_timestamp_ms=draw(_times),
        born_host=V6_HOST if flags & BORN_HOST_V6 else STORE_HOST,
        reconsume_times=draw(st.integers(0, 16)),
        prepared_offset=draw(st.integers(0, 2**62)),
    )
    return message, V6_HOST if flags & STORE_HOST_V6 else STORE_HOST


def _built(messages: list[Record], junk: bytes = b"") -> Block:
    """Records with other bytes between them."""
    data, starts, sizes, offset = bytearray(), [], [], 100
    for message, host in messages:
        record = packed(message, offset, len(data) * 7, 1_700_000_000_000 + offset, host)
        starts.append(len(data))
        sizes.append(len(record))
        data += record + junk
        offset += 3
    return Block(QUEUE, bytes(data), np.array(starts, np.int64), np.array(sizes, np.int32))


@given(st.lists(_records(), max_size=12), st.integers(95, 140), st.integers(0, 40), st.binary(max_size=5))
@settings(max_examples=100)
def test_bulk_is_one_at_a_time(messages: list[Record], lo: int, count: int, junk: bytes) -> None:
    """The rows are equal for all columns, any mix of records in a block, and any range of offsets."""
    block = _built(messages, junk)
    assert decoded(block, ALL, lo, lo + count) == one_by_one(block, ALL, lo, lo + count)
    assert decoded(block) == one_by_one(block)


@given(
    st.lists(_records(), min_size=1, max_size=8),
    st.lists(st.sampled_from(ALL_COLUMNS), min_size=1, unique=True),
    st.sampled_from(["binary", "string"]),
    st.sampled_from(["map", "json"]),
)
@settings(max_examples=60)
def test_projections(messages: list[Record], names: list[str], body: Any, properties: Any) -> None:
    """The rows are equal for any columns in any order, bodies as text, and properties as JSON."""
    block = _built(messages)
    projection = Projection(tuple(names), body, properties)
    assert decoded(block, projection) == one_by_one(block, projection)


@given(st.lists(_records(), min_size=1, max_size=4), st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=120)
def test_damage_is_seen_alike(messages: list[Record], chance: random.Random, whole: bool) -> None:
    """After some bytes have changed, both decoders give the same rows or raise the same error (unless several
    records are damaged), and never another exception."""
    block = _built(messages)
    data = bytearray(block.data)
    records = set()
    for _ in range(chance.randint(1, 3)):
        start = int(block.starts[chance.randrange(len(block.starts))]) if chance.random() < 0.7 else 0
        at = min(len(data) - 1, start + chance.randrange(120))
        data[at] = chance.choice([0, 1, 2, 0x7F, 0x80, 0xFF])
        records.add(int(np.searchsorted(block.starts, at, "right")))
    damaged = block._replace(data=bytes(data))
    projection = ALL if whole else Projection(("queueOffset", "sysFlag", "storeHost"))
    bulk, plain = _outcome(decoded, damaged, projection), _outcome(one_by_one, damaged, projection)
    if len(records) > 1 and isinstance(plain, str):
        assert isinstance(bulk, str)
    else:
        assert bulk == plain


def _outcome(decode: Callable[..., list[dict[str, Any]]], block: Block, projection: Projection) -> object:
    try:
        return decode(block, projection)
    except SourceError as error:
        return str(error)


@given(st.lists(_records(), min_size=1, max_size=5))
@settings(max_examples=50)
async def test_the_twin_is_the_client(messages: list[Record]) -> None:
    """Scalar decoding gives the messages that the client gives for the same answer."""
    block = _built(messages)
    rows = one_by_one(block)
    found = (await received(bytes(block.data), QUEUE.broker)).messages
    assert len(rows) == len(found)
    for row, message in zip(rows, found, strict=True):
        assert row["body"] == message.body
        assert row["tags"] == message.tag
        assert tuple((row["keys"] or "").split()) == message.keys
        assert dict(row["properties"]) == dict(message.properties)
        assert row["queueOffset"] == message.queue_offset
        assert row["msgId"] == message.message_id
        assert row["physicalOffset"] == message.physical_offset
        assert (row["flag"], row["reconsumeTimes"]) == (message.flag, message.reconsume_times)
        assert (row["bornHost"], row["storeHost"]) == (message.born_host, message.store_host)
        assert row["storeTimestamp"] == message.store_timestamp_ms * 1000


def test_the_columns_of_one_message() -> None:
    """Each column has the value with which the message was built."""
    text = b"KEYS\x01k1 k2\x02TAGS\x01new\x02UNIQ_KEY\x01ID7\x02a\x01b\x02"
    message = put(b"hello", text, flag=5, reconsume_times=2, prepared_offset=9)
    row = decoded(block_of([packed(message, 42, 1234)]))[0]
    assert row == {
        "topic": "Orders",
        "brokerName": "broker-a",
        "queueId": 3,
        "queueOffset": 42,
        "msgId": "ID7",
        "keys": "k1 k2",
        "tags": "new",
        "body": b"hello",
        "flag": 5,
        "bornTimestamp": 1_700_000_000_123_000,
        "storeTimestamp": 1_700_000_000_456_000,
        "reconsumeTimes": 2,
        "properties": [("KEYS", "k1 k2"), ("TAGS", "new"), ("UNIQ_KEY", "ID7"), ("a", "b")],
        "sysFlag": 0,
        "bornHost": "127.0.0.1:0",
        "storeHost": "10.0.0.1:10911",
        "physicalOffset": 1234,
        "storeSize": 91 + len("hello") + len("Orders") + len(text),
        "bodyCrc": zlib.crc32(b"hello") & 0x7FFFFFFF,
        "preparedTransactionOffset": 9,
        "deliveryTimestamp": None,
    }


@pytest.mark.parametrize(
    ("properties", "time_ms"),
    [
        ("TIMER_DELIVER_MS\x011700000000123\x02", 1_700_000_000_123),
        ("TIMER_DELIVER_MS\x011700000000123\x02TIMER_OUT_MS\x011700000000000\x02", 1_700_000_000_123),
        ("TIMER_DELAY_SEC\x015\x02TIMER_OUT_MS\x011700000005000\x02", 1_700_000_005_000),
        ("TIMER_DELIVER_MS\x01soon\x02TIMER_OUT_MS\x010\x02", 0),
        ("TIMER_DELIVER_MS\x01-5\x02", None),
        ("TIMER_DELIVER_MS\x019223372036854775807\x02", None),
        ("TIMER_DELIVER_MS\x01" + "9" * 5000 + "\x02", None),
        ("TIMER_OUT_MS\x01\u0663\x02", None),
        ("DELAY\x013\x02", None),
    ],
)
def test_times_of_delivery(properties: str, time_ms: int | None) -> None:
    """The time that the sender asked for, else the one that the broker chose; null without one, and for what
    is not a time. It is the same alone, beside messages without a time, and decoded one by one."""
    block = numbered([put(properties=properties.encode()), put(), put(properties=b"TAGS\x01a\x02")])
    alone = Projection(("deliveryTimestamp", "queueOffset"))
    for projection in (ALL, alone):
        rows = decoded(block, projection)
        assert rows == one_by_one(block, projection)
        assert [row["deliveryTimestamp"] for row in rows] == [
            None if time_ms is None else time_ms * 1000,
            None,
            None,
        ]


def test_apaches_record() -> None:
    """A record stored by Apache's broker is decoded, with the id given by Apache."""
    queue = QueueKey("TopicTest", "b-a", 1)
    row = decoded(block_of([raw("record")], queue=queue))[0]
    assert (row["body"], row["tags"], row["keys"], row["queueOffset"]) == (b"hello", "TagA", None, 7)
    assert row["msgId"] == "0A00000100002A9F00000000000004D2"
    assert (row["bornHost"], row["properties"]) == ("10.0.0.9:3333", [("TAGS", "TagA")])


def test_an_inner_batch_is_unfolded() -> None:
    """Message i has the record's offset + i, its own body, flag and properties, and the record's other
    fields; a range may cut within it."""
    items = [
        batch.BatchItem(number, b"%d" % number, f"TAGS\x01t{number}\x02".encode()) for number in range(4)
    ]
    folded = put(
        zlib.compress(batch.encode(items)),
        b"INNER_NUM\x014\x02TAGS\x01outer\x02",
        sys_flag=FOLDED | COMPRESSED,
    )
    block = block_of([packed(put(b"before"), 9), packed(folded, 10), packed(put(b"behind"), 14)])
    rows = decoded(block, ALL, 9, 13)
    assert [(row["queueOffset"], row["body"], row["flag"], row["tags"]) for row in rows] == [
        (9, b"before", 0, None),
        (10, b"0", 0, "t0"),
        (11, b"1", 1, "t1"),
        (12, b"2", 2, "t2"),
    ]
    assert dict(rows[1]["properties"])["INNER_NUM"] == "4"


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_compressed_bodies(kind: int) -> None:
    """Compressed and other bodies of a block are restored in order."""
    bodies = [bytes([number]) * 500 for number in range(6)]
    messages = [
        put(COMPRESSORS[kind](body), sys_flag=COMPRESSED | kind) if number % 2 else put(body)
        for number, body in enumerate(bodies)
    ]
    assert [row["body"] for row in decoded(numbered(messages))] == bodies


@pytest.mark.parametrize("end", [b"", b"\x02"])
def test_properties_of_many(end: bytes) -> None:
    """More names than the fast check for duplicates supports are decoded, with and without the last
    separator, which depends on Apache's version."""
    pairs = [[(f"name{number + at}", f"v{at}") for at in range(5)] for number in range(100)]
    pairs[50].append(("name50", "again"))
    texts = ["\x02".join(f"{name}\x01{value}" for name, value in some).encode() + end for some in pairs]
    rows = decoded(numbered([put(properties=text) for text in texts]))
    assert [row["properties"] for row in rows] == [list(dict(some).items()) for some in pairs]


def test_bodies_that_are_no_text() -> None:
    """Invalid UTF-8 becomes U+FFFD in strings; other bodies of the block are unchanged."""
    projection = Projection(("body",), "string")
    found = decoded(numbered([put("grün".encode()), put(b"a\xffb"), put(b"")]), projection)
    assert [row["body"] for row in found] == ["grün", "a\N{REPLACEMENT CHARACTER}b", ""]


def test_times_that_spark_cannot_hold_are_null() -> None:
    """A client may send any born time, and one that Spark cannot represent becomes null."""
    rows = decoded(numbered([put(born_timestamp_ms=2**63 - 1), put(born_timestamp_ms=-5)]))
    assert [row["bornTimestamp"] for row in rows] == [None, -5000]


def test_a_projection_looks_at_nothing_else() -> None:
    """With fixed-position columns only, bodies and properties are not read and may be invalid; with others
    they are checked."""
    block = numbered([put(b"body" * 10, b"a\x01b\x02") for _ in range(3)])
    data = bytearray(block.data)
    for start, size in zip(block.starts.tolist(), block.sizes.tolist(), strict=True):
        data[start + 88 : start + size] = b"\xff" * (size - 88)
    scrambled = block._replace(data=bytes(data))
    numbers = Projection(("queueOffset", "topic", "storeTimestamp", "bodyCrc"))
    assert decoded(scrambled, numbers) == decoded(block, numbers)
    for name in ("body", "tags"):
        with pytest.raises(SourceError):
            decoded(scrambled, Projection((name,)))


def test_no_records() -> None:
    """The result is an empty batch of the schema."""
    assert decoded(_built([])) == []


def test_records_that_are_not_in_order() -> None:
    """The result has the order of the block's entries."""
    block = numbered([put(b"a"), put(b"b"), put(b"c")])
    turned = block._replace(starts=block.starts[::-1].copy(), sizes=block.sizes[::-1].copy())
    assert [row["body"] for row in decoded(turned)] == [b"c", b"b", b"a"]


def _changed(at: int, value: bytes) -> Callable[[Block], Block]:
    """Three records, the second one changed."""

    def change(block: Block) -> Block:
        data = bytearray(block.data)
        start = int(block.starts[1])
        data[start + at : start + at + len(value)] = value
        return block._replace(data=bytes(data))

    return change


DAMAGE: dict[str, tuple[Callable[[Block], Block], str]] = {
    "magic": (_changed(4, b"\0\0\0\0"), "no record begins here, the magic number is 0x00000000"),
    "size": (_changed(0, b"\0\0\0\x70"), "its length field says 112 bytes, it should have"),
    "queue": (_changed(12, b"\0\0\0\x09"), "the record is of queue 9"),
    "offset": (_changed(20, b"\0" * 7 + b"\x63"), "its queue offset field says 99"),
    "place": (_changed(28, b"\0" * 7 + b"\x63"), "its log offset field says 99, its position is"),
    "hosts": (_changed(36, b"\0\0\0\x30"), "it is too short for its hosts"),
    "body length": (_changed(84, b"\xff\xff\xff\xff"), "its body should have -1 bytes"),
    "topic length": (_changed(92, b"\x07"), "the lengths of its parts do not add up"),
    "body": (_changed(88, b"X"), "the checksum of its body does not match"),
    "compression": (_changed(36, b"\0\0\0\x01"), "the compressed body is damaged"),
    "cut": (
        lambda block: block._replace(data=block.data[: int(block.starts[1]) + 50]),
        "only 50 are present",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
@pytest.mark.parametrize("origin", ["", "store/commitlog/00000000000000001000"])
def test_damage_names_the_place(name: str, origin: str) -> None:
    """The error contains the fault, topic, broker, queue and queue offset; for a file also its path and the
    byte."""
    change, text = DAMAGE[name]
    sound = _three(origin)
    assert len(decoded(sound)) == 3
    damaged = change(sound)
    looks: list[float] = []
    decoder = Decoder(ALL, schema(ALL), looks.append)
    with pytest.raises(SourceError) as caught:
        decoder.decode(damaged, 0, 100)
    where = f"{origin}, byte 105: " if origin else "byte 105 of an answer: "
    assert str(caught.value).startswith(
        f"{where}record of topic Orders, broker-a, queue 3 at queue offset 41: "
    )
    assert text in str(caught.value)
    assert looks == ([LOOK_AGAIN_S] * 2 if origin else [])
    with pytest.raises(SourceError, match="queue offset 41"):
        one_by_one(damaged)


def _three(origin: str) -> Block:
    """Three records of 105 bytes, as from a source of files."""
    records = [packed(put(b"body", b"a\x01b\x02"), 40 + at, 1000 + 105 * at) for at in range(3)]
    return block_of(records, origin=origin, base=1000, offsets=np.arange(40, 43))


def test_a_record_that_is_being_written_is_looked_at_again() -> None:
    """A torn record of a file is not an error if it becomes complete soon."""
    sound = _three("file")
    data = bytearray(sound.data)
    data[105 + 88 : 105 + 92] = bytes(4)

    def written(seconds: float) -> None:
        data[:] = sound.data

    found = Decoder(ALL, schema(ALL), written).decode(sound._replace(data=memoryview(data)), 0, 100)
    assert found.column("body").to_pylist() == [b"body"] * 3


def test_records_outside_the_range_may_be_damaged() -> None:
    """Records outside the range are not checked, so messages before and after a damaged one can be read."""
    damaged = DAMAGE["body"][0](_three(""))
    assert [row["queueOffset"] for row in decoded(damaged, ALL, 0, 41) + decoded(damaged, ALL, 42, 100)] == [
        40,
        42,
    ]
    with pytest.raises(SourceError):
        decoded(damaged, ALL, 41, 42)


def test_checksums_can_be_left_alone() -> None:
    """Without the check a body is returned as stored; everything else is still checked."""
    trusting = Projection(ALL_COLUMNS, check_crc=False)
    damaged = DAMAGE["body"][0](_three(""))
    assert [row["body"] for row in decoded(damaged, trusting)] == [b"body", b"Xody", b"body"]
    assert decoded(damaged, trusting) == one_by_one(damaged, trusting)
    with pytest.raises(SourceError, match="no record begins here"):
        decoded(DAMAGE["magic"][0](damaged), trusting)


def test_inner_batches_that_are_damaged() -> None:
    """A batch with wrong lengths is refused."""
    with pytest.raises(BadRecord, match="it contains several messages that cannot be separated"):
        decoded(numbered([put(b"no batch", sys_flag=FOLDED)]))


def test_properties_that_are_no_utf_8() -> None:
    """Bytes that are not UTF-8 become U+FFFD, one for each fault that Java sees; the separators around them
    count, and the other properties and messages stay as they are, also in an inner batch."""
    odd = b"trace\x01a\xb1\xe0\xa4b\x02KEYS\x01k1\x02\xed\xa0\xbdn\x01\xe2\x02TAGS\x01t\x02"
    inner = batch.encode([batch.BatchItem(0, b"in", b"p\x01\xff\x02")])
    block = numbered([put(b"a", b"p\x01x\x02"), put(b"b", odd), put(inner, odd, sys_flag=FOLDED), put(b"c")])
    rows = decoded(block)
    assert rows == one_by_one(block)
    texts = {"trace": "a\ufffd\ufffdb", "KEYS": "k1", "\ufffdn": "\ufffd", "TAGS": "t"}
    assert [dict(row["properties"]) for row in rows] == [{"p": "x"}, texts, texts | {"p": "\ufffd"}, {}]
    assert [(row["body"], row["keys"], row["tags"]) for row in rows[1:3]] == [
        (b"b", "k1", "t"),
        (b"in", "k1", "t"),
    ]
    as_json = Projection(("properties",), properties="json")
    assert decoded(block, as_json) == one_by_one(block, as_json)


def _bad_block(origin: str) -> Block:
    """Seven records, of which those at queue offsets 41, 42, 44 and 46 are bad, each in another way."""
    flags = {42: COMPRESSED, 44: FOLDED}
    records = [
        packed(put(b"body", b"a\x01b\x02", sys_flag=flags.get(40 + at, 0)), 40 + at, 1000 + 105 * at)
        for at in range(7)
    ]
    block = block_of(
        records, **({"origin": origin, "base": 1000, "offsets": np.arange(40, 47)} if origin else {})
    )
    data = bytearray(block.data)
    data[105 + 88] = 0
    data[6 * 105 + 92] = 7
    return block._replace(data=bytes(data))


def _rows(block: Block, how: str, lo: int = 0, hi: int = 100) -> list[dict[str, Any]]:
    chosen = Projection(("queueOffset", "body", "properties", "storeTimestamp"), bad_records=how)  # type: ignore[arg-type]
    batches = list(Decoder(chosen, schema(chosen), lambda seconds: None).batches(block, lo, hi))
    return [row for made in batches for row in made.to_pylist()]


@pytest.mark.parametrize("origin", ["", "file"])
def test_bad_records_are_an_error_nulls_or_left_out(origin: str, caplog: pytest.LogCaptureFixture) -> None:
    """An error contains the queue offset and the way out. As nulls, a row keeps what can be read: properties
    beside a bad body, and the fixed fields in any case. Left out, the others are read. Both say what was
    done, and how often."""
    block = _bad_block(origin)
    said = r"queue offset 41: the checksum .*\. badRecords=null or skip"
    with pytest.raises(BadRecord, match=said) as caught:
        _rows(block, "fail", 0, 42)
    assert pickle.loads(pickle.dumps(caught.value)).number == 1
    with pytest.raises(BadRecord, match="queue offset 46: the lengths of its parts"):
        _rows(block, "fail", 45)
    assert caplog.text == ""
    assert [row["queueOffset"] for row in _rows(block, "skip")] == [40, 43, 45]
    assert "left out (badRecords=skip): " in caplog.text
    assert caplog.text.count("at queue offset 4") == 4
    rows = _rows(block, "null")
    assert [row["queueOffset"] for row in rows] == [*range(40, 47)]
    bad = {row["queueOffset"]: row for row in rows if row["body"] is None}
    assert [*bad] == [41, 42, 44, 46]
    assert [row["properties"] for row in bad.values()] == [[("a", "b")]] * 3 + [None]
    assert all(row["storeTimestamp"] is not None for row in rows)
    assert [row["queueOffset"] for row in _rows(block, "null", 42, 44)] == [42, 43]


@pytest.mark.parametrize("origin", ["", "file"])
def test_a_record_without_a_head(origin: str) -> None:
    """Of a record that does not begin as one, the place in the queue remains if the source knows it. Records
    outside the range leave no row."""
    block = DAMAGE["magic"][0](_three("file"))
    block = block if origin else block._replace(origin="", base=-1, offsets=None)
    assert [row["queueOffset"] for row in _rows(block, "skip")] == [40, 42]
    rows = _rows(block, "null")
    assert [row["queueOffset"] for row in rows] == [40, 41, 42]
    assert rows[1] == {"queueOffset": 41, "body": None, "properties": None, "storeTimestamp": None}
    assert [row["queueOffset"] for row in _rows(block, "null", 42)] == [42]


@given(st.lists(_records(), max_size=8), st.randoms(use_true_random=False), st.integers(1, 3))
def test_whatever_is_bad_costs_nothing_else(
    messages: list[Record], chance: random.Random, damages: int
) -> None:
    """With bytes changed anywhere, the rows of sound records are those of scalar decoding, in order."""
    block = _built(messages)
    data = bytearray(block.data)
    for _ in range(damages if data else 0):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    block = block._replace(data=bytes(data))
    expected = []
    for number in range(len(block.starts)):
        with suppress(SourceError):
            expected += [
                {name: row[name] for name in ("queueOffset", "body", "properties")}
                for row in scalar_decoder.rows_of(
                    block, number, 0, 200, Projection(("queueOffset", "body", "properties"))
                )
            ]
    found = [
        {name: row[name] for name in ("queueOffset", "body", "properties")}
        for row in _rows(block, "skip", 0, 200)
    ]
    assert found == expected


def test_too_much_when_inflated(monkeypatch: pytest.MonkeyPatch) -> None:
    """If small bodies decompress to large ones, the block is decoded in parts; a single record above the
    limit is refused."""
    for module in ("record_columns", "records"):
        monkeypatch.setattr(f"pyspark_rocketmq.decode.{module}.MAX_BATCH_BODY_BYTES", 2_000_000)
    body, items = bytes(999_000), [batch.BatchItem(0, bytes(400_000), b"") for _ in range(3)]
    plainly = put(zlib.compress(body), sys_flag=COMPRESSED)
    folded = put(zlib.compress(batch.encode(items)), sys_flag=COMPRESSED | FOLDED)
    block = numbered([plainly, plainly, folded, put(b"small"), plainly, folded, folded], 10)
    decoder = Decoder(ALL, schema(ALL))
    with pytest.raises(TooMuch):
        decoder.decode(block, 10, 99)
    batches = list(decoder.batches(block, 10, 99))
    assert len(batches) > 2
    assert [row for made in batches for row in made.column("body").to_pylist()] == [
        row["body"] for row in one_by_one(block, ALL, 10, 99)
    ]
    greedy = put(
        batch.encode([batch.BatchItem(0, b"", b"")] * 100),
        b"a\x01" + b"x" * 30_000 + b"\x02",
        sys_flag=FOLDED,
    )
    with pytest.raises(
        SourceError,
        match=(
            r"record of topic Orders, broker-a, queue 3 at queue offset 0: the messages of a block .*"
            r" take more than 2000000 bytes"
        ),
    ):
        list(decoder.batches(numbered([greedy]), 0, 200))


def test_places_in_an_answer() -> None:
    """The result has the position and length of every record; an answer with other bytes, or with half a
    record, is refused."""
    records = [packed(put(bytes(number)), number) for number in range(5)]
    starts, sizes = record_places(b"".join(records))
    assert sizes.tolist() == [len(record) for record in records]
    assert starts.tolist() == [sum(map(len, records[:number])) for number in range(5)]
    assert [len(each) for each in record_places(b"")] == [0, 0]
    longer = (len(records[1]) + 1).to_bytes(4, "big") + records[1][4:]
    other = records[0][:4] + bytes(4) + records[0][8:]
    second = len(records[0])
    for bad, place in (
        (records[0][:-1], 0),
        (records[0] + b"abc", second),
        (records[0] + bytes(100), second),
        (records[0] + longer, second),
        (other + records[0], 0),
        (records[0] + other + records[0] + bytes(100), second),
    ):
        with pytest.raises(SourceError, match=f"byte {place} of an answer of {len(bad)}"):
            record_places(bad)


def test_the_schema_must_be_the_projections() -> None:
    """A decoder for other columns than requested is refused at once."""
    with pytest.raises(ValueError, match="the schema has the columns"):
        Decoder(Projection(("body",)), schema(Projection(("keys",))))


def test_the_default_schema_is_sparks() -> None:
    """Names, order, types and nullability match Spark's requirements, also for an empty batch."""
    demanded = schema(Projection(tuple(DEFAULT_COLUMNS)))
    made = Decoder(Projection(tuple(DEFAULT_COLUMNS)), demanded).decode(numbered([put()]), 0, 9)
    assert made.schema.equals(demanded, check_metadata=True)
    assert pa.types.is_map(made.schema.field("properties").type)
