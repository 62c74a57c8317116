"""The contract of dispatchers and look-ups, as tests: subclass one of the classes, say how a dispatcher is made, and pytest runs them over it.

class TestCounter(DispatcherContract):
    def make_dispatcher(self, directory: Path) -> Counter:
        return Counter(directory)

    def outcome(self, dispatcher: Counter) -> object:
        return dispatcher.counts
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from attrs import Factory, define

from rmqkit.abc import Appended, KeyMatches, QueueUnit
from rmqkit.dispatch import DispatchEntry, Dispatcher, KeyLookup, LogFollower, QueuedDispatcher, QueueLookup
from rmqkit.model.message import PutMessage
from rmqkit.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rmqkit.protocol.record import message_size
from rmqkit.testing.store import message

_START_MS = 1_700_000_000_000
_UNQUEUED = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
_EVER = 1 << 60


@define
class Log:
    """A log that needs no store: places for messages, as a store would give them, a second apart."""

    entries: list[DispatchEntry] = Factory(list)
    end: int = 0
    next_offsets: dict[tuple[str, int], int] = Factory(dict)

    def append(self, *messages: PutMessage) -> list[DispatchEntry]:
        """The new entries."""
        for each in messages:
            self.entries.append(self._landed(each))
        return self.entries[len(self.entries) - len(messages) :]

    def _landed(self, landing: PutMessage) -> DispatchEntry:
        queue = (landing.topic, landing.queue_id)
        offset, size = 0, message_size(landing)
        if landing.sys_flag & TRANSACTION_MASK not in _UNQUEUED:
            offset = self.next_offsets.get(queue, 0)
            self.next_offsets[queue] = offset + 1
        at = Appended(offset, self.end, size, _START_MS + 1_000 * len(self.entries))
        self.end += size
        return DispatchEntry(landing, at)

    def fill(self, count: int, name: str = "m") -> list[DispatchEntry]:
        """Some more messages of two topics with three queues; each has a unique key, a tag and one key that others have too."""
        return self.append(
            *(
                message(f"Topic{at % 2}", at % 3, b"%d" % at, unique_key=f"{name}{at}", keys=f"key{at % 4}", tag=f"tag{at % 3}")
                for at in range(count)
            )
        )

    def cut(self, end: int) -> None:
        """Lose everything from log offset `end` on, as a power failure does."""
        for entry in self.entries:
            if entry.at.physical_offset >= end and entry.message.sys_flag & TRANSACTION_MASK not in _UNQUEUED:
                queue = (entry.message.topic, entry.message.queue_id)
                self.next_offsets[queue] = min(self.next_offsets[queue], entry.at.queue_offset)
        self.entries = [entry for entry in self.entries if entry.at.physical_offset < end]
        self.end = end

    def since(self, offset: int) -> list[DispatchEntry]:
        return [entry for entry in self.entries if entry.at.physical_offset >= offset]


def end_of(entries: Sequence[DispatchEntry]) -> int:
    """The log offset behind the last one."""
    at = entries[-1].at
    return at.physical_offset + at.size_bytes


async def give(dispatcher: LogFollower, *batches: Sequence[DispatchEntry]) -> None:
    """As the kernel does: whole batches one after the other, none of them empty."""
    for batch in filter(None, batches):
        if isinstance(dispatcher, QueuedDispatcher):
            await dispatcher.dispatch(batch)
        else:
            assert isinstance(dispatcher, Dispatcher)
            dispatcher.dispatch(batch)


class DispatcherContract:
    """What every dispatcher must do, with or without a queue of its own."""

    def make_dispatcher(self, directory: Path) -> Any:
        """A dispatcher that was not opened; what it keeps is in `directory`, where another one may have been before it."""
        raise NotImplementedError

    def outcome(self, dispatcher: Any) -> object:
        """What it has made of the entries it was given, as something to compare."""
        raise NotImplementedError

    # --- help --------------------------------------------------------------------------------------------------------

    async def opened(self, directory: Path, log_start: int, log_end: int) -> Any:
        await trio.Path(directory).mkdir(exist_ok=True)
        dispatcher = self.make_dispatcher(directory)
        await dispatcher.open(log_start, log_end)
        return dispatcher

    async def expected(self, directory: Path, entries: Sequence[DispatchEntry]) -> object:
        """What comes out when nothing goes wrong."""
        dispatcher = await self.opened(directory, 0, 0)
        await give(dispatcher, entries)
        found = self.outcome(dispatcher)
        await dispatcher.close()
        return found

    async def resumed(self, directory: Path, log: Log, claimed: int = 0) -> Any:
        """A new dispatcher over a directory that was used, where the one before said it had come to `claimed`; brought up to the end of the log."""
        dispatcher = await self.opened(directory, 0, log.end)
        self.check_progress(dispatcher, log.entries)
        assert dispatcher.progress_offset >= claimed, "the progress did not survive"
        await give(dispatcher, log.since(dispatcher.progress_offset))
        return dispatcher

    def check_progress(self, dispatcher: LogFollower, given: Iterable[DispatchEntry]) -> None:
        progress = dispatcher.progress_offset
        assert progress is None or progress in {0, *(end_of([entry]) for entry in given)}, f"no record that was given ends at {progress}"

    @pytest.fixture
    def keeps_progress(self) -> None:
        """Skips the tests of what is given twice."""
        if self.make_dispatcher(Path()).progress_offset is None:
            pytest.skip("this dispatcher keeps nothing and is given nothing twice")

    # --- the rules ---------------------------------------------------------------------------------------------------

    async def test_batches_do_not_matter(self, tmp_path: Path) -> None:
        """The same entries in one batch, one by one and in uneven batches come to the same; none of them makes the dispatcher raise."""
        log = Log()
        given = log.fill(50)
        expected = await self.expected(tmp_path / "whole", given)
        for name, sizes in (("single", [1] * 50), ("uneven", [7, 1, 30, 12])):
            dispatcher = await self.opened(tmp_path / name, 0, 0)
            at = 0
            for size in sizes:
                await give(dispatcher, given[at : at + size])
                self.check_progress(dispatcher, given[: at + size])
                at += size
            assert self.outcome(dispatcher) == expected
            await dispatcher.close()

    @pytest.mark.usefixtures("keeps_progress")
    async def test_a_batch_that_was_not_finished_comes_again(self, tmp_path: Path) -> None:
        """After a failure the entries come again from some place before it, without harm."""
        log = Log()
        given = log.fill(40)
        dispatcher = await self.opened(tmp_path / "twice", 0, 0)
        await give(dispatcher, given[:20], given[:20], given[15:30], given[20:40], given[25:])
        assert self.outcome(dispatcher) == await self.expected(tmp_path / "once", given)
        await dispatcher.close()

    @pytest.mark.usefixtures("keeps_progress")
    async def test_closed_and_opened_again(self, tmp_path: Path) -> None:
        """What was done is there again after a restart and what the progress does not cover is given again; a start without news changes nothing."""
        log = Log()
        dispatcher = await self.opened(tmp_path / "kept", 0, 0)
        await give(dispatcher, log.fill(20))
        await dispatcher.close()
        for _ in range(2):
            dispatcher = await self.resumed(tmp_path / "kept", log)
            await dispatcher.close()
        log.fill(20, "later")
        dispatcher = await self.resumed(tmp_path / "kept", log)
        assert self.outcome(dispatcher) == await self.expected(tmp_path / "once", log.entries)
        await dispatcher.close()

    @pytest.mark.usefixtures("keeps_progress")
    async def test_killed_and_opened_again(self, tmp_path: Path) -> None:
        """Without a `close` the progress may be old, but it is true."""
        log = Log()
        dispatcher = await self.opened(tmp_path / "killed", 0, 0)
        await give(dispatcher, log.fill(20))
        await dispatcher.close()
        claimed = 0
        for number in range(3):
            killed = await self.resumed(tmp_path / "killed", log, claimed)
            await give(killed, log.fill(5, f"killed{number}-"))
            claimed = killed.progress_offset
        dispatcher = await self.resumed(tmp_path / "killed", log, claimed)
        assert self.outcome(dispatcher) == await self.expected(tmp_path / "once", log.entries)
        await dispatcher.close()

    @pytest.mark.usefixtures("keeps_progress")
    async def test_a_log_that_lost_its_end(self, tmp_path: Path) -> None:
        """After a power failure other records may follow where some were that the dispatcher has seen; it knows nothing of those then."""
        log = Log()
        dispatcher = await self.opened(tmp_path / "ahead", 0, 0)
        await give(dispatcher, log.fill(30))
        await dispatcher.close()
        log.cut(end_of(log.entries[:17]))
        dispatcher = await self.opened(tmp_path / "ahead", 0, log.end)
        assert dispatcher.progress_offset <= log.end
        await give(dispatcher, log.since(dispatcher.progress_offset), log.fill(25, "other"))
        assert self.outcome(dispatcher) == await self.expected(tmp_path / "once", log.entries)
        await dispatcher.close()

    async def test_a_log_that_lost_its_front(self, tmp_path: Path) -> None:
        """Retention may take records before the dispatcher was given them, while it runs or while it does not; it goes on with what is left."""
        log = Log()
        dispatcher = await self.opened(tmp_path / "late", 0, 0)
        first, _, last = log.fill(10), log.fill(10, "missed"), log.fill(10, "kept")
        await give(dispatcher, first)
        await dispatcher.close()
        start = last[0].at.physical_offset
        dispatcher = await self.opened(tmp_path / "late", start, log.end)
        await give(dispatcher, last[:5])
        dispatcher.forget_before(last[3].at.physical_offset)
        await give(dispatcher, last[5:])
        progress = dispatcher.progress_offset
        assert progress is None or progress in {0, end_of(first), start, *(end_of([entry]) for entry in last)}
        await dispatcher.close()

    async def test_its_own_work_can_be_cancelled(self, tmp_path: Path) -> None:
        """`run` ends when it is cancelled, at any time, and what was given meanwhile is not lost."""
        log = Log()
        dispatcher = await self.opened(tmp_path / "busy", 0, 0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(dispatcher.run)
            await trio.testing.wait_all_tasks_blocked()
            await give(dispatcher, log.fill(10))
            nursery.cancel_scope.cancel()
        assert self.outcome(dispatcher) == await self.expected(tmp_path / "once", log.entries)
        await dispatcher.close()


class QueueLookupContract(DispatcherContract):
    """What a dispatcher must do that takes the place of the store's consume queues."""

    def outcome(self, dispatcher: Any) -> object:
        assert isinstance(dispatcher, QueueLookup)
        found = {}
        for topic in ("Topic0", "Topic1"):
            for queue_id in range(3):
                low, high = dispatcher.min_offset(topic, queue_id), dispatcher.max_offset(topic, queue_id)
                found[topic, queue_id] = (low, high, list(dispatcher.units(topic, queue_id, low, 1_000)))
        return found

    async def test_units_are_the_records_of_the_queue(self, tmp_path: Path) -> None:
        """Where each message is, how long, and its tags code, by queue and in order; any stretch can be asked for."""
        log = Log()
        lookup = await self.opened(tmp_path / "queues", 0, 0)
        await give(lookup, log.fill(60))
        units = [
            QueueUnit(entry.at.queue_offset, entry.at.physical_offset, entry.at.size_bytes, entry.message.tags_code)
            for entry in log.entries
            if (entry.message.topic, entry.message.queue_id) == ("Topic1", 2)
        ]
        assert [unit.queue_offset for unit in units] == list(range(10))
        assert (lookup.min_offset("Topic1", 2), lookup.max_offset("Topic1", 2)) == (0, 10)
        for offset, count in ((0, 10), (0, 3), (4, 2), (9, 1), (7, 100)):
            assert list(lookup.units("Topic1", 2, offset, count)) == units[offset : offset + count]
        for offset, count in ((10, 1), (-1, 5), (99, 1), (3, 0)):
            assert list(lookup.units("Topic1", 2, offset, count)) == []
        await lookup.close()

    async def test_unknown_queues_have_nothing(self, tmp_path: Path) -> None:
        """Nor does asking or deleting make one."""
        lookup = await self.opened(tmp_path / "queues", 0, 0)
        lookup.delete_queue("Nowhere", 3)
        assert (lookup.min_offset("Nowhere", 3), lookup.max_offset("Nowhere", 3), list(lookup.units("Nowhere", 3, 0, 9))) == (0, 0, [])
        await lookup.close()

    async def test_prepared_and_rolled_back_messages_have_no_place(self, tmp_path: Path) -> None:
        """Only plain and committed ones have (store-format sheet, section 7)."""
        log = Log()
        lookup = await self.opened(tmp_path / "queues", 0, 0)
        kinds = (TRANSACTION_PREPARED, 0, TRANSACTION_ROLLBACK, TRANSACTION_COMMIT)
        entries = log.append(*(message("Topic0", sys_flag=kind) for kind in kinds))
        await give(lookup, entries)
        places = [entries[1].at.physical_offset, entries[3].at.physical_offset]
        assert [unit.physical_offset for unit in lookup.units("Topic0", 0, 0, 9)] == places
        await lookup.close()

    async def test_a_deleted_queue_begins_anew(self, tmp_path: Path) -> None:
        """A queue that was deleted is empty; when messages come for it again, they begin at 0. After a restart only the new ones are there."""
        log = Log()
        lookup = await self.opened(tmp_path / "queues", 0, 0)
        await give(lookup, log.append(*(message("Topic0", body=b"old") for _ in range(5))))
        lookup.delete_queue("Topic0", 0)
        assert (lookup.max_offset("Topic0", 0), list(lookup.units("Topic0", 0, 0, 9))) == (0, [])
        log.next_offsets.clear()
        young = log.append(*(message("Topic0", body=b"new") for _ in range(2)))
        await give(lookup, young)
        await lookup.close()
        lookup = await self.resumed(tmp_path / "queues", log)
        assert (lookup.min_offset("Topic0", 0), lookup.max_offset("Topic0", 0)) == (0, 2)
        assert [unit.physical_offset for unit in lookup.units("Topic0", 0, 0, 9)] == [entry.at.physical_offset for entry in young]
        await lookup.close()

    async def test_the_front_of_a_queue_goes_with_the_log(self, tmp_path: Path) -> None:
        """The minimum is the first message that is still in the log, also where none is left, and the queue goes on behind it."""
        log = Log()
        lookup = await self.opened(tmp_path / "queues", 0, 0)
        await give(lookup, log.append(*(message("Topic0", at % 2) for at in range(20)), *(message("Topic0", 1) for _ in range(5))))
        start = log.entries[20].at.physical_offset
        lookup.forget_before(log.entries[8].at.physical_offset)
        assert [(lookup.min_offset("Topic0", queue_id), lookup.max_offset("Topic0", queue_id)) for queue_id in (0, 1)] == [(4, 10), (4, 15)]
        lookup.forget_before(start)
        assert [(lookup.min_offset("Topic0", queue_id), lookup.max_offset("Topic0", queue_id)) for queue_id in (0, 1)] == [
            (10, 10),
            (10, 15),
        ]
        assert list(lookup.units("Topic0", 0, 9, 1)) == list(lookup.units("Topic0", 1, 9, 1)) == []
        await give(lookup, log.append(message("Topic0", 0)))
        assert [unit.queue_offset for unit in lookup.units("Topic0", 0, 10, 9)] == [10]
        await lookup.close()


class KeyLookupContract(DispatcherContract):
    """What a dispatcher must do that takes the place of the store's index. `outcome` asks for all keys of `Log.fill`."""

    def outcome(self, dispatcher: Any) -> object:
        return {(topic, key): self.found(dispatcher, topic, key) for topic in ("Topic0", "Topic1") for key in map("key{}".format, range(4))}

    def found(self, lookup: KeyLookup, topic: str, key: str, **limits: int) -> list[int]:
        asked = {"begin_ms": 0, "end_ms": _EVER, "max_results": 1_000} | limits
        matches = lookup.query_by_key(topic, key, **asked)
        assert isinstance(matches, KeyMatches)
        return matches.physical_offsets

    async def test_keys_lead_to_their_records(self, tmp_path: Path) -> None:
        """Every word of KEYS and the unique key, within their topic, newest first, as many as are asked for."""
        log = Log()
        lookup = await self.opened(tmp_path / "keys", 0, 0)
        await give(lookup, log.append(message(keys="a b", unique_key="u"), message("Other", keys="a"), message(), message(keys="b")))
        first, other, _, last = (entry.at.physical_offset for entry in log.entries)
        assert self.found(lookup, "Orders", "a") == self.found(lookup, "Orders", "u") == [first]
        assert self.found(lookup, "Other", "a") == [other]
        assert self.found(lookup, "Orders", "b") == [last, first]
        assert self.found(lookup, "Orders", "b", max_results=1) == [last]
        assert (
            self.found(lookup, "Orders", "b", max_results=0)
            == self.found(lookup, "Orders", "a b")
            == self.found(lookup, "Nowhere", "a")
            == []
        )
        await lookup.close()

    async def test_times(self, tmp_path: Path) -> None:
        """Only what was stored within the time asked for, to the second."""
        log = Log()
        lookup = await self.opened(tmp_path / "keys", 0, 0)
        await give(lookup, log.append(*(message(keys="a") for _ in range(10))))
        begin, end = log.entries[2].at, log.entries[5].at
        found = self.found(lookup, "Orders", "a", begin_ms=begin.store_timestamp_ms, end_ms=end.store_timestamp_ms)
        assert found == [entry.at.physical_offset for entry in reversed(log.entries[2:6])]
        assert self.found(lookup, "Orders", "a", begin_ms=log.entries[-1].at.store_timestamp_ms + 5_000) == []
        await lookup.close()

    async def test_rolled_back_messages_are_not_found(self, tmp_path: Path) -> None:
        """All other kinds are (store-format sheet, section 7)."""
        log = Log()
        lookup = await self.opened(tmp_path / "keys", 0, 0)
        kinds = (TRANSACTION_PREPARED, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, 0)
        await give(lookup, log.append(*(message(keys="a", sys_flag=kind) for kind in kinds)))
        expected = [entry.at.physical_offset for entry in reversed(log.entries) if entry.message.sys_flag != TRANSACTION_ROLLBACK]
        assert self.found(lookup, "Orders", "a") == expected
        await lookup.close()
