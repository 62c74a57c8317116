"""What arrives at the replication port from others than slaves."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import ByteStream

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.errors import RequestRefused
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.request import REPLICATION, Caller
from rmqkit.plugin.request_hooks import RpcHook
from rmqkit.protocol.codes import ResponseCode
from rmqkit_ha.frames import frame_head, report
from rmqkit_ha.greeting import MAGIC, Greeting, packed
from tests.plugins.ha.pair import (
    caught_up,
    dialed,
    follow,
    group_of,
    ha_master,
    ha_slave,
    lead,
    linked,
    running_master,
    running_member,
    running_slave,
    send,
    until,
)


async def drained(stream: ByteStream) -> bytes:
    """What the master sends until it closes the connection."""
    found = b""
    with anyio.fail_after(60), suppress(anyio.EndOfStream):
        while True:
            found += await stream.receive()
    return found


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        report(-1),
        report(1 << 40),
        report(1),
        packed(Greeting("DefaultCluster", "pair", "b", 1, 1)),
    ],
    ids=["http", "-1", "far", "1", "member of an elected group"],
)
async def test_a_stranger_is_closed_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    """Garbage, or a log that ends behind the master's, closes the connection with one warning; slaves are not
    affected."""
    async with running_master(tmp_path / "m") as master, running_slave(tmp_path / "s", master) as slave:
        await linked(master)
        caplog.clear()
        async with dialed(master) as stranger:
            await stranger.send(sent)
            with pytest.raises(anyio.EndOfStream), anyio.fail_after(60):
                await stranger.receive()
        lines = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
        assert len(lines) == 1
        assert "is not a slave of this broker, closed" in lines[0]
        await send(master, b"one")
        await caught_up(master, slave)


class Guard(RpcHook):
    """Refuses every slave."""

    servers = frozenset({REPLICATION})

    def __init__(self) -> None:
        self.seen: list[Caller] = []

    def connected(self, caller: Caller) -> None:
        self.seen.append(caller)
        raise RequestRefused(ResponseCode.NO_PERMISSION, "no slaves today")

    @hookimpl
    def rmqkit_register_rpc_hooks(self, register: Register[RpcHook], config: Config) -> None:
        register("guard", self)


async def test_a_request_hook_guards_the_port(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A slave whose connection a hook refuses copies nothing, and the hook is told by which door it came."""
    guard = Guard()
    async with running_master(tmp_path / "m", extra=[("guard", guard)]) as master:
        async with dialed(master) as stranger:
            await stranger.send(report(0))
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)), anyio.fail_after(60):
                await stranger.receive()
        (caller,) = guard.seen
        assert caller.server == REPLICATION
        assert str(caller.transport.listener) == master.context.replication.own
        assert any(each.getMessage().endswith("refused: no slaves today") for each in caplog.records)
        assert not ha_master(master).replicas.connected


@pytest.mark.row("S278")
async def test_the_first_frame_is_a_heartbeat(tmp_path: Path) -> None:
    """A slave that reports where its log ends learns at once that the master goes on there."""
    async with running_master(tmp_path) as master, dialed(master) as slave:
        await slave.send(report(0))
        with anyio.fail_after(60):
            assert await slave.receive() == frame_head(0, 0)


@pytest.mark.parametrize(
    "sent",
    [
        MAGIC + b"\x7f\xff\xff\xff",
        MAGIC + b"\x00\x00\x00\x04null",
        packed(Greeting("DefaultCluster", "group", "", 1, 1)),
        packed(Greeting("DefaultCluster", "group", "x" * 256, 1, 1)),
        packed(Greeting("DefaultCluster", "group", "b", 1, 1)) + report(1 << 40),
    ],
    ids=["too long", "no greeting", "no name", "long name", "far"],
)
async def test_an_elected_master_closes_strangers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    """A greeting that no member sends closes the connection with one warning; members are not affected, and
    none is made up."""
    async with running_member(tmp_path / "a", "a") as a, running_member(tmp_path / "s", "s") as slave:
        await lead(a, 1)
        await follow(slave, a, 1)
        await linked(a)
        caplog.clear()
        async with dialed(a) as stranger:
            await stranger.send(sent)
            await drained(stranger)
        records = [each for each in caplog.records if each.name.startswith("rmqkit_ha.master")]
        lines = [each.getMessage() for each in records if each.levelno >= logging.WARNING]
        assert len(lines) == 1
        assert "is not a slave of this broker, closed" in lines[0]
        await send(a, b"one")
        await caught_up(a, slave)
        await until(lambda: group_of(a).members()["s"].is_caught_up)
        assert group_of(a).members().keys() <= {"s", "b"}


async def test_silent_connections_do_not_take_the_place_of_a_slave(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When all places are taken, a new connection gets that of the one that never reported, and a slave that
    has reported keeps its own."""
    monkeypatch.setattr("rmqkit_ha.master.MAX_CONNECTIONS", 2)
    async with AsyncExitStack() as stack:
        master = await stack.enter_async_context(running_master(tmp_path / "m"))
        silent = [await stack.enter_async_context(dialed(master)) for _ in range(2)]
        slave = await stack.enter_async_context(running_slave(tmp_path / "s", master))
        await linked(master)
        silent += [await stack.enter_async_context(dialed(master)) for _ in range(5)]
        for each in silent[:-1]:
            with pytest.raises(anyio.EndOfStream), anyio.fail_after(60):
                await each.receive()
        await send(master, b"one")
        await caught_up(master, slave)
        assert ha_slave(slave).following
        assert "more than 2 connections of slaves" in caplog.text


async def test_the_slave_that_reported_last_keeps_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among connections that have reported, the one that was silent for the longest time leaves."""
    monkeypatch.setattr("rmqkit_ha.master.MAX_CONNECTIONS", 2)
    async with running_master(tmp_path) as master, dialed(master) as first, dialed(master) as second:
        await second.send(report(0))
        await linked(master, 1)
        await first.send(report(0))
        await linked(master, 2)
        async with dialed(master) as third:
            await third.send(report(0))
            await drained(second)
            await linked(master, 2)


@pytest.mark.parametrize("beginning", [report(0), b""], ids=["after a report", "at first"])
async def test_a_report_must_come_as_a_whole_in_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, beginning: bytes
) -> None:
    """A connection that sends bytes of a report, or of a greeting, without an end is closed as a silent
    one."""
    keys = {"haHousekeepingInterval": 100}
    async with running_master(tmp_path, **keys) as master, dialed(master) as slow:
        await slow.send(beginning)
        if beginning:
            await linked(master)
        else:
            await slow.send(MAGIC + b"\x00\x0f\x00\x00")
        with anyio.fail_after(60), suppress(anyio.BrokenResourceError):
            while "is silent, closed" not in caplog.text:
                if not beginning:
                    await slow.send(b" ")
                await anyio.lowlevel.checkpoint()
        assert "is silent, closed" in caplog.text


@pytest.mark.parametrize("start", [1 << 40, 6, 8, -1])
async def test_an_impostor_does_not_lock_a_member_out(tmp_path: Path, start: int) -> None:
    """The number of a member's start is the coordinator's. A greeting with another one is refused, does not
    replace the member's connection, and is not remembered; so is one of a member that the coordinator does
    not know."""
    async with running_member(tmp_path / "a", "a") as a, running_member(tmp_path / "s", "s") as slave:
        group_of(slave).start = 7
        group_of(a).starts = {"a": 3, "s": 7}.copy
        await lead(a, 1)
        for name, said in (("s", start), ("x", 1)):
            async with dialed(a) as impostor:
                await impostor.send(packed(Greeting("DefaultCluster", "group", name, said, 1)))
                answer = await drained(impostor)
                expected = "start 7 of s is known" if name == "s" else "the coordinator has no member x"
                assert expected.encode() in answer
            assert not group_of(a).members()
        await follow(slave, a, 1)
        await until(lambda: "s" in group_of(a).members())
        await until(lambda: group_of(a).members()["s"].is_caught_up)
        async with dialed(a) as impostor:
            await impostor.send(packed(Greeting("DefaultCluster", "group", "s", start, 1)))
            await drained(impostor)
        assert group_of(a).members()["s"].is_connected
        await send(a, b"one")
        await caught_up(a, slave)
