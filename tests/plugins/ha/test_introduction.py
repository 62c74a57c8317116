"""How slaves say who they are, where brokers sign."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
import trio

from rmqkit.errors import ProtocolError
from rmqkit.protocol.command import Command
from rmqkit_ha.frames import report
from rmqkit_ha.greeting import Greeting
from rmqkit_ha.greeting import packed as greeted
from rmqkit_ha.introduction import introduced, packed, size_of
from tests.hooks.acl.kit import CHECKED, INNER, signed
from tests.plugins.ha.pair import (
    caught_up,
    dialed,
    follow,
    group_of,
    ha_master,
    lead,
    linked,
    running_master,
    running_member,
    running_slave,
    until,
)


class Line(trio.abc.Stream):
    """What a slave sends, in pieces; `sent` is what the master sends."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)
        self.sent = b""

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        return self._pieces.pop(0) if self._pieces else b""

    async def send_all(self, data: Any) -> None:
        await trio.lowlevel.checkpoint()
        self.sent += data

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_a_slave_without_credentials_is_taken_as_it_is() -> None:
    """What has arrived is passed on, and nothing is sent."""
    line = Line(report(7)[:3], report(7)[3:] + b"more")
    assert await introduced(line) == (None, report(7) + b"more")
    assert line.sent == b""


@pytest.mark.parametrize(
    "pieces",
    [
        (packed()[:8] + b"\x7f\xff\xff\xff",),
        (packed()[:8] + b"\xff\xff\xff\xff",),
        (packed() + packed(b"no json"),),
        (packed() + packed(b'{"a": 1}'),),
        (packed() + packed(b"{}"),),
        (packed() + packed(msgspec.json.encode({"nonce": "0" * 32})),),
        (packed() + report(1) * 2,),
    ],
)
async def test_an_introduction_that_is_none(pieces: tuple[bytes, ...]) -> None:
    """Lengths that lie, texts that are none, and an answer for another connection are refused."""
    with pytest.raises(ProtocolError):
        await introduced(Line(*pieces))


async def test_a_slave_that_ends_in_the_middle() -> None:
    """An introduction that breaks off is a lost connection."""
    for pieces in ((), (packed()[:9],), (packed(),), (packed(), packed(b"{}")[:13])):
        with pytest.raises(trio.BrokenResourceError):
            await introduced(Line(*pieces))


def test_the_size_has_a_limit() -> None:
    """A stranger does not make the master wait for gigabytes."""
    assert size_of(packed(b"x" * 100)[:12]) == 100
    with pytest.raises(ProtocolError):
        size_of(packed()[:8] + (1 << 20).to_bytes(4, "big"))


async def test_brokers_with_access_control_replicate(tmp_path: Path) -> None:
    """A slave that has the secret follows; it copies users and policies, too."""
    async with (
        running_master(tmp_path / "m", **CHECKED) as master,
        running_slave(tmp_path / "s", master, **CHECKED) as slave,
    ):
        await linked(master)
        await caught_up(master, slave)


async def test_members_of_an_elected_group_introduce_themselves(tmp_path: Path) -> None:
    """The introduction comes before the greeting."""
    async with (
        running_member(tmp_path / "a", "a", **CHECKED) as a,
        running_member(tmp_path / "b", "b", **CHECKED) as b,
    ):
        await lead(a, 1)
        await follow(b, a, 1)
        await until(lambda: bool(ha_master(a).replicas.connected))


async def test_strangers_get_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A stranger gets no byte of the log and acknowledges nothing: without an introduction, with a wrong
    secret, and with an introduction that was heard at another connection."""
    wrong = INNER[0], "wrong-secret"
    async with running_master(tmp_path, **CHECKED) as master:
        heard = b""
        for secret in (None, wrong, INNER):
            async with dialed(master) as stranger:
                if secret is None:
                    await stranger.send(report(0))
                else:
                    await stranger.send(packed())
                    with anyio.fail_after(60):
                        challenge = await stranger.receive()
                    fields = signed(Command(ext={"nonce": challenge[12:].hex()}), *secret).fields()
                    answer = packed(msgspec.json.encode(fields))
                    if secret is INNER:
                        heard = answer
                        break
                    await stranger.send(answer + report(0))
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)), anyio.fail_after(60):
                    await stranger.receive()
        async with dialed(master) as stranger:
            await stranger.send(packed())
            with anyio.fail_after(60):
                await stranger.receive()
            await stranger.send(heard + report(0))
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)), anyio.fail_after(60):
                await stranger.receive()
        assert not ha_master(master).replicas.connected
    assert "secret" not in caplog.text.replace("innerClient", "")


async def test_an_impostor_of_a_member_changes_nothing(tmp_path: Path) -> None:
    """A greeting in the name of a member, with a later start, is not even read without the secret: the true
    member stays in the set, and sends are acknowledged."""
    async with (
        running_member(tmp_path / "a", "a", **CHECKED) as a,
        running_member(tmp_path / "b", "b", **CHECKED) as b,
    ):
        await lead(a, 1, "b")
        await follow(b, a, 1)
        await until(lambda: bool(group_of(a).members()))
        before = group_of(a).members()["b"].start
        async with dialed(a) as impostor:
            await impostor.send(greeted(Greeting("DefaultCluster", "group", "b", 1 << 40, 1)))
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)), anyio.fail_after(60):
                await impostor.receive()
        assert group_of(a).members()["b"].start == before
        assert group_of(a).in_sync == {"a", "b"}
