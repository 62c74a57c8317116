"""Frames of HTTP/2 as bytes, for what no library would send."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

from rmqkit_grpc.framing import framed
from rmqkit_grpc.messages import PACKAGE
from rmqkit_grpc.names import PREFACE

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM, END_HEADERS = 0x1, 0x4
_SERVICE = f"/{PACKAGE}.MessagingService/"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return len(payload).to_bytes(3) + struct.pack(">BBI", kind, flags, stream) + payload


def begun() -> bytes:
    """What a connection begins with."""
    return PREFACE + frame(SETTINGS, 0, 0)


def block(headers: Mapping[str, str]) -> bytes:
    """A header block without compression, which changes no table (RFC 7541, 6.2.2)."""
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in headers.items())


def _text(text: str) -> bytes:
    return _length(len(text.encode())) + text.encode()


def _length(number: int) -> bytes:
    """An integer with a prefix of seven bits (RFC 7541, 5.1)."""
    if number < 127:
        return bytes([number])
    number -= 127
    parts = [127]
    while number >= 128:
        parts.append(number % 128 + 128)
        number //= 128
    return bytes([*parts, number])


def fields(method: str, client_id: str = "client-1", **more: str) -> dict[str, str]:
    """The headers of a call."""
    return {
        ":method": "POST",
        ":scheme": "http",
        ":path": _SERVICE + method,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
        "x-mq-client-id": client_id,
        **{name.replace("_", "-"): value for name, value in more.items()},
    }


def call(stream: int, method: str, message: Any) -> bytes:
    """A whole unary call."""
    head = frame(HEADERS, END_HEADERS, stream, block(fields(method)))
    return head + frame(DATA, END_STREAM, stream, framed(message.SerializeToString()))


def frames(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """(type, flags, stream, payload) of the whole frames."""
    at = 0
    while len(data) - at >= 9:
        size = int.from_bytes(data[at : at + 3])
        kind, flags, stream = struct.unpack_from(">BBI", data, at + 3)
        if len(data) - at - 9 < size:
            return
        yield kind, flags, stream, data[at + 9 : at + 9 + size]
        at += 9 + size


def ended(data: bytes) -> list[int]:
    """The streams whose answers have ended."""
    return [stream for kind, flags, stream, _ in frames(data) if kind == HEADERS and flags & END_STREAM]
