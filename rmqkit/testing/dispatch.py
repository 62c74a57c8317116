"""Contracts of dispatchers and look-ups as tests. Subclass one of the classes and define how a dispatcher is
made; pytest then runs the tests.

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

from rmqkit.model.message import PutMessage
from rmqkit.model.sysflag import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from rmqkit.plugin.dispatcher import DispatchEntry, Dispatcher, LogFollower, QueuedDispatcher
from rmqkit.plugin.store import Appended, KeyLookup, KeyMatches, QueueLookup, QueueUnit
from rmqkit.protocol.record import message_size
from rmqkit.testing.store import message

_START_MS = 1_700_000_000_000
_UNQUEUED = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
_EVER = 1 << 60


@define
class Log:
    """A log without a store: positions of messages as a store would assign them, one second apart."""

    entries: list[DispatchEntry] = Factory(list)
    end: int = 0
    next_offsets: dict[tuple[str, int], int] = Factory(dict)

    def append(self, *messages: PutMessage) -> list[DispatchEntry]:
        """The new entries."""
        for each in messages:
            self.entries.append(self._next(each))
        return self.entries[len(self.entries) - len(messages) :]

    def _next(self, message: PutMessage) -> DispatchEntry:
        queue = (message.topic, message.queue_id)
        offset, size = 0, message_size(message)
        if message.sys_flag & TRANSACTION_MASK not in _UNQUEUED:
            offset = self.next_offsets.get(queue, 0)
            self.next_offsets[queue] = offset + 1
        at = Appended(offset, self.end, size, _START_MS + 1_000 * len(self.entries))
        self.end += size
        return DispatchEntry(message, at)

    def fill(self, count: int, name: str = "m") -> list[DispatchEntry]:
        """Append messages of two topics with three queues. Each has a unique key, a tag, and a key shared
        with others."""
        made = []
        for at in range(count):
            keys = {"unique_key": f"{name}{at}", "keys": f"key{at % 4}", "tag": f"tag{at % 3}"}
            made.append(message(f"Topic{at % 2}", at % 3, b"%d" % at, **keys))
        return self.append(*made)

    def cut(self, end: int) -> None:
        """Lose everything from log offset `end` on, as in a power failure."""
        for entry in self.entries:
            if entry.at.physical_offset >= end and entry.message.sys_flag & TRANSACTION_MASK not in _UNQUEUED:
                queue = (entry.message.topic, entry.message.queue_id)
                self.next_offsets[queue] = min(self.next_offsets[queue], entry.at.queue_offset)
        self.entries = [entry for entry in self.entries if entry.at.physical_offset < end]
        self.end = end

    def since(self, offset: int) -> list[DispatchEntry]:
        return [entry for entry in self.entries if entry.at.physical_offset >= offset]


def end_of(entries: Sequence[DispatchEntry]) -> int:
    """The log offset after the last entry."""
    at = entries[-1].at
    return at.physical_offset + at.size_bytes


async def give(dispatcher: LogFollower, *batches: Sequence[DispatchEntry]) -> None:
    """Give batches to the dispatcher as the kernel does: complete, in order, none of them empty."""
    for batch in filter(None, batches):
        if isinstance(dispatcher, QueuedDispatcher):
            await dispatcher.dispatch(batch)
        else:
            assert isinstance(dispatcher, Dispatcher)
            dispatcher.dispatch(batch)


class DispatcherContract:
    """Rules for every dispatcher, with or without its own queue."""

    def make_dispatcher(self, directory: Path) -> Any:
        """A dispatcher that has not been opened. It stores its data in `directory`, which an earlier one may
        have used."""
        raise NotImplementedError

    def outcome(self, dispatcher: Any) -> object:
        """The dispatcher's result for the given entries, as a value that can be compared."""
        raise NotImplementedError

    # --- help -----------------------------------------------------------------------------------------------

    async def opened(self, directory: Path, log_start: int, log_end: int) -> Any:
        await trio.Path(directory).mkdir(exist_ok=True)
        dispatcher = self.make_dispatcher(directory)
        await dispatcher.open(log_start, log_end)
        return dispatcher

    async def expected(self, directory: Path, entries: Sequence[DispatchEntry]) -> object:
        """The result when nothing fails."""
        dispatcher = await self.opened(directory, 0, 0)
        await give(dispatcher, entries)
        found = self.outcome(dispatcher)
        await dispatcher.close()
        return found

    async def resumed(self, directory: Path, log: Log, claimed: int = 0) -> Any:
        """A new dispatcher over a used directory whose previous dispatcher reported progress up to `claimed`,
        brought up to the end of the log."""
        dispatcher = await self.opened(directory, 0, log.end)
        self.check_progress(dispatcher, log.entries)
        assert dispatcher.progress_offset >= claimed, "the progress did not survive"
        await give(dispatcher, log.since(dispatcher.progress_offset))
        return dispatcher

    def check_progress(self, dispatcher: LogFollower, given: Iterable[DispatchEntry]) -> None:
        progress = dispatcher.progress_offset
        assert progress is None or progress in {0, *(end_of([entry]) for entry in given)}, (
            f"no record that was given ends at {progress}"
        )

    @pytest.fixture
    def keeps_progress(self) -> None:
        """Skips the tests of repeated entries."""
        if self.make_dispatcher(Path()).progress_offset is None:
            pytest.skip("this dispatcher keeps nothing and is given nothing twice")

    # --- the rules ------------------------------------------------------------------------------------------

    async def test_batches_do_not_matter(self, tmp_path: Path) -> None:
        """One batch, single entries and uneven batches give the same result, and none of them makes the
        dispatcher raise."""
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
        """After a failure, entries are given again from an earlier position without harm."""
        log = Log()
        given = log.fill(40)
        dispatcher = await self.opened(tmp_path / "twice", 0, 0)
        await give(dispatcher, given[:20], given[:20], given[15:30], given[20:40], given[25:])
        assert self.outcome(dispatcher) == await self.expected(tmp_path / "once", given)
        await dispatcher.close()

    @pytest.mark.usefixtures("keeps_progress")
    async def test_closed_and_opened_again(self, tmp_path: Path) -> None:
        """Results survive a restart, and entries beyond the saved progress are given again; a restart without
        new entries changes nothing."""
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
        """Without a `close`, the saved progress may be old, but it is correct."""
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
        """After a power failure, other records may take the place of records that the dispatcher has
        processed; the lost ones are no longer part of its result."""
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

    @pytest.mark.usefixtures("keeps_progress")
    async def test_a_lost_end_that_is_followed_by_a_crash(self, tmp_path: Path) -> None:
        """A dispatcher that has opened after the log lost its end, and is killed when the log is longer than
        before, still knows at the next start that its old work is void."""
        log = Log()
        dispatcher = await self.opened(tmp_path / "killed", 0, 0)
        await give(dispatcher, log.fill(30))
        await dispatcher.close()
        log.cut(end_of(log.entries[:17]))
        await self.opened(tmp_path / "killed", 0, log.end)
        log.fill(40, "other")
        dispatcher = await self.resumed(tmp_path / "killed", log)
        assert self.outcome(dispatcher) == await self.expected(tmp_path / "once", log.entries)
        await dispatcher.close()

    async def _forgets(self, dispatcher: Any, log: Log, count: int) -> None:
        """Cut the log after some entries, and give what the dispatcher needs to have again."""
        log.cut(end_of(log.entries[:count]) if count else 0)
        again = await dispatcher.forget_from(log.end)
        assert again == 0 or again in {end_of([entry]) for entry in log.entries}
        assert dispatcher.progress_offset is None or dispatcher.progress_offset <= again <= log.end
        await give(dispatcher, log.since(again))

    @pytest.mark.usefixtures("keeps_progress")
    async def test_a_truncated_log(self, tmp_path: Path) -> None:
        """The records that a truncation removes while the dispatcher runs are no longer part of its result,
        before or after others take their place; also those that an earlier dispatcher has saved."""
        log = Log()
        dispatcher = await self.opened(tmp_path / "cut", 0, 0)
        await give(dispatcher, log.fill(20))
        await dispatcher.close()
        dispatcher = await self.resumed(tmp_path / "cut", log)
        await give(dispatcher, log.fill(10, "more"))
        for number, count in enumerate((25, 17, 0)):
            await self._forgets(dispatcher, log, count)
            assert self.outcome(dispatcher) == await self.expected(tmp_path / f"cut{number}", log.entries)
            await give(dispatcher, log.fill(12, f"other{number}"))
            assert self.outcome(dispatcher) == await self.expected(tmp_path / f"once{number}", log.entries)
        await dispatcher.close()
        dispatcher = await self.resumed(tmp_path / "cut", log)
        assert self.outcome(dispatcher) == await self.expected(tmp_path / "again", log.entries)
        await dispatcher.close()

    @pytest.mark.usefixtures("keeps_progress")
    async def test_a_truncation_that_is_followed_by_a_crash(self, tmp_path: Path) -> None:
        """A dispatcher that is killed at any time after a truncation, even when the log is longer than it was
        before, knows at the next start that its old work is void."""
        log = Log()
        dispatcher = await self.opened(tmp_path / "killed", 0, 0)
        await give(dispatcher, log.fill(30))
        await dispatcher.close()
        killed = await self.resumed(tmp_path / "killed", log)
        await self._forgets(killed, log, 11)
        log.fill(40, "other")
        dispatcher = await self.resumed(tmp_path / "killed", log)
        assert self.outcome(dispatcher) == await self.expected(tmp_path / "once", log.entries)
        await dispatcher.close()

    async def test_a_log_that_lost_its_front(self, tmp_path: Path) -> None:
        """Retention may remove records before they are given to the dispatcher, while it runs or while it
        does not; it continues with the remaining records."""
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
        """`run` ends when it is cancelled, at any time, and entries given meanwhile are not lost."""
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
    """Rules for a dispatcher that replaces the store's consume queues."""

    def outcome(self, dispatcher: Any) -> object:
        assert isinstance(dispatcher, QueueLookup)
        found = {}
        for topic in ("Topic0", "Topic1"):
            for queue_id in range(3):
                low, high = dispatcher.min_offset(topic, queue_id), dispatcher.max_offset(topic, queue_id)
                found[topic, queue_id] = (low, high, list(dispatcher.units(topic, queue_id, low, 1_000)))
        return found

    async def test_units_are_the_records_of_the_queue(self, tmp_path: Path) -> None:
        """Units contain the position, the size and the tags code of each message, by queue and in order, and
        any range can be read."""
        log = Log()
        lookup = await self.opened(tmp_path / "queues", 0, 0)
        await give(lookup, log.fill(60))
        units = [
            QueueUnit(
                entry.at.queue_offset, entry.at.physical_offset, entry.at.size_bytes, entry.message.tags_code
            )
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
        """An unknown queue has no units; reading or deleting it does not create it."""
        lookup = await self.opened(tmp_path / "queues", 0, 0)
        lookup.delete_queue("Nowhere", 3)
        assert (
            lookup.min_offset("Nowhere", 3),
            lookup.max_offset("Nowhere", 3),
            list(lookup.units("Nowhere", 3, 0, 9)),
        ) == (0, 0, [])
        await lookup.close()

    async def test_prepared_and_rolled_back_messages_have_no_place(self, tmp_path: Path) -> None:
        """Prepared and rolled-back messages have no units; plain and committed ones do (store-format sheet,
        section 7)."""
        log = Log()
        lookup = await self.opened(tmp_path / "queues", 0, 0)
        kinds = (TRANSACTION_PREPARED, 0, TRANSACTION_ROLLBACK, TRANSACTION_COMMIT)
        entries = log.append(*(message("Topic0", sys_flag=kind) for kind in kinds))
        await give(lookup, entries)
        places = [entries[1].at.physical_offset, entries[3].at.physical_offset]
        assert [unit.physical_offset for unit in lookup.units("Topic0", 0, 0, 9)] == places
        await lookup.close()

    async def test_a_deleted_queue_starts_again(self, tmp_path: Path) -> None:
        """A deleted queue is empty; new messages start at offset 0, and after a restart only the new ones are
        there."""
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
        assert [unit.physical_offset for unit in lookup.units("Topic0", 0, 0, 9)] == [
            entry.at.physical_offset for entry in young
        ]
        await lookup.close()

    async def test_the_front_of_a_queue_goes_with_the_log(self, tmp_path: Path) -> None:
        """The minimum offset is the first message still in the log; if none is left, the queue continues
        after the removed ones."""
        log = Log()
        lookup = await self.opened(tmp_path / "queues", 0, 0)
        await give(
            lookup,
            log.append(
                *(message("Topic0", at % 2) for at in range(20)), *(message("Topic0", 1) for _ in range(5))
            ),
        )
        start = log.entries[20].at.physical_offset
        lookup.forget_before(log.entries[8].at.physical_offset)
        assert [
            (lookup.min_offset("Topic0", queue_id), lookup.max_offset("Topic0", queue_id))
            for queue_id in (0, 1)
        ] == [(4, 10), (4, 15)]
        lookup.forget_before(start)
        assert [
            (lookup.min_offset("Topic0", queue_id), lookup.max_offset("Topic0", queue_id))
            for queue_id in (0, 1)
        ] == [(10, 10), (10, 15)]
        assert list(lookup.units("Topic0", 0, 9, 1)) == list(lookup.units("Topic0", 1, 9, 1)) == []
        await give(lookup, log.append(message("Topic0", 0)))
        assert [unit.queue_offset for unit in lookup.units("Topic0", 0, 10, 9)] == [10]
        await lookup.close()


class KeyLookupContract(DispatcherContract):
    """Rules for a dispatcher that replaces the store's index. `outcome` queries all keys of `Log.fill`."""

    def outcome(self, dispatcher: Any) -> object:
        return {
            (topic, key): self.found(dispatcher, topic, key)
            for topic in ("Topic0", "Topic1")
            for key in map("key{}".format, range(4))
        }

    def found(self, lookup: KeyLookup, topic: str, key: str, **limits: int) -> list[int]:
        asked = {"begin_ms": 0, "end_ms": _EVER, "max_results": 1_000} | limits
        matches = lookup.query_by_key(topic, key, **asked)
        assert isinstance(matches, KeyMatches)
        return matches.physical_offsets

    async def test_keys_lead_to_their_records(self, tmp_path: Path) -> None:
        """Every word of KEYS and the unique key find the records of their topic, newest first, up to the
        requested number."""
        log = Log()
        lookup = await self.opened(tmp_path / "keys", 0, 0)
        await give(
            lookup,
            log.append(
                message(keys="a b", unique_key="u"), message("Other", keys="a"), message(), message(keys="b")
            ),
        )
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
        """Only records stored within the requested time range, to the second, are found."""
        log = Log()
        lookup = await self.opened(tmp_path / "keys", 0, 0)
        await give(lookup, log.append(*(message(keys="a") for _ in range(10))))
        begin, end = log.entries[2].at, log.entries[5].at
        found = self.found(
            lookup, "Orders", "a", begin_ms=begin.store_timestamp_ms, end_ms=end.store_timestamp_ms
        )
        assert found == [entry.at.physical_offset for entry in reversed(log.entries[2:6])]
        assert self.found(lookup, "Orders", "a", begin_ms=log.entries[-1].at.store_timestamp_ms + 5_000) == []
        await lookup.close()

    async def test_rolled_back_messages_are_not_found(self, tmp_path: Path) -> None:
        """Rolled-back messages are not found, all other kinds are (store-format sheet, section 7)."""
        log = Log()
        lookup = await self.opened(tmp_path / "keys", 0, 0)
        kinds = (TRANSACTION_PREPARED, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, 0)
        await give(lookup, log.append(*(message(keys="a", sys_flag=kind) for kind in kinds)))
        expected = [
            entry.at.physical_offset
            for entry in reversed(log.entries)
            if entry.message.sys_flag != TRANSACTION_ROLLBACK
        ]
        assert self.found(lookup, "Orders", "a") == expected
        await lookup.close()
