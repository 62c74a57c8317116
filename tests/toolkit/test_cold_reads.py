"""Reads of data that is not in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from rmqkit.errors import RequestRefused
from rmqkit.plugin.request import Outcome, Ticket
from rmqkit.plugin.store import NotInMemory
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command, answer, request
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.peer import FakePeer
from rmqkit.testing.store import NeverFlush, store_config
from rmqkit.toolkit.cold_reads import (
    MAX_ROUNDS,
    all_of,
    blocking,
    read_cached,
    read_when_cached,
    retry_when_cached,
)
from rmqkit_store_memory.store import MemoryStore

ASKED = request(RequestCode.VIEW_MESSAGE_BY_ID)
ANSWER = answer(ASKED)


class Warming(MemoryStore):
    """Notes the ranges it is asked to fetch."""

    def __init__(self, directory: Path) -> None:
        super().__init__(store_config(directory), FakeClock(), NeverFlush())
        self.warmed: list[tuple[object, ...]] = []
        self.blocks = False

    @contextmanager
    def blocking_reads(self) -> Iterator[None]:
        self.blocks = True
        yield
        self.blocks = False

    async def fetch(self, missed: NotInMemory) -> None:
        await trio.lowlevel.checkpoint()
        self.warmed.append(missed.cold)


@pytest.fixture
def store(tmp_path: Path) -> Warming:
    return Warming(tmp_path)


def cold_for(store: Warming, times: int, outcome: Outcome, waits: list[bool]) -> Callable[[], Outcome]:
    """A read that returns `outcome` after it has met cold data `times` times."""

    def handle() -> Outcome:
        waits.append(store.blocks)
        if not store.blocks and len(waits) <= times:
            raise NotInMemory(len(waits))
        return outcome

    return handle


async def test_what_is_in_memory_is_answered_at_once(store: Warming) -> None:
    """A read whose data is in memory starts no task."""
    waits: list[bool] = []
    assert read_cached(store, cold_for(store, 0, ANSWER, waits), ASKED, FakePeer()) is ANSWER
    assert (waits, store.warmed) == ([False], [])


async def test_a_task_reads_when_everything_is_cached(store: Warming) -> None:
    """`read_when_cached` tries at once, fetches what was missing, and tries again."""
    waits: list[bool] = []
    assert await read_when_cached(store, cold_for(store, 2, ANSWER, waits)) is ANSWER
    assert (waits, store.warmed) == ([False] * 3, [(1,), (2,)])


def test_a_tool_waits_for_the_device(store: Warming) -> None:
    """`blocking` runs the read once, with blocking reads, and ends them when the read fails."""
    waits: list[bool] = []
    assert blocking(store, cold_for(store, 1_000, ANSWER, waits)) is ANSWER
    assert (waits, store.blocks) == ([True], False)


async def test_it_is_tried_again_until_all_is_there(store: Warming) -> None:
    """Each attempt fetches the data the last one missed, until the read succeeds."""
    waits: list[bool] = []
    peer = FakePeer()
    outcome = read_cached(store, cold_for(store, 3, ANSWER, waits), ASKED, peer)
    assert isinstance(outcome, Ticket)
    assert await peer.answer_to(ASKED) is ANSWER
    assert (waits, store.warmed) == ([False] * 4, [(1,), (2,), (3,)])


async def test_in_the_end_it_waits(store: Warming) -> None:
    """After many attempts the read blocks: data that leaves the memory faster than it is read must not keep a
    task busy for ever."""
    waits: list[bool] = []
    peer = FakePeer()
    outcome = read_cached(store, cold_for(store, 1_000, ANSWER, waits), ASKED, peer)
    assert isinstance(outcome, Ticket)
    assert await peer.answer_to(ASKED) is ANSWER
    assert waits == [False] * (MAX_ROUNDS + 1) + [True]


async def test_an_answer_that_waits_for_something_else(store: Warming) -> None:
    """A processor may postpone its answer after the read, for example until a flush: its ticket takes
    over."""
    peer = FakePeer()
    flushed = peer.postpone((ASKED,))
    read_cached(store, cold_for(store, 1, flushed, []), ASKED, peer)
    assert await peer.answer_to(ASKED) is None
    assert peer.owed == 1
    flushed.complete((ANSWER,))
    assert await peer.answer_to(ASKED) is ANSWER
    assert peer.owed == 0


async def test_a_refusal_is_raised_whenever_it_comes(store: Warming) -> None:
    """A refusal is raised to the caller, whether it comes at once or after a wait."""

    def refuse() -> Command:
        if not store.warmed and cold:
            raise NotInMemory("first")
        raise RequestRefused(1, "no")

    cold = False
    with pytest.raises(RequestRefused):
        read_cached(store, refuse, ASKED, FakePeer())
    cold = True
    with pytest.raises(RequestRefused):
        await retry_when_cached(store, refuse, NotInMemory("first"))
    assert store.warmed == [("first",)]


def test_several_reads_miss_as_one() -> None:
    """Several reads that miss raise one error that names all missing ranges."""

    def read(number: int, cold: bool) -> Callable[[], int]:
        def read_one() -> int:
            if cold:
                raise NotInMemory(number, -number)
            return number

        return read_one

    assert all_of([]) == []
    assert all_of(read(number, False) for number in range(3)) == [0, 1, 2]
    with pytest.raises(NotInMemory) as caught:
        all_of(read(number, number % 2 == 1) for number in range(5))
    assert caught.value.cold == (1, -1, 3, -3)
