"""Frames: bytes to commands and back (Java: NettyDecoder, RemotingCommand, RocketMQSerializable).

    0        4              8                8 + header length        4 + total
    +--------+----+---------+----------------+------------------------+
    | total  |type| header  | header         | body                   |
    | i32    | u8 | len u24 |                |                        |
    +--------+----+---------+----------------+------------------------+

`total` does not count itself. type 0 is the JSON header, type 1 the binary one:

    code i16 | language u8 | version i16 | opaque i32 | flag i32 | remark length i32 | remark
        | ext length i32 | entries
    entry: key length i16 | key | value length i32 | value
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
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
from rmqkit.speedups import IN_USE

_PREFIX = Struct(">iI")
_BINARY_HEAD = Struct(">hBhii")
_I32 = Struct(">i")
_I16 = Struct(">h")
_JSON = int(SerializeType.JSON)
_BINARY = int(SerializeType.ROCKETMQ)
_I32_MASK = 0xFFFFFFFF
#: The largest length that a frame may state: the rest of it, without this field.
_MAX_TOTAL = MAX_FRAME_BYTES - 4
_NO_EXT = msgspec.Raw(b"")
#: What the decoders of headers raise.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
#: The bodies of frames from this size on are not copied if possible.
_LARGE_BYTES = 32 * 1024


class _JsonHead(msgspec.Struct, gc=False):
    """The content of a strict JSON header; absent members have Java's defaults."""

    code: I32 = 0
    flag: I32 = 0
    opaque: I32 = 0
    language: str | None = "JAVA"
    version: I32 = 0
    remark: str | None = None
    extFields: msgspec.Raw = msgspec.Raw(b"")


class _SendHead(msgspec.Struct, gc=False):
    """The header of a send with its fields, the most frequent request of a broker: one pass over the text
    decodes both."""

    extFields: SendMessageRequestHeaderV2
    code: I32 = 0
    flag: I32 = 0
    opaque: I32 = 0
    language: str | None = "JAVA"
    version: I32 = 0
    remark: str | None = None


class _JsonOut(msgspec.Struct, gc=False, omit_defaults=True):
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
_decode_send = msgspec.json.Decoder(_SendHead, strict=False).decode
#: The beginning of a send's header (SEND_MESSAGE_V2) from Java and Go clients.
_SEND_BEGINS = b'{"code":310,'
_encoder = msgspec.json.Encoder()


class FrameCutter:
    """Divides bytes into the frames that they contain."""

    def cut(self, data: bytes, commands: list[Command]) -> tuple[int, int]:
        """Append the commands of all whole frames from the beginning of `data` on. Returns where the first
        unfinished one begins, and the number of bytes of it that must be there before it can be continued.
        Raises ProtocolError for a broken frame, after those before it."""
        prefix, at, end = _PREFIX.unpack_from, 0, len(data)
        while end - at >= 8:
            total, word = prefix(data, at)
            header_bytes = word & 0xFFFFFF
            if not header_bytes + 4 <= total <= _MAX_TOTAL or header_bytes > MAX_HEADER_BYTES:
                raise _refused(total, header_bytes)
            stop = at + 4 + total
            body_at = at + 8 + header_bytes
            if stop > end:
                # Where the body of a large frame begins must be known first.
                return at, 4 + total if total < _LARGE_BYTES or body_at <= end else 8 + header_bytes
            commands.append(decode_header(data[at + 8 : body_at], word >> 24, data[body_at:stop]))
            at = stop
        return at, 8


class FrameDecoder:
    """Divides a byte stream into commands. Feed it the bytes of the socket; it keeps the unfinished rest.

    A frame over MAX_FRAME_BYTES, a negative length, a header longer than its frame, an unknown serialise type
    or an invalid header raises ProtocolError: the stream is unusable and the connection must be closed.
    Complete frames before the broken one are returned first; the error is then raised by the next `feed`, and
    `fault` contains it already.
    """

    __slots__ = ("_body", "_kept", "_need", "fault", "pending_bytes")

    def __init__(self) -> None:
        #: What has arrived of the unfinished frame; of a large one only prefix and header.
        self._kept = bytearray()
        #: What has arrived of the body of a large frame: it grows without being copied at the end.
        self._body: BytesIO | None = None
        #: Number of bytes of the unfinished frame.
        self.pending_bytes = 0
        self._need = 8
        self.fault: ProtocolError | None = None

    @property
    def missing_bytes(self) -> int:
        """What the unfinished frame still misses; 0 while its length has not arrived, and without one."""
        if self.pending_bytes < _PREFIX.size:
            return 0
        return int(4 + _PREFIX.unpack_from(self._kept)[0] - self.pending_bytes)

    def feed(self, data: bytes) -> list[Command]:
        """All commands completed by `data`, in order. Raises ProtocolError."""
        if self.fault is not None:
            raise self.fault
        commands: list[Command] = []
        try:
            if self.pending_bytes:
                data = self._continued(data, commands)
                if self.pending_bytes:
                    return commands
            at, self._need = cut(data, commands)
        except ProtocolError as error:
            self.fault = error
            if not commands:
                raise
            return commands
        if at != len(data):
            self._keep(data[at:] if at else data)
        return commands

    def _continued(self, data: bytes, commands: list[Command]) -> bytes:
        """The bytes to divide, which begin with those of the unfinished frame; none while it remains
        unfinished. Raises ProtocolError."""
        if self._body is not None:
            return self._continue(self._body, data, commands)
        self._kept += data
        self.pending_bytes += len(data)
        if self.pending_bytes < self._need:
            return b""
        data = bytes(self._kept)
        self._kept.clear()
        self.pending_bytes = 0
        return data

    def _keep(self, data: bytes) -> None:
        """Begin to buffer an unfinished frame."""
        self.pending_bytes = len(data)
        if self._need >= _LARGE_BYTES:
            body_at = 8 + (_PREFIX.unpack_from(data)[1] & 0xFFFFFF)
            if len(data) >= body_at:
                self._kept += data[:body_at]
                self._body = BytesIO()
                self._body.write(memoryview(data)[body_at:])
                return
        self._kept += data

    def _continue(self, body: BytesIO, data: bytes, commands: list[Command]) -> bytes:
        """Add to the body of a large frame. The finished command is appended to `commands`; returns the
        bytes behind it. Raises ProtocolError."""
        missing = self._need - self.pending_bytes
        self.pending_bytes += body.write(data if len(data) <= missing else memoryview(data)[:missing])
        if len(data) >= missing:
            head, self._body = bytes(self._kept), None
            self._kept.clear()
            self.pending_bytes = 0
            commands.append(decode_header(head[8:], head[4], body.getvalue()))
        return data[missing:]


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
    return "RocketMQ's remoting protocol" if 4 <= word <= _MAX_TOTAL else _other(word)


def _other(word: int) -> str | None:
    """The name of a protocol other than remoting by the first four bytes: no frame is so long."""
    return "TLS" if word >> 8 in _TLS_BEGINS else _OTHERS.get(word)


def _refused(total: int, header_bytes: int) -> ProtocolError:
    """What is wrong with the first 8 bytes of a frame."""
    other = _other(total & 0xFFFFFFFF)
    if other is not None:
        return ProtocolError(f"it speaks {other}, {NOT_ROCKETMQ}")
    if 4 <= total <= _MAX_TOTAL:
        return ProtocolError(f"header of {header_bytes} bytes in a frame of {total}")
    return ProtocolError(f"frame of {total} bytes: between 4 and {_MAX_TOTAL} are allowed")


def decode_header(header: bytes, codec: int, body: bytes = b"") -> Command:
    """Decode a header without its frame; returns the command with this body. Raises ProtocolError."""
    if codec == _JSON:
        try:
            if header.startswith(_SEND_BEGINS):
                try:
                    sent = _decode_send(header)
                    language = sent.language
                    return Command(
                        sent.code, sent.flag, sent.opaque, language if language in LANGUAGE_CODES else None,
                        sent.version, sent.remark, None, body, _JSON, _NO_EXT, header, sent.extFields,
                    )  # fmt: skip
                except _UNREADABLE:
                    pass
            head = _decode_head(header)
        except _UNREADABLE:
            return _decode_loose(header, body)
        language = head.language
        return Command(
            head.code, head.flag, head.opaque, language if language in LANGUAGE_CODES else None,
            head.version, head.remark, None, body, _JSON, head.extFields,
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
        raise ProtocolError(f"header is no JSON: {error}") from error
    if not isinstance(tree, dict):
        raise ProtocolError("header is no JSON object")
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
        _JSON,
        raw,
    )


def _decode_binary(header: bytes, body: bytes) -> Command:
    try:
        code, language, version, opaque, flag = _BINARY_HEAD.unpack_from(header, 0)
        remark, at = _text32(header, 13)
        (ext_bytes,) = _I32.unpack_from(header, at)
        at += 4
        if ext_bytes < 0 or at + ext_bytes > len(header):
            raise ProtocolError(
                f"binary header claims {ext_bytes} bytes of fields, {len(header) - at} are there"
            )
        ext: dict[str, str] = {}
        end = at + ext_bytes
        while at < end:
            (size,) = _I16.unpack_from(header, at)
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
    (size,) = _I32.unpack_from(header, at)
    end = at + 4 + size
    if size < 0 or end > len(header):
        raise ProtocolError(f"binary header text of {size} bytes")
    return (text_of(header[at + 4 : end]) if size else None), end


def encode(command: Command) -> bytes:
    """Encode a frame. Raises ProtocolError when it exceeds MAX_FRAME_BYTES or cannot be represented in its
    serialisation."""
    return frame_head(command, len(command.body)) + command.body


def encode_parts(command: Command) -> tuple[bytes, ...]:
    """The frame of a command in parts: a large body is one of its own, which is not copied."""
    head, body = frame_head(command, len(command.body)), command.body
    return (head + body,) if len(body) < _LARGE_BYTES else (head, body)


def frame_head(command: Command, body_bytes: int) -> bytes:
    """Prefix and header of a frame whose body of `body_bytes` follows separately (scatter-gather answers)."""
    try:
        header = _encode_json(command) if command.codec == _JSON else _encode_binary(command)
    except (StructError, UnicodeEncodeError) as error:
        raise ProtocolError(f"header cannot be written: {error}") from error
    total = 4 + len(header) + body_bytes
    if total > MAX_FRAME_BYTES - 4:
        raise ProtocolError(f"frame of {total} bytes: at most {MAX_FRAME_BYTES - 4} are allowed")
    return _PREFIX.pack(total, command.codec << 24 | len(header)) + header


def _encode_json(command: Command) -> bytes:
    typed, language = command.typed, command.language
    if (
        command.ext is None
        and type(typed) is SendMessageRequestHeaderV2
        and not command.head_json
        and command.remark is None
        and language is not None
    ):
        return send_header_text(
            command.code,
            command.flag,
            language,
            command.opaque,
            command.version,
            typed,
            header_text_by_msgspec,
        )
    ext = command.fields() if command.ext_json or typed is not None else command.ext
    return _encoder.encode(
        _JsonOut(
            command.code,
            ext or None,
            command.flag,
            command.language,
            command.opaque,
            command.remark,
            "JSON",
            command.version,
        )
    )


def header_text_by_msgspec(
    code: int, flag: int, language: str, opaque: int, version: int, header: SendMessageRequestHeaderV2
) -> bytes:
    """The JSON header of a send. Raises UnicodeEncodeError for text with surrogates."""
    return _encoder.encode(
        _JsonOut(code, header_fields(header), flag, language, opaque, None, "JSON", version)
    )


def send_header_text_by_python(
    code: int,
    flag: int,
    language: str,
    opaque: int,
    version: int,
    header: SendMessageRequestHeaderV2,
    by_python: Callable[[int, int, str, int, int, SendMessageRequestHeaderV2], bytes],
) -> bytes:
    """The JSON header of a send by `by_python`, which also the compiled twin calls for values that it does
    not understand. Raises what `by_python` raises."""
    return by_python(code, flag, language, opaque, version, header)


def alike_by_python(commands: Sequence[Command], start: int, stop: int) -> int:
    """The first index from `start` on, `stop` at most, whose command has another code or flag than the first.
    Raises IndexError outside of the commands."""
    code, flag = commands[start].code, commands[start].flag
    for at in range(start + 1, stop):
        if commands[at].code != code or commands[at].flag != flag:
            return at
    return max(stop, start + 1)


if IN_USE:
    from rmqkit.speedups._frames import Cutter
    from rmqkit.speedups._frames import alike as alike
    from rmqkit.speedups._frames import send_header_text as send_header_text

    cut = Cutter(
        decode_header, _decode_send, _SendHead, _refused, LANGUAGE_CODES, Command, _UNREADABLE, _NO_EXT,
        _SEND_BEGINS, _MAX_TOTAL, MAX_HEADER_BYTES, _LARGE_BYTES,
    ).cut  # fmt: skip
else:
    send_header_text = send_header_text_by_python
    cut = FrameCutter().cut
    alike = alike_by_python


def _encode_binary(command: Command) -> bytes:
    remark = (command.remark or "").encode()
    parts: list[bytes] = []
    for key, value in command.fields().items():
        if key and value:
            name, text = key.encode(), value.encode()
            parts += [_I16.pack(len(name)), name, _I32.pack(len(text)), text]
    ext = b"".join(parts)
    # Codes beyond 16 bits are truncated, as in Java (this form cannot represent pop requests).
    code = (command.code + 0x8000 & 0xFFFF) - 0x8000
    version = (command.version + 0x8000 & 0xFFFF) - 0x8000
    language = LANGUAGE_CODES.get(command.language or "OTHER", LANGUAGE_CODES["OTHER"])
    head = _BINARY_HEAD.pack(code, language, version, command.opaque, command.flag)
    return b"".join((head, _I32.pack(len(remark)), remark, _I32.pack(len(ext)), ext))
