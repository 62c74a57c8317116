"""Registration bodies, plain and compressed."""

from __future__ import annotations

import zlib
from contextlib import suppress
from struct import pack
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqkit.errors import DecodeError
from rmqkit.model.route import RegisterBrokerBody
from rmqkit.model.topic import DataVersion, TopicConfig, TopicConfigAndMappingTable
from rmqkit_namesrv.limits import MAX_INFLATED_REGISTRATION_BYTES, MAX_REGISTERED_TOPICS
from rmqkit_namesrv.registration_body import BodyReader, body_crc32, encode_compressed

V3_0_7, V4_9_4, V5_3_3 = 28, 401, 479

#: Wire-protocol sheet, section 4.3, marked as verified against Java.
VERSION_JSON = b'{"counter":3,"stateVersion":0,"timestamp":1700000000000}'
PLAIN = (
    b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":'
    + VERSION_JSON
    + b',"mappingDataVersion":'
    + VERSION_JSON
    + b","
    b'"topicConfigTable":{"TopicTest":{"attributes":{"message.type":"FIFO"},"order":false,"perm":6,"readQueueNums":4,'
    b'"topicFilterType":"SINGLE_TAG","topicName":"TopicTest","topicSysFlag":0,"writeQueueNums":4}},'
    b'"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}}'
)
INFLATED = (
    bytes.fromhex("00000038")
    + VERSION_JSON
    + bytes.fromhex("00000001" + "00000032")
    + b'TopicTest 4 4 6 SINGLE_TAG {"message.type":"FIFO"}'
    + bytes.fromhex("00000002")
    + b"[]"
    + bytes.fromhex("00000000")
)
TOPIC = TopicConfig(
    topic_name="TopicTest", read_queue_nums=4, write_queue_nums=4, attributes={"message.type": "FIFO"}
)
VERSION = DataVersion(counter=3, timestamp=1_700_000_000_000)


def block(data: bytes) -> bytes:
    return pack(">i", len(data)) + data


def decode(data: bytes, version: int, compressed: bool = False) -> RegisterBrokerBody:
    """What the reader makes of a body, without mappings."""
    reader = BodyReader(data, version, compressed)
    table = {topic.topic_name: topic for topics in reader for topic in topics}
    return make_body(list(table.values()), reader.data_version, reader.filter_servers, {})


def crc32(data: bytes) -> int:
    slices = body_crc32(data)
    while True:
        try:
            next(slices)
        except StopIteration as done:
            return int(done.value)


def test_plain_body_of_the_sheet() -> None:
    """The body is RegisterBrokerBody as Java writes it."""
    body = decode(PLAIN, V5_3_3)
    assert body.topic_config_serialize_wrapper.topic_config_table == {"TopicTest": TOPIC}
    assert body.topic_config_serialize_wrapper.data_version == VERSION
    assert body.filter_server_list == []


@pytest.mark.parametrize("compressed", [True, False])
def test_compressed_body_of_the_sheet(compressed: bool) -> None:
    """The zlib form is decoded, also from 5.x brokers that announce the plain form, and encoded to the same
    bytes."""
    body = decode(zlib.compress(INFLATED, 9), V5_3_3, compressed)
    assert body.topic_config_serialize_wrapper.topic_config_table == {"TopicTest": TOPIC}
    assert body.topic_config_serialize_wrapper.data_version == VERSION
    given_out = zlib.decompress(encode_compressed(body, V5_3_3))
    # Only the order of the members of DataVersion may differ.
    assert given_out[4 + 0x38 :] == INFLATED[4 + 0x38 :]
    assert msgspec.json.decode(given_out[4 : 4 + 0x38], type=DataVersion) == VERSION


def test_compressed_body_of_4_x() -> None:
    """The form of 4.x has five items per topic and no mappings."""
    data = (
        block(VERSION_JSON) + pack(">i", 1) + block(b"TopicTest 8 4 2 MULTI_TAG") + block(b'["10.0.0.1:1"]')
    )
    body = decode(zlib.compress(data), V4_9_4, True)
    assert body.topic_config_serialize_wrapper.topic_config_table == {
        "TopicTest": TopicConfig(
            topic_name="TopicTest",
            read_queue_nums=8,
            write_queue_nums=4,
            perm=2,
            topic_filter_type="MULTI_TAG",
        )
    }
    assert body.filter_server_list == ["10.0.0.1:1"]


def test_brokers_before_3_0_11_send_the_bare_table() -> None:
    """The registered filter servers of such a broker stay unchanged."""
    body = decode(b'{"dataVersion":' + VERSION_JSON + b',"topicConfigTable":{"T":{"topicName":"T"}}}', V3_0_7)
    assert list(body.topic_config_serialize_wrapper.topic_config_table) == ["T"]
    assert body.topic_config_serialize_wrapper.data_version == VERSION
    assert body.filter_server_list is None


def test_an_empty_body_registers_no_topics() -> None:
    assert decode(b"", V5_3_3) == RegisterBrokerBody()
    assert decode(b"", V3_0_7).filter_server_list is None


def test_the_crc_has_31_bits() -> None:
    """The checksum is that of Java's UtilAll.crc32: 0xCBF43926 for the standard check text."""
    assert crc32(b"123456789") == 0xCBF43926 & 0x7FFFFFFF
    assert crc32(b"123456789" * 100_000) == zlib.crc32(b"123456789" * 100_000) & 0x7FFFFFFF


texts = st.text(st.characters(codec="utf-8", exclude_characters=" "), min_size=1, max_size=20)
numbers = st.integers(0, 0x7FFFFFFF)
attribute_tables = st.dictionaries(texts, st.text(st.characters(codec="utf-8"), max_size=20), max_size=3)


def make_body(
    topics: list[TopicConfig], version: DataVersion, servers: list[str] | None, mappings: dict[str, Any]
) -> RegisterBrokerBody:
    table = TopicConfigAndMappingTable(
        data_version=version,
        topic_config_table={topic.topic_name: topic for topic in topics},
        topic_queue_mapping_info_map={
            topic: mapping | {"topic": topic} for topic, mapping in mappings.items()
        },
    )
    return RegisterBrokerBody(topic_config_serialize_wrapper=table, filter_server_list=servers)


topic_configs = st.builds(
    TopicConfig,
    topic_name=texts,
    read_queue_nums=numbers,
    write_queue_nums=numbers,
    perm=st.integers(0, 7),
    topic_filter_type=st.sampled_from(["SINGLE_TAG", "MULTI_TAG"]),
    attributes=attribute_tables,
)
bodies = st.builds(
    make_body,
    st.lists(topic_configs, max_size=5),
    st.builds(
        DataVersion,
        counter=st.integers(0, 2**63 - 1),
        timestamp=st.integers(0, 2**63 - 1),
        state_version=numbers,
    ),
    st.lists(texts, max_size=3),
    st.dictionaries(texts, st.fixed_dictionaries({"bname": texts, "totalQueues": numbers}), max_size=2),
)


@settings(deadline=None)
@given(bodies)
def test_what_is_written_reads_back(body: RegisterBrokerBody) -> None:
    """Both forms are decoded to the encoded value; the compressed one lacks `order` and `topicSysFlag`, which
    have their defaults here."""
    plain, compressed = msgspec.json.encode(body), encode_compressed(body, V5_3_3)
    body.topic_config_serialize_wrapper.topic_queue_mapping_info_map.clear()
    assert decode(plain, V5_3_3) == body
    assert decode(compressed, V5_3_3, True) == body


@pytest.mark.parametrize("version", [V3_0_7, V5_3_3])
@pytest.mark.parametrize("layout", ["compact", "lines", "indented"])
def test_a_large_table_is_read_in_parts(layout: str, version: int) -> None:
    """Whatever the white space, and with attributes that look like the ends of entries; the parts together
    are the table, in its order."""
    odd = {"a": '},"b":{"}', "b": "{}", "c": "}}"}
    topics = [
        TopicConfig(topic_name=f"T{number}", read_queue_nums=number, attributes=odd if number % 3 else {})
        for number in range(5_000)
    ]
    whole = make_body(topics, VERSION, ["10.0.0.1:1"], {})
    value: object = whole if version == V5_3_3 else whole.topic_config_serialize_wrapper
    data = msgspec.json.encode(value)
    if layout == "lines":
        data = data.replace(b'},"T', b'},\n"T')
    elif layout == "indented":
        data = msgspec.json.format(data, indent=2)
    parts = [part for part in BodyReader(data, version) if part]
    assert len(parts) > 10
    assert max(map(len, parts)) < 1_000
    assert [topic for part in parts for topic in part] == topics
    assert decode(data, version).topic_config_serialize_wrapper.data_version == VERSION
    with pytest.raises(DecodeError):
        decode(data[:-1], version)


def test_a_large_compressed_table_is_read_in_parts() -> None:
    topics = [TopicConfig(topic_name=f"T{number}", read_queue_nums=number) for number in range(5_000)]
    data = encode_compressed(make_body(topics, VERSION, [], {}), V5_3_3)
    parts = [part for part in BodyReader(data, V5_3_3) if part]
    assert max(map(len, parts)) < 1_000
    assert [topic for part in parts for topic in part] == topics


@settings(deadline=None)
@given(st.binary(max_size=200), st.booleans(), st.sampled_from([V3_0_7, V4_9_4, V5_3_3]))
def test_garbage_is_a_decode_error(data: bytes, compressed: bool, version: int) -> None:
    """Arbitrary bytes, plain or compressed, raise only DecodeError."""
    for body in (data, zlib.compress(data)):
        with suppress(DecodeError):
            decode(body, version, compressed)


@settings(deadline=None)
@given(st.integers(0, len(INFLATED) - 1), st.integers(0, 255))
def test_a_changed_byte_is_no_crash(at: int, value: int) -> None:
    changed = bytearray(INFLATED)
    changed[at] = value
    with suppress(DecodeError):
        decode(zlib.compress(bytes(changed)), V5_3_3)


@pytest.mark.parametrize("cut", range(0, len(INFLATED) - 4, 7))
def test_a_body_cut_short_is_refused(cut: int) -> None:
    """A truncated zlib stream or content is refused. Only the mappings at the end may be missing."""
    with pytest.raises(DecodeError):
        decode(zlib.compress(INFLATED[:cut]), V5_3_3)
    with pytest.raises(DecodeError):
        decode(zlib.compress(INFLATED)[:-1], V5_3_3, True)
    assert decode(zlib.compress(INFLATED[:-4]), V5_3_3)


def test_a_bomb_is_refused() -> None:
    """Of 64 MiB of zeros compressed to 64 KiB, only the permitted size is decompressed."""
    packer = zlib.compressobj(1)
    bomb = (
        b"".join(
            packer.compress(bytes(1024 * 1024))
            for _ in range(MAX_INFLATED_REGISTRATION_BYTES // 1024 // 1024 + 1)
        )
        + packer.flush()
    )
    with pytest.raises(DecodeError, match="inflates to more than"):
        decode(bomb, V5_3_3, True)


@pytest.mark.parametrize("count", [-1, MAX_REGISTERED_TOPICS + 1, 0x7FFFFFFF])
def test_a_number_of_topics_that_cannot_be(count: int) -> None:
    with pytest.raises(DecodeError, match="topics"):
        decode(zlib.compress(block(VERSION_JSON) + pack(">i", count)), V5_3_3)


@pytest.mark.parametrize("size", [-1, -4, -0x80000000, 0x7FFFFFFF])
def test_a_length_that_cannot_be(size: int) -> None:
    with pytest.raises(DecodeError, match="claims"):
        decode(zlib.compress(block(VERSION_JSON) + pack(">ii", 1, size)), V5_3_3)


@pytest.mark.parametrize(
    "text",
    [
        b"TopicTest 4 4 6",
        b"TopicTest four 4 6 SINGLE_TAG",
        b"TopicTest -4 4 6 SINGLE_TAG",
        b"TopicTest 4 99999999999 6 SINGLE_TAG",
        b" 4 4 6 SINGLE_TAG",
        b"TopicTest 4 4 6 SINGLE_TAG [1]",
    ],
)
def test_a_topic_that_makes_no_sense(text: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(zlib.compress(block(VERSION_JSON) + pack(">i", 1) + block(text) + block(b"[]")), V5_3_3)


def test_a_topic_that_is_no_text() -> None:
    """A topic or attribute that is not UTF-8 is read with replacement: it does not keep the broker with all
    its topics out."""
    text = b'Odd\xa4 4 4 6 SINGLE_TAG {"+a\xa4":"\xe7\xbc"}'
    found = decode(zlib.compress(block(VERSION_JSON) + pack(">i", 1) + block(text) + block(b"[]")), V5_3_3)
    ((name, topic),) = found.topic_config_serialize_wrapper.topic_config_table.items()
    assert (name, topic.attributes) == ("Odd\ufffd", {"+a\ufffd": "\ufffd"})
