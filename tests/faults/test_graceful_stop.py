"""SIGTERM while clients send, commit and wait."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
import trio

from rmqkit.client import Client
from tests.faults.killing import Killing
from tests.faults.kit import PATIENCE_S, POLICIES, SMALL_FILES, serving

_STOP_S = 15


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_stop_under_load(tmp_path: Path, policy: str) -> None:
    """Exit code 0 in time, everything acknowledged is there, commits included, the abort file is gone and nothing had to be said."""
    killing = Killing.begin(tmp_path / "store", policy, seed=7)
    settings = SMALL_FILES | POLICIES[policy] | {"flushConsumerOffsetInterval": "3600000"}
    stopped_at = 0.0
    for number in range(2):
        killing.ledger.persisted = killing.offsets_on_disk()
        with trio.fail_after(PATIENCE_S), serving(killing.directory, settings) as server:
            async with Client(server.namesrv) as client:
                await killing.prepare(client, number)

                def stop() -> None:
                    nonlocal stopped_at
                    stopped_at = time.monotonic()
                    server.process.send_signal(signal.SIGTERM)

                await killing.load(client, number, after=200, end=stop)
            code = await trio.to_thread.run_sync(server.process.wait, PATIENCE_S)
            assert code == 0
            assert time.monotonic() - stopped_at < _STOP_S
        assert not (killing.directory / "data" / "abort").exists()
        assert len(killing.ledger.promises) > 200
        assert killing.ledger.committed
        for queue_id, offset in killing.ledger.committed.items():
            assert killing.offsets_on_disk()[queue_id] >= offset
    await killing.finish()
