"""Reads that meet data which is not in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from rmqkit.abc import Answer, NotInMemory, Outcome
from rmqkit.broker.warming import MAX_ROUNDS, again_when_warm, all_of, when_warm
from rmqkit.errors import RequestRefused
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command, answer, request
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import NeverFlush, store_config
from rmqkit_store_memory.store import MemoryStore

ANSWER = answer(request(RequestCode.VIEW_MESSAGE_BY_ID))


class Warming(MemoryStore):
    """Notes what it is to bring in."""

    def __init__(self, directory: Path) -> None:
        super().__init__(store_config(directory), FakeClock(), NeverFlush())
        self.warmed: list[tuple[object, ...]] = []

    async def warm(self, missed: NotInMemory) -> None:
        await trio.lowlevel.checkpoint()
        self.warmed.append(missed.cold)


@pytest.fixture
def store(tmp_path: Path) -> Warming:
    return Warming(tmp_path)


def cold_for(times: int, outcome: Outcome, waits: list[bool]) -> Callable[[bool], Outcome]:
    """Something that answers `outcome` once it has met cold data so many times."""

    def handle(wait: bool) -> Outcome:
        waits.append(wait)
        if not wait and len(waits) <= times:
            raise NotInMemory(len(waits))
        return outcome

    return handle


async def test_what_is_in_memory_is_answered_at_once(store: Warming) -> None:
    """No awaitable, no task."""
    waits: list[bool] = []
    assert when_warm(store, cold_for(0, ANSWER, waits)) is ANSWER
    assert (waits, store.warmed) == ([False], [])


async def test_it_is_tried_again_until_all_is_there(store: Warming) -> None:
    """Each time with what was missing then."""
    waits: list[bool] = []
    outcome = when_warm(store, cold_for(3, ANSWER, waits))
    assert isinstance(outcome, Awaitable)
    assert await outcome is ANSWER
    assert (waits, store.warmed) == ([False] * 4, [(1,), (2,), (3,)])


async def test_in_the_end_it_waits(store: Warming) -> None:
    """Data that leaves the memory faster than it is read must not keep a task busy for ever."""
    waits: list[bool] = []
    outcome = when_warm(store, cold_for(1_000, ANSWER, waits))
    assert isinstance(outcome, Awaitable)
    assert await outcome is ANSWER
    assert waits == [False] * (MAX_ROUNDS + 1) + [True]


async def test_an_answer_that_waits_for_something_else(store: Warming) -> None:
    """A processor that read what it needed may go on to wait, for a flush: its awaitable is awaited too."""

    async def settled() -> Answer:
        await trio.lowlevel.checkpoint()
        return ANSWER

    outcome = when_warm(store, cold_for(1, settled(), []))
    assert isinstance(outcome, Awaitable)
    assert await outcome is ANSWER


async def test_a_refusal_is_raised_whenever_it_comes(store: Warming) -> None:
    """At once, or behind a wait."""

    def refuse(wait: bool) -> Command:
        if not store.warmed and cold:
            raise NotInMemory("first")
        raise RequestRefused(1, "no")

    cold = False
    with pytest.raises(RequestRefused):
        when_warm(store, refuse)
    cold = True
    with pytest.raises(RequestRefused):
        await again_when_warm(store, refuse, NotInMemory("first"))
    assert store.warmed == [("first",)]


def test_several_reads_miss_as_one() -> None:
    """Everything that is missing is named at once; nothing is lost of what is there."""

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
