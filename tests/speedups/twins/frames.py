"""Headers of send requests as JSON."""

from __future__ import annotations

import random

from rmqkit.protocol import frame
from rmqkit.protocol.headers import SendMessageRequestHeaderV2
from rmqkit.speedups import _frames
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
    return code, flag, _text(rng), opaque, version, header, frame.header_text_by_msgspec


register(
    Twin(
        "frames.send_header_text",
        pure=frame.send_header_text_by_python,
        compiled=_frames.send_header_text,
        arguments=_arguments,
    )
)
