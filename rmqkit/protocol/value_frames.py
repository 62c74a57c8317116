"""Headers of frames, and whole frames divided, in Python (drawn in `rmqkit.protocol.frame`)."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError
from typing import Any

import msgspec

from rmqkit.errors import DecodeError, ProtocolError
from rmqkit.limits import MAX_FRAME_BYTES, MAX_HEADER_BYTES
from rmqkit.model.text import text_of
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import LANGUAGE_CODES, LANGUAGES, SerializeType
from rmqkit.protocol.command import Command, header_fields, language_name
from rmqkit.protocol.headers.send import SendMessageRequestHeaderV2
from rmqkit.protocol.integers import I32

PREFIX = Struct(">iI")
BINARY_HEAD = Struct(">hBhii")
WORD = Struct(">i")
HALF = Struct(">h")
JSON = int(SerializeType.JSON)
_BINARY = int(SerializeType.ROCKETMQ)
_I32_MASK = 0xFFFFFFFF
#: The largest length that a frame may state: the rest of it, without this field.
MAX_TOTAL = MAX_FRAME_BYTES - 4
NO_EXT = msgspec.Raw(b"")
#: What the decoders of headers raise.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
#: The bodies of frames from this size on are not copied if possible.
LARGE_BYTES = 32 * 1024


class _JsonHead(msgspec.Struct, gc=False):
    """The content of a strict JSON header; absent members have Java's defaults."""

    code: I32 = 0
    flag: I32 = 0
    opaque: I32 = 0
    language: str | None = "JAVA"
    version: I32 = 0
    remark: str | None = None
    extFields: msgspec.Raw = msgspec.Raw(b"")


class SendHead(msgspec.Struct, gc=False):
    """The header of a send with its fields, the most frequent request of a broker: one pass over the text
    decodes both."""

    extFields: SendMessageRequestHeaderV2
    code: I32 = 0
    flag: I32 = 0
    opaque: I32 = 0
    language: str | None = "JAVA"
    version: I32 = 0
    remark: str | None = None


class JsonOut(msgspec.Struct, gc=False, omit_defaults=True):
    """Members in the order in which Java writes them (alphabetical), without null ones."""

    code: int
    extFields: dict[str, str] | None = None
    flag: int = msgspec.field(default_factory=int)
    language: str | None = None
    opaque: int = msgspec.field(default_factory=int)
    remark: str | None = None
    serializeTypeCurrentRPC: str = ""
    version: int = msgspec.field(default_factory=int)


_decode_head = msgspec.json.Decoder(_JsonHead, strict=False).decode
decode_send = msgspec.json.Decoder(SendHead, strict=False).decode
#: The beginning of a send's header (SEND_MESSAGE_V2) from Java and Go clients.
SEND_BEGINS = b'{"code":310,'
encode_json = msgspec.json.Encoder().encode


def cut(data: bytes, commands: list[Command]) -> tuple[int, int]:
    """Append the commands of all whole frames from the beginning of `data` on. Returns where the first
    unfinished one begins, and the number of bytes of it that must be there before it can be continued.
    Raises ProtocolError for a broken frame, after those before it."""
    prefix, at, end = PREFIX.unpack_from, 0, len(data)
    while end - at >= 8:
        total, word = prefix(data, at)
        header_bytes = word & 0xFFFFFF
        if not header_bytes + 4 <= total <= MAX_TOTAL or header_bytes > MAX_HEADER_BYTES:
            raise refused(total, header_bytes)
        stop = at + 4 + total
        body_at = at + 8 + header_bytes
        if stop > end:
            # Where the body of a large frame begins must be known first.
            return at, 4 + total if total < LARGE_BYTES or body_at <= end else 8 + header_bytes
        commands.append(decode_header(data[at + 8 : body_at], word >> 24, data[body_at:stop]))
        at = stop
    return at, 8


NOT_ROCKETMQ = "not RocketMQ's remoting protocol"
_OTHERS = {
    int.from_bytes(first): name
    for name, words in {
        "HTTP": (
            *(b"HTTP", b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"PATC", b"DELE", b"CONN"),
            *(b"<!DO", b"<htm"),
        ),
        "HTTP/2 (gRPC)": (b"PRI ",),
        "SSH": (b"SSH-",),
        "Redis": (b"-ERR",),
        "TLS": (b"\x15\x03\x01\x00", b"\x15\x03\x02\x00", b"\x15\x03\x03\x00"),
        "SMTP or FTP": (b"220 ", b"220-", b"421 ", b"500 ", b"554 "),
        "AMQP": (b"AMQP",),
    }.items()
    for first in words
}


#: The first three bytes of a TLS handshake: its type and the version of the record.
_TLS_BEGINS = {0x160300, 0x160301, 0x160302, 0x160303}


def spoken(first: bytes) -> str | None:
    """The protocol whose connections begin with these bytes, as a name for log lines; None for unknown and
    too few ones."""
    if len(first) < 4:
        return None
    word = int.from_bytes(first[:4])
    return "RocketMQ's remoting protocol" if 4 <= word <= MAX_TOTAL else _other(word)


def other_protocol(first: bytes) -> str | None:
    """The name of a protocol other than remoting whose connections begin with these bytes; None for unknown
    and too few ones."""
    return _other(int.from_bytes(first[:4])) if len(first) >= 4 else None


def _other(word: int) -> str | None:
    """The name of a protocol other than remoting by the first four bytes: no frame is so long."""
    return "TLS" if word >> 8 in _TLS_BEGINS else _OTHERS.get(word)


def refused(total: int, header_bytes: int) -> ProtocolError:
    """What is wrong with the first 8 bytes of a frame."""
    other = _other(total & 0xFFFFFFFF)
    if other is not None:
        return ProtocolError(f"it speaks {other}, {NOT_ROCKETMQ}")
    if 4 <= total <= MAX_TOTAL:
        return ProtocolError(f"header of {header_bytes} bytes in a frame of {total}")
    return ProtocolError(f"frame of {total} bytes: between 4 and {MAX_TOTAL} are allowed")


def decode_header(header: bytes, codec: int, body: bytes = b"") -> Command:
    """Decode a header without its frame; returns the command with this body. Raises ProtocolError."""
    if codec == JSON:
        try:
            if header.startswith(SEND_BEGINS):
                try:
                    sent = decode_send(header)
                    language = sent.language
                    return Command(
                        sent.code, sent.flag, sent.opaque, language if language in LANGUAGE_CODES else None,
                        sent.version, sent.remark, None, body, JSON, NO_EXT, header, sent.extFields,
                    )  # fmt: skip
                except UNREADABLE:
                    pass
            head = _decode_head(header)
        except UNREADABLE:
            return _decode_loose(header, body)
        language = head.language
        return Command(
            head.code, head.flag, head.opaque, language if language in LANGUAGE_CODES else None,
            head.version, head.remark, None, body, JSON, head.extFields,
        )  # fmt: skip
    if codec == _BINARY:
        return _decode_binary(header, body)
    raise ProtocolError(f"unknown header serialisation {codec}")


def _number(value: object) -> int:
    """A header number, also given as text; absent and empty are 0. Java keeps an i32: larger values wrap."""
    if value is None or value == "":
        return 0
    if not isinstance(value, (int, float, str)):
        raise TypeError(f"a {type(value).__name__}")
    return (int(value) + 0x80000000 & _I32_MASK) - 0x80000000


def _remark(value: object) -> str | None:
    """A remark that is not a text becomes its JSON text, as in Java."""
    return value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()


def _decode_loose(header: bytes, body: bytes) -> Command:
    try:
        tree: Any = loose_json.loads(header)
    except DecodeError as error:
        raise ProtocolError(f"header is not JSON: {error}") from error
    if not isinstance(tree, dict):
        raise ProtocolError("header is not a JSON object")
    ext = tree.get("extFields")
    try:
        code, flag, opaque, version = (
            _number(tree.get(name)) for name in ("code", "flag", "opaque", "version")
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(f"a header number is none: {error}") from error
    try:
        remark = _remark(tree.get("remark"))
        raw = msgspec.Raw(msgspec.json.encode(ext)) if ext is not None else msgspec.Raw(b"")
    except RecursionError as error:
        raise ProtocolError("header nested too deep") from error
    return Command(
        code,
        flag,
        opaque,
        language_name(tree.get("language", "JAVA")),
        version,
        remark,
        None,
        body,
        JSON,
        raw,
    )


def _decode_binary(header: bytes, body: bytes) -> Command:
    try:
        code, language, version, opaque, flag = BINARY_HEAD.unpack_from(header, 0)
        remark, at = _text32(header, 13)
        (ext_bytes,) = WORD.unpack_from(header, at)
        at += 4
        if ext_bytes < 0 or at + ext_bytes > len(header):
            raise ProtocolError(
                f"binary header claims {ext_bytes} bytes of fields, {len(header) - at} are there"
            )
        ext: dict[str, str] = {}
        end = at + ext_bytes
        while at < end:
            (size,) = HALF.unpack_from(header, at)
            if size < 0 or at + 2 + size > end:
                raise ProtocolError(f"binary header field name of {size} bytes")
            key = text_of(header[at + 2 : at + 2 + size])
            value, at = _text32(header, at + 2 + size)
            if key and value is not None:
                ext[key] = value
    except StructError as error:
        raise ProtocolError(f"binary header: {error}") from error
    name = LANGUAGES[language] if language < len(LANGUAGES) else None
    return Command(code, flag, opaque, name, version, remark, ext, body, _BINARY)


def _text32(header: bytes, at: int) -> tuple[str | None, int]:
    (size,) = WORD.unpack_from(header, at)
    end = at + 4 + size
    if size < 0 or end > len(header):
        raise ProtocolError(f"binary header text of {size} bytes")
    return (text_of(header[at + 4 : end]) if size else None), end


def send_header_text(
    code: int, flag: int, language: str, opaque: int, version: int, header: SendMessageRequestHeaderV2
) -> bytes:
    """The JSON header of a send. Raises UnicodeEncodeError for text with surrogates."""
    return encode_json(JsonOut(code, header_fields(header), flag, language, opaque, None, "JSON", version))


def alike(commands: Sequence[Command], start: int, stop: int) -> int:
    """The first index from `start` on, `stop` at most, whose command has another code or flag than the first.
    Raises IndexError outside of the commands."""
    code, flag = commands[start].code, commands[start].flag
    for at in range(start + 1, stop):
        if commands[at].code != code or commands[at].flag != flag:
            return at
    return max(stop, start + 1)
