"""The messages of one queue and the offset to commit, compared with a simple model."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rmqkit.client.consumer.process_queue import ProcessQueue
from tests.client.consumer.messages import message


class QueueMachine(RuleBasedStateMachine):
    """Random pulls, takes, returns and ends; the model is a set of unfinished offsets."""

    @initialize(start=st.integers(0, 100))
    def begin(self, start: int) -> None:
        self.queue = ProcessQueue(start)
        self.unfinished: set[int] = set()
        self.buffered: list[int] = []
        self.taken: dict[int, object] = {}
        self.end = start

    @rule(gaps=st.lists(st.integers(1, 3), max_size=6), skipped=st.integers(0, 3), again=st.integers(0, 3))
    def pull(self, gaps: list[int], skipped: int, again: int) -> None:
        """A pull may repeat messages of the one before, have gaps, and end after its last message."""
        offsets = []
        at = self.end - 1
        for gap in gaps:
            at += gap
            offsets.append(at)
        repeated = list(range(max(self.end - again, 0), self.end))
        self.queue.put([message(offset, offset % 5) for offset in repeated + offsets], at + 1 + skipped)
        self.unfinished.update(offsets)
        self.buffered += offsets
        self.end = max(self.end, at + 1 + skipped)

    @rule()
    def take(self) -> None:
        found = self.queue.take()
        if not self.buffered:
            assert found is None
            return
        assert found is not None
        assert found.queue_offset == self.buffered.pop(0)
        self.taken[found.queue_offset] = found

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.taken)))
        self.queue.finish(self.taken.pop(offset))  # type: ignore[arg-type]
        self.unfinished.discard(offset)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.taken)))
        self.queue.give_back(self.taken.pop(offset))  # type: ignore[arg-type]
        self.buffered.insert(0, offset)

    @invariant()
    def agrees(self) -> None:
        """The offset to commit is the first unfinished message, or where the next pull begins."""
        assert self.queue.commit_offset == min(self.unfinished, default=self.end)
        assert self.queue.pulled_to == self.end
        assert len(self.queue) == len(self.unfinished)
        assert self.queue.buffered == len(self.buffered)
        assert self.queue.in_hand == len(self.taken)
        assert self.queue.size == sum(offset % 5 for offset in self.unfinished)
        assert self.queue.span == max(self.unfinished, default=0) - min(self.unfinished, default=0)


TestProcessQueue = pytest.mark.row("S184", "S208")(QueueMachine.TestCase)


@pytest.mark.row("S186", "S187")
def test_a_returned_message_is_the_next_one() -> None:
    """A message that is given back as a changed copy is taken again before later ones, and holds the offset
    back until it is finished."""
    queue = ProcessQueue(5)
    queue.put([message(5), message(6)], 7)
    first = queue.take()
    assert first is not None
    queue.give_back(evolve(first, reconsume_times=1))
    again = queue.take()
    assert again is not None
    assert (again.queue_offset, again.reconsume_times, queue.commit_offset) == (5, 1, 5)
    queue.finish(again)
    assert queue.commit_offset == 6


def test_only_messages_in_hand_can_be_finished() -> None:
    """A message that was not taken, or is finished, cannot be finished or given back."""
    queue = ProcessQueue(0)
    queue.put([message(0)], 1)
    with pytest.raises(KeyError):
        queue.finish(message(0))
    taken = queue.take()
    assert taken is not None
    queue.finish(taken)
    with pytest.raises(KeyError):
        queue.give_back(taken)
