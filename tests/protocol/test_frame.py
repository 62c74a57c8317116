"""Frames: encoding and decoding are inverse for any division of the stream; broken framing ends the
connection."""

from __future__ import annotations

from random import Random
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqkit.errors import HeaderError, ProtocolError
from rmqkit.limits import MAX_FRAME_BYTES, MAX_HEADER_BYTES
from rmqkit.model.text import text_of
from rmqkit.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE, LANGUAGES, SerializeType
from rmqkit.protocol.command import Command, answer, header_fields, language_name, request
from rmqkit.protocol.frame import FrameDecoder, encode, frame_head
from rmqkit.protocol.headers import GetRouteInfoRequestHeader, SendMessageRequestHeaderV2
from rmqkit.protocol.value_frames import decode_header
from tests.raw_headers import raw_frame

PROPERTY = settings(max_examples=150, deadline=None, database=None)
i32 = st.integers(-(2**31), 2**31 - 1)
i16 = st.integers(-(2**15), 2**15 - 1)
some_text = st.text(min_size=1, max_size=30)


def content(command: Command) -> tuple[object, ...]:
    """The complete content of a command."""
    return (
        command.code,
        command.flag,
        command.opaque,
        command.language,
        command.version,
        command.remark,
        command.fields(),
        command.body,
        command.codec,
    )


def json_commands() -> st.SearchStrategy[Command]:
    return st.builds(
        Command,
        code=i32,
        flag=i32,
        opaque=i32,
        language=st.sampled_from(LANGUAGES),
        version=i32,
        remark=st.none() | st.text(max_size=30),
        ext=st.dictionaries(st.text(max_size=30), st.text(max_size=30), max_size=5),
        body=st.binary(max_size=50),
        codec=st.just(0),
    )


def binary_commands() -> st.SearchStrategy[Command]:
    return st.builds(
        Command,
        code=i16,
        flag=i32,
        opaque=i32,
        language=st.sampled_from(LANGUAGES),
        version=i16,
        remark=st.none() | some_text,
        ext=st.dictionaries(some_text, some_text, max_size=5),
        body=st.binary(max_size=50),
        codec=st.just(1),
    )


@pytest.mark.row("S316", "S317", "S320", "S321")
@PROPERTY
@given(json_commands())
def test_json_round_trip(command: Command) -> None:
    """A JSON command is decoded unchanged: any text, empty texts, negative numbers."""
    (read,) = FrameDecoder().feed(encode(command))
    assert content(read) == content(command)


@pytest.mark.row("S316", "S320", "S321")
@PROPERTY
@given(binary_commands())
def test_binary_round_trip(command: Command) -> None:
    """A binary command is decoded unchanged."""
    (read,) = FrameDecoder().feed(encode(command))
    assert content(read) == content(command)


def test_binary_empty_texts_are_null() -> None:
    """The binary form cannot distinguish an empty text from none: empty remarks and values are dropped, and
    entries without a name."""
    command = Command(code=1, remark="", ext={"empty": "", "": "nameless", "kept": "v"}, codec=1)
    (read,) = FrameDecoder().feed(encode(command))
    assert read.remark is None
    assert read.fields() == {"kept": "v"}


def test_binary_last_of_equal_keys_wins() -> None:
    """A fast-encoded Java header is followed by the map, so a key may occur twice: the last value counts."""
    entries = b"".join(pack(">h", 1) + b"k" + pack(">i", len(value)) + value for value in (b"first", b"last"))
    header = pack(">hBhii", 10, 0, 479, 1, 0) + pack(">i", 0) + pack(">i", len(entries)) + entries
    assert decode_header(header, SerializeType.ROCKETMQ).fields() == {"k": "last"}


def test_binary_entries_without_name_or_value() -> None:
    """A zero-length name or value is null in Java, and such an entry is dropped."""
    entries = (
        pack(">h", 0)
        + pack(">i", 1)
        + b"v"
        + pack(">h", 1)
        + b"k"
        + pack(">i", 0)
        + pack(">h", 1)
        + b"a"
        + pack(">i", 1)
        + b"b"
    )
    header = pack(">hBhiiii", 10, 0, 479, 1, 0, 0, len(entries)) + entries
    assert decode_header(header, SerializeType.ROCKETMQ).fields() == {"a": "b"}


def test_binary_codes_are_cut_to_16_bits() -> None:
    """POP_MESSAGE becomes 3442 in the binary form, as in Java."""
    (read,) = FrameDecoder().feed(encode(Command(code=200050, codec=1)))
    assert read.code == 3442


def test_unknown_language() -> None:
    """An unknown language is None; the binary form then contains OTHER, and a JSON header without one means
    JAVA."""
    assert decode_header(b'{"code":1,"language":"COBOL"}', 0).language is None
    assert decode_header(pack(">hBhiiii", 1, 99, 0, 0, 0, 0, 0), 1).language is None
    assert decode_header(b'{"code":1,"language":null}', 0).language is None
    assert decode_header(b'{"code":1}', 0).language == "JAVA"
    (read,) = FrameDecoder().feed(encode(Command(language=None, codec=1)))
    assert read.language == "OTHER"


@pytest.mark.parametrize(("ordinal", "name"), list(enumerate(LANGUAGES)))
def test_language_by_ordinal(ordinal: int, name: str) -> None:
    """Java reads the ordinal of a language as well as its name."""
    assert decode_header(b'{"code":1,"language":%d}' % ordinal, 0).language == name
    assert language_name(ordinal) == name


@pytest.mark.parametrize("value", [-1, len(LANGUAGES), 10**9, "java", 1.5, None, [1]])
def test_language_out_of_range(value: object) -> None:
    """Any other value than a name or an ordinal of the table is an unknown language."""
    assert language_name(value) is None


def test_lenient_json_header() -> None:
    """Numbers as text, null members, unknown members and a remark that is not text are read as Java reads
    them."""
    command = decode_header(
        b'{"code":"105","opaque":"-7","flag":null,"version":"","remark":12,"color":"red","extFields":{"a":"b"}}',
        0,
    )
    assert (command.code, command.opaque, command.flag, command.version, command.remark) == (
        105,
        -7,
        0,
        0,
        "12",
    )
    assert command.fields() == {"a": "b"}


def test_absent_members_have_defaults() -> None:
    """An empty object is a header: code, flag, opaque and version are 0."""
    command = decode_header(b"{}", 0)
    assert (command.code, command.flag, command.opaque, command.version, command.remark) == (0, 0, 0, 0, None)
    assert command.fields() == {}


@pytest.mark.parametrize("member", ["code", "flag", "opaque", "version"])
@pytest.mark.parametrize(
    ("given_number", "kept"),
    [(2**31, -(2**31)), (2**32 + 5, 5), (-(2**31) - 1, 2**31 - 1), (10**30, (10**30) % 2**32)],
)
def test_numbers_wrap_to_32_bits(member: str, given_number: int, kept: int) -> None:
    """Java keeps an int: larger values wrap, so that every header number can be encoded again."""
    kept = kept - 2**32 if kept >= 2**31 else kept
    for text in (str(given_number), f'"{given_number}"'):
        assert getattr(decode_header(f'{{"{member}":{text}}}'.encode(), 0), member) == kept


def frames() -> tuple[bytes, list[Command]]:
    commands = [
        Command(code=10, opaque=1, ext={"a": "ü", "b": ""}, body=b"first body"),
        Command(code=11, opaque=-2, ext={"topic": "T"}, codec=1),
        Command(code=12, opaque=3, body=b"\x00\x00\x00\x08", codec=1),
        Command(code=0, flag=FLAG_RESPONSE, opaque=4, remark="done"),
    ]
    return b"".join(encode(command) for command in commands), commands


@pytest.mark.row("S316")
def test_stream_cut_at_every_size() -> None:
    """A stream divided into pieces of any one size gives the same commands as in one piece, with nothing left
    over."""
    stream, commands = frames()
    expected = [content(command) for command in commands]
    for size in range(1, len(stream) + 1):
        decoder = FrameDecoder()
        read = [
            content(command)
            for at in range(0, len(stream), size)
            for command in decoder.feed(stream[at : at + size])
        ]
        assert read == expected, size
        assert decoder.pending_bytes == 0


@pytest.mark.row("S316")
def test_stream_cut_at_random_points() -> None:
    """The same holds for pieces of changing size, including empty ones, over many frames."""
    random = Random(316)
    stream, commands = frames()
    stream, expected = stream * 5, [content(command) for command in commands] * 5
    for _ in range(200):
        cuts = sorted(random.choices(range(len(stream) + 1), k=random.randint(1, 25)))
        decoder = FrameDecoder()
        read: list[object] = []
        for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            read += [content(command) for command in decoder.feed(stream[begin:end])]
        assert read == expected


@pytest.mark.parametrize("body_bytes", [10, 100_000])
def test_what_an_unfinished_frame_misses(body_bytes: int) -> None:
    """The number of missing bytes is known once the length has arrived, also while the header is cut."""
    frame = encode(request(1, body=bytes(body_bytes)))
    decoder = FrameDecoder()
    assert decoder.missing_bytes == 0
    decoder.feed(frame[:5])
    assert decoder.missing_bytes == 0
    for end in (8, 20, len(frame) - 5, len(frame) - 1):
        decoder.feed(frame[decoder.pending_bytes : end])
        assert decoder.missing_bytes == len(frame) - end
    assert len(decoder.feed(frame[-1:])) == 1
    assert decoder.missing_bytes == 0


def test_truncated_frame_waits() -> None:
    """A frame that lacks its last byte gives no command and counts the buffered bytes; the last byte
    completes it."""
    stream, _ = frames()
    first = stream[: 4 + int.from_bytes(stream[:4], "big")]
    decoder = FrameDecoder()
    assert decoder.feed(first[:-1]) == []
    assert decoder.pending_bytes == len(first) - 1
    assert len(decoder.feed(first[-1:])) == 1
    assert decoder.pending_bytes == 0


@pytest.mark.parametrize(
    ("prefix", "why"),
    [
        (pack(">iI", -1, 0), "frame of -1"),
        (pack(">iI", -(2**31), 0), "frame of"),
        (pack(">iI", 3, 0), "frame of 3"),
        (pack(">iI", MAX_FRAME_BYTES - 3, 0), "frame of"),
        (pack(">iI", 2**31 - 1, 0), "frame of"),
        (pack(">iI", 20, 17), "header of 17 bytes in a frame of 20"),
        (pack(">iI", 4, 1), "header of 1 "),
        (pack(">iI", MAX_FRAME_BYTES - 4, MAX_HEADER_BYTES + 1), "header of"),
        (pack(">iI", 6, 2 << 24 | 2) + b"{}", "unknown header serialisation 2"),
        (pack(">iI", 6, 0xFF << 24 | 2) + b"{}", "unknown header serialisation 255"),
        (pack(">iI", 4, 0), "not a JSON object"),
        (b"GET / HTTP/1.1\r\n", "it speaks HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "it speaks TLS"),
    ],
)
@pytest.mark.row("S316")
def test_broken_framing(prefix: bytes, why: str) -> None:
    """An invalid length, header length or serialisation is refused at once, without waiting for the rest."""
    with pytest.raises(ProtocolError, match=why):
        FrameDecoder().feed(prefix)


def test_largest_frame() -> None:
    """A frame of exactly 16 MiB with its prefix is accepted both ways; one more byte is refused by writer and
    reader."""
    head = len(encode(Command(code=10)))
    body = bytes(MAX_FRAME_BYTES - head)
    framed = encode(Command(code=10, body=body))
    assert len(framed) == MAX_FRAME_BYTES
    (read,) = FrameDecoder().feed(framed)
    assert len(read.body) == len(body)
    with pytest.raises(ProtocolError, match="at most"):
        frame_head(Command(code=10), len(body) + 1)


def test_no_fields_no_member() -> None:
    """A JSON header without fields has no extFields member, whether there was no map or an empty one."""
    assert encode(Command(code=1, ext={})) == encode(Command(code=1))
    assert b"extFields" not in encode(Command(code=1))


def test_split_frame_head() -> None:
    """Head and body encoded separately give the same bytes as the whole frame."""
    command = Command(code=11, body=b"0123456789", ext={"a": "b"})
    assert frame_head(command, 10) + command.body == encode(command)


@pytest.mark.parametrize(
    "command",
    [
        Command(ext={"k" * 40_000: "v"}, codec=1),
        Command(opaque=2**31, codec=1),
        Command(remark="\ud800", codec=1),
        Command(remark="\ud800", codec=0),
    ],
)
def test_what_cannot_be_written(command: Command) -> None:
    """A command that its serialisation cannot represent raises ProtocolError."""
    with pytest.raises(ProtocolError):
        encode(command)


@pytest.mark.row("S323")
@pytest.mark.parametrize(
    ("flag", "response", "oneway"),
    [
        (0, False, False),
        (FLAG_RESPONSE, True, False),
        (FLAG_ONEWAY, False, True),
        (3, True, True),
        (-4, False, False),
    ],
)
def test_flag_bits(flag: int, response: bool, oneway: bool) -> None:
    """Bit 0 marks a response, bit 1 a one-way request; other bits are ignored."""
    command = Command(flag=flag)
    assert (command.is_response, command.is_oneway) == (response, oneway)


@pytest.mark.row("S323")
@pytest.mark.parametrize("codec", [0, 1])
def test_answer(codec: int) -> None:
    """An answer copies the opaque and the serialisation, sets only bit 0, and has none of the request's
    fields."""
    asked = request(105, GetRouteInfoRequestHeader(topic="T"), opaque=-5, oneway=True)
    asked.codec = codec
    reply = answer(asked, 17, "gone")
    assert (reply.flag, reply.opaque, reply.codec, reply.code, reply.fields()) == (
        FLAG_RESPONSE,
        -5,
        codec,
        17,
        {},
    )


def test_read_command_can_be_sent_on() -> None:
    """A decoded command can be encoded again, with changed fields, because a broker relays calls to
    clients."""
    (read,) = FrameDecoder().feed(encode(Command(code=307, ext={"clientId": "c"})))
    (plain,) = FrameDecoder().feed(encode(read))
    assert plain.fields() == {"clientId": "c"}
    read.fields()["brokerName"] = "b"
    (relayed,) = FrameDecoder().feed(encode(read))
    assert relayed.fields() == {"clientId": "c", "brokerName": "b"}


@pytest.mark.parametrize("codec", [0, 1])
def test_changed_fields_of_a_request_are_sent(codec: int) -> None:
    """A hook may change the fields of a request that was made with a typed header: the frame has them, and so
    has the header that is read afterwards."""
    header = SendMessageRequestHeaderV2(producer_group="g", topic="T", queue_id=1)
    made = request(310, header)
    made.codec = codec
    assert made.header(SendMessageRequestHeaderV2) is header
    (unchanged,) = FrameDecoder().feed(encode(made))
    assert unchanged.fields() == header_fields(header)
    made.fields()["b"] = "other"
    made.fields()["AccessKey"] = "k\u00e4y"
    (read,) = FrameDecoder().feed(encode(made))
    assert read.fields() == header_fields(header) | {"b": "other", "AccessKey": "k\u00e4y"}
    assert made.header(SendMessageRequestHeaderV2).topic == "other"


@pytest.mark.parametrize(
    ("ext", "fields"),
    [
        (b"null", {}),
        (b"{}", {}),
        (
            b'{"a":1,"b":true,"c":false,"d":null,"e":1.5,"f":"x"}',
            {"a": "1", "b": "true", "c": "false", "e": "1.5", "f": "x"},
        ),
        (b'{"a":"1","a":"2"}', {"a": "2"}),
        (b'{a:1,\'b\':"2",3:"c",}', {"a": "1", "b": "2", "3": "c"}),
    ],
)
@pytest.mark.row("S322")
def test_fields_become_text(ext: bytes, fields: dict[str, str]) -> None:
    """Header fields become text, whatever JSON scalar was sent; null is a missing field, the last of equal
    keys counts."""
    assert decode_header(b'{"code":1,"extFields":%s}' % ext, 0).fields() == fields


@pytest.mark.parametrize("ext", [b"[]", b'["a"]', b"5", b"true", b'"text"', b'{"a":[]}', b'{"a":{"b":1}}'])
def test_fields_that_are_none(ext: bytes) -> None:
    """extFields that are not a flat object are refused when they are read, so that the request is still
    answered."""
    command = decode_header(b'{"code":105,"opaque":9,"extFields":%s}' % ext, 0)
    assert command.opaque == 9
    with pytest.raises(HeaderError):
        command.fields()
    with pytest.raises(HeaderError):
        command.header(GetRouteInfoRequestHeader)


@given(
    sizes=st.lists(st.sampled_from([0, 10, 40_000, 100_000, 300_000]), min_size=1, max_size=4),
    cuts=st.lists(st.sampled_from([1, 3, 7, 9, 50, 33_000, 70_000, 262_144]), min_size=1, max_size=12),
)
def test_large_frames_come_whole_however_they_are_cut(sizes: list[int], cuts: list[int]) -> None:
    """Bodies in pieces, large and small, between frames of any size, are decoded as if they had arrived at
    once."""
    commands = [
        Command(code=number, opaque=number, ext={"a": "b"}, body=bytes([number]) * size)
        for number, size in enumerate(sizes)
    ]
    stream = b"".join(map(encode, commands))
    decoder = FrameDecoder()
    found: list[Command] = []
    at = turn = 0
    while at < len(stream):
        size = cuts[turn % len(cuts)] if turn < 2000 else len(stream)
        found += decoder.feed(stream[at : at + size])
        at += size
        turn += 1
    assert [(each.opaque, each.fields(), each.body) for each in found] == [
        (each.opaque, each.ext, each.body) for each in commands
    ]
    assert all(type(each.body) is bytes for each in found)
    assert decoder.pending_bytes == 0


@pytest.mark.parametrize("codec", list(SerializeType))
@PROPERTY
@given(values=st.dictionaries(st.sampled_from("abcefghij"), st.binary(min_size=1, max_size=12), max_size=6))
def test_fields_of_any_bytes(codec: SerializeType, values: dict[str, bytes]) -> None:
    """The fields of a request may be any bytes, in both serialisations: they are read as Java reads them, and
    what was read can be written."""
    (command,) = FrameDecoder().feed(raw_frame(codec, 310, values, b"body"))
    expected = {name: text_of(value) for name, value in values.items()}
    assert (command.fields(), command.body) == (expected, b"body")
    (same,) = FrameDecoder().feed(encode(answer(command, remark="".join(expected.values()))))
    assert (same.remark or "") == "".join(expected.values())


@PROPERTY
@given(st.lists(st.integers(0xD7FE, 0xE001).map(chr) | st.characters(), max_size=8).map("".join))
def test_escapes_of_any_units(text: str) -> None:
    """Each unit of UTF-16 may be escaped, halves of pairs as well; a half is `?`, as Java writes it."""
    units = text.encode("utf-16-be", "surrogatepass")
    escaped = b"".join(b"\\u" + units[at : at + 2].hex().encode() for at in range(0, len(units), 2))
    header = b'{"code":310,"extFields":{"i":"' + escaped + b'"},"remark":"' + escaped + b'"}'
    command = decode_header(header, SerializeType.JSON)
    pairs = units.decode("utf-16-be", "surrogatepass")
    expected = pairs.encode("utf-8", "replace").decode()
    assert command.remark == command.fields()["i"] == expected


@pytest.mark.parametrize(
    ("first", "name"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "HTTP"),
        (b"GET / HTTP/1.1\r\n", "HTTP"),
        (b"PRI * HTTP/2.0\r\n", r"HTTP/2 \(gRPC\)"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH"),
        (b"220 mail.example ESMTP\r\n", "SMTP or FTP"),
        (b"AMQP\x00\x00\x09\x01", "AMQP"),
        (b"\x15\x03\x01\x00\x02\x02\x46\x00", "TLS"),
    ],
)
def test_another_protocol_is_named(first: bytes, name: str) -> None:
    """The error of a peer that speaks something else says what it speaks."""
    with pytest.raises(ProtocolError, match=f"it speaks {name}, not RocketMQ"):
        FrameDecoder().feed(first)
