"""The contract of a message store, as tests: subclass `StoreContract`, say how a store is made, and pytest runs them over it.

class TestMine(StoreContract):
    persistent = True

    def make_store(self, directory: Path, clock: FakeClock, **settings: Any) -> MessageStore:
        config = store_config(directory, **settings)
        return MyStore(config, clock, NeverFlush())
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio

from rmqkit.abc import Boundary, Flushable, FlushPolicy, Level, LogPart, MessageStore, QueueUnit, ReadLimits, ReadResult, ReadStatus
from rmqkit.config import Config, load
from rmqkit.errors import MessageIllegal, StoreError, StoreInUse, StoreNotWritable
from rmqkit.limits import MAX_PROPERTIES_BYTES
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage, StoredMessage
from rmqkit.model.sysflag import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rmqkit.protocol.message_id import pack_host
from rmqkit.protocol.record import MAGIC_V1, MAGIC_V2, message_size, pack, peek_size_and_magic, unpack, unpack_all
from rmqkit.testing.clock import FakeClock

Store = TypeVar("Store", bound=MessageStore)
#: Reads as many as a test stores.
ALL = ReadLimits(max_messages=100_000, max_bytes=1 << 30, max_scanned_units=100_000)
#: Settings under which a few messages of 200 bytes fill a segment, and a few keys an index file.
SMALL = {"max_message_size": 1_000, "mapped_file_size_commit_log": 66_560, "mapped_file_size_consume_queue": 200}
SMALL_INDEX = {"max_hash_slot_num": 3, "max_index_num": 4}


class NeverFlush(FlushPolicy):
    """A flush policy that leaves flushing to the test."""

    async def run(self, log: Flushable, wanted: Callable[[], Awaitable[None]], task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await trio.sleep_forever()


class FlushWhenWanted(FlushPolicy):
    """Group commit in its plainest form."""

    acknowledge_at = Level.FLUSHED

    async def run(self, log: Flushable, wanted: Callable[[], Awaitable[None]], task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        while True:
            await wanted()
            await log.flush()


def store_config(directory: Path, **settings: Any) -> Config:
    """Settings of a store in `directory`; sizes are small unless given, so that a test does not take a gigabyte."""
    sizes: dict[str, Any] = {
        "mapped_file_size_commit_log": 8 << 20,
        "mapped_file_size_consume_queue": 20_000,
        "max_hash_slot_num": 1_000,
        "max_index_num": 5_000,
    }
    return load(environ={}, flags={"storePathRootDir": str(directory)}).with_values(**(sizes | settings))


def message(topic: str = "Orders", queue_id: int = 0, body: bytes = b"body", **fields: Any) -> PutMessage:
    """A message to put; `unique_key`, `keys` and `tag` become properties, the rest are fields."""
    properties = {props.WAIT: "true"}
    for name, given in ((props.UNIQ_KEY, "unique_key"), (props.KEYS, "keys"), (props.TAGS, "tag")):
        if given in fields:
            properties[name] = fields.pop(given)
    made = PutMessage(topic=topic, queue_id=queue_id, body=body, properties={}, properties_bytes=b"")
    made.set_properties(properties)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@asynccontextmanager
async def running(store: Store) -> AsyncIterator[Store]:
    """The store opened, its background work running; closed at the end."""
    await store.open()
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            yield store
            nursery.cancel_scope.cancel()
    finally:
        await store.close()


def records(result: ReadResult) -> list[StoredMessage]:
    """The messages of a read; checks that `total_bytes` and `message_count` are right."""
    data = b"".join(result.slices)
    found = list(unpack_all(data))
    assert (result.total_bytes, result.message_count) == (len(data), len(found))
    return found


def bodies(store: MessageStore, topic: str = "Orders", queue_id: int = 0) -> list[bytes]:
    """The bodies of a whole queue."""
    return [found.body for found in records(store.read(topic, queue_id, store.min_offset(topic, queue_id), ALL, None, None))]


def contents(store: MessageStore) -> dict[tuple[str, int], tuple[int, int, list[StoredMessage], list[QueueUnit]]]:
    """Everything the queues of a store hold."""
    found = {}
    for topic, queue_ids in store.queues().items():
        for queue_id in queue_ids:
            low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            messages = records(store.read(topic, queue_id, low, ALL, None, None)) if high > low else []
            found[topic, queue_id] = (low, high, messages, store.read_units(topic, queue_id, low, high - low))
    return found


class StoreContract:
    """What every message store must do. `persistent` adds the tests that open a directory again."""

    persistent = False
    #: Whether `fill_disk` works.
    can_fill_disk = False

    def make_store(self, directory: Path, clock: FakeClock, **settings: Any) -> MessageStore:
        """A closed store over `directory` that flushes when somebody waits; settings as attributes of Config."""
        raise NotImplementedError

    def fill_disk(self, store: MessageStore, full: bool) -> None:
        """Make the store's disk full, or give it space again."""
        raise NotImplementedError

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    async def store(self, tmp_path: Path, clock: FakeClock) -> AsyncIterator[MessageStore]:
        async with running(self.make_store(tmp_path / "store", clock)) as store:
            yield store

    # --- append ------------------------------------------------------------------------------------------------------

    async def test_offsets_are_consecutive_per_queue_and_one_append_has_one_time(self, store: MessageStore, clock: FakeClock) -> None:
        """Queue offsets count from 0 in each queue; physical offsets are where the log ends; all messages of an append share its time."""
        first = store.append([message(queue_id=0), message(queue_id=1), message(queue_id=0), message(topic="Other")])
        clock.advance(7)
        second = store.append([message(queue_id=1)])
        assert [at.queue_offset for at in first + second] == [0, 0, 1, 0, 1]
        end = 0
        for at in first + second:
            assert at.physical_offset == end
            end += at.size_bytes
        assert store.end_offset == store.statistics().max_physical_offset == end
        assert {at.store_timestamp_ms for at in first} == {clock.now_ms() - 7}
        assert second[0].store_timestamp_ms == clock.now_ms()

    async def test_an_empty_append_does_nothing(self, store: MessageStore) -> None:
        """Nothing to append is no error."""
        assert store.append([]) == []
        assert store.statistics().max_physical_offset == 0

    @pytest.mark.parametrize("body", [b"", b"x", bytes(range(256)) * 40])
    async def test_a_record_is_what_the_kernel_packs(self, store: MessageStore, clock: FakeClock, body: bytes) -> None:
        """The bytes of a record are those of protocol.record, with every field of the message in its place."""
        given = message(body=body, tag="T", flag=-7, sys_flag=0x303, born_timestamp_ms=12, reconsume_times=3, prepared_offset=99)
        given.born_host = pack_host("10.1.2.3", 4567)
        store.append([message()])
        (at,) = store.append([given])
        record = store.read_record(at.physical_offset)
        assert record is not None
        host = pack_host("127.0.0.1", 10911)
        assert bytes(record) == pack(given, message_size(given), 1, at.physical_offset, clock.now_ms(), host)
        found = unpack(record)
        assert (found.body, found.flag, found.born_host, found.store_host) == (body, -7, given.born_host, host)
        assert (found.reconsume_times, found.prepared_offset, found.properties) == (3, 99, given.properties)

    @pytest.mark.parametrize(
        "bad",
        [
            message(body=b"x" * 5_000_000),
            message(properties_bytes=b"x" * (MAX_PROPERTIES_BYTES + 1)),
            message(topic="../../etc"),
            message(topic=""),
            message(topic="T" * 128),
            message(queue_id=-1),
            message(flag=1 << 31),
            message(born_host=bytes(20)),
            message(sys_flag=BORN_HOST_V6),
            message(tags_code=1 << 63),
        ],
        ids=["body", "properties", "path", "blank", "long topic", "queue id", "flag", "wide host", "narrow host", "tags code"],
    )
    async def test_one_illegal_message_refuses_the_whole_append(self, store: MessageStore, bad: PutMessage) -> None:
        """All or none: what stands before the illegal message is not stored either, and the next append goes where this one would have."""
        store.append([message(body=b"before", keys="k")])
        before, end = contents(store), store.statistics().max_physical_offset
        with pytest.raises(MessageIllegal):
            store.append([message(body=b"lost", keys="k"), message(topic="New", keys="k"), bad])
        assert contents(store) == before
        assert store.end_offset == store.statistics().max_physical_offset == end
        assert len(store.query_by_key("Orders", "k", 0, 1 << 60, 10).physical_offsets) == 1
        (at,) = store.append([message(body=b"after")])
        assert (at.queue_offset, at.physical_offset) == (1, end)
        assert bodies(store) == [b"before", b"after"]
        assert len(store.query_by_key("Orders", "k", 0, 1 << 60, 10).physical_offsets) == 1

    async def test_only_an_open_store_takes_messages(self, tmp_path: Path, clock: FakeClock) -> None:
        """Before open and after close appends are refused; closing twice does nothing."""
        store = self.make_store(tmp_path / "store", clock)
        with pytest.raises(StoreNotWritable):
            store.append([message()])
        async with running(store):
            store.append([message()])
            with pytest.raises(StoreError):
                await store.open()
        await store.close()
        with pytest.raises(StoreNotWritable):
            store.append([message()])

    async def test_transactions_of_the_old_kind(self, store: MessageStore) -> None:
        """Prepared and rolled-back records get no place in a queue; all but the rolled-back are indexed."""
        kinds = [TRANSACTION_PREPARED, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, 0]
        results = store.append([message(body=b"%d" % kind, sys_flag=kind, keys="k") for kind in kinds])
        assert [at.queue_offset for at in results] == [0, 0, 0, 1]
        assert bodies(store) == [b"8", b"0"]
        matches = store.query_by_key("Orders", "k", 0, 1 << 60, 10).physical_offsets
        assert matches == [results[number].physical_offset for number in (3, 1, 0)]

    # --- hosts and names ---------------------------------------------------------------------------------------------

    async def test_ipv6_senders(self, store: MessageStore) -> None:
        """A born host of 20 bytes is kept as it is; the next record begins behind it."""
        host = pack_host("2001:db8::1", 5)
        store.append([message(born_host=host, sys_flag=BORN_HOST_V6), message(body=b"second", sys_flag=STORE_HOST_V6)])
        first, second = records(store.read("Orders", 0, 0, ALL, None, None))
        assert (first.born_host, first.sys_flag) == (host, BORN_HOST_V6)
        assert (second.body, second.sys_flag, len(second.store_host)) == (b"second", 0, 8)

    async def test_an_ipv6_store(self, tmp_path: Path, clock: FakeClock) -> None:
        """A store that is reached by IPv6 writes 20 bytes of store host and says so in the system flag."""
        async with running(self.make_store(tmp_path / "store", clock, broker_ip1="::1", listen_port=99)) as store:
            store.append([message(), message(body=b"second")])
            first, second = records(store.read("Orders", 0, 0, ALL, None, None))
            assert (first.store_host, first.sys_flag) == (pack_host("::1", 99), STORE_HOST_V6)
            assert second.body == b"second"
            assert unpack(store.read_record(second.physical_offset) or b"") == second

    @pytest.mark.parametrize(("length", "magic"), [(127, MAGIC_V1), (128, MAGIC_V2), (255, MAGIC_V2)])
    async def test_long_topics_make_v2_records(self, store: MessageStore, length: int, magic: int) -> None:
        """A topic of more than 127 bytes, which only retry and dead-letter topics have, is stored with a 2-byte length."""
        topic = "%RETRY%".ljust(length, "g")
        (at,) = store.append([message(topic=topic, keys="k")])
        (found,) = records(store.read(topic, 0, 0, ALL, None, None))
        assert (found.topic, found.size_bytes) == (topic, at.size_bytes)
        assert peek_size_and_magic(store.read_record(0) or b"")[1] == magic
        assert store.query_by_key(topic, "k", 0, 1 << 60, 1).physical_offsets == [0]

    # --- read --------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("offset", "status", "next_offset"),
        [
            (-1, ReadStatus.OFFSET_TOO_SMALL, 0),
            (0, ReadStatus.FOUND, 3),
            (2, ReadStatus.FOUND, 3),
            (3, ReadStatus.OFFSET_OVERFLOW_ONE, 3),
            (4, ReadStatus.OFFSET_OVERFLOW_BADLY, 3),
        ],
    )
    async def test_read_statuses(self, store: MessageStore, offset: int, status: ReadStatus, next_offset: int) -> None:
        """Status and next offset by where the asked offset lies (store-format sheet, 8.1)."""
        store.append([message(body=b"%d" % number) for number in range(3)])
        result = store.read("Orders", 0, offset, ALL, None, None)
        assert (result.status, result.next_offset, result.min_offset, result.max_offset) == (status, next_offset, 0, 3)
        assert [found.queue_offset for found in records(result)] == list(range(max(offset, 0), 3) if status is ReadStatus.FOUND else [])

    async def test_reading_what_is_not_there(self, store: MessageStore) -> None:
        """An unknown queue and one without messages say so; nothing is made by asking."""
        result = store.read("Orders", 0, 5, ALL, None, None)
        assert (result.status, result.next_offset, result.slices) == (ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0, [])
        store.append([message(sys_flag=TRANSACTION_PREPARED)])
        result = store.read("Orders", 0, 5, ALL, None, None)
        assert (result.status, result.next_offset) == (ReadStatus.NO_MESSAGE_IN_QUEUE, 0)
        assert (store.min_offset("No", 0), store.max_offset("No", 0), store.store_time("No", 0, 0)) == (0, 0, -1)
        assert store.offset_by_time("No", 0, 0, Boundary.LOWER) == 0
        assert store.read_units("No", 0, 0, 1) == []
        assert "No" not in store.queues()

    async def test_limits_of_a_read(self, store: MessageStore) -> None:
        """A read stops at its count or byte limit, and gives the first message whatever its size (8.2)."""
        size = store.append([message(body=b"%03d" % number) for number in range(100)])[0].size_bytes

        def taken(**limits: Any) -> tuple[int, int]:
            result = store.read("Orders", 0, 10, ALL._replace(**limits), None, None)
            return len(records(result)), result.next_offset

        assert taken(max_messages=7) == (7, 17)
        assert taken(max_bytes=3 * size) == (3, 13)
        assert taken(max_bytes=3 * size - 1) == (2, 12)
        assert taken(max_bytes=1) == (1, 11)
        assert taken(max_messages=0) == (1, 11)
        assert taken(max_messages=20, max_scanned_units=5) == (20, 30)
        assert taken() == (90, 100)

    async def test_limits_of_a_read_from_disk(self, store: MessageStore) -> None:
        """Records further from the end of the log than fits into memory have caps of their own; the first is always given (8.2)."""
        size = store.append([message(body=b"%03d" % number) for number in range(100)])[0].size_bytes

        def taken(offset: int, **limits: int) -> int:
            settings: dict[str, Any] = {"max_disk_messages": 8, "max_disk_bytes": 10 * size, "memory_bytes": 50 * size} | limits
            return len(records(store.read("Orders", 0, offset, ALL._replace(**settings), None, None)))

        assert taken(0) == taken(41) == 8
        assert taken(0, max_disk_messages=99) == 10
        assert taken(0, max_disk_messages=99, max_disk_bytes=10 * size - 1) == 9
        assert taken(0, max_disk_messages=0, max_disk_bytes=0) == 1
        # The record at 50 is the first in memory; a read that comes to it before its caps are used up goes on.
        assert taken(42) == 58
        assert taken(43, max_messages=20) == 20
        assert taken(50) == 50
        assert taken(0, memory_bytes=1 << 40) == 100

    async def test_filters(self, store: MessageStore) -> None:
        """The unit filter sees tags codes, the record filter whole records; what they refuse is passed over."""
        store.append([message(body=b"%d" % number, tags_code=number % 3) for number in range(9)])
        result = store.read("Orders", 0, 0, ALL, lambda code: code == 1, None)
        assert ([found.body for found in records(result)], result.next_offset) == ([b"1", b"4", b"7"], 9)
        result = store.read("Orders", 0, 0, ALL._replace(max_messages=2), None, lambda record: unpack(record).body > b"4")
        assert ([found.body for found in records(result)], result.next_offset) == ([b"5", b"6"], 7)
        result = store.read("Orders", 0, 0, ALL, lambda code: code == 1, lambda record: unpack(record).body == b"4")
        assert [found.body for found in records(result)] == [b"4"]

    async def test_nothing_matched_moves_on_by_what_was_scanned(self, store: MessageStore) -> None:
        """A scan without a match ends at its limit, and says where to go on."""
        store.append([message() for _ in range(50)])
        result = store.read("Orders", 0, 5, ReadLimits(max_messages=4, max_scanned_units=20), lambda code: False, None)
        assert (result.status, result.next_offset, result.slices) == (ReadStatus.NO_MATCHED_MESSAGE, 25, [])
        result = store.read("Orders", 0, 5, ALL, None, lambda record: False)
        assert (result.status, result.next_offset) == (ReadStatus.NO_MATCHED_MESSAGE, 50)

    async def test_a_slice_stays_as_it_is_while_more_is_appended(self, store: MessageStore) -> None:
        """What a read gave may be sent later: appending does not touch it."""
        store.append([message(body=b"old")])
        result = store.read("Orders", 0, 0, ALL, None, None)
        store.append([message(body=b"new") for _ in range(1000)])
        assert [found.body for found in records(result)] == [b"old"]

    async def test_units_of_a_queue(self, store: MessageStore) -> None:
        """A unit says where a record is, how long it is, and its tags code."""
        results = store.append([message(tags_code=number - 1, queue_id=number % 2) for number in range(6)])
        units = [QueueUnit(at.queue_offset, at.physical_offset, at.size_bytes, number - 1) for number, at in enumerate(results)][::2]
        assert store.read_units("Orders", 0, 0, 99) == units
        assert store.read_units("Orders", 0, 1, 1) == units[1:2]
        assert store.read_units("Orders", 0, 3, 1) == []
        assert store.read_units("Orders", 0, -1, 2) == []
        assert store.read_units("Orders", 0, 0, 0) == []

    async def test_records_by_physical_offset(self, store: MessageStore) -> None:
        """Only where a record begins is one found."""
        first, second = store.append([message(body=b"A" * 200), message(body=b"B")])
        assert unpack(store.read_record(second.physical_offset) or b"").body == b"B"
        end = second.physical_offset + second.size_bytes
        for offset in (-1, 1, first.size_bytes - 1, second.physical_offset + 1, end, end + 1_000_000, 1 << 60):
            assert store.read_record(offset) is None

    async def test_reading_the_log(self, store: MessageStore) -> None:
        """Raw log bytes end at a record boundary, with one record at least; nothing at the end or off a boundary."""
        results = store.append([message(body=b"x" * number) for number in range(5)])
        whole = bytes(store.read_log(0, 1 << 20))
        assert [found.physical_offset for found in unpack_all(whole)] == [at.physical_offset for at in results]
        assert bytes(store.read_log(0, results[0].size_bytes + results[1].size_bytes)) == whole[: results[2].physical_offset]
        assert bytes(store.read_log(results[1].physical_offset, 1)) == whole[results[1].physical_offset : results[2].physical_offset]
        assert bytes(store.read_log(0, results[2].physical_offset - 1)) == whole[: results[1].physical_offset]
        for offset in (len(whole), len(whole) + 1, 3, -1):
            assert bytes(store.read_log(offset, 1 << 20)) == b""

    # --- keys --------------------------------------------------------------------------------------------------------

    async def test_queries_by_key(self, store: MessageStore) -> None:
        """UNIQ_KEY and every word of KEYS find a message, newest first, within its topic alone."""
        unique = "7F00000100002A9A18B4AAC20000%04X"
        results = store.append([message(unique_key=unique % number, keys=f"all  k{number} k{number}") for number in range(4)])
        store.append([message(topic="Other", keys="all"), message()])
        offsets = [at.physical_offset for at in results]

        def found(key: str, most: int = 64) -> Sequence[int]:
            return store.query_by_key("Orders", key, 0, 1 << 60, most).physical_offsets

        assert found("all") == offsets[::-1]
        assert found("all", 2) == offsets[:1:-1]
        assert found("all", 0) == []
        assert found(unique % 2) == found("k2") == [offsets[2]]
        assert found("none") == found("") == []

    async def test_equal_hashes_are_the_callers_to_sort_out(self, store: MessageStore) -> None:
        """`Aa` and `BB` have one hash in Java; a query for either gives both."""
        results = store.append([message(keys="Aa"), message(keys="BB")])
        assert store.query_by_key("Orders", "Aa", 0, 1 << 60, 9).physical_offsets == [at.physical_offset for at in reversed(results)]

    async def test_queries_within_a_time_range(self, store: MessageStore, clock: FakeClock) -> None:
        """Begin and end count in; the answer says how far the index has come."""
        start = clock.now_ms()
        offsets = []
        for _ in range(4):
            offsets.append(store.append([message(keys="k")])[0].physical_offset)
            clock.advance(1500)

        def found(begin_ms: int, end_ms: int) -> Sequence[int]:
            return store.query_by_key("Orders", "k", start + begin_ms, start + end_ms, 9).physical_offsets

        assert found(0, 0) == offsets[:1]
        assert found(1500, 3000) == offsets[2:0:-1]
        assert found(4500, 99999) == offsets[3:]
        assert found(4501, 99999) == found(-5, -1) == found(1, 1499) == []
        matches = store.query_by_key("Orders", "k", 0, 1, 9)
        assert (matches.last_update_timestamp_ms, matches.last_update_physical_offset) == (start + 4500, offsets[3])

    async def test_an_index_of_many_files(self, tmp_path: Path, clock: FakeClock) -> None:
        """Full index files and long slot chains lose nothing."""
        async with running(self.make_store(tmp_path / "store", clock, **SMALL_INDEX)) as store:
            offsets = {}
            for number in range(20):
                offsets[f"k{number}"] = store.append([message(keys=f"k{number} all")])[0].physical_offset
                clock.advance(1)
            for key, offset in offsets.items():
                assert store.query_by_key("Orders", key, 0, 1 << 60, 9).physical_offsets == [offset]
            assert len(store.query_by_key("Orders", "all", 0, 1 << 60, 64).physical_offsets) == 20

    async def test_without_an_index(self, tmp_path: Path, clock: FakeClock) -> None:
        """`messageIndexEnable=false`: no key finds anything."""
        async with running(self.make_store(tmp_path / "store", clock, message_index_enable=False)) as store:
            store.append([message(keys="k")])
            assert store.query_by_key("Orders", "k", 0, 1 << 60, 9) == ([], 0, 0)

    # --- time --------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("time_ms", "lower", "upper"), [(-9, 0, 0), (0, 0, 1), (5, 2, 1), (10, 2, 3), (11, 4, 3), (20, 4, 4), (21, 5, 4), (1 << 50, 5, 4)]
    )
    async def test_offsets_by_time(self, store: MessageStore, clock: FakeClock, time_ms: int, lower: int, upper: int) -> None:
        """LOWER is the first message at or after a time, UPPER the last at or before it."""
        start = clock.now_ms()
        store.append([message(), message()])
        clock.advance(10)
        store.append([message(), message()])
        clock.advance(10)
        store.append([message()])
        assert store.offset_by_time("Orders", 0, start + time_ms, Boundary.LOWER) == lower
        assert store.offset_by_time("Orders", 0, start + time_ms, Boundary.UPPER) == upper
        assert [store.store_time("Orders", 0, offset) - start for offset in (0, 2, 4)] == [0, 10, 20]
        assert store.store_time("Orders", 0, 5) == store.store_time("Orders", 0, -1) == -1

    # --- topics ------------------------------------------------------------------------------------------------------

    async def test_deleting_a_topic(self, store: MessageStore) -> None:
        """Its queues are gone and begin at 0 when it comes again; the log and other topics stay."""
        kept = store.append([message(queue_id=3), message(topic="Other")])[0].physical_offset
        store.append([message(queue_id=1), message(queue_id=3)])
        assert store.queues() == {"Orders": [1, 3], "Other": [0]}
        store.delete_topic("Orders")
        store.delete_topic("unknown")
        assert store.queues() == {"Other": [0]}
        assert store.read("Orders", 3, 0, ALL, None, None).status is ReadStatus.NO_MATCHED_LOGIC_QUEUE
        assert store.read_record(kept) is not None
        assert store.append([message(queue_id=3, body=b"again")])[0].queue_offset == 0
        assert bodies(store, queue_id=3) == [b"again"]

    async def test_many_queues_interleaved_over_many_segments(self, tmp_path: Path, clock: FakeClock) -> None:
        """Each queue reads back what was put into it, in order, wherever the records lie."""
        async with running(self.make_store(tmp_path / "store", clock, **SMALL)) as store:
            expected: dict[tuple[str, int], list[bytes]] = {}
            for number in range(0, 700, 7):
                batch = [message(f"T{n % 3}", n % 5, b"%d." % n * (n % 200 + 1)) for n in range(number, number + 7)]
                for given, at in zip(batch, store.append(batch), strict=True):
                    queue = expected.setdefault((given.topic, given.queue_id), [])
                    assert at.queue_offset == len(queue)
                    queue.append(given.body)
            assert {key: bodies(store, *key) for key in expected} == expected
            assert store.statistics().queue_count == len(expected) == 15

    # --- durability --------------------------------------------------------------------------------------------------

    async def test_written_is_settled_at_the_latest_when_waited_for(self, store: MessageStore) -> None:
        """After `settled(offset, WRITTEN)` it is settled; an offset behind the end of the log is an error, not a wait for ever."""
        (at,) = store.append([message()])
        end = at.physical_offset + at.size_bytes
        await store.settled(end, Level.WRITTEN)
        assert store.is_settled(end, Level.WRITTEN)
        assert not store.is_settled(end + 1, Level.WRITTEN)
        for level in Level:
            with pytest.raises(StoreError):
                await store.settled(end + 1, level)

    async def test_flushed_is_settled_when_waited_for(self, store: MessageStore) -> None:
        """All that wait for FLUSHED are served."""
        (first,) = store.append([message()])
        second = store.append([message()])[0]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.settled, first.physical_offset + first.size_bytes, Level.FLUSHED)
            nursery.start_soon(store.settled, second.physical_offset + second.size_bytes, Level.FLUSHED)
        assert store.is_settled(second.physical_offset + second.size_bytes, Level.FLUSHED)
        assert store.statistics().flushed_physical_offset >= second.physical_offset + second.size_bytes

    async def test_a_full_disk_refuses_and_recovers(self, tmp_path: Path, clock: FakeClock) -> None:
        """A full disk refuses appends, whole; reading goes on; with space again appends go on where they stopped."""
        if not self.can_fill_disk:
            pytest.skip("this store does not depend on a disk")
        store = self.make_store(tmp_path / "store", clock, **SMALL)
        async with running(store):
            stored = []
            self.fill_disk(store, True)
            with pytest.raises(StoreNotWritable):
                store.append([message(body=b"none", keys="k")])
            self.fill_disk(store, False)
            stored += [at.queue_offset for at in store.append([message(body=b"%d" % n * 100) for n in range(5)])]
            self.fill_disk(store, True)
            with pytest.raises(StoreNotWritable):  # more than one segment holds
                store.append([message(body=b"x" * 1000) for _ in range(100)])
            before = contents(store)
            assert len(bodies(store)) == 5
            self.fill_disk(store, False)
            stored += [at.queue_offset for at in store.append([message(body=b"x" * 1000) for _ in range(100)])]
            assert stored == list(range(105))
            assert contents(store)["Orders", 0][2][:5] == before["Orders", 0][2]
            assert bodies(store)[5:] == [b"x" * 1000] * 100

    # --- clean-up ----------------------------------------------------------------------------------------------------

    async def _filled(self, store: MessageStore, count: int = 1_200) -> list[LogPart]:
        """Fill queues 0 and 1 with messages of which each body names its offset; returns the parts of the log that can go."""
        for number in range(0, count, 2):
            batch = [message(queue_id=queue_id, body=b"%d" % (number // 2) * 40, keys=f"k{number + queue_id}") for queue_id in (0, 1)]
            store.append(batch)
        await store.settled(store.end_offset, Level.FLUSHED)
        return await store.log_parts()

    async def test_parts_of_the_log(self, tmp_path: Path, clock: FakeClock) -> None:
        """They stand side by side from the beginning of the log on; what is being written is in none of them."""
        async with running(self.make_store(tmp_path / "store", clock, **SMALL)) as store:
            assert await store.log_parts() == []
            store.append([message()])
            assert await store.log_parts() == []
            parts = await self._filled(store)
            assert len(parts) >= 2
            assert parts[0].start == store.statistics().min_physical_offset == 0
            assert [part.end for part in parts[:-1]] == [part.start for part in parts[1:]]
            last = store.read_units("Orders", 0, store.max_offset("Orders", 0) - 1, 1)[0]
            assert parts[-1].end <= last.physical_offset
            assert all(part.modified_ms > 0 for part in parts)

    async def test_trimming(self, tmp_path: Path, clock: FakeClock) -> None:
        """What ends before the offset goes, with the entries of queues and index; what is left is found as before, and offsets go on."""
        async with running(self.make_store(tmp_path / "store", clock, **SMALL | SMALL_INDEX)) as store:
            parts = await self._filled(store)
            before = contents(store)
            assert (await store.trim(0)).log_start == 0
            assert (await store.trim(parts[0].end - 1)).log_start == 0
            assert contents(store) == before
            trimmed = await store.trim(parts[1].end)
            assert trimmed.log_start == store.statistics().min_physical_offset == parts[1].end
            assert await store.log_parts() == parts[2:]
            assert store.read_record(0) is None
            assert store.query_by_key("Orders", "k0", 0, 1 << 60, 9).physical_offsets == []
            assert len(store.query_by_key("Orders", "k1199", 0, 1 << 60, 9).physical_offsets) == 1
            for key, (low, high, messages, units) in contents(store).items():
                _, old_high, old_messages, old_units = before[key]
                assert 0 < low < high == old_high
                assert messages == old_messages[low:]
                assert messages[0].physical_offset >= parts[1].end > old_messages[low - 1].physical_offset
                assert units == old_units[low:]
            assert store.append([message()])[0].queue_offset == 600

    async def test_reading_what_was_trimmed(self, tmp_path: Path, clock: FakeClock) -> None:
        """An offset that is gone is too small, and the reader is told the first that is there; time look-ups begin there too."""
        async with running(self.make_store(tmp_path / "store", clock, **SMALL)) as store:
            parts = await self._filled(store)
            await store.trim(parts[0].end)
            low = store.min_offset("Orders", 0)
            for offset in (0, low - 1):
                result = store.read("Orders", 0, offset, ALL, None, None)
                assert (result.status, result.next_offset, result.min_offset, result.slices) == (ReadStatus.OFFSET_TOO_SMALL, low, low, [])
                assert store.read_units("Orders", 0, offset, 1) == []
                assert store.store_time("Orders", 0, offset) == -1
            result = store.read("Orders", 0, low, ALL, None, None)
            assert (result.status, result.message_count, result.next_offset) == (ReadStatus.FOUND, 600 - low, 600)
            assert store.offset_by_time("Orders", 0, 0, Boundary.LOWER) == low
            assert store.offset_by_time("Orders", 0, 0, Boundary.UPPER) == low

    async def test_a_slice_outlives_its_part(self, tmp_path: Path, clock: FakeClock) -> None:
        """A reply that is still on its way is not pulled away."""
        async with running(self.make_store(tmp_path / "store", clock, **SMALL)) as store:
            parts = await self._filled(store)
            result = store.read("Orders", 0, 0, ALL._replace(max_messages=20), None, None)
            await store.trim(parts[-1].end)
            assert [found.body for found in records(result)] == [b"%d" % number * 40 for number in range(20)]

    async def test_the_newest_part_stays(self, tmp_path: Path, clock: FakeClock) -> None:
        """However far a trim may go; a queue all of whose messages are gone keeps its end."""
        async with running(self.make_store(tmp_path / "store", clock, **SMALL)) as store:
            store.append([message("Old", body=b"old")])
            parts = await self._filled(store)
            trimmed = await store.trim(1 << 60)
            assert trimmed.log_start == parts[-1].end
            assert await store.log_parts() == []
            assert len(bodies(store)) == 600 - store.min_offset("Orders", 0) > 0
            assert (store.min_offset("Old", 0), store.max_offset("Old", 0)) == (1, 1)
            assert store.read("Old", 0, 0, ALL, None, None).status is ReadStatus.OFFSET_TOO_SMALL
            assert store.read("Old", 0, 1, ALL, None, None).status is ReadStatus.OFFSET_OVERFLOW_ONE
            assert store.append([message("Old", body=b"new")])[0].queue_offset == 1
            assert bodies(store, "Old") == [b"new"]

    async def test_a_store_that_refuses_writes(self, store: MessageStore) -> None:
        """The reason is given to every append; reading goes on; appends go on when it is lifted."""
        store.append([message(body=b"before")])
        store.refuse_writes("/data is 91 % full")
        with pytest.raises(StoreNotWritable, match="/data is 91 % full"):
            store.append([message()])
        assert bodies(store) == [b"before"]
        store.refuse_writes(None)
        assert store.append([message(body=b"after")])[0].queue_offset == 1

    async def test_deleting_a_queue(self, store: MessageStore) -> None:
        """The others of its topic stay; it begins at 0 when it comes again."""
        store.append([message(queue_id=0), message(queue_id=1, body=b"kept")])
        store.delete_queue("Orders", 0)
        store.delete_queue("Orders", 7)
        store.delete_queue("unknown", 0)
        assert store.queues() == {"Orders": [1]}
        assert bodies(store, queue_id=1) == [b"kept"]
        assert store.append([message(body=b"again")])[0].queue_offset == 0
        assert bodies(store) == [b"again"]

    async def test_where_the_disk_is(self, store: MessageStore) -> None:
        """Paths that the store fills are there."""
        assert all(path.is_dir() for path in store.disk_paths)

    async def test_warming_what_is_in_memory(self, store: MessageStore) -> None:
        """A read that does not wait gives what was just written, and names nothing cold; to warm it all the same does no harm."""
        store.append([message(body=b"%d" % number) for number in range(5)])
        result = store.read("Orders", 0, 1, ALL._replace(wait=False), None, lambda record: True)
        assert ([found.body for found in records(result)], list(result.cold)) == ([b"1", b"2", b"3", b"4"], [])
        await store.warm(result)
        assert result == store.read("Orders", 0, 1, ALL, None, None)

    # --- stores that persist -----------------------------------------------------------------------------------------

    def _only_persistent(self) -> None:
        if not self.persistent:
            pytest.skip("this store keeps nothing")

    async def test_opening_again(self, tmp_path: Path, clock: FakeClock) -> None:
        """A closed store opens with everything it had, and goes on behind it; a deleted topic stays deleted."""
        self._only_persistent()
        settings = SMALL | SMALL_INDEX
        async with running(self.make_store(tmp_path / "store", clock, **settings)) as store:
            for number in range(40):
                batch = [message(f"T{n % 3}", n % 2, b"x" * (n * 20), keys=f"k{n}") for n in range(number, number + 5)]
                store.append(batch)
                clock.advance(3)
            store.append([message("Gone")])
            store.delete_topic("Gone")
            before, end = contents(store), store.statistics().max_physical_offset
            keys = [store.query_by_key(f"T{n % 3}", f"k{n}", 0, 1 << 60, 9) for n in range(44)]
        for _ in range(2):
            async with running(self.make_store(tmp_path / "store", clock, **settings)) as store:
                assert contents(store) == before
                assert [store.query_by_key(f"T{n % 3}", f"k{n}", 0, 1 << 60, 9) for n in range(44)] == keys
                assert store.end_offset == store.statistics().max_physical_offset == end
                assert store.is_settled(end, Level.FLUSHED)
        async with running(self.make_store(tmp_path / "store", clock, **settings)) as store:
            (at,) = store.append([message("T0", 0, b"more")])
            assert (at.queue_offset, at.physical_offset) == (before["T0", 0][1], end)
            assert bodies(store, "T0")[-1] == b"more"

    async def test_opening_an_empty_store_again(self, tmp_path: Path, clock: FakeClock) -> None:
        """A store that never got a message opens again."""
        self._only_persistent()
        for _ in range(2):
            async with running(self.make_store(tmp_path / "store", clock)) as store:
                assert store.queues() == {}
        async with running(self.make_store(tmp_path / "store", clock)) as store:
            assert store.append([message()])[0].physical_offset == 0

    async def test_opening_a_trimmed_store_again(self, tmp_path: Path, clock: FakeClock) -> None:
        """What was trimmed stays away, ends of queues stay where they were."""
        self._only_persistent()
        settings = SMALL | SMALL_INDEX
        async with running(self.make_store(tmp_path / "store", clock, **settings)) as store:
            store.append([message("Old")])
            await self._filled(store)
            await store.trim((await store.log_parts())[2].end)
            before, start = contents(store), store.statistics().min_physical_offset
        for _ in range(2):
            async with running(self.make_store(tmp_path / "store", clock, **settings)) as store:
                assert contents(store) == before
                assert store.statistics().min_physical_offset == start > 0
                assert store.append([message("Gone")])[0].queue_offset == 0
                store.delete_topic("Gone")

    async def test_one_store_per_directory(self, tmp_path: Path, clock: FakeClock) -> None:
        """A second store is refused, naming the directory, and leaves the first one alone; after close the directory is free."""
        self._only_persistent()
        async with running(self.make_store(tmp_path / "store", clock)) as store:
            store.append([message()])
            second = self.make_store(tmp_path / "store", clock)
            with pytest.raises(StoreInUse, match=str(tmp_path / "store")):
                await second.open()
            await second.close()
            store.append([message()])
        async with running(self.make_store(tmp_path / "store", clock)) as store:
            assert store.max_offset("Orders", 0) == 2
