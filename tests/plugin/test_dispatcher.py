"""The dispatcher contract run over rmqkit.testing's look-ups and over a dispatcher that keeps its progress in
a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rmqkit.plugin.dispatcher import LogFollower
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


async def test_a_dispatcher_needs_to_do_nothing_but_dispatch(tmp_path: Path) -> None:
    """Every other method has a default that keeps nothing and does nothing."""
    follower = LogFollower()
    await follower.open(0, 100)
    await follower.run()
    follower.forget_before(50)
    assert await follower.forget_from(70) == 70
    await follower.close()
    assert follower.progress_offset is None
