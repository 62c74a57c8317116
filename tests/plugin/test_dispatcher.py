"""The dispatcher contract run over rmqkit.testing's look-ups and over a dispatcher that keeps its progress in
a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import trio

from rmqkit.plugin.dispatcher import LogFollower
from rmqkit.plugin.store import NoKeys, NoQueues
from rmqkit.testing.dispatch import DispatcherContract, KeyLookupContract, QueueLookupContract
from rmqkit.testing.lookups import KeyLists, QueueLists
from tests.counting import Counter, SlowCounter, Volatile


class TestCounter(DispatcherContract):
    """A dispatcher that keeps counts and progress in one file."""

    def make_dispatcher(self, directory: Path) -> Counter:
        return Counter(directory)

    def outcome(self, dispatcher: Any) -> object:
        return dispatcher.counts


class TestDocumented(TestCounter):
    """The dispatcher shown in docs/plugin_hooks.md."""

    def make_dispatcher(self, directory: Path) -> Any:
        page = (Path(__file__).parent.parent.parent / "docs" / "plugin_hooks.md").read_text()
        (block,) = (
            text
            for text in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
            if "class Counter(Dispatcher)" in text
        )
        names: dict[str, Any] = {}
        exec(block, names)
        return names["Counter"](directory / "counts.json")


class TestSlowCounter(TestCounter):
    """The same dispatcher with a queue of its own."""

    def make_dispatcher(self, directory: Path) -> Any:
        return SlowCounter(directory)


class TestVolatile(DispatcherContract):
    """A dispatcher that keeps nothing."""

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
    """A broken dispatcher that reports more progress than it has saved."""

    @property
    def progress_offset(self) -> int:
        return self.end


class Double(Counter):
    """A broken dispatcher that counts messages twice."""

    def is_known(self, offset: int) -> bool:
        return False


class Trusting(Counter):
    """A broken dispatcher that ignores where the log ends at the start."""

    async def open(self, log_start: int, log_end: int) -> None:
        await super().open(log_start, 1 << 62)


class Stubborn(Counter):
    """A broken dispatcher that keeps what a truncation removed."""

    async def forget_from(self, log_end: int) -> int:
        await trio.lowlevel.checkpoint()
        self._saved = self.end = min(self.end, log_end)
        return self.end


class Hasty(Counter):
    """A broken dispatcher that forgets in memory only."""

    async def forget_from(self, log_end: int) -> int:
        await trio.lowlevel.checkpoint()
        if self.end > log_end:
            self.counts.clear()
            self.end = self._saved = 0
        return self.end


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (Forgetful, "test_killed_and_opened_again"),
        (Double, "test_a_batch_that_was_not_finished_comes_again"),
        (Trusting, "test_a_log_that_lost_its_end"),
        (Stubborn, "test_a_truncated_log"),
        (Hasty, "test_a_lost_end_that_is_followed_by_a_crash"),
        (Hasty, "test_a_truncation_that_is_followed_by_a_crash"),
    ],
)
async def test_the_contract_finds_what_is_broken(broken: type[Counter], test: str, tmp_path: Path) -> None:
    """Each of these mistakes loses or doubles messages, and one of the contract's tests fails for it."""

    class Contract(TestCounter):
        def make_dispatcher(self, directory: Path) -> Counter:
            return broken(directory)

    with pytest.raises(AssertionError):
        await getattr(Contract(), test)(tmp_path)


async def test_a_dispatcher_needs_to_do_nothing_but_dispatch(tmp_path: Path) -> None:
    """Every other method has a default that keeps nothing and does nothing."""
    follower = LogFollower()
    await follower.open(0, 100)
    await follower.run()
    follower.forget_before(50)
    assert await follower.forget_from(70) == 70
    await follower.close()
    assert follower.progress_offset is None


def test_what_stands_for_nothing() -> None:
    """`NoQueues` and `NoKeys`, for stores without queues or index, report empty queues and find nothing."""
    queues, keys = NoQueues(), NoKeys()
    queues.delete_queue("T", 0)
    assert (queues.min_offset("T", 0), queues.max_offset("T", 0), list(queues.units("T", 0, 0, 10))) == (
        0,
        0,
        [],
    )
    assert keys.query_by_key("T", "k", 0, 1, 10).physical_offsets == []
