"""A replica whose log was damaged by a loss of power."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmqkit.errors import ConfigError, StoreError
from rmqkit.protocol.codes import ResponseCode
from rmqkit_ha.damage import KnownDamage
from tests.killed import killed
from tests.plugins.ha.pair import (
    caught_up,
    follow,
    group_of,
    lead,
    linked,
    raw_log,
    running_master,
    running_member,
    running_slave,
    send,
    until,
)
from tests.plugins.ha.test_pair import bodies


def crashed(directory: Path, after: Path, body: bytes) -> None:
    """Write what a crash leaves of the store of a running broker, with one byte of a body damaged."""
    killed(directory, after)
    segment = min((after / "commitlog").iterdir())
    data = segment.read_bytes()
    at = data.index(body)
    segment.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    # What it says to be on the device is not read again, and on a slow machine that is everything.
    (after / "checkpoint").unlink()


async def test_a_slave_copies_a_damaged_end_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its last record is the master's, and yet a message in between is not."""
    sent = bodies(1, 9)
    async with running_master(tmp_path / "m", store="mmap") as master:
        async with running_slave(tmp_path / "s", master, store="mmap") as slave:
            await linked(master)
            await send(master, *sent)
            await caught_up(master, slave)
            crashed(tmp_path / "s", tmp_path / "s2", sent[4])
        async with running_slave(tmp_path / "s2", master, store="mmap") as slave:
            await until(lambda: raw_log(slave.context.store) == raw_log(master.context.store))
            assert sent[4] in bytes(raw_log(slave.context.store))
    assert "was damaged at" in caplog.text
    caplog.clear()
    async with (
        running_master(tmp_path / "m", store="mmap") as master,
        running_slave(tmp_path / "s2", master, store="mmap") as slave,
    ):
        await linked(master)
        await caught_up(master, slave)
    assert "was damaged at" not in caplog.text


async def test_the_epoch_of_a_damaged_master_begins_at_the_damage(tmp_path: Path) -> None:
    """The other members have then what it has, and not the message that it has lost."""
    sent = bodies(1, 9)
    async with running_member(tmp_path / "b", "b", store="mmap") as b:
        async with running_member(tmp_path / "a", "a", store="mmap") as a:
            await lead(a, 1)
            await follow(b, a, 1)
            assert {each.code for each in await send(a, *sent)} == {ResponseCode.SUCCESS}
            await caught_up(a, b)
            crashed(tmp_path / "a", tmp_path / "a2", sent[4])
            start = bytes(raw_log(a.context.store)).index(sent[4])
        async with running_member(tmp_path / "a2", "a", store="mmap") as a:
            await lead(a, 2)
            assert 0 < group_of(a).epochs.known[-1].start < start  # type: ignore[attr-defined]
            await follow(b, a, 2)
            await until(lambda: raw_log(b.context.store) == raw_log(a.context.store))
            assert sent[3] in bytes(raw_log(b.context.store))
            assert sent[4] not in bytes(raw_log(b.context.store))


async def test_damage_is_remembered_until_it_is_forgotten(tmp_path: Path) -> None:
    """A recovery finds it once, and the broker may be killed before it is cut; the first damage counts."""
    path = tmp_path / "replicaDamage.json"
    KnownDamage(tmp_path).load(None)
    assert not path.exists()
    KnownDamage(tmp_path).load(700)
    KnownDamage(tmp_path).load(900)
    damage = KnownDamage(tmp_path)
    damage.load(None)
    assert damage.offset == 700
    await damage.forget()
    await damage.forget()
    again = KnownDamage(tmp_path)
    again.load(None)
    assert again.offset is None
    assert json.loads(path.read_text()) == {"offset": None}


async def test_a_directory_that_takes_no_file(tmp_path: Path) -> None:
    """The broker does not start, or the damage is not forgotten."""
    damage = KnownDamage(tmp_path / "config")
    (tmp_path / "config").write_text("a file in place of the directory")
    with pytest.raises(ConfigError, match=r"replicaDamage\.json"):
        damage.load(700)
    damage.offset = 700
    with pytest.raises(StoreError, match=r"replicaDamage\.json"):
        await damage.forget()
    assert damage.offset == 700
