"""Bit maps of messages: what they save, and that they never hide a message."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from rmqkit.config import load
from rmqkit.errors import ConfigError
from rmqkit.model.buffer import Buffer
from rmqkit.model.subscription import ConsumerData, SubscriptionData
from rmqkit.plugin.filter import CompiledFilter, FilterIndex
from rmqkit.plugin.store import ExtensionFilter, UnitExtension
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.record import peek_properties
from rmqkit.testing.clock import FakeClock
from rmqkit.toolkit.held_time import HeldTime
from rmqkit.toolkit.json_file import JsonFile
from rmqkit_filter.index import bit_maps
from rmqkit_filter.index.bit_maps import BitMapFilter, BitMaps
from rmqkit_filter.index.bloom import BloomFilter
from rmqkit_filter.index.table import FilterTable
from rmqkit_store_mmap.queue.extension import reader
from rmqkit_store_mmap.queue.units import UNIT
from tests.broker.desk import BrokerHarness, bodies, open_desk
from tests.broker.processors.test_filtered_pulls import answered

ON: dict[str, Any] = {
    "store": "mmap",
    "enablePropertyFilter": True,
    "enableConsumeQueueExt": True,
    "enableCalcFilterBitMap": True,
    "mappedFileSizeConsumeQueueExt": 4_096,
}


@pytest.fixture(autouse=True)
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine filters would not be evaluated."""
    monkeypatch.setattr(HeldTime, "elapsed_s", lambda self: 0.0)


def index_of(desk: BrokerHarness) -> FilterIndex:
    index = desk.broker.filters.index
    assert index is not None
    return index


def bits_of(group: str, topic: str = "T") -> int:
    return sum(1 << position for position in BloomFilter(20, 32).positions(f"{group}#{topic}"))


async def join(desk: BrokerHarness, group: str, expression: str, version: int = 1, topic: str = "T") -> None:
    """Subscribe, and write the table, as the broker does every ten seconds."""
    subscription = SubscriptionData(
        topic=topic, sub_string=expression, expression_type="SQL92", sub_version=version
    )
    await desk.heartbeat(
        ConsumerData(group_name=group, subscription_data_set=[subscription]), client_id=f"of-{group}"
    )
    await desk.broker.filters.persist()
    desk.clock.advance(1)


def stored_bits(directory: Path, topic: str = "T") -> list[int]:
    """The bit maps of the messages of queue 0, as numbers; -1 without one."""
    look_up = reader(directory, topic, 0)
    found = []
    for path in sorted((directory / "consumequeue" / topic / "0").iterdir()):
        for _, size, code in UNIT.iter_unpack(path.read_bytes()):
            extension = look_up(code) if size else None
            if extension is not None:
                bits = extension.bit_map
                found.append(int.from_bytes(bits, "little") if len(bits) == 14 else -1)
    return found


@pytest.mark.row("S059")
async def test_a_message_has_the_bits_of_the_groups_that_it_matches(tmp_path: Path) -> None:
    """As Java computes them, from the filters of groups that are online or not; a topic without filters gets
    no bit maps."""
    async with open_desk(tmp_path, **ON) as desk:
        await desk.sent(properties={"price": "1"})
        await join(desk, "low", "price < 3")
        await join(desk, "all", "price >= 0")
        index_of(desk).leave("low")
        for price in (1, 5):
            await desk.sent(properties={"price": str(price)})
        root = Path(desk.broker.config.store_path_root_dir)
        assert stored_bits(root) == [-1, bits_of("low") | bits_of("all"), bits_of("all")]


@pytest.mark.row("S059")
async def test_a_pull_evaluates_only_messages_whose_bits_are_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And every message from before the filter was registered."""
    evaluated: list[bytes] = []

    def counting(records: Sequence[Buffer]) -> list[bool]:
        evaluated.extend(bytes(peek_properties(record)) for record in records)
        return [True] * len(records)

    async with open_desk(tmp_path, **ON) as desk:
        await desk.sent(body=b"before", properties={"price": "1"})
        await join(desk, "g", "price > 3")
        for price in range(8):
            await desk.sent(body=b"%d" % price, properties={"price": str(price)})
        answer = await answered(desk, sys_flag=0, sub_version=1)
        assert bodies(answer) == [b"4", b"5", b"6", b"7"]
        for compiled, _ in desk.broker.filters.cache._filters.values():
            compiled.records = counting
        answer = await answered(desk, sys_flag=0, sub_version=1)
        assert bodies(answer) == [b"before", b"4", b"5", b"6", b"7"]
        assert len(evaluated) == 5


async def test_other_expressions_do_not_use_the_bits_of_the_group(tmp_path: Path) -> None:
    """A pull with an expression of its own, and the group's next expression, read messages that the first
    one has rejected; the first one, subscribed to again, does so as well."""
    async with open_desk(tmp_path, **ON) as desk:
        await join(desk, "g", "price > 3")
        for price in range(6):
            await desk.sent(body=b"%d" % price, properties={"price": str(price)})
        answer = await answered(desk, sys_flag=4, subscription="price < 2", expression_type="SQL92")
        assert bodies(answer) == [b"0", b"1"]
        await join(desk, "g", "price < 2", version=2)
        await desk.sent(body=b"more", properties={"price": "6"})
        assert bodies(await answered(desk, sys_flag=0, sub_version=2)) == [b"0", b"1"]
        await join(desk, "g", "price > 3", version=3)
        assert bodies(await answered(desk, sys_flag=0, sub_version=3)) == [b"4", b"5", b"more"]


async def test_a_clock_that_is_set_back_hides_nothing(tmp_path: Path) -> None:
    """A filter counts as registered after the messages that have no bit for it."""
    async with open_desk(tmp_path, **ON) as desk:
        await join(desk, "other", "price > 3")
        await desk.sent(body=b"first", properties={"price": "5"})
        desk.clock.advance(-10_000)
        await join(desk, "g", "price > 3")
        await desk.sent(body=b"second", properties={"price": "6"})
        assert bodies(await answered(desk, sys_flag=0, sub_version=1)) == [b"first", b"second"]


async def test_a_crash_before_the_table_is_written_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages have the bits of groups whose filter in the file is another one: after a crash, the group may
    subscribe with that one again, which then counts as registered long ago."""
    async with open_desk(tmp_path, **ON) as desk:
        await join(desk, "g", "price > 3")
        monkeypatch.setattr(JsonFile, "write", refused_write)
        with pytest.raises(OSError, match="No space"):
            await join(desk, "g", "price < 2", version=2)
        await desk.sent(body=b"dear", properties={"price": "5"})
        monkeypatch.undo()
    async with open_desk(tmp_path, **ON) as desk:
        desk.clock.advance(60_000)
        await join(desk, "g", "price > 3", version=3)
        assert bodies(await answered(desk, sys_flag=0, sub_version=3)) == [b"dear"]


def refused_write(self: object, data: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.row("S073", "S078")
async def test_filters_from_the_file_are_used_after_a_restart(tmp_path: Path) -> None:
    """Bit maps of messages that were stored before the stop are used after it."""
    async with open_desk(tmp_path, **ON) as desk:
        await join(desk, "g", "price > 3")
        for price in (1, 5):
            await desk.sent(body=b"%d" % price, properties={"price": str(price)})
    async with open_desk(tmp_path, **ON) as desk:
        await join(desk, "g", "price > 3", version=2)
        assert bodies(await answered(desk, sys_flag=0, sub_version=2)) == [b"5"]
        (compiled,) = [each for each, _ in desk.broker.filters.cache._filters.values()]
        compiled.records = lambda records: [True] * len(records)
        assert bodies(await answered(desk, sys_flag=0, sub_version=2)) == [b"5"]


async def test_the_setting_can_be_changed_while_the_broker_runs(tmp_path: Path) -> None:
    """Messages without a bit map are evaluated by the condition."""
    async with open_desk(tmp_path, **ON | {"enableCalcFilterBitMap": False}) as desk:
        await join(desk, "g", "price > 3")
        for value in ("true", "false"):
            for price in (1, 5):
                await desk.sent(body=b"%d" % price, properties={"price": str(price)})
            body = f"enableCalcFilterBitMap={value}".encode()
            assert (await desk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body)).code == 0
        await desk.sent(body=b"6", properties={"price": "6"})
        root = Path(desk.broker.config.store_path_root_dir)
        assert stored_bits(root) == [-1, -1, 0, bits_of("g"), -1]
        assert bodies(await answered(desk, sys_flag=0, sub_version=1)) == [b"5", b"5", b"6"]


def test_a_store_without_extensions_refuses_the_setting(tmp_path: Path) -> None:
    """The start names the setting."""

    async def start() -> None:
        async with open_desk(tmp_path, **ON | {"store": "memory"}):
            raise AssertionError("started")

    with pytest.raises(ConfigError, match="enableConsumeQueueExt"):
        trio.run(start)


# --- without a broker ---------------------------------------------------------------------------------------


def table(directory: Path, clock: FakeClock) -> FilterTable:
    return FilterTable(load(environ={}), clock, directory, lambda subscription, group: None)


async def subscribed(directory: Path, *groups: str) -> FilterTable:
    known = table(directory, FakeClock())
    for group in groups:
        known.subscribe(
            group, [SubscriptionData(topic="T", sub_string=group, expression_type="SQL92", sub_version=1)]
        )
    await known.persist()
    return known


def makes(
    known: FilterTable, compiled: Callable[[SubscriptionData, str], CompiledFilter], count: int = 1
) -> list[int]:
    make = BitMaps(load(environ={}, flags={"enableCalcFilterBitMap": True}), known, compiled).of_topic("T")
    assert make is not None
    return [int.from_bytes(bits, "little") for bits in make([b"record"] * count)]


async def awaited(records: Sequence[Buffer]) -> list[bool]:
    return [False] * len(records)


def failing(records: Sequence[Buffer]) -> list[bool]:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    "compiled", [CompiledFilter(records_async=awaited), CompiledFilter(records=failing)], ids=["async", "bad"]
)
async def test_a_filter_that_cannot_be_evaluated_matches(tmp_path: Path, compiled: CompiledFilter) -> None:
    """A filter that needs a task, or that raises."""
    known = await subscribed(tmp_path, "g")
    assert makes(known, lambda subscription, group: compiled, 3) == [bits_of("g")] * 3


async def test_filters_beyond_the_time_or_the_number_match(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is stored never waits long for filters: their bits are set without a call."""
    known = await subscribed(tmp_path, "a", "b", "c")
    now = [0.0]
    monkeypatch.setattr(HeldTime, "elapsed_s", lambda self: now[0])

    def compiled(subscription: SubscriptionData, group: str) -> CompiledFilter:
        def records(records: Sequence[Buffer]) -> list[bool]:
            now[0] += {"a": 0.0003, "b": 0.002, "c": 0.0}[group]
            return [False] * len(records)

        return CompiledFilter(records=records, records_per_call=2)

    late = bits_of("c")
    assert makes(known, compiled, 4) == [late, late, bits_of("b") | late, bits_of("b") | late]
    now[0] = 0.0
    monkeypatch.setattr(bit_maps, "MAX_BIT_MAP_FILTERS", 1)
    assert makes(known, compiled, 1) == [bits_of("b") | bits_of("c")]


async def test_a_bit_map_of_another_length_is_not_used(tmp_path: Path) -> None:
    """The settings of the bloom filter may have been others."""
    known = await subscribed(tmp_path, "g")
    data = known.get("T", "g")
    assert data is not None
    wanted: ExtensionFilter = BitMapFilter(known, data.subscription, "g")
    later = data.born_time + 1
    assert wanted(5)
    assert not wanted.extended(UnitExtension(0, later, bytes(14)))
    assert wanted.extended(UnitExtension(0, later, bits_of("g").to_bytes(14, "little")))
    assert wanted.extended(UnitExtension(0, data.born_time, bytes(14)))
    assert wanted.extended(UnitExtension(0, later, bytes(13)))
    assert wanted.extended(UnitExtension(0, later, b""))
    known.subscribe(
        "g", [SubscriptionData(topic="T", sub_string="b", expression_type="SQL92", sub_version=2)]
    )
    assert wanted.extended(UnitExtension(0, later + 5, bytes(14)))
