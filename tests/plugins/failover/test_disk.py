"""The probe of the disk, and the file of a member's starts."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from rmqkit_failover.disk import DiskProbe
from rmqkit_failover.start_file import StartFile, boot_id
from rmqkit_failover.state import Past
from tests.plugins.ha.pair import PATIENCE_S


async def test_a_probe_knows_when_the_disk_took_a_write(tmp_path: Path) -> None:
    """The moment is that of the beginning of the write; nothing is left behind."""
    probe = DiskProbe(tmp_path / "config", 0.001)
    before_s = trio.current_time()
    assert not probe.wrote_since(before_s)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(probe.run)
        with trio.fail_after(PATIENCE_S):
            await probe.wrote.wait()
        assert probe.wrote_since(before_s)
        assert not probe.wrote_since(trio.current_time() + PATIENCE_S)
        nursery.cancel_scope.cancel()
    assert list((tmp_path / "config").iterdir()) == []


async def test_a_disk_that_takes_no_write_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The probe goes on."""
    probe = DiskProbe(tmp_path / "config", 0.001)
    probe.path.mkdir(parents=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(probe.run)
        with trio.fail_after(PATIENCE_S):
            while "the disk takes no write" not in caplog.text:  # noqa: ASYNC110 - a log line is not an event
                await trio.sleep(0.001)
        assert not probe.wrote.is_set()
        probe.path.rmdir()
        with trio.fail_after(PATIENCE_S):
            await probe.wrote.wait()
        nursery.cancel_scope.cancel()


def reopened(directory: Path, boot: str) -> StartFile:
    file = StartFile(directory, boot)
    file.load()
    return file


def test_a_member_is_whole_while_its_machine_runs(tmp_path: Path) -> None:
    """A killed process leaves what it wrote to the operating system; a restarted machine may not have it."""
    first = reopened(tmp_path, "run 1")
    assert first.past(0, is_synced=False) == Past(is_whole=False, is_own=True, alone=0)
    assert first.begin(0) == 1
    first.registered()
    assert reopened(tmp_path, "run 1").past(1, is_synced=False) == Past()
    assert not reopened(tmp_path, "run 2").past(1, is_synced=False).is_whole
    assert reopened(tmp_path, "run 2").past(1, is_synced=True).is_whole


def test_a_start_that_was_not_registered_vouches_for_nothing(tmp_path: Path) -> None:
    """The machine was restarted, and a process after that was killed before the coordinator knew it: what was
    acknowledged before may be gone."""
    first = reopened(tmp_path, "run 1")
    first.begin(0)
    first.registered()
    second = reopened(tmp_path, "run 2")
    assert second.begin(1) == 2
    third = reopened(tmp_path, "run 2")
    assert third.past(2, is_synced=False) == Past(is_whole=False, is_own=True, alone=0)
    assert third.begin(2) == 3


def test_an_empty_directory_is_not_the_one_of_the_member(tmp_path: Path) -> None:
    """It stays so until a process is registered; numbers go on after the coordinator's."""
    first = reopened(tmp_path, "run 1")
    assert not first.past(4, is_synced=True).is_own
    assert first.begin(4) == 5
    again = reopened(tmp_path, "run 1")
    assert not again.past(4, is_synced=True).is_own
    assert not again.past(5, is_synced=True).is_own
    assert again.begin(5) == 6
    again.registered()
    assert reopened(tmp_path, "run 1").past(6, is_synced=True).is_own


def test_the_number_of_acknowledging_alone_is_kept(tmp_path: Path) -> None:
    """Over starts."""
    first = reopened(tmp_path, "run 1")
    first.begin(0)
    first.alone(3)
    assert reopened(tmp_path, "run 1").past(1, is_synced=False).alone == 3


def test_an_unnamed_run_of_the_system_vouches_for_nothing(tmp_path: Path) -> None:
    """Where the operating system gives its runs no name, only synced messages are whole."""
    first = reopened(tmp_path, "")
    first.begin(0)
    first.registered()
    assert not reopened(tmp_path, "").past(1, is_synced=False).is_whole
    assert boot_id() == boot_id()
