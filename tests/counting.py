"""Dispatchers for tests: messages counted by topic, with the counts and the progress in one file."""

from __future__ import annotations

import json
from collections import Counter as Counts
from collections.abc import Sequence
from pathlib import Path

import trio

from rmqkit.plugin.dispatcher import DispatchEntry, Dispatcher, LogFollower, QueuedDispatcher

SAVE_INTERVAL_S = 1.0


class CountFile(LogFollower):
    """What both counters share. `end` is the log offset up to which they have counted."""

    def __init__(self, directory: Path) -> None:
        self.counts: Counts[str] = Counts()
        self.end = 0
        self._saved = 0
        self._path = directory / "counts.json"

    @property
    def progress_offset(self) -> int:
        return self._saved

    async def open(self, log_start: int, log_end: int) -> None:
        await trio.lowlevel.checkpoint()
        self.counts, self.end = Counts(), 0
        if self._path.exists():
            kept = json.loads(self._path.read_text())
            self.counts, self.end = Counts(kept["counts"]), kept["progress"]
        self._saved = self.end
        await self.forget_from(log_end)

    async def forget_from(self, log_end: int) -> int:
        await trio.lowlevel.checkpoint()
        if self.end > log_end:
            self.counts, self.end = Counts(), 0
            self.save()
        return self.end

    async def run(self) -> None:
        while True:
            await trio.sleep(SAVE_INTERVAL_S)
            self.save()

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()
        self.save()

    def save(self) -> None:
        young = self._path.with_suffix(".tmp")
        young.write_text(json.dumps({"progress": self.end, "counts": self.counts}))
        young.replace(self._path)
        self._saved = self.end

    def is_known(self, offset: int) -> bool:
        return offset < self.end

    def count(self, entries: Sequence[DispatchEntry]) -> None:
        for message, at in entries:
            if not self.is_known(at.physical_offset):
                self.counts[message.topic] += 1
                self.end = at.physical_offset + at.size_bytes


class Counter(CountFile, Dispatcher):
    """Counts right behind the append."""

    def dispatch(self, entries: Sequence[DispatchEntry]) -> None:
        self.count(entries)


class SlowCounter(CountFile, QueuedDispatcher):
    """Takes its time."""

    async def dispatch(self, entries: Sequence[DispatchEntry]) -> None:
        await trio.lowlevel.checkpoint()
        self.count(entries)


class Volatile(Dispatcher):
    """Keeps nothing; `seen` is what it was given since it was made."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def dispatch(self, entries: Sequence[DispatchEntry]) -> None:
        self.seen += [entry.message.body for entry in entries]
