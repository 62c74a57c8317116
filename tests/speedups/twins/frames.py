"""Frames that are divided, and headers of send requests as JSON."""

from __future__ import annotations

import random

from rmqkit.errors import ProtocolError
from rmqkit.protocol import _frames, value_frames
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers import SendMessageRequestHeaderV2
from tests.speedups.comparison import Twin, register

_NUMBERS = (0, 1, -1, 9, 10, 4, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 2**63, -(2**63) - 1)
_TEXTS = (
    "",
    "Orders",
    "UNIQ_KEY\x01A1B2\x02WAIT\x01true\x02",
    '"\\/\b\f\n\r\t\x00\x1f\x7f',
    "\u00e4\u07ff\u2028\uffff\U0001f600",
    "x\ud800",
)


def _text(rng: random.Random) -> str:
    if rng.random() < 0.8:
        return rng.choice(_TEXTS[:5] if rng.random() < 0.97 else _TEXTS)
    return "".join(chr(rng.choice((rng.randrange(256), 0x20AC))) for _ in range(rng.choice((1, 7, 40))))


def _number(rng: random.Random) -> int:
    return rng.choice(_NUMBERS[:10] if rng.random() < 0.97 else _NUMBERS)


def _truth(rng: random.Random) -> bool | None:
    return rng.choice((True, False, False, None))


def _arguments(rng: random.Random) -> tuple[object, ...]:
    header = SendMessageRequestHeaderV2(
        producer_group=_text(rng),
        topic=_text(rng),
        default_topic=_text(rng),
        default_topic_queue_nums=_number(rng),
        queue_id=_number(rng),
        sys_flag=_number(rng),
        born_timestamp=_number(rng),
        flag=_number(rng),
        properties=rng.choice((None, _text(rng), _text(rng))),
        reconsume_times=rng.choice((None, _number(rng))),
        unit_mode=_truth(rng),
        max_reconsume_times=rng.choice((None, _number(rng))),
        batch=_truth(rng),
        bname=rng.choice((None, _text(rng))),
    )
    numbers = [rng.choice(_NUMBERS[:8]) for _ in range(4)]
    code, flag, opaque, version = numbers
    return code, flag, _text(rng), opaque, version, header


register(
    Twin(
        "frames.send_header_text",
        pure=value_frames.send_header_text,
        compiled=_frames.send_header_text,
        arguments=_arguments,
    )
)


_HEADERS = (
    b'{"code":310,"extFields":{"a":"g","b":"t","c":"TBW102","d":"4","e":"1","f":"0","g":"1","h":"0"},'
    b'"flag":0,"language":"GO","opaque":7,"serializeTypeCurrentRPC":"JSON","version":1}',
    b'{"code":310,"extFields":{"a":"g","b":"t","c":"T","d":"4","e":"1","f":"0","g":"1","h":"0","i":"K\\u0001v",'
    b'"j":"0","k":"false","l":"16","m":"true","n":"b"},"flag":2,"language":"NO","opaque":-1,"version":433}',
    b'{"code":310,"extFields":null}',
    b'{"code":310,',
    b'{"code":11,"extFields":{"a":"1"},"flag":1,"language":"JAVA","opaque":3,"remark":"no"}',
    b"{code:1}",
    b"",
)


def _stream(rng: random.Random) -> tuple[object, ...]:
    """Frames one after the other, of which one may be broken and the last may be cut off."""
    parts: list[bytes] = []
    for _ in range(rng.choice((0, 1, 2, 9))):
        header = bytearray(rng.choice(_HEADERS[:2] if rng.random() < 0.6 else _HEADERS))
        if header and rng.random() < 0.2:
            header[rng.randrange(len(header))] = rng.choice((0, 0x22, 0x30, 0x7B, 0x80, rng.randrange(256)))
        body = bytes(rng.choice((0, 0, 1, 40)))
        total, size = 4 + len(header) + len(body), len(header)
        if rng.random() < 0.1:
            total = rng.choice((0, 3, -1, 2**31 - 1, 1 << 24, total - 1, total + 1, 40_000))
        if rng.random() < 0.1:
            size = rng.choice((0, size - 1, size + 1, 0xFFFFFF, 65_536)) & 0xFFFFFF
        codec = 0 if rng.random() < 0.95 else rng.randrange(3)
        parts.append(total.to_bytes(4, "big", signed=True) + bytes((codec,)) + size.to_bytes(3, "big"))
        parts.append(bytes(header) + body)
    data = b"".join(parts)
    return (data if rng.random() < 0.5 else data[: rng.randrange(len(data) + 1)],)


def _divided(cut: object, data: bytes) -> object:
    assert callable(cut)
    commands: list[Command] = []
    try:
        return cut(data, commands), commands
    except ProtocolError as error:
        return str(error), commands


register(
    Twin(
        "frames.cut",
        pure=lambda data: _divided(value_frames.cut, data),
        compiled=lambda data: _divided(_frames.cut, data),
        arguments=_stream,
    )
)


def _commands(rng: random.Random) -> tuple[object, ...]:
    commands = [
        Command(code=rng.choice((310, 310, 310, 11)), flag=rng.choice((0, 0, 0, 2)))
        for _ in range(rng.choice((1, 2, 3, 9)))
    ]
    return commands, rng.randrange(len(commands)), rng.randrange(len(commands) + 1)


register(Twin("frames.alike", pure=value_frames.alike, compiled=_frames.alike, arguments=_commands))
