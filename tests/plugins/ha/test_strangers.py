"""What arrives at the replication port from others than slaves."""

from __future__ import annotations

import logging
from pathlib import Path

import anyio
import pytest

from rmqkit_ha.frames import frame_head, report
from tests.plugins.ha.pair import caught_up, dialed, linked, running_master, running_slave, send


@pytest.mark.parametrize(
    "sent",
    [b"GET / HTTP/1.1\r\n\r\n", report(-1), report(1 << 40), report(1)],
    ids=["http", "-1", "far", "1"],
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
        assert "is no slave of this broker, closed" in lines[0]
        await send(master, b"one")
        await caught_up(master, slave)


@pytest.mark.row("S278")
async def test_the_first_frame_is_a_heartbeat(tmp_path: Path) -> None:
    """A slave that reports where its log ends learns at once that the master goes on there."""
    async with running_master(tmp_path) as master, dialed(master) as slave:
        await slave.send(report(0))
        with anyio.fail_after(60):
            assert await slave.receive() == frame_head(0, 0)
