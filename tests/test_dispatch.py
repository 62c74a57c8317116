"""The contract of dispatchers over the look-ups of rmqkit.testing and a dispatcher that keeps its progress in a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rmqkit.dispatch import LogFollower, NoKeys, NoQueues
from rmqkit.testing.dispatch import DispatcherContract, KeyLookupContract, QueueLookupContract
from rmqkit.testing.lookups import KeyLists, QueueLists
from tests.counting import Counter, SlowCounter, Volatile


class TestCounter(DispatcherContract):
    """Counts and progress in one file."""

    def make_dispatcher(self, directory: Path) -> Counter:
        return Counter(directory)

    def outcome(self, dispatcher: Any) -> object:
        return dispatcher.counts


class TestDocumented(TestCounter):
    """The one that docs/plugin_hooks.md shows."""

    def make_dispatcher(self, directory: Path) -> Any:
        page = (Path(__file__).parent.parent / "docs" / "plugin_hooks.md").read_text()
        (block,) = (
            text for text in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL) if "class Counter(Dispatcher)" in text
        )
        names: dict[str, Any] = {}
        exec(block, names)
        return names["Counter"](directory / "counts.json")


class TestSlowCounter(TestCounter):
    """The same with a queue of its own."""

    def make_dispatcher(self, directory: Path) -> Any:
        return SlowCounter(directory)


class TestVolatile(DispatcherContract):
    """One that keeps nothing."""

    def make_dispatcher(self, directory: Path) -> Volatile:
        return Volatile()

    def outcome(self, dispatcher: Any) -> object:
        return dispatcher.seen


class TestQueueLists(QueueLookupContract):
    def make_dispatcher(self, directory: Path) -> QueueLists:
        return QueueLists()


class TestKeyLists(KeyLookupContract):
    def make_dispatcher(self, directory: Path) -> KeyLists:
        return KeyLists()


class Forgetful(Counter):
    """Says that it has come further than it has saved."""

    @property
    def progress_offset(self) -> int:
        return self.end


class Double(Counter):
    """Counts again what it has counted."""

    def is_known(self, offset: int) -> bool:
        return False


class Trusting(Counter):
    """Does not look at where the log ends."""

    async def open(self, log_start: int, log_end: int) -> None:
        await super().open(log_start, 1 << 62)


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (Forgetful, "test_killed_and_opened_again"),
        (Double, "test_a_batch_that_was_not_finished_comes_again"),
        (Trusting, "test_a_log_that_lost_its_end"),
    ],
)
async def test_the_contract_finds_what_is_broken(broken: type[Counter], test: str, tmp_path: Path) -> None:
    """Each of these mistakes loses or doubles messages, and one of the tests says so."""

    class Contract(TestCounter):
        def make_dispatcher(self, directory: Path) -> Counter:
            return broken(directory)

    with pytest.raises(AssertionError):
        await getattr(Contract(), test)(tmp_path)


async def test_a_dispatcher_needs_to_do_nothing_but_dispatch(tmp_path: Path) -> None:
    """Everything else has a default that keeps nothing and does nothing."""
    follower = LogFollower()
    await follower.open(0, 100)
    await follower.run()
    follower.forget_before(50)
    await follower.close()
    assert follower.progress_offset is None


def test_what_stands_for_nothing() -> None:
    """A store without queues or index and without a replacement has nothing to say."""
    queues, keys = NoQueues(), NoKeys()
    queues.delete_queue("T", 0)
    assert (queues.min_offset("T", 0), queues.max_offset("T", 0), list(queues.units("T", 0, 0, 10))) == (0, 0, [])
    assert keys.query_by_key("T", "k", 0, 1, 10).physical_offsets == []
