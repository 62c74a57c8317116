"""gRPC over HTTP/2 without I/O: messages with a length before them, time-outs, statuses (gRPC sheet,
section 2)."""

from __future__ import annotations

import re
from enum import IntEnum

from rmqkit.errors import RmqError
from rmqkit_grpc.limits import MAX_MESSAGE_BYTES

_PREFIX_BYTES = 5
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])")
_UNIT_MS = {"H": 3_600_000.0, "M": 60_000.0, "S": 1_000.0, "m": 1.0, "u": 0.001, "n": 0.000_001}


class GrpcStatus(IntEnum):
    """The codes of `grpc-status` that this server sends."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class GrpcError(RmqError):
    """A call ends with a status of gRPC."""

    def __init__(self, status: GrpcStatus, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class MessageReader:
    """Cuts the bytes of one direction of a call into messages."""

    __slots__ = ("_max_bytes", "_parts", "_wanted", "pending_bytes")

    def __init__(self, max_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._wanted = _PREFIX_BYTES
        #: Bytes of the unfinished message.
        self.pending_bytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are whole with these bytes. Raises GrpcError for a compressed or too long one;
        nothing may be fed afterwards."""
        if not self._parts and len(data) >= _PREFIX_BYTES and self._length(data) + _PREFIX_BYTES == len(data):
            return [data[_PREFIX_BYTES:]]
        self._parts.append(data)
        self.pending_bytes += len(data)
        if self.pending_bytes < self._wanted:
            return []
        return self._cut()

    def _cut(self) -> list[bytes]:
        whole, at, found = b"".join(self._parts), 0, []
        self._wanted = _PREFIX_BYTES
        while len(whole) - at >= _PREFIX_BYTES:
            start = at + _PREFIX_BYTES
            end = start + self._length(whole[at:start])
            if end > len(whole):
                self._wanted = end - at
                break
            found.append(whole[start:end])
            at = end
        rest = whole[at:]
        self._parts, self.pending_bytes = [rest] if rest else [], len(rest)
        return found

    def _length(self, prefix: bytes) -> int:
        if prefix[0]:
            raise GrpcError(
                GrpcStatus.UNIMPLEMENTED, "compressed messages are not supported: send them as identity"
            )
        length = int.from_bytes(prefix[1:_PREFIX_BYTES])
        if length > self._max_bytes:
            raise GrpcError(
                GrpcStatus.RESOURCE_EXHAUSTED,
                f"a message of {length} bytes, at most {self._max_bytes} are allowed",
            )
        return length


def framed(message: bytes) -> bytes:
    """A message with its prefix."""
    return b"\0" + len(message).to_bytes(4) + message


def timeout_ms(text: str | None) -> float | None:
    """The value of `grpc-timeout` in ms; None without one, and for one that is malformed."""
    match = _TIMEOUT.fullmatch(text) if text else None
    return int(match[1]) * _UNIT_MS[match[2]] if match else None


def percent_encoded(text: str) -> str:
    """A text as the value of `grpc-message`, which may not begin or end with a space."""
    encoded = "".join(
        chr(byte) if 0x20 <= byte <= 0x7E and byte != 0x25 else f"%{byte:02X}" for byte in text.encode()
    )
    if encoded.startswith(" "):
        encoded = f"%20{encoded[1:]}"
    return f"{encoded[:-1]}%20" if encoded.endswith(" ") else encoded


__all__ = ["GrpcError", "GrpcStatus", "MessageReader", "framed", "percent_encoded", "timeout_ms"]
