"""Stored records as the messages that consumers receive."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import attrs
import trio

from rmqkit.client.consumer import received
from rmqkit.client.consumer._received import ordinary_messages
from rmqkit.model.message import PutMessage
from rmqkit.model.queue import MessageQueue
from rmqkit.protocol.message_id import pack_host
from rmqkit.protocol.record import pack, record_size
from tests.speedups.comparison import Guarded, Twin, register
from tests.speedups.mutations import mutated

_PROPERTIES = (
    b"",
    b"UNIQ_KEY\x01A1B2\x02TAGS\x01new\x02KEYS\x01a b  c\x02",
    b"TAGS\x01a\x02TAGS\x01b\x02KEYS\x01 \x02",
    b"\x02\x01\x02x\x02\x01x\x02x\x01\x02a\x01b\x01c\x02WAIT\x01true",
    b"MIN_OFFSET\x015\x02name\x01\xc3\xa4\x02",
    b"name\x01\xff\x02",
    b"KEYS\x01a\tb c\x1f \x02row\x01a\x01b\x01\x02",
    b"KEYS\x01a\xe3\x80\x80b \xa4\x02TAGS\x01\xed\xa0\x80\x02",
)
_HOSTS = (pack_host("127.0.0.1", 10911), pack_host("255.1.2.3", 65535), b"\x01\x02\x03\x04\xff\xff\xff\xfe")
_QUEUES = (None, MessageQueue("Pulled", "b", 3))


def _received(ordinary: Callable[..., int], data: memoryview, queue: int) -> list[dict[str, object]]:
    added = {"MIN_OFFSET": "1", "MAX_OFFSET": "9"}
    with patch.object(received, "ordinary_messages", ordinary):
        found = trio.run(received.received, bytes(data), "broker", _QUEUES[queue], added)
    return [
        attrs.asdict(message, recurse=False) | {"properties": list(message.properties.items())}
        for message in found.messages
    ]


def _arguments(rng: random.Random) -> tuple[object, ...]:
    data = b""
    for _ in range(rng.choice((1, 1, 2, 3))):
        topic, properties = rng.choice(("t", "Orders", "x" * 200, "ä")), rng.choice(_PROPERTIES)
        body = rng.randbytes(rng.choice((0, 1, 15, 16, 100)))
        message = PutMessage(
            topic=topic,
            queue_id=rng.choice((0, 3, -1)),
            body=body,
            properties={},
            properties_bytes=properties,
            flag=rng.choice((0, -5)),
            sys_flag=rng.choice((0, 0, 0, 0x4, 0x80, 0xC0)),
            born_host=rng.choice(_HOSTS),
            born_timestamp_ms=rng.choice((0, -1, 1 << 40)),
        )
        size = record_size(len(body), len(topic.encode()), len(properties), message.sys_flag)
        place = rng.choice((0, 1 << 40, -1))
        data += pack(message, size, rng.choice((0, 7)), place, 1 << 41, rng.choice(_HOSTS))
    return Guarded(mutated(rng, data, share=0.5)), rng.randrange(len(_QUEUES))


register(
    Twin(
        "client.received",
        pure=partial(_received, received.no_ordinary_messages),
        compiled=partial(_received, ordinary_messages),
        arguments=_arguments,
    )
)
