"""SIGTERM while clients send, commit and wait."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import trio

from rmqkit.client import Client
from tests.faults.killing import Killing
from tests.faults.kit import PATIENCE_S, POLICIES, SMALL_FILES, serving


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_stop_under_load(tmp_path: Path, policy: str) -> None:
    """The exit code is 0, everything acknowledged exists including commits, the abort file is gone
    and nothing was logged."""
    killing = Killing.begin(tmp_path / "store", policy, seed=7)
    settings = SMALL_FILES | POLICIES[policy] | {"flushConsumerOffsetInterval": "3600000"}
    for number in range(2):
        killing.ledger.persisted = killing.offsets_on_disk()
        with trio.fail_after(PATIENCE_S), serving(killing.directory, settings) as server:
            async with Client(server.namesrv) as client:
                await killing.prepare(client, number)
                await killing.load(
                    client,
                    number,
                    after=200,
                    end=lambda: server.process.send_signal(signal.SIGTERM),
                    ready=lambda: bool(killing.ledger.committed),
                )
            code = await trio.to_thread.run_sync(server.process.wait, PATIENCE_S)
            assert code == 0
        assert not (killing.directory / "data" / "abort").exists()
        assert len(killing.ledger.promises) > 200
        assert killing.ledger.committed
        for queue_id, offset in killing.ledger.committed.items():
            assert killing.offsets_on_disk()[queue_id] >= offset
    await killing.finish()
