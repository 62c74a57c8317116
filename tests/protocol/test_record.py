"""Binary formats of the store and of pull answers: records, batches, message ids, tag hashes."""

from __future__ import annotations

from datetime import datetime
from struct import pack, unpack_from
from zlib import crc32

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqkit.errors import DecodeError, MessageIllegal
from rmqkit.limits import MAX_DERIVED_TOPIC_LENGTH, MAX_PROPERTIES_BYTES
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.model.sysflag import (
    BORN_HOST_V6,
    COMPRESSED,
    COMPRESSION_ZSTD,
    STORE_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from rmqkit.protocol import batch, record
from rmqkit.protocol.message_id import (
    UniqueKeys,
    host_text,
    offset_message_id,
    pack_host,
    parse_offset_message_id,
    unpack_host,
)
from rmqkit.protocol.tags import index_hash, java_hash, tags_code
from tests import vectors

PROPERTY = settings(max_examples=150, deadline=None, database=None)
i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
ports = st.integers(0, 65_535)
v4 = st.ip_addresses(v=4).map(str)
v6 = st.ip_addresses(v=6).map(str)
names = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=12
)
maps = st.dictionaries(names, names, max_size=4)

BORN, STORE = pack_host("10.0.0.9", 3333), pack_host("10.0.0.1", 10911)


def put(topic: str = "TopicTest", body: bytes = b"hello", **changes: object) -> PutMessage:
    message = PutMessage(
        topic=topic,
        queue_id=1,
        body=body,
        properties={},
        properties_bytes=b"",
        born_timestamp_ms=1700000000000,
        born_host=BORN,
    )
    message.set_properties({"TAGS": "TagA"})
    return msgspec.structs.replace(message, **changes)


def packed(message: PutMessage, store_host: bytes = STORE) -> bytes:
    return record.pack(message, record.message_size(message), 7, 1234, 1700000000001, store_host)


@pytest.mark.row("S237")
def test_record_vector() -> None:
    """The bytes of a record are those that a Java broker writes, and are decoded to the same values."""
    expected = vectors.raw("record")
    assert packed(put()) == expected
    stored = record.unpack(expected)
    assert msgspec.structs.asdict(stored) == {
        "topic": "TopicTest",
        "queue_id": 1,
        "queue_offset": 7,
        "physical_offset": 1234,
        "body": b"hello",
        "properties": {"TAGS": "TagA"},
        "properties_bytes": b"TAGS\x01TagA\x02",
        "flag": 0,
        "sys_flag": 0,
        "born_timestamp_ms": 1700000000000,
        "born_host": BORN,
        "store_timestamp_ms": 1700000000001,
        "store_host": STORE,
        "reconsume_times": 0,
        "prepared_offset": 0,
        "body_crc": 907060870,
        "size_bytes": 115,
    }
    assert unpack_from(">iI", expected, 0) == (115, 0xDAA320A7) == record.peek_size_and_magic(expected)
    assert unpack_from(">q", expected, 28) == (1234,)
    assert record.peek_store_timestamp(expected) == 1700000000001


@st.composite
def messages(draw: st.DrawFn) -> tuple[PutMessage, bytes]:
    """A message and a store host; the bits for the widths of the hosts match the hosts."""
    born = pack_host(draw(st.one_of(v4, v6)), draw(ports))
    store = pack_host(draw(st.one_of(v4, v6)), draw(ports))
    bits = (BORN_HOST_V6 if len(born) == 20 else 0) | (STORE_HOST_V6 if len(store) == 20 else 0)
    message = PutMessage(
        topic=draw(
            st.text(st.characters(exclude_categories=["Cs"]), min_size=0, max_size=60)
            | st.just("t" * 127)
            | st.just("t" * 128)
        ),
        queue_id=draw(i32),
        body=draw(st.binary(max_size=100)),
        properties={},
        properties_bytes=b"",
        flag=draw(i32),
        sys_flag=draw(i32) & ~(BORN_HOST_V6 | STORE_HOST_V6) | bits,
        born_timestamp_ms=draw(i64),
        born_host=born,
        reconsume_times=draw(i32),
        prepared_offset=draw(i64),
    )
    message.set_properties(draw(maps))
    return message, store


@pytest.mark.row("S237")
@PROPERTY
@given(messages(), i64, i64, i64)
def test_record_round_trip(
    given_message: tuple[PutMessage, bytes], queue_offset: int, physical_offset: int, stored_at: int
) -> None:
    """Every field is restored, with IPv4 and IPv6 hosts in all four combinations and topics below and above
    127 bytes; flag is unchanged."""
    message, store_host = given_message
    size = record.message_size(message)
    data = record.pack(message, size, queue_offset, physical_offset, stored_at, store_host)
    assert len(data) == size
    stored = record.unpack(memoryview(b"before" + data + b"behind"), 6)
    for name in (
        "topic",
        "queue_id",
        "body",
        "properties",
        "flag",
        "sys_flag",
        "born_timestamp_ms",
        "born_host",
        "reconsume_times",
        "prepared_offset",
    ):
        assert getattr(stored, name) == getattr(message, name), name
    assert (stored.queue_offset, stored.physical_offset, stored.store_timestamp_ms) == (
        queue_offset,
        physical_offset,
        stored_at,
    )
    assert (stored.store_host, stored.size_bytes, stored.body_crc) == (
        store_host,
        size,
        crc32(message.body) & 0x7FFFFFFF,
    )
    assert record.peek_store_timestamp(data) == stored_at


@pytest.mark.row("S237")
@pytest.mark.parametrize(
    ("length", "magic", "size"),
    [(127, record.MAGIC_V1, 91 + 127), (128, record.MAGIC_V2, 92 + 128), (255, record.MAGIC_V2, 92 + 255)],
)
def test_topic_length_chooses_the_version(length: int, magic: int, size: int) -> None:
    """A topic over 127 bytes uses magic V2 with a two-byte length, because the signed byte of V1 ends at
    127."""
    data = packed(put("t" * length, b"", properties={}, properties_bytes=b""))
    assert record.peek_size_and_magic(data) == (size, magic)
    assert record.unpack(data).topic == "t" * length


@pytest.mark.parametrize("state", [0, TRANSACTION_PREPARED, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK])
def test_sys_flag_carries_the_transaction_state(state: int) -> None:
    """Transaction state and compression use different bits of sysFlag and are kept unchanged; flag belongs to
    the application."""
    stored = record.unpack(packed(put(sys_flag=state | COMPRESSED | COMPRESSION_ZSTD, flag=-559038737)))
    assert stored.sys_flag & TRANSACTION_MASK == state
    assert stored.sys_flag & ~TRANSACTION_MASK == 0x201
    assert stored.flag == -559038737


def test_record_limits() -> None:
    """Topic and properties have maximum lengths in bytes; exactly that length is accepted."""
    record.message_size(put("t" * MAX_DERIVED_TOPIC_LENGTH))
    with pytest.raises(MessageIllegal, match="topic of 256 bytes"):
        record.message_size(put("t" * (MAX_DERIVED_TOPIC_LENGTH + 1)))
    with pytest.raises(MessageIllegal, match="topic of 258 bytes"):
        record.message_size(put("é" * 129))
    largest = put(properties_bytes=b"k\x01" + b"v" * (MAX_PROPERTIES_BYTES - 2))
    assert record.unpack(packed(largest)).properties == {"k": "v" * (MAX_PROPERTIES_BYTES - 2)}
    with pytest.raises(MessageIllegal, match="properties of 32768 bytes"):
        record.message_size(put(properties_bytes=bytes(MAX_PROPERTIES_BYTES + 1)))


def test_records_in_a_row() -> None:
    """A pull answer is a sequence of records; the first invalid one raises an error after the ones before it
    were returned."""
    data = packed(put(body=b"one")) + packed(put(body=b"two")) + packed(put(body=b""))
    assert [message.body for message in record.unpack_all(data)] == [b"one", b"two", b""]
    assert list(record.unpack_all(b"")) == []
    reader = record.unpack_all(data[:-1])
    assert [next(reader).body, next(reader).body] == [b"one", b"two"]
    with pytest.raises(DecodeError, match="claims"):
        next(reader)


@given(st.lists(st.tuples(st.binary(max_size=20), st.integers(0, 1 << 60)), max_size=8))
def test_queue_offsets_of_records_in_a_row(parts: list[tuple[bytes, int]]) -> None:
    """Read from the heads alone, whatever the bodies are."""
    data = b""
    for body, queue_offset in parts:
        sent = put(body=body)
        data += record.pack(
            sent, record.message_size(sent), queue_offset, 0, 0, b"\x7f\x00\x00\x01" + bytes(4)
        )
    assert record.peek_queue_offsets(memoryview(data)) == [queue_offset for _, queue_offset in parts]
    assert record.peek_queue_offsets(data) == [each.queue_offset for each in record.unpack_all(data)]


@pytest.mark.parametrize("size", [0, -1, 1, 90, 1 << 30])
def test_queue_offsets_behind_a_size_that_is_none(size: int) -> None:
    """It is an error, and no endless walk; a last record that is cut short is one, too."""
    data = packed(put(body=b"one"))
    with pytest.raises(DecodeError, match="claims"):
        record.peek_queue_offsets(data + size.to_bytes(4, "big", signed=True) + data[4:])
    for cut in range(1, len(data)):
        with pytest.raises(DecodeError):
            record.peek_queue_offsets(data[:cut])


def test_damaged_record() -> None:
    """A wrong magic, inconsistent sizes and a wrong body CRC raise DecodeError; the CRC check is optional."""
    data = packed(put())
    for cut in range(len(data)):
        with pytest.raises(DecodeError):
            record.unpack(data[:cut])
    changed = data.replace(b"hello", b"hullo")
    with pytest.raises(DecodeError, match="CRC"):
        record.unpack(changed)
    assert record.unpack(changed, check_crc=False).body == b"hullo"
    for at, number in (
        (0, 90),
        (0, 114),
        (0, 116),
        (0, -1),
        (4, record.MAGIC_BLANK - 2**32),
        (84, -1),
        (84, 6),
        (84, 4),
        (84, 2**31 - 1),
    ):
        with pytest.raises(DecodeError):
            record.unpack(data[:at] + pack(">i", number) + data[at + 4 :] + bytes(10))
    for at, text in ((93, b"\x0a"), (93, b"\xff"), (103, b"\xff\xff"), (103, b"\x00\x09")):
        with pytest.raises(DecodeError):
            record.unpack(data[:at] + text + data[at + len(text) :])
    for short in (b"", b"1234567"):
        with pytest.raises(DecodeError):
            record.peek_size_and_magic(short)
        with pytest.raises(DecodeError):
            record.peek_store_timestamp(short)


def test_negative_lengths_that_add_up() -> None:
    """Negative lengths are refused even if the sum of the lengths is right."""
    head = packed(put(body=b"", properties_bytes=b""))[:84]
    body = (
        pack(">i", 345) + head[4:8] + pack(">i", 0) + head[12:] + pack(">i", -1) + b"t" * 255 + pack(">h", 0)
    )
    topic = pack(">iI", 94, record.MAGIC_V2) + head[8:] + pack(">i", 4) + b"xx" + pack(">hh", 2, -4)
    properties = pack(">i", 90 + 9) + head[4:] + pack(">i", 0) + b"\x09TopicTest" + pack(">h", -1)
    assert (len(body), len(topic), len(properties)) == (345, 94, 100)
    for data in (body, topic, properties):
        with pytest.raises(DecodeError):
            record.unpack(data, check_crc=False)


def test_crc_of_no_body() -> None:
    """The CRC field of a record without a body is ignored, as in Java."""
    data = packed(put(body=b""))
    assert record.unpack(data[:8] + pack(">i", 12345) + data[12:]).body_crc == 12345


@PROPERTY
@given(st.lists(st.tuples(i32, st.binary(max_size=40), maps), max_size=6))
def test_batch_round_trip(items: list[tuple[int, bytes, dict[str, str]]]) -> None:
    """The messages of a batch are restored with flag, body and properties, in order."""
    given_items = [
        batch.BatchItem(flag, body, props.encode(properties).encode()) for flag, body, properties in items
    ]
    assert batch.decode(batch.encode(given_items)) == given_items
    assert [props.decode(item.properties.decode()) for item in given_items] == [
        properties for _, _, properties in items
    ]


def test_batch_ignores_magic_and_crc() -> None:
    """Senders leave both at 0; a receiver accepts any number."""
    data = vectors.raw("batch")
    changed = data[:4] + b"\xff" * 8 + data[12:]
    assert batch.decode(changed) == batch.decode(data)


@PROPERTY
@given(st.one_of(v4, v6), ports, st.integers(0, 2**63 - 1))
def test_offset_message_id_round_trip(address: str, port: int, offset: int) -> None:
    """An id of either width is decoded to address, port and offset, in upper or lower case."""
    packed_host = pack_host(address, port)
    text = offset_message_id(packed_host, offset)
    assert len(text) == (56 if ":" in address else 32)
    assert text == text.upper()
    for spelled in (text, text.lower()):
        read, read_port, read_offset = parse_offset_message_id(spelled)
        assert pack_host(read, read_port) == packed_host
        assert read_offset == offset
    assert unpack_host(packed_host)[1] == port


def test_host_text() -> None:
    """An IPv6 address is in brackets before its port; a scope is not part of the address."""
    assert host_text(pack_host("10.0.0.1", 10911)) == "10.0.0.1:10911"
    assert host_text(pack_host("fe80::1", 80)) == "[fe80::1]:80"
    assert pack_host("fe80::1%eth0", 80) == pack_host("fe80::1", 80)


@pytest.mark.parametrize(("ip", "length"), [(b"\x0a\x00\x00\x01", 32), (bytes(16), 56)])
def test_unique_keys(ip: bytes, length: int) -> None:
    """A UNIQ_KEY consists of IP, process id, instance, ms since the local month began, and a counter, in
    upper-case hexadecimal."""
    keys = UniqueKeys(ip, pid=0x12345678, instance=0xABCDEF01)
    now = datetime(2024, 2, 29, 12, 30, 15, 250_000)
    made = [keys.make(int(now.timestamp() * 1000)) for _ in range(3)]
    assert {len(key) for key in made} == {length}
    start = ip.hex().upper() + "5678" + "ABCDEF01"
    elapsed = int((now - datetime(2024, 2, 1)).total_seconds() * 1000)
    assert made == [f"{start}{elapsed:08X}{counter:04X}" for counter in range(3)]


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        (datetime(2024, 1, 31, 23, 59, 59), datetime(2024, 2, 1)),
        (datetime(2023, 12, 31, 23, 59, 59), datetime(2024, 1, 1)),
    ],
)
def test_unique_keys_over_the_end_of_a_month(before: datetime, behind: datetime) -> None:
    """The time restarts with the month, also over the year's end and when the clock is set back."""
    keys = UniqueKeys(pid=1, instance=1)
    for moment in (before, behind, before):
        elapsed = int((moment - moment.replace(day=1, hour=0, minute=0, second=0)).total_seconds() * 1000)
        assert int(keys.make(int(moment.timestamp() * 1000))[-12:-4], 16) == elapsed


def test_unique_keys_are_unique() -> None:
    """65 536 keys of one millisecond differ, and two instances differ."""
    keys = UniqueKeys(pid=1, instance=1)
    assert len({keys.make(1_700_000_000_000) for _ in range(65_536)}) == 65_536
    assert UniqueKeys(pid=1).make(0) != UniqueKeys(pid=1).make(0)


def slow_hash(text: str) -> int:
    """Java's String.hashCode according to its definition."""
    units = text.encode("utf-16-be", "surrogatepass")
    total = sum(
        (units[at] << 8 | units[at + 1]) * pow(31, (len(units) - at) // 2 - 1, 2**32)
        for at in range(0, len(units), 2)
    )
    return (total + 2**31) % 2**32 - 2**31


@PROPERTY
@given(st.text(max_size=30))
def test_java_hash(text: str) -> None:
    """The hash uses UTF-16 units and wraps at 32 bits; a message without tags has code 0."""
    assert java_hash(text) == slow_hash(text)
    assert tags_code(text) == slow_hash(text)
    assert tags_code(None) == tags_code("") == 0


def test_index_hash() -> None:
    """An index key is topic#key; its hash is positive, and the one number without a positive counterpart
    becomes 0."""
    assert java_hash("polygenelubricants") == -(2**31)
    assert index_hash("TopicTest", "k1") == abs(slow_hash("TopicTest#k1"))
    negative = next(
        key for key in ("x" * length for length in range(1, 50)) if slow_hash(f"TopicTest#{key}") < 0
    )
    assert index_hash("TopicTest", negative) == -slow_hash(f"TopicTest#{negative}")
    topic, key = key_of_smallest_hash("TopicTest")
    assert slow_hash(f"{topic}#{key}") == -(2**31)
    assert index_hash(topic, key) == 0


def key_of_smallest_hash(topic: str) -> tuple[str, str]:
    """A key of seven printable characters for which the hash of `topic#key` is exactly -2**31, computed digit
    by digit to the base 31."""
    width = 7
    rest = (-(2**31) - java_hash(f"{topic}#") * 31**width) % 2**32
    rest += 2**32 * 12
    units = []
    for place in range(width - 1, -1, -1):
        lowest = sum(33 * 31**lower for lower in range(place))
        unit = min(126, (rest - lowest) // 31**place)
        units.append(unit)
        rest -= unit * 31**place
    return topic, "".join(map(chr, units))
