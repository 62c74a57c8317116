"""Places of half messages that were stored anew."""

from __future__ import annotations

import pytest

from rmqkit_transaction.half_topics import moved as module
from rmqkit_transaction.half_topics.ended import Ended
from rmqkit_transaction.half_topics.moved import Moved


def test_every_earlier_place_leads_to_the_present_one() -> None:
    """Over any number of copies; a half message that was not moved is where it is."""
    moved = Moved()
    for number in range(10):
        moved.move(number, number + 1, 100 * (number + 1))
    assert [moved.place(number, 0) for number in range(10)] == [(10, 1_000)] * 10
    assert moved.place(10, 1_000) == (10, 1_000)
    assert moved.place(77, 5) == (77, 5)


def test_places_of_ended_ones_are_forgotten() -> None:
    """Those of open ones stay."""
    moved, ended = Moved(), Ended()
    moved.move(0, 5, 500)
    moved.move(1, 6, 600)
    ended.add(5)
    moved.forget(ended)
    assert (len(moved), moved.place(1, 0)) == (1, (6, 600))


def test_the_oldest_places_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory has a limit."""
    monkeypatch.setattr(module, "MAX_MOVED", 3)
    moved = Moved()
    for number in range(10):
        moved.move(number, 100 + number, 0)
    assert [moved.place(number, 0)[0] for number in (6, 7, 8, 9)] == [6, 107, 108, 109]
