"""Request frames of the RocketMQ remoting protocol, and the frames of a run: encoded once, patched for
each request."""

from __future__ import annotations

import json
import random
import re
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rmqkit.protocol.signature import ACCESS_KEY, SIGNATURE, content_of, sign

SUCCESS, TOPIC_NOT_EXIST, PULL_NOT_FOUND = 0, 17, 19
SEND_V2, SEND_BATCH, PULL, GET_ROUTE = 310, 320, 11, 105
TEMPLATE_TOPIC = "TBW102"
PROTOCOL_VERSION = 453
"""MQVersion ordinal sent in requests: a 5.x client."""
FIRST_OPAQUE = 1_000_000_000
"""Opaques have ten digits and stay below 2**31, so that every frame of a run has the same length and can
be patched in place."""
FRAME_HEAD = struct.Struct(">iI")
"""Length of all that follows, and the header's serialisation (high byte) and length (the other three)."""
HEADER_LENGTH = 0xFFFFFF


class LoadError(Exception):
    """The run cannot go on: the peer closed, said something that is not the protocol, or does not know the
    topic."""


def encode_header(code: int, opaque: int, ext: dict[str, str]) -> bytes:
    """The JSON header of a request."""
    fields = {
        "code": code,
        "extFields": ext,
        "flag": 0,
        "language": "JAVA",
        "opaque": opaque,
        "version": PROTOCOL_VERSION,
    }
    return json.dumps({**fields, "serializeTypeCurrentRPC": "JSON"}, separators=(",", ":")).encode()


def frame(header: bytes, body: bytes = b"") -> bytes:
    """Length, header length, header, body."""
    return FRAME_HEAD.pack(4 + len(header) + len(body), len(header)) + header + body


def encode(code: int, opaque: int, ext: dict[str, str], body: bytes = b"") -> bytes:
    """One request frame with a JSON header."""
    return frame(encode_header(code, opaque, ext), body)


def decode_header(word: int, raw: bytes) -> dict[str, Any]:
    """The header of a response as a dict with `code` and `opaque`; of a binary header only these two are
    read.

    Raises LoadError for anything that is not such a header.
    """
    try:
        if word >> 24 == 1:
            code, opaque = struct.unpack_from(">h3xi", raw)
            return {"code": code, "opaque": opaque}
        header = json.loads(raw)
    except (ValueError, struct.error) as error:
        raise LoadError(f"response header {raw[:80]!r}: {error}") from None
    if not isinstance(header, dict) or not isinstance(header.get("opaque"), int):
        raise LoadError(f"response header is not an object with an opaque: {raw[:80]!r}")
    return {"code": 0, **header}


def batch_body(bodies: Sequence[bytes], properties: Sequence[bytes]) -> bytes:
    """The body of SEND_BATCH_MESSAGE: total, magic 0, crc 0, flag, body length, body, properties length,
    properties, for each message."""
    parts = []
    for body, props in zip(bodies, properties, strict=True):
        total = 4 * 5 + len(body) + 2 + len(props)
        parts.append(
            struct.pack(">iiiii", total, 0, 0, 0, len(body)) + body + struct.pack(">h", len(props)) + props
        )
    return b"".join(parts)


@dataclass(frozen=True)
class SendShape:
    """What is sent: `batch` messages of `size` bytes in each request, to queues 0..queues-1 of `topic` in
    turn; `properties` are further ones of each message, as `NAME=VALUE`. `user`, as `NAME:PASSWORD`, signs;
    then the keys of messages come again, for a signature covers them."""

    topic: str
    size: int
    batch: int
    queues: int
    group: str = "load-producer"
    properties: tuple[str, ...] = ()
    user: str = ""

    def frame(self, queue: int) -> bytes:
        """A request for one queue, carrying FIRST_OPAQUE wherever an opaque is to be patched in."""
        last = FIRST_OPAQUE + queue + 1 if self.user else FIRST_OPAQUE
        keys = [f"7F0000011092{index:010X}{last}" for index in range(max(self.batch, 1))]
        further = "".join(f"{each.replace('=', chr(1), 1)}\x02" for each in self.properties)
        properties = [f"UNIQ_KEY\x01{key}\x02WAIT\x01true\x02{further}".encode() for key in keys]
        body = random.Random(self.size).randbytes(self.size)
        now_ms = str(int(time.time() * 1000))
        ext = {
            "a": self.group,
            "b": self.topic,
            "c": TEMPLATE_TOPIC,
            "d": str(self.queues),
            "e": str(queue),
            "f": "0",
            "g": now_ms,
        }
        ext |= {"h": "0", "i": properties[0].decode(), "j": "0", "k": "false", "m": "false"}
        code = SEND_V2
        if self.batch > 1:
            code, ext["m"], body = SEND_BATCH, "true", batch_body([body] * self.batch, properties)
        if self.user:
            name, _, password = self.user.partition(":")
            ext[ACCESS_KEY] = name
            ext[SIGNATURE] = sign(content_of(ext, body), password)
        return encode(code, FIRST_OPAQUE, ext, body)


class Ring:
    """Frames side by side in one buffer, one per queue in turn; `take` patches the next few and hands out
    their bytes."""

    def __init__(self, shape: SendShape, at_least: int) -> None:
        rounds = -(-at_least // shape.queues)
        frames = [shape.frame(queue) for queue in range(shape.queues)] * rounds
        self.length = len(frames[0])
        if any(len(each) != self.length for each in frames):
            raise LoadError("frames of one run must have one length: use at most ten queues")
        self.count = len(frames)
        self.buffer = bytearray(b"".join(frames))
        self.view = memoryview(self.buffer)
        spots = [slice(*found.span()) for found in re.finditer(b"%d" % FIRST_OPAQUE, self.buffer)]
        each = len(spots) // self.count
        self.spots = [spots[first : first + each] for first in range(0, len(spots), each)]
        self.next = 0

    def take(self, opaques: Sequence[bytes]) -> list[memoryview]:
        """The bytes of the next `len(opaques)` frames in one or two pieces; they are valid until the next
        call."""
        buffer, length, spots, slot = self.buffer, self.length, self.spots, self.next
        first = slot
        pieces = []
        for opaque in opaques:
            for spot in spots[slot]:
                buffer[spot] = opaque
            slot += 1
            if slot == self.count:
                pieces.append(self.view[first * length : slot * length])
                first = slot = 0
        if slot > first:
            pieces.append(self.view[first * length : slot * length])
        self.next = slot
        return pieces
