"""Headers of requests whose fields are any bytes, as clients write them that do not check their text."""

from __future__ import annotations

from collections.abc import Mapping
from struct import pack

from rmqkit.protocol.codes import SerializeType

#: Bytes in a JSON string -> how they are written there.
_ESCAPED = {each: b"\\u%04x" % each for each in range(0x20)} | {0x22: b'\\"', 0x5C: b"\\\\"}


def raw_frame(codec: SerializeType, code: int, fields: Mapping[str, bytes], body: bytes = b"") -> bytes:
    """A request with the opaque 1, from Go's client of version 317."""
    header = _json(code, fields) if codec is SerializeType.JSON else _binary(code, fields)
    return pack(">iI", 4 + len(header) + len(body), codec << 24 | len(header)) + header + body


def _json(code: int, fields: Mapping[str, bytes]) -> bytes:
    members = [
        b'"%s":"%s"' % (name.encode(), b"".join(_ESCAPED.get(each, bytes((each,))) for each in value))
        for name, value in fields.items()
    ]
    start = b'{"code":%d,"flag":0,"language":"GO","opaque":1,"version":317,"extFields":{' % code
    return start + b",".join(members) + b"}}"


def _binary(code: int, fields: Mapping[str, bytes]) -> bytes:
    entries = b"".join(
        pack(">h", len(name)) + name.encode() + pack(">i", len(value)) + value
        for name, value in fields.items()
    )
    return pack(">hBhii", code, 9, 317, 1, 0) + pack(">ii", 0, len(entries)) + entries


def send_fields(topic: str, properties: bytes, **more: bytes) -> dict[str, bytes]:
    """The fields of SEND_MESSAGE_V2 to queue 0."""
    fields = {"a": b"pg", "b": topic.encode(), "c": b"TBW102", "d": b"1", "e": b"0", "f": b"0", "g": b"5"}
    return fields | {"h": b"0", "i": properties, "j": b"0", "k": b"false", "m": b"false"} | more
