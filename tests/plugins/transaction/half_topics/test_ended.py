"""The table of ended half messages against a set."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rmqkit_transaction.half_topics.ended import Ended

OFFSETS = st.integers(0, 60)


class AgainstASet(RuleBasedStateMachine):
    """The same calls on both; the progress only grows."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = Ended(5)
        self.base = 5
        self.model: set[int] = set(range(5))

    @rule(offset=OFFSETS)
    def add(self, offset: int) -> None:
        self.ended.add(offset)
        self.model.add(offset)

    @rule()
    def advance(self) -> None:
        self.base = self.ended.next_open(self.base)
        self.ended.advance(self.base)

    @invariant()
    def same(self) -> None:
        assert [self.ended.has_ended(offset) for offset in range(70)] == [
            offset in self.model for offset in range(70)
        ]
        for offset in range(self.base, 70):
            assert self.ended.next_open(offset) == next(
                each for each in range(offset, 99) if each not in self.model
            )
        assert self.ended.base == self.base
        assert self.ended.open_before(70) == len(set(range(70)) - self.model)


TestAgainstASet = AgainstASet.TestCase


@given(st.lists(OFFSETS))
def test_the_memory_follows_the_progress(offsets: list[int]) -> None:
    """Everything before the progress is forgotten."""
    ended = Ended()
    for offset in offsets:
        ended.add(offset)
    ended.advance(61)
    assert len(ended._ended) == 0
    assert ended.open_before(61) == 0
