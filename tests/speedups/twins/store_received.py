"""Records of another broker's log: `_received` beside `rmqkit_store_mmap.received`."""

from __future__ import annotations

import random
from typing import Any

from rmqkit.model.message import PutMessage
from rmqkit.model.sysflag import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_COMMIT, UNQUEUED
from rmqkit.protocol.damage import DAMAGE_FLAG
from rmqkit.protocol.record import message_size, pack
from rmqkit_store_mmap import _received, received
from tests.speedups.comparison import Guarded, Twin, register
from tests.speedups.mutations import NUMBERS, mutated

_HOST, _HOST_V6 = bytes(8), bytes(20)
_TOPICS = ("Orders", "Orders", "%RETRY%group", "T" * 127, "T" * 128, "\u00e9")
_PROPERTIES = (
    b"",
    b"TAGS\x01a\x02UNIQ_KEY\x017F00000110920000\x02",
    b"UNIQ_KEY\x017F00000110920000\x02WAIT\x01true\x02KEYS\x01a b\x02",
    b"KEYS\x01k\x01l\x02KEYS\x01\x02",
    b"TAGS\x01one\x02TAGS\x01two",
    b"\x01x\x02TAG\x01x\x02\x02TAGS\x02UNIQ_KEY",
    "TAGS\x01\u00e9\x02".encode(),
    b"TAGS\x01a\0",
)


def _log(rng: random.Random, offset: int) -> bytes:
    """Records of a log from an offset on, most of them plain."""
    data, next_offsets = b"", dict[tuple[str, int], int]()
    topics, queues = rng.sample(_TOPICS, 2), rng.choice((1, 4, 4, 70))
    for number in range(rng.choice((0, 1, 3, 12, 90))):
        flags = rng.choice((0,) * 12 + (1, TRANSACTION_COMMIT, UNQUEUED, 0xC, BORN_HOST_V6, STORE_HOST_V6))
        topic, queue_id = rng.choice(topics), number % queues
        properties = rng.choice(_PROPERTIES)
        message = PutMessage(
            topic=topic,
            queue_id=queue_id,
            body=b"x" * rng.choice((0, 1, 30)),
            properties={},
            properties_bytes=properties,
            sys_flag=flags,
            flag=DAMAGE_FLAG if rng.random() < 0.02 else 0,
            born_host=_HOST_V6 if flags & BORN_HOST_V6 else _HOST,
        )
        store_host = _HOST_V6 if flags & STORE_HOST_V6 else _HOST
        queue_offset = next_offsets.setdefault((topic, queue_id), rng.choice((0, 7, 1 << 62)))
        next_offsets[topic, queue_id] += rng.choice((1,) * 20 + (0, 2))
        place = offset + len(data) + rng.choice((0,) * 30 + (1,))
        time_ms = rng.choice((1, 1_700_000_000_000))
        data += pack(message, message_size(message), queue_offset, place, time_ms, store_host)
    return data


def _arguments(rng: random.Random) -> tuple[object, ...]:
    offset = rng.choice((0, 0, 4096, 1 << 40))
    front = rng.choice((0, 0, 5))
    data = mutated(rng, _log(rng, offset), share=0.5)
    stop = front + len(data)
    if rng.random() < 0.2:
        stop = rng.choice((*NUMBERS, stop + 1, stop - 1, stop // 2))
        offset = rng.choice((offset, -1, (1 << 63) - 1, (1 << 63) - 200))
    stop = min(max(stop, -(1 << 63)), (1 << 63) - 1)
    return Guarded(bytes(front) + data), front, stop, offset, rng.choice((None, None, 0, 1))


def _both(
    functions: tuple[Any, Any, Any], data: memoryview, at: int, stop: int, offset: int, refused: int | None
) -> object:
    """How far the records are sound, and what is in the plain ones, if the queue number `refused` is not."""
    sound_end, good_end, plain_units = functions
    seen: list[object] = []

    def begin(topic: str, queue_id: int, queue_offset: int, physical_offset: int) -> int | None:
        seen.append((topic, queue_id, queue_offset, physical_offset))
        if len(seen) - 1 == refused:
            return None
        return received.NOT_INDEXED if queue_id % 3 == 2 else len(topic) + queue_id

    end = sound_end(data, at, stop, offset)
    good = [good_end(data, at, stop, offset, check_bodies) for check_bodies in (True, False)]
    return end, good, plain_units(data, at, stop, offset, begin), seen


register(
    Twin(
        "store.received",
        pure=lambda *arguments: _both(
            (received.pure_sound_end, received.pure_good_end, received.pure_plain_units), *arguments
        ),
        compiled=lambda *arguments: _both(
            (_received.sound_end, _received.good_end, _received.plain_units), *arguments
        ),
        arguments=_arguments,
    )
)
