"""Contract of a store: appends, records, hosts and names."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqkit.errors import MessageIllegal, StoreError, StoreNotWritable
from rmqkit.limits import MAX_PROPERTIES_BYTES
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.model.sysflag import (
    BORN_HOST_V6,
    STORE_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from rmqkit.plugin.store import MessageStore
from rmqkit.protocol.message_id import pack_host
from rmqkit.protocol.record import MAGIC_V1, MAGIC_V2, message_size, pack, peek_size_and_magic, unpack
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store.base import StoreFixtures
from rmqkit.testing.store.kit import ALL, bodies, contents, message, put, records, running


class Appending(StoreFixtures):
    """Appending messages."""

    async def test_offsets_are_consecutive_per_queue_and_one_append_has_one_time(
        self, store: MessageStore, clock: FakeClock
    ) -> None:
        """Queue offsets count from 0 in each queue; an append's physical offset is the end of the log before
        it; all messages of an append have the same time."""
        first = store.append(
            [message(queue_id=0), message(queue_id=1), message(queue_id=0), message(topic="Other")]
        )
        clock.advance(7)
        second = store.append([message(queue_id=1)])
        assert [at.queue_offset for at in (*first, *second)] == [0, 0, 1, 0, 1]
        end = 0
        for at in (*first, *second):
            assert at.physical_offset == end
            end += at.size_bytes
        assert store.end_offset == store.statistics().max_physical_offset == end
        assert {at.store_timestamp_ms for at in first} == {clock.now_ms() - 7}
        assert second[0].store_timestamp_ms == clock.now_ms()

    async def test_an_empty_append_does_nothing(self, store: MessageStore) -> None:
        """Appending an empty list raises no error."""
        assert await put(store, []) == []
        assert store.statistics().max_physical_offset == 0

    @pytest.mark.parametrize("body", [b"", b"x", bytes(range(256)) * 40])
    async def test_a_record_is_what_the_kernel_packs(
        self, store: MessageStore, clock: FakeClock, body: bytes
    ) -> None:
        """The bytes of a record are those of protocol.record, with every field of the message."""
        given = message(
            body=body,
            tag="T",
            flag=-7,
            sys_flag=0x303,
            born_timestamp_ms=12,
            reconsume_times=3,
            prepared_offset=99,
        )
        given.born_host = pack_host("10.1.2.3", 4567)
        await put(store, [message()])
        (at,) = await put(store, [given])
        record = store.read_record(at.physical_offset)
        assert record is not None
        host = pack_host("127.0.0.1", 10911)
        assert bytes(record) == pack(given, message_size(given), 1, at.physical_offset, clock.now_ms(), host)
        found = unpack(record)
        assert (found.body, found.flag, found.born_host, found.store_host) == (
            body,
            -7,
            given.born_host,
            host,
        )
        assert (found.reconsume_times, found.prepared_offset, found.properties) == (3, 99, given.properties)

    @pytest.mark.parametrize(
        "bad",
        [
            message(body=b"x" * 9_000_000),
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
        ids=[
            "body",
            "properties",
            "path",
            "blank",
            "long topic",
            "queue id",
            "flag",
            "wide host",
            "narrow host",
            "tags code",
        ],
    )
    async def test_one_illegal_message_refuses_the_whole_append(
        self, store: MessageStore, bad: PutMessage
    ) -> None:
        """All or none: messages before the illegal one are not stored either, and the next append gets the
        offset this one would have had."""
        await put(store, [message(body=b"before", keys="k")])
        before, end = contents(store), store.statistics().max_physical_offset
        with pytest.raises(MessageIllegal):
            store.append([message(body=b"lost", keys="k"), message(topic="New", keys="k"), bad])
        assert contents(store) == before
        assert store.end_offset == store.statistics().max_physical_offset == end
        assert len(store.query_by_key("Orders", "k", 0, 1 << 60, 10).physical_offsets) == 1
        (at,) = await put(store, [message(body=b"after")])
        assert (at.queue_offset, at.physical_offset) == (1, end)
        assert bodies(store) == [b"before", b"after"]
        assert len(store.query_by_key("Orders", "k", 0, 1 << 60, 10).physical_offsets) == 1

    async def test_the_limit_of_clients_is_not_that_of_the_store(self, store: MessageStore) -> None:
        """A message above maxMessageSize is stored as long as its record fits into a file of the log: it may
        have been accepted under another setting, and be moved by the broker now."""
        large = bytes(5_000_000)
        await put(store, [message(body=large), message(body=b"behind it")])
        assert bodies(store) == [large, b"behind it"]

    async def test_only_an_open_store_takes_messages(self, tmp_path: Path, clock: FakeClock) -> None:
        """Appends are refused before `open` and after `close`; closing twice does nothing."""
        store = self.make_store(tmp_path / "store", clock)
        with pytest.raises(StoreNotWritable):
            store.append([message()])
        async with running(store):
            await put(store, [message()])
            with pytest.raises(StoreError):
                await store.open()
        await store.close()
        with pytest.raises(StoreNotWritable):
            store.append([message()])

    async def test_units_of_a_topic_with_a_code_of_its_own(self, tmp_path: Path, clock: FakeClock) -> None:
        """The function registered for a topic gives the code of its units from the properties and the store
        time; units of other topics keep the code of the message."""
        made = self.make_store(tmp_path, clock)
        made.queue_codes = {"Due": lambda properties, time_ms: time_ms + int(properties[props.KEYS])}
        async with running(made) as store:
            messages = [message("Due", keys="7"), message(tags_code=3), message("Due", keys="1000")]
            results = await put(store, messages)
            now = results[0].store_timestamp_ms
            assert [message.tags_code for message in messages] == [now + 7, 3, now + 1000]
            assert [unit.tags_code for unit in store.read_units("Due", 0, 0, 9)] == [now + 7, now + 1000]
            assert [unit.tags_code for unit in store.read_units("Orders", 0, 0, 9)] == [3]

    async def test_transactions_of_the_old_kind(self, store: MessageStore) -> None:
        """Prepared and rolled-back records get no queue offset; all but the rolled-back are indexed."""
        kinds = [TRANSACTION_PREPARED, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, 0]
        results = await put(store, [message(body=b"%d" % kind, sys_flag=kind, keys="k") for kind in kinds])
        assert [at.queue_offset for at in results] == [0, 0, 0, 1]
        assert bodies(store) == [b"8", b"0"]
        matches = store.query_by_key("Orders", "k", 0, 1 << 60, 10).physical_offsets
        assert matches == [results[number].physical_offset for number in (3, 1, 0)]

    async def test_records_without_a_queue_offset(self, store: MessageStore) -> None:
        """Prepared and rolled-back records have the number that the message gives in its place."""
        kinds = [TRANSACTION_PREPARED, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK]
        messages = [message(sys_flag=kind) for kind in kinds]
        for each in messages:
            each.unqueued_offset = 1 << 40
        results = await put(store, messages)
        stored = [unpack(store.read_record(at.physical_offset) or b"") for at in results]
        assert [at.queue_offset for at in results] == [1 << 40, 0, 1 << 40]
        assert [each.queue_offset for each in stored] == [1 << 40, 0, 1 << 40]

    async def test_ipv6_senders(self, store: MessageStore) -> None:
        """A born host of 20 bytes is stored as it is; the next record follows directly."""
        host = pack_host("2001:db8::1", 5)
        await put(
            store,
            [message(born_host=host, sys_flag=BORN_HOST_V6), message(body=b"second", sys_flag=STORE_HOST_V6)],
        )
        first, second = records(store.read("Orders", 0, 0, ALL, None))
        assert (first.born_host, first.sys_flag) == (host, BORN_HOST_V6)
        assert (second.body, second.sys_flag, len(second.store_host)) == (b"second", 0, 8)

    async def test_an_ipv6_store(self, tmp_path: Path, clock: FakeClock) -> None:
        """A store that is reached by IPv6 writes 20 bytes of store host and says so in the system flag."""
        async with running(
            self.make_store(tmp_path / "store", clock, broker_ip1="::1", listen_port=99)
        ) as store:
            await put(store, [message(), message(body=b"second")])
            first, second = records(store.read("Orders", 0, 0, ALL, None))
            assert (first.store_host, first.sys_flag) == (pack_host("::1", 99), STORE_HOST_V6)
            assert second.body == b"second"
            assert unpack(store.read_record(second.physical_offset) or b"") == second

    @pytest.mark.parametrize(("length", "magic"), [(127, MAGIC_V1), (128, MAGIC_V2), (255, MAGIC_V2)])
    async def test_long_topics_make_v2_records(self, store: MessageStore, length: int, magic: int) -> None:
        """A topic of more than 127 bytes, which only retry and dead-letter topics have, is stored with a
        2-byte length."""
        topic = "%RETRY%".ljust(length, "g")
        (at,) = await put(store, [message(topic=topic, keys="k")])
        (found,) = records(store.read(topic, 0, 0, ALL, None))
        assert (found.topic, found.size_bytes) == (topic, at.size_bytes)
        assert peek_size_and_magic(store.read_record(0) or b"")[1] == magic
        assert store.query_by_key(topic, "k", 0, 1 << 60, 1).physical_offsets == [0]
