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

from collections.abc import Sequence
from io import BytesIO
from struct import error as StructError
from typing import Protocol

from rmqkit.errors import ProtocolError
from rmqkit.limits import MAX_FRAME_BYTES
from rmqkit.protocol import value_frames
from rmqkit.protocol.codes import LANGUAGE_CODES
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers.send import SendMessageRequestHeaderV2
from rmqkit.protocol.value_frames import (
    BINARY_HEAD,
    HALF,
    JSON,
    LARGE_BYTES,
    PREFIX,
    WORD,
    JsonOut,
    decode_header,
    encode_json,
)
from rmqkit.speedups import IN_USE


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
        if self.pending_bytes < PREFIX.size:
            return 0
        return int(4 + PREFIX.unpack_from(self._kept)[0] - self.pending_bytes)

    @property
    def first_bytes(self) -> bytes:
        """The beginning of the unfinished frame, up to its two lengths; none without one."""
        return bytes(self._kept[: PREFIX.size])

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
            at, self._need = frames.cut(data, commands)
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
        if self._need >= LARGE_BYTES:
            body_at = 8 + (PREFIX.unpack_from(data)[1] & 0xFFFFFF)
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


def encode(command: Command) -> bytes:
    """Encode a frame. Raises ProtocolError when it exceeds MAX_FRAME_BYTES or cannot be represented in its
    serialisation."""
    return frame_head(command, len(command.body)) + command.body


def encode_parts(command: Command) -> tuple[bytes, ...]:
    """The frame of a command in parts: a large body is one of its own, which is not copied."""
    head, body = frame_head(command, len(command.body)), command.body
    return (head + body,) if len(body) < LARGE_BYTES else (head, body)


def frame_head(command: Command, body_bytes: int) -> bytes:
    """Prefix and header of a frame whose body of `body_bytes` follows separately (scatter-gather answers)."""
    try:
        header = _encode_json(command) if command.codec == JSON else _encode_binary(command)
    except (StructError, UnicodeEncodeError) as error:
        raise ProtocolError(f"header cannot be written: {error}") from error
    total = 4 + len(header) + body_bytes
    if total > MAX_FRAME_BYTES - 4:
        raise ProtocolError(f"frame of {total} bytes: at most {MAX_FRAME_BYTES - 4} are allowed")
    return PREFIX.pack(total, command.codec << 24 | len(header)) + header


def _encode_json(command: Command) -> bytes:
    typed, language = command.typed, command.language
    if (
        command.ext is None
        and type(typed) is SendMessageRequestHeaderV2
        and not command.head_json
        and command.remark is None
        and language is not None
    ):
        return frames.send_header_text(
            command.code, command.flag, language, command.opaque, command.version, typed
        )
    ext = command.fields() if command.ext_json or typed is not None else command.ext
    return encode_json(
        JsonOut(
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


def _encode_binary(command: Command) -> bytes:
    remark = (command.remark or "").encode()
    parts: list[bytes] = []
    for key, value in command.fields().items():
        if key and value:
            name, text = key.encode(), value.encode()
            parts += [HALF.pack(len(name)), name, WORD.pack(len(text)), text]
    ext = b"".join(parts)
    # Codes beyond 16 bits are truncated, as in Java (this form cannot represent pop requests).
    code = (command.code + 0x8000 & 0xFFFF) - 0x8000
    version = (command.version + 0x8000 & 0xFFFF) - 0x8000
    language = LANGUAGE_CODES.get(command.language or "OTHER", LANGUAGE_CODES["OTHER"])
    head = BINARY_HEAD.pack(code, language, version, command.opaque, command.flag)
    return b"".join((head, WORD.pack(len(remark)), remark, WORD.pack(len(ext)), ext))


class Frames(Protocol):
    """How frames are divided, and headers of sends written. See `rmqkit.protocol.value_frames`."""

    def cut(self, data: bytes, commands: list[Command]) -> tuple[int, int]: ...
    def alike(self, commands: Sequence[Command], start: int, stop: int) -> int: ...
    def send_header_text(
        self,
        code: int,
        flag: int,
        language: str,
        opaque: int,
        version: int,
        header: SendMessageRequestHeaderV2,
    ) -> bytes: ...


if IN_USE:
    from rmqkit.protocol import _frames

frames: Frames = _frames if IN_USE else value_frames
