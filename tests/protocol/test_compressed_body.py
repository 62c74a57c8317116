"""Compression of bodies: types, flag bits, levels, and frames that Java can read."""

from __future__ import annotations

import random
import sys
import zlib

import lz4.frame  # type: ignore[import-untyped]
import pytest
import zstandard

from rmqkit.errors import ClientError, MissingExtra
from rmqkit.protocol.compressed_body import BY_NAME, compression, inflate

#: Several LZ4 blocks of 64 KiB, and compressible.
LONG = random.Random(1).randbytes(1000) * 300


@pytest.mark.parametrize(("name", "flags"), [("zlib", 0x301), ("lz4", 0x101), ("zstd", 0x201)])
@pytest.mark.parametrize("body", [b"x" * 4096, LONG, b""], ids=["short", "long", "empty"])
def test_what_is_compressed_is_inflated(name: str, flags: int, body: bytes) -> None:
    """Each type has the bits of RocketMQ 5, and its result is a body that `inflate` reads by them."""
    chosen = compression(name, 5)
    packed = chosen.deflate(body, 5)
    assert chosen.sys_flag == flags
    assert packed != body
    assert len(packed) < max(len(body) // 4, 20)
    assert inflate(packed, flags) == body


def test_the_formats_are_those_of_the_packages() -> None:
    """zlib bodies are RFC 1950, the others frames of their formats."""
    assert zlib.decompress(BY_NAME["zlib"].deflate(LONG, 5)) == LONG
    assert lz4.frame.decompress(BY_NAME["lz4"].deflate(LONG, 5)) == LONG
    assert zstandard.ZstdDecompressor().decompress(BY_NAME["zstd"].deflate(LONG, 5)) == LONG


def test_blocks_of_lz4_are_independent() -> None:
    """Java's LZ4FrameInputStream refuses frames whose blocks refer to earlier ones."""
    assert not lz4.frame.get_frame_info(BY_NAME["lz4"].deflate(LONG, 5))["block_linked"]


@pytest.mark.parametrize("name", ["zlib", "zstd"])
def test_the_level_is_used(name: str) -> None:
    """The header of a zlib body names its level class, and a zstd frame differs."""
    assert BY_NAME[name].deflate(LONG, 1) != BY_NAME[name].deflate(LONG, 9)


@pytest.mark.parametrize(
    ("name", "level", "why"),
    [
        ("snappy", 5, "unknown compression 'snappy'; there are zlib, lz4, zstd"),
        ("ZSTD5", 5, "unknown compression 'ZSTD5'; did you mean 'zstd'"),
        ("zlib", 10, r"level 10 is not among -1\.\.9 of zlib"),
        ("zstd", 0, r"level 0 is not among 1\.\.22 of Zstandard"),
    ],
)
def test_wrong_names_and_levels_are_refused(name: str, level: int, why: str) -> None:
    """The error names what is possible."""
    with pytest.raises(ClientError, match=why):
        compression(name, level)


@pytest.mark.parametrize(
    ("name", "module", "title"), [("lz4", "lz4.frame", "LZ4"), ("zstd", "zstandard", "Z")]
)
def test_a_missing_package_is_named(
    name: str, module: str, title: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choice of the compression fails, not the first large message."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"with {title}.*: pip install '\.\[compression\]'"):
        compression(name, 5)
