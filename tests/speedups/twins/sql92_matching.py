"""SQL92 conditions over records: `_matching` beside `rmqkit_filter.sql92.expressions`."""

from __future__ import annotations

import random

from rmqkit.model.buffer import Buffer
from rmqkit.model.message import PutMessage
from rmqkit.protocol.record import message_size, pack
from rmqkit_filter.sql92.expressions import NULL, Node
from rmqkit_filter.sql92.parser import parse
from rmqkit_filter.sql92.server import compiled_records_filter, pure_records_filter
from tests.plugins.filter.sql92_cases import Case, cases
from tests.speedups.comparison import Guarded, Twin, register
from tests.speedups.mutations import mutated

_ODD = (b"", b"a\x01\x02", b"\x02\x02", b"a\x01", b"b\x015\x01\x02", b"a\x01\xff\x02", b"_x")


def _record(rng: random.Random, case: Case) -> bytes:
    parts = [f"{name}\x01{value}\x02".encode() for name, value in case.properties.items()]
    parts += rng.sample(_ODD, rng.choice((0, 0, 1, 2)))
    rng.shuffle(parts)
    message = PutMessage(
        topic="T", queue_id=0, body=b"x" * rng.choice((0, 9)), properties={}, properties_bytes=b"".join(parts)
    )
    return pack(message, message_size(message), 3, 1000, 1_700_000_000_000, bytes(8))


def _arguments(rng: random.Random) -> tuple[object, ...]:
    (case,) = cases(rng, 1)
    return case.expression, Guarded(mutated(rng, _record(rng, case), share=0.2))


def _condition(expression: str) -> Node:
    """What does not parse is replaced by a condition that is always null."""
    try:
        return parse(expression)
    except ValueError:
        return NULL


def _pure(expression: str, record: Buffer) -> list[bool]:
    return list(pure_records_filter(_condition(expression))([record]))


def _compiled(expression: str, record: Buffer) -> list[bool]:
    return list(compiled_records_filter(_condition(expression))([record]))


register(Twin("sql92.matching", pure=_pure, compiled=_compiled, arguments=_arguments))
