"""The messages of one queue and the offset to commit, compared with a simple model."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rmqkit.client import ReceivedMessage
from rmqkit.client.consumer.process_queue import ProcessQueue
from tests.client.consumer.messages import message


class QueueMachine(RuleBasedStateMachine):
    """Random pulls, takes, returns, pauses and ends. The model knows the state of each unfinished message and
    its lane, by offset; messages without a lane have None."""

    @initialize(start=st.integers(0, 100), lanes=st.integers(0, 3))
    def begin(self, start: int, lanes: int) -> None:
        def lane_of(message: ReceivedMessage) -> int | None:
            lane = message.queue_offset // 2 % (lanes + 1)
            return None if lane == lanes else lane

        self.lane_of = lane_of
        self.queue = ProcessQueue(start, lane_of)
        self.waiting: dict[int, int | None] = {}
        self.taken: dict[int, ReceivedMessage] = {}
        self.deferred: dict[int, ReceivedMessage] = {}
        self.end = start

    @property
    def ready(self) -> list[int]:
        """The first message of each lane, if it is waiting, and those without a lane."""
        first: dict[int, int] = {}
        for offset, lane in sorted(self.waiting.items()):
            if lane is not None:
                first.setdefault(lane, offset)
        for current in [*self.taken.values(), *self.deferred.values()]:
            lane = self.lane_of(current)
            if lane is not None:
                first.pop(lane, None)
        return sorted([*first.values(), *(offset for offset, lane in self.waiting.items() if lane is None)])

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
        self.waiting |= {offset: self.lane_of(message(offset)) for offset in offsets}
        self.end = max(self.end, at + 1 + skipped)

    @rule()
    def take(self) -> None:
        found = self.queue.take()
        if not self.ready:
            assert found is None
            return
        assert found is not None
        assert found.queue_offset == self.ready[0]
        del self.waiting[found.queue_offset]
        self.taken[found.queue_offset] = found

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.queue.finish(self.taken.pop(data.draw(st.sampled_from(sorted(self.taken)))))

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        returned = self.taken.pop(data.draw(st.sampled_from(sorted(self.taken))))
        self.queue.give_back(returned)
        self.waiting[returned.queue_offset] = self.lane_of(returned)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def defer(self, data: st.DataObject) -> None:
        failed = self.taken.pop(data.draw(st.sampled_from(sorted(self.taken))))
        changed = evolve(failed, reconsume_times=failed.reconsume_times + 1)
        self.queue.defer(changed)
        self.deferred[changed.queue_offset] = changed

    @precondition(lambda self: self.deferred)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        released = self.deferred.pop(data.draw(st.sampled_from(sorted(self.deferred))))
        self.queue.release(released)
        self.waiting[released.queue_offset] = self.lane_of(released)

    @invariant()
    def agrees(self) -> None:
        """The offset to commit is the first unfinished message, or where the next pull begins."""
        unfinished = {*self.waiting, *self.taken, *self.deferred}
        assert self.queue.commit_offset == min(unfinished, default=self.end)
        assert self.queue.pulled_to == self.end
        assert len(self.queue) == len(unfinished)
        assert self.queue.ready == len(self.ready)
        assert self.queue.in_hand == len(self.taken)
        assert self.queue.size == sum(offset % 5 for offset in unfinished)
        assert self.queue.span == max(unfinished, default=0) - min(unfinished, default=0)


TestProcessQueue = pytest.mark.row("S184", "S208")(QueueMachine.TestCase)


@pytest.mark.row("S186", "S187")
def test_a_returned_message_is_the_next_one() -> None:
    """A message that is held back and released as a changed copy is taken again before later ones, and holds
    the offset back until it is finished."""
    queue = ProcessQueue(5)
    queue.put([message(5), message(6)], 7)
    first = queue.take()
    assert first is not None
    queue.defer(evolve(first, reconsume_times=1))
    queue.release(first)
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


@pytest.mark.parametrize("bad_aside", [False, True])
def test_messages_that_cannot_be_decoded_are_set_aside_if_wanted(bad_aside: bool) -> None:
    """They are in hand at once, hold back no other message of the lane, and keep the offset until they are
    finished."""
    queue = ProcessQueue(0, lambda message: "one lane", bad_aside=bad_aside)
    bad = evolve(message(0, 5), fault="no zlib")
    aside = queue.put([bad, message(1), message(1), message(2)], 3)
    first = queue.take()
    assert first is not None
    assert (aside, first.queue_offset) == (([bad], 1) if bad_aside else ([], 0))
    assert (queue.take(), queue.commit_offset, queue.size) == (None, 0, 7)
    queue.finish(first)
    second = queue.take()
    assert second is not None
    assert second.queue_offset == first.queue_offset + 1
    if bad_aside:
        assert queue.commit_offset == 0
        queue.finish(bad)
        assert (queue.commit_offset, queue.size) == (2, 1)
