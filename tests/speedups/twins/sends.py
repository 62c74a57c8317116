"""Runs of sends: their columns, records, units, answers and audit events."""

from __future__ import annotations

import random
from functools import partial

from rmqkit.protocol import batch
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers import SendMessageRequestHeaderV2
from rmqkit_hook_audit import _lines, value_lines
from tests.speedups.comparison import Twin, register
from tests.speedups.mutations import NUMBERS, mutated
from tests.speedups.send_runs import COMPILED, HOSTS, PURE, TOPICS, Send, outcome

_TOPICS = (*TOPICS, *TOPICS, "unknown")
_NAMES = ("UNIQ_KEY", "KEYS", "TAGS", "WAIT", "DELAY", "x", "", "UNIQ_KEY_", "\u00e9", "__SHARDINGKEY")
_VALUES = ("false", "true", "", "A1", "a b", "50%d", "k\x01v", "\u03b2", "0A" * 16, "7F" * 16)


def _text(rng: random.Random) -> str:
    text = "".join(
        f"{rng.choice(_NAMES)}\x01{rng.choice(_VALUES)}\x02" for _ in range(rng.choice((0, 1, 1, 2, 4)))
    )
    text += rng.choice(("", "UNIQ_KEY\x01" + "0A" * 16, "UNIQ_KEY\x01" + "0A" * 16 + "\x02"))
    return text if rng.random() < 0.8 else text[: rng.randint(0, len(text))]


def _batch(rng: random.Random) -> bytes:
    items = [
        batch.BatchItem(rng.randint(-9, 9), rng.randbytes(rng.choice((0, 1, 60))), _text(rng).encode())
        for _ in range(rng.choice((1, 1, 2, 4)))
    ]
    return mutated(rng, batch.encode(items), share=0.4)


def _number(rng: random.Random, bits: int) -> int:
    return min(max(rng.choice(NUMBERS), -(1 << bits)), (1 << bits) - 1)


def _send(rng: random.Random) -> Send:
    batched = rng.random() < 0.4
    body = _batch(rng) if batched else rng.randbytes(rng.choice((0, 1, 2, 30, 300, 399, 400, 401)))
    header = SendMessageRequestHeaderV2(
        producer_group="g",
        topic=rng.choice(_TOPICS),
        queue_id=rng.randint(-1, 4),
        sys_flag=_number(rng, 31),
        born_timestamp=_number(rng, 63),
        flag=_number(rng, 31),
        properties=None if rng.random() < 0.1 else _text(rng),
        reconsume_times=rng.choice((None, 0, 1, 2**31 - 1)),
        batch=batched,
    )
    request = Command(320 if batched else 310, opaque=_number(rng, 31), body=body, typed=header)
    return request, header, rng.choice((0, 0, *range(len(HOSTS))))


def _arguments(rng: random.Random) -> tuple[object, ...]:
    # Bodies are bytes objects in the message path, too: the sanitized build finds a read past their end.
    return [_send(rng) for _ in range(rng.choice((1, 1, 2, 5)))], rng.randint(0, 12)


def _alike(rng: random.Random) -> tuple[object, ...]:
    """Runs that are mostly alike, with texts that contain the word at any place or a part of it."""
    word = rng.choice((b"AccessKey", b"AccessKey", b"aa", b"y", b""))
    count, odd = rng.choice((0, 1, 2, 8)), rng.choice((0.0, 0.0, 0.2))
    requests, headers = [], []
    for _ in range(count):
        text = bytes(rng.choices(b"Aacesy{}:", k=rng.choice((1, 8, 9, 300))))
        if rng.random() < odd:
            at = rng.randint(0, len(text))
            text = rng.choice((b"", text[:at] + word + text[at:], text[:at] + word[:-1], word[1:] + text))
        group, topic = ("".join(rng.choice(("g", "g2")) if rng.random() < odd else "g") for _ in "ab")
        headers.append(SendMessageRequestHeaderV2(producer_group=group, topic=topic, queue_id=0))
        requests.append(Command(310, head_json=text, typed=headers[-1]))
    return requests, headers, word


register(Twin("sends.are_alike", pure=value_lines.are_alike, compiled=_lines.are_alike, arguments=_alike))
register(
    Twin("sends.run", pure=partial(outcome, PURE), compiled=partial(outcome, COMPILED), arguments=_arguments)
)
