"""A processor that meets an entry which is being written answers when it is written, or with its refusal."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
import trio.testing

from rmqkit.errors import RequestRefused
from rmqkit.model.topic import TopicConfig
from rmqkit.plugin.request import Outcome
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command, answer, request
from rmqkit.testing.peer import FakePeer
from rmqkit.toolkit.unsaved import Change, Unsaved, again_when_saved, when_saved


def settle(change: Change[TopicConfig], failure: RequestRefused | None = None) -> None:
    """As the table does when the change is written."""
    change.is_settled, change.failure = True, failure
    for then in change.waiting:
        then(failure)


def needing(changes: list[Change[TopicConfig]], asked: Command) -> Callable[[], Outcome]:
    """A processor's work that needs these changes, one after the other."""

    def work() -> Outcome:
        for change in changes:
            if not change.is_settled:
                raise Unsaved(change)
        return answer(asked, body=b"done")

    return work


@pytest.fixture
def changes() -> list[Change[TopicConfig]]:
    return [Change(name, TopicConfig(topic_name=name), 0) for name in ("A", "B")]


def test_what_needs_nothing_is_answered_at_once() -> None:
    """Without a ticket."""
    asked = request(11)
    outcome = when_saved(needing([], asked), asked, FakePeer())
    assert isinstance(outcome, Command)
    assert outcome.body == b"done"


async def test_it_runs_again_until_everything_is_written(changes: list[Change[TopicConfig]]) -> None:
    """One change after the other."""
    asked, results = request(11), list[Outcome]()

    async def read() -> None:
        results.append(await again_when_saved(needing(changes, asked)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        for change in changes:
            await trio.testing.wait_all_tasks_blocked()
            assert results == []
            settle(change)
    (found,) = results
    assert isinstance(found, Command)
    assert found.body == b"done"


async def test_a_change_that_is_not_made_is_the_answer(changes: list[Change[TopicConfig]]) -> None:
    """With the reason why it was not made; also when that is known already."""
    refusal = RequestRefused(ResponseCode.SYSTEM_ERROR, "disk full")
    settle(changes[0], refusal)
    with pytest.raises(RequestRefused, match="disk full"):
        await again_when_saved(needing(changes, request(11)), Unsaved(changes[0]))
