"""A master and a slave: the log arrives byte by byte, and SEND_OK waits for it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from rmqkit.plugin.role import Role
from rmqkit.protocol.codes import ResponseCode
from tests.plugins.ha.pair import TOPIC, caught_up, linked, raw_log, running_master, running_slave, send

STORES = ("memory", "mmap", "lmdb")


def bodies(seed: int, count: int, most_bytes: int = 9_000) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(rng.randrange(1, most_bytes)) for _ in range(count)]


@pytest.mark.parametrize("slave_store", STORES)
@pytest.mark.parametrize("master_store", STORES)
async def test_the_logs_are_equal(tmp_path: Path, master_store: str, slave_store: str) -> None:
    """A slave with any store gets the bytes of a master with any store, over several files, and can be
    queried for the messages."""
    async with (
        running_master(tmp_path / "m", store=master_store) as master,
        running_slave(tmp_path / "s", master, store=slave_store) as slave,
    ):
        await linked(master)
        for answer in await send(master, *bodies(1, 40)):
            assert answer.code == ResponseCode.SUCCESS
        await caught_up(master, slave)
        stores = master.context.store, slave.context.store
        assert raw_log(stores[0]) == raw_log(stores[1])
        assert [store.max_offset(TOPIC, 0) for store in stores] == [40, 40]
        assert slave.context.role.current is Role.SLAVE


async def test_over_tls(tmp_path: Path) -> None:
    """The log travels encrypted where the listener for slaves is one of TLS."""
    encrypted = {"tls.test.mode.enable": True}
    async with (
        running_master(tmp_path / "m", **{"plugins.ha.listen": "tls://127.0.0.1:0"} | encrypted) as master,
        running_slave(tmp_path / "s", master, **encrypted) as slave,
    ):
        assert master.context.replication.own.startswith("tls://")
        await linked(master)
        (answer,) = await send(master, b"one")
        assert answer.code == ResponseCode.SUCCESS
        await caught_up(master, slave)
        assert raw_log(master.context.store) == raw_log(slave.context.store)
