"""Message ids (wire-protocol sheet, section 5.2)."""

from __future__ import annotations

import os
import socket
from datetime import datetime
from itertools import count
from struct import Struct
from struct import error as StructError
from zlib import crc32

from rmqkit.errors import DecodeError

_PORT = Struct(">i")
_PORT_OFFSET = Struct(">iq")


def pack_host(address: str, port: int) -> bytes:
    """IPv4 or IPv6 text and port -> 8 or 20 bytes. Raises DecodeError when the text is not an IP address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.inet_pton(family, address.partition("%")[0]) + _PORT.pack(port)
    except (OSError, ValueError, StructError) as error:
        raise DecodeError(f"{address!r} with port {port} is not an IP address") from error


def unpack_host(packed: bytes) -> tuple[str, int]:
    """8 or 20 bytes -> address text and port."""
    family = socket.AF_INET if len(packed) == 8 else socket.AF_INET6
    return socket.inet_ntop(family, packed[:-4]), _PORT.unpack(packed[-4:])[0]


def host_text(packed: bytes) -> str:
    address, port = unpack_host(packed)
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """The id a broker returns: store host and commit-log offset in upper-case hexadecimal, 32 or 56
    characters."""
    return f"{store_host.hex()}{physical_offset & 0xFFFFFFFFFFFFFFFF:016x}".upper()


def parse_offset_message_id(text: str) -> tuple[str, int, int]:
    """Offset message id -> (address, port, commit-log offset). Raises DecodeError."""
    try:
        raw = bytes.fromhex(text)
    except ValueError as error:
        raise DecodeError(f"message id {text!r} is not hexadecimal") from error
    if len(raw) not in (16, 28) or len(text) != 2 * len(raw):
        raise DecodeError(f"message id {text!r} has {len(text)} characters, 32 or 56 are expected")
    port, offset = _PORT_OFFSET.unpack(raw[-12:])
    address, _ = unpack_host(raw[:-8])
    return address, port, offset


class UniqueKeys:
    """Makes UNIQ_KEY values: IP, process id, a number of this instance, ms since the month began (local
    time), counter.

    Java's order of fields, so that tools read the time back. One instance makes 65 536 different keys within
    a millisecond.
    """

    def __init__(
        self, ip: bytes = b"\x7f\x00\x00\x01", *, pid: int | None = None, instance: int | None = None
    ) -> None:
        process = os.getpid() if pid is None else pid
        salt = crc32(os.urandom(8)) if instance is None else instance
        self._prefix = (
            (ip + (process & 0xFFFF).to_bytes(2, "big") + (salt & 0xFFFFFFFF).to_bytes(4, "big"))
            .hex()
            .upper()
        )
        self._counter = count()
        self._month_start_ms = 0
        self._month_end_ms = 0
        #: What the keys of one millisecond begin with.
        self._stem = ""
        self._stem_ms = -1

    def make(self, now_ms: int) -> str:
        if not self._month_start_ms <= now_ms < self._month_end_ms:
            self._enter_month(now_ms)
        if now_ms != self._stem_ms:
            self._stem_ms = now_ms
            self._stem = f"{self._prefix}{now_ms - self._month_start_ms & 0xFFFFFFFF:08X}"
        return f"{self._stem}{next(self._counter) & 0xFFFF:04X}"

    def _enter_month(self, now_ms: int) -> None:
        start = datetime.fromtimestamp(now_ms / 1000).replace(
            day=1, hour=0, minute=0, second=0, microsecond=0
        )
        end = start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
        self._month_start_ms = int(start.timestamp() * 1000)
        self._month_end_ms = int(end.timestamp() * 1000)
