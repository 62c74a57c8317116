"""Compression of message bodies, in both directions (wire-protocol sheet, section 5; Java: Compressor)."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from attrs import frozen

from rmqkit.errors import ClientError, MissingExtra, did_you_mean
from rmqkit.limits import MAX_INFLATED_BODY_BYTES
from rmqkit.model.sysflag import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_MASK,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
)

ZSTD_STEP_BYTES = 1024


@frozen
class Compression:
    """One type of compression.

    title    its name in texts; in settings it is written in the form of `BY_NAME`
    type_bits the bits of sysFlag that name the type
    levels   the levels it accepts; None when it has none
    module   the Python module that does the work, given to both functions
    pack     compresses a body with a level
    unpack   decompresses a body; returns at least one byte more than the limit when the result is too large,
             and whether the end was reached
    """

    title: str
    type_bits: int
    levels: range | None
    module: str
    pack: Callable[[Any, bytes, int], bytes]
    unpack: Callable[[Any, bytes], tuple[bytes, bool]]

    @property
    def sys_flag(self) -> int:
        """The bits of sysFlag for a compressed body."""
        return COMPRESSED | self.type_bits

    def library(self, purpose: str) -> Any:
        """The module. Raises MissingExtra, whose text begins with `purpose`, when it is not installed."""
        try:
            return import_module(self.module)
        except ImportError:
            raise MissingExtra(f"{purpose} {self.title}", "compression") from None

    def deflate(self, body: bytes, level: int) -> bytes:
        """Compress a body. Raises MissingExtra."""
        return self.pack(self.library("bodies are to be compressed with"), body, level)


def _zlib(zlib: Any, body: bytes, level: int) -> bytes:
    packed: bytes = zlib.compress(body, level)
    return packed


def _unzlib(zlib: Any, body: bytes) -> tuple[bytes, bool]:
    inflater = zlib.decompressobj()
    return inflater.decompress(body, MAX_INFLATED_BODY_BYTES + 1), inflater.eof


def _lz4(frame: Any, body: bytes, level: int) -> bytes:
    """Compress as an LZ4 frame. Java's reader refuses blocks that refer to earlier ones; its writer has no
    level either."""
    packed: bytes = frame.compress(body, block_linked=False)
    return packed


def _unlz4(frame: Any, body: bytes) -> tuple[bytes, bool]:
    inflater = frame.LZ4FrameDecompressor()
    return inflater.decompress(body, MAX_INFLATED_BODY_BYTES + 1), inflater.eof


def _zstd(zstandard: Any, body: bytes, level: int) -> bytes:
    packed: bytes = zstandard.ZstdCompressor(level=level).compress(body)
    return packed


def _unzstd(zstandard: Any, body: bytes) -> tuple[bytes, bool]:
    """Decompress zstd. Java's frames do not contain their content size, and the package's streaming object
    has no limit, so the input is fed in small pieces to bound the output (to some 32 MiB)."""
    inflater = zstandard.ZstdDecompressor().decompressobj()
    parts: list[bytes] = []
    total = 0
    for at in range(0, len(body), ZSTD_STEP_BYTES):
        parts.append(inflater.decompress(body[at : at + ZSTD_STEP_BYTES]))
        total += len(parts[-1])
        if inflater.eof or total > MAX_INFLATED_BODY_BYTES:
            break
    return b"".join(parts), inflater.eof


BY_NAME = {
    "zlib": Compression("zlib", COMPRESSION_ZLIB, range(-1, 10), "zlib", _zlib, _unzlib),
    "lz4": Compression("LZ4", COMPRESSION_LZ4, None, "lz4.frame", _lz4, _unlz4),
    "zstd": Compression("Zstandard", COMPRESSION_ZSTD, range(1, 23), "zstandard", _zstd, _unzstd),
}
#: Producers before 5.x set no type bits and compress with zlib.
_BY_BITS = {0: BY_NAME["zlib"]} | {each.type_bits: each for each in BY_NAME.values()}


def compression(name: str, level: int) -> Compression:
    """The compression of a name among `BY_NAME`. Raises ClientError for another name or a level it does not
    have, MissingExtra when its package is missing."""
    found = BY_NAME.get(name)
    if found is None:
        known = did_you_mean(name, BY_NAME, f"; there are {', '.join(BY_NAME)}")
        raise ClientError(f"unknown compression {name!r}{known}")
    if found.levels is not None and level not in found.levels:
        raise ClientError(
            f"compression level {level} is not among {found.levels[0]}..{found.levels[-1]} of {found.title}"
        )
    found.library("bodies are to be compressed with")
    return found


def inflate(body: bytes, sys_flag: int) -> bytes:
    """Decompress a body according to the type bits of `sys_flag`. Raises ClientError when the body is damaged
    or too large, MissingExtra when the package is missing."""
    kind = sys_flag & COMPRESSION_MASK
    if kind not in _BY_BITS:
        raise ClientError(f"unknown compression type {kind:#x}")
    found = _BY_BITS[kind]
    library = found.library("the body is compressed with")
    try:
        result, finished = found.unpack(library, body)
    except Exception as error:
        raise ClientError(f"the compressed body is damaged: {error}") from error
    if len(result) > MAX_INFLATED_BODY_BYTES:
        raise ClientError(f"the compressed body has more than {MAX_INFLATED_BODY_BYTES} bytes decompressed")
    if not finished:
        raise ClientError("the compressed body is truncated")
    return bytes(result)
