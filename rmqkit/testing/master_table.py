"""Contract of MasterTable, for what a slave copies from its master.

async def test_contract() -> None:
    await check_master_table(MyCopy(), body=a_masters_answer, taken=lambda: what_the_copy_holds())
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final

from rmqkit.errors import DecodeError
from rmqkit.plugin.replication import MasterTable

#: Damaged answers of each kind.
_EACH: Final = 100
_LONG: Final = 100_000


async def check_master_table(table: MasterTable, body: bytes, taken: Callable[[], object]) -> None:
    """Check a copy: it takes a master's answer over, as often as it comes, refuses what it cannot read with
    DecodeError and without a change, and takes the right answer over after any other.

    body   an answer of a master whose table differs from what the copy holds
    taken  returns what the copy holds, comparable

    Raises AssertionError at the first broken rule. Takes answers in turn, as a slave does.
    """
    before = taken()
    assert table.code >= 0, "it names the request that gets the table"
    await _offered(table, b"", taken, wanted=before)
    assert taken() == before, "an empty answer changes nothing"
    await table.take(body)
    held = taken()
    assert held != before, "it takes the master's table over"
    await table.take(body)
    assert taken() == held, "the same answer changes nothing"
    for damaged in _damaged(body):
        await _offered(table, damaged, taken, wanted=taken())
    await table.take(body)
    assert taken() == held, "the right answer is taken over after any other"


async def _offered(table: MasterTable, body: bytes, taken: Callable[[], object], wanted: object) -> None:
    """Offer an answer that may be refused. One that is refused leaves what is `wanted`."""
    try:
        await table.take(body)
    except DecodeError:
        assert taken() == wanted, "what is refused changes nothing"


def _damaged(body: bytes) -> Iterator[bytes]:
    """Answers that were cut short, changed, made up, or are long."""
    chosen = random.Random(0)
    for _ in range(_EACH):
        yield body[: chosen.randrange(len(body))]
        changed = bytearray(body)
        for _ in range(chosen.randint(1, 3)):
            changed[chosen.randrange(len(changed))] = chosen.randrange(256)
        yield bytes(changed)
        yield chosen.randbytes(chosen.randrange(2 * len(body) + 1))
    yield from (b"[" * _LONG, b'{"a":' * _LONG, body * 3, bytes(_LONG), b"null", b"[]", b"{}")


__all__ = ["check_master_table"]
