"""Filters that consumers send to a filter server as modules of WebAssembly."""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import pytest
import trio
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.client import Client, ReceivedMessage, filter_class
from rmqkit.errors import BrokerError, MissingExtra, RequestRefused
from rmqkit.model.message import PutMessage, StoredMessage
from rmqkit.model.subscription import CLASS
from rmqkit.plugin.filter import CompiledFilter
from rmqkit.protocol import record
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import RegisterMessageFilterClassRequestHeader
from rmqkit.testing.broker import running_cluster
from rmqkit_filter_server import classes as filter_classes
from rmqkit_filter_server import web_assembly
from rmqkit_filter_server.web_assembly import FilterModules, ModuleFilter, ModuleLimits, encoded
from tests.plugins.filter_server.modules import ENDLESS, assembled, module
from tests.plugins.filter_server.shop import PATIENCE_S
from tests.plugins.filter_server.test_server import Running, amounts, filter_server

pytestmark = pytest.mark.only_transport(why="the addresses of a test's filter server are memory pipes")

LIMITS = ModuleLimits(max_bytes=10_000, memory_mib=1, fuel=100_000, timeout_ms=60_000)


@asynccontextmanager
async def accepting(folder: Path, **keys: Any) -> AsyncIterator[Running]:
    """A cluster whose filter server runs modules."""
    async with (
        running_cluster(folder / "broker", scheme="memory") as cluster,
        filter_server(
            cluster, folder / "filter", webAssembly=True, webAssemblyTimeoutMs=60_000, **keys
        ) as address,
        Client(cluster.namesrv_text, connect=cluster.connect) as client,
    ):
        yield Running(cluster, client, address)


def upload(source: bytes, *, group: str = "g", topic: str = "T", crc: int | None = None) -> Command:
    """A consumer's registration of the class `Mine`."""
    signed = struct.unpack(">i", struct.pack(">I", crc32(source)))[0]
    header = RegisterMessageFilterClassRequestHeader(
        consumer_group=group, topic=topic, class_name="Mine", class_crc=signed if crc is None else crc
    )
    return request(RequestCode.REGISTER_MESSAGE_FILTER_CLASS, header, source)


async def refused(running: Running, source: bytes, code: ResponseCode, **parts: Any) -> str:
    """The remark of the answer to an upload that must have this code."""
    answer = await running.ask(upload(source, **parts))
    assert answer.code == code
    return answer.remark or ""


async def filtered(running: Running, source: bytes, group: str = "billing") -> list[str | None]:
    """What a consumer finds that sends this module."""
    cluster = running.cluster
    async with (
        Client(cluster.namesrv_text, connect=cluster.connect, filter_modules={"Mine": source}) as client,
        client.pull_consumer(group) as consumer,
    ):
        (queue,) = await consumer.queues("T")
        found = await consumer.pull(queue, 0, expression="Mine", expression_type=CLASS)
        return amounts(found.messages)


# --- messages that match ------------------------------------------------------------------------------------


async def test_a_consumer_gets_the_messages_that_its_module_chooses(tmp_path: Path) -> None:
    """Two groups have modules of their own; large messages fit as well as small ones."""
    async with accepting(tmp_path) as running:
        await running.queue()
        await running.send(3, 30, 4)
        large = "(i32.gt_u (local.get $size) (i32.const 100000))"
        async with running.client.producer("shop") as producer:
            await producer.send("T", Random(1).randbytes(200_000))
        assert await filtered(running, module()) == ["3", "4"]
        assert await filtered(running, module(large), group="other") == [None]
        assert await filtered(running, module("(i32.const 0)"), group="third") == []


async def test_a_push_consumer_sends_its_module(tmp_path: Path) -> None:
    """Also to a filter server that is started again."""
    got: list[bytes] = []

    async def take(message: ReceivedMessage) -> None:
        got.append(message.body)
        consumer.stop()

    async with accepting(tmp_path) as running:
        await running.queue()
        await running.send(30, 4)
        cluster, wanted = running.cluster, {"T": filter_class("Mine")}
        async with (
            Client(
                cluster.namesrv_text, connect=cluster.connect, filter_modules={"Mine": module()}
            ) as client,
            client.push_consumer("billing", subscribe=wanted, start="first") as consumer,
        ):
            with trio.fail_after(PATIENCE_S):
                await consumer.run(take)
    assert got == [b"4"]


async def test_equal_modules_of_a_group_are_compiled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consumers send them again and again; another module, or one for another topic, is compiled."""
    made: list[str] = []

    class Counted(ModuleFilter):
        def __init__(self, title: str, source: bytes, limits: ModuleLimits) -> None:
            made.append(title)
            super().__init__(title, source, limits)

    monkeypatch.setattr(web_assembly, "ModuleFilter", Counted)
    async with accepting(tmp_path) as running:
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(running.ask, upload(module()))
        assert len(made) == 1
        assert (await running.ask(upload(module("(i32.const 1)")))).code == ResponseCode.SUCCESS
        assert (await running.ask(upload(module(), topic="Other"))).code == ResponseCode.SUCCESS
        assert len(made) == 3


async def test_the_least_recent_module_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its consumers register it again; installed filters are not forgotten for it."""
    monkeypatch.setattr(filter_classes, "MAX_FILTER_MODULES", 2)
    compiled = CompiledFilter()
    known = filter_classes.FilterClasses(None, None)  # type: ignore[arg-type]
    known._keep(("g", "installed"), filter_classes.Registered("cheap", b"", compiled))
    for topic in ("A", "B", "A", "C"):
        known._keep(("g", topic), filter_classes.Registered("Mine", b"digest", compiled))
    assert [topic for _, topic in known._known] == ["installed", "A", "C"]


# --- modules that are refused -------------------------------------------------------------------------------


async def test_modules_are_refused_unless_the_settings_allow_them(tmp_path: Path) -> None:
    """The remark names the setting."""
    async with (
        running_cluster(tmp_path / "broker", scheme="memory") as cluster,
        filter_server(cluster, tmp_path / "filter") as address,
        Client(cluster.namesrv_text, connect=cluster.connect) as client,
    ):
        remark = await refused(Running(cluster, client, address), module(), ResponseCode.NO_PERMISSION)
        assert "webAssembly = true in the table [plugins.filter-server]" in remark


async def test_what_is_no_module_is_refused(tmp_path: Path) -> None:
    """Source text of Java, too much, another checksum: before any work is done."""
    async with accepting(tmp_path, webAssemblyMaxBytes=1000) as running:
        remark = await refused(running, b"public class Mine {}", ResponseCode.NO_PERMISSION)
        assert "not a module of WebAssembly" in remark
        remark = await refused(running, b"\0asm" + bytes(1000), ResponseCode.NO_PERMISSION)
        assert "1004 bytes, at most 1000" in remark
        remark = await refused(running, module(), ResponseCode.INVALID_PARAMETER, crc=1)
        assert "CRC-32" in remark


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (b"\0asm\1\0\0\0garbage", "webassembly|section|unexpected|size"),
        (
            module(more='(import "wasi_snapshot_preview1" "fd_write" (func))'),
            "imports wasi_snapshot_preview1",
        ),
        (assembled("(module)"), "does not export its memory"),
        (assembled('(module (memory (export "memory") 1))'), r"the function input\(i32\) -> i32"),
        (module(entry='(func (export "input") (result i32) (i32.const 0))'), r"the function input\(i32\)"),
        (module(entry='(global (export "input") i32 (i32.const 0))'), r"the function input\(i32\)"),
        (module(more="(func $start (loop $again (br $again))) (start $start)"), "fuel"),
        (module(more="(func $start (unreachable)) (start $start)"), "unreachable"),
        (assembled('(module (memory (export "memory") 1000))'), "memory|input"),
        (module(more="(memory 2)"), "memor"),
    ],
)
async def test_a_module_that_is_no_filter_is_refused(tmp_path: Path, source: bytes, reason: str) -> None:
    """The remark says why."""
    async with accepting(tmp_path) as running:
        remark = await refused(running, source, ResponseCode.SUBSCRIPTION_PARSE_FAILED)
        assert re.search(f"the module 'Mine': .*({reason})", remark)


async def test_uploads_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While too many wait to be compiled, the others are told to try again."""
    monkeypatch.setattr(filter_classes, "MAX_WAITING_FILTER_MODULES", 0)
    async with accepting(tmp_path) as running:
        assert "try again" in await refused(running, module(), ResponseCode.SYSTEM_BUSY)


async def test_a_missing_package_is_an_error_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text names the extra."""
    monkeypatch.setitem(sys.modules, "wasmtime", None)
    with pytest.raises(MissingExtra, match=r"\.\[wasm\]"):
        FilterModules(LIMITS)


# --- modules that fail --------------------------------------------------------------------------------------


def stored(body: bytes) -> bytes:
    """The record of a message."""
    message = PutMessage("T", 0, body, {}, b"")
    return record.pack(message, record.message_size(message), 0, 0, 0, b"\x7f\0\0\1\0\0\x2a\x9f")


RECORDS = [stored(b"%d" % number) for number in range(20)]


async def verdicts(source: bytes, **limits: Any) -> list[bool]:
    """What a module says of twenty records."""
    compiled = ModuleFilter("the filter Mine", source, changed(**limits)).compiled(trio.CapacityLimiter(1))
    assert compiled.records_async is not None
    return list(await compiled.records_async(RECORDS))


def changed(**limits: Any) -> ModuleLimits:
    return evolve(LIMITS, **limits)


async def test_the_verdicts_are_those_of_the_module() -> None:
    """In the order of the records; what is not a record does not match."""
    assert await verdicts(module()) == [True] * 10 + [False] * 10
    made = ModuleFilter("the filter Mine", module("(i32.const 7)"), LIMITS).compiled(trio.CapacityLimiter(1))
    assert made.records_async is not None
    assert await made.records_async([RECORDS[0], RECORDS[0][:50], b""]) == [True, False, False]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (module("(unreachable)"), "unreachable"),
        (module(ENDLESS), "fuel"),
        (module("(i32.load (i32.const -4))"), "out of bounds"),
        (module("(call $deep)", more="(func $deep (result i32) (call $deep))"), "fuel|stack"),
        (module(entry='(func (export "input") (param i32) (result i32) (i32.const -1))'), "out of"),
        (module(entry='(func (export "input") (param i32) (result i32) (i32.const 65530))'), "out of"),
        (module("(memory.fill (i32.const 0) (i32.const 1) (i32.const 120000)) (i32.const 1)"), "fuel"),
    ],
)
async def test_a_module_that_fails_is_disabled(source: bytes, reason: str) -> None:
    """Every call is refused from then on, with the reason."""
    made = ModuleFilter("the filter Mine", source, LIMITS).compiled(trio.CapacityLimiter(1))
    assert made.records_async is not None
    for _ in range(2):
        with pytest.raises(RequestRefused, match=reason) as caught:
            await made.records_async(RECORDS)
        assert "the filter Mine is disabled until another module is sent" in str(caught.value)


async def test_the_fuel_is_that_of_each_message() -> None:
    """Many messages may use it up, each for itself."""
    counts = """(local $n i32) (loop $again (local.set $n (i32.add (local.get $n) (i32.const 1)))
        (br_if $again (i32.lt_u (local.get $n) (i32.const 5000)))) (i32.const 1)"""
    assert await verdicts(module(counts), fuel=60_000) == [True] * 20
    with pytest.raises(RequestRefused, match="fuel"):
        await verdicts(module(counts), fuel=20_000)


async def test_a_module_gets_no_more_memory_than_it_may_have() -> None:
    """Growing beyond the limit fails within the module, which can go on."""
    grows = "(i32.eq (memory.grow (i32.const 32)) (i32.const -1))"
    assert await verdicts(module(grows)) == [True] * 20
    assert (await verdicts(module(grows), memory_mib=64))[0] is False


async def test_a_module_that_takes_too_long_is_stopped_while_others_are_served() -> None:
    """It runs in a thread, and the time-out ends it there: the same module is not called twice at a time."""
    made = ModuleFilter("the filter Mine", module(ENDLESS), changed(fuel=1 << 40, timeout_ms=50))
    compiled, turns = made.compiled(trio.CapacityLimiter(1)), 0
    assert compiled.records_async is not None

    async def other_work() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other_work)
        with pytest.raises(RequestRefused, match="more than 50 ms for 20 messages"):
            await compiled.records_async(RECORDS)
        nursery.cancel_scope.cancel()
    assert turns > 1


async def test_a_consumer_that_goes_away_does_not_leave_its_call_behind() -> None:
    """A cancelled call ends at its time-out, before the next one begins."""
    made = ModuleFilter("the filter Mine", module(ENDLESS), changed(fuel=1 << 40, timeout_ms=50))
    compiled = made.compiled(trio.CapacityLimiter(1))
    assert compiled.records_async is not None
    ended = False
    with trio.CancelScope() as scope:
        scope.cancel()
        with pytest.raises(RequestRefused, match="more than 50 ms"):
            await compiled.records_async(RECORDS)
        ended = True
    assert ended


async def test_the_consumer_is_told_and_can_send_another_module(tmp_path: Path) -> None:
    """Other groups go on."""
    async with accepting(tmp_path) as running:
        await running.queue()
        await running.send(3)
        for _ in range(2):
            with pytest.raises(BrokerError, match=r"group 'billing' is disabled .* fuel"):
                await filtered(running, module(ENDLESS))
        assert await filtered(running, module(), group="other") == ["3"]
        assert await filtered(running, module()) == ["3"]


# --- the form of a message ----------------------------------------------------------------------------------


def decoded(data: bytes) -> dict[str, Any]:
    """A message as a module sees it."""
    *numbers, count = struct.unpack_from("<qqqiiiiI", data)
    at, texts = 44, []
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at)
        texts.append(data[at + 4 : at + 4 + size])
        assert len(texts[-1]) == size
        at += 4 + size
    topic, body, *pairs = texts
    assert len(pairs) == 2 * count
    names, values = pairs[::2], pairs[1::2]
    return {
        "numbers": numbers,
        "topic": topic.decode(),
        "body": body,
        "properties": {name.decode(): value.decode() for name, value in zip(names, values, strict=True)},
    }


TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)


@given(
    st.builds(
        StoredMessage,
        topic=TEXTS,
        queue_id=st.integers(0, 2**31 - 1),
        queue_offset=st.integers(0, 2**63 - 1),
        physical_offset=st.just(0),
        body=st.binary(max_size=100),
        properties=st.dictionaries(TEXTS, TEXTS, max_size=5),
        flag=st.integers(-(2**31), 2**31 - 1),
        sys_flag=st.integers(-(2**31), 2**31 - 1),
        born_timestamp_ms=st.integers(0, 2**62),
        born_host=st.just(b""),
        store_timestamp_ms=st.integers(0, 2**62),
        store_host=st.just(b""),
        reconsume_times=st.integers(0, 2**31 - 1),
        prepared_offset=st.just(0),
        body_crc=st.just(0),
        size_bytes=st.just(0),
    )
)
def test_a_message_is_encoded_as_documented(message: StoredMessage) -> None:
    """Every field is found again."""
    assert decoded(encoded(message)) == {
        "numbers": [
            message.queue_offset,
            message.born_timestamp_ms,
            message.store_timestamp_ms,
            message.queue_id,
            message.reconsume_times,
            message.flag,
            message.sys_flag,
        ],
        "topic": message.topic,
        "body": message.body,
        "properties": message.properties,
    }
