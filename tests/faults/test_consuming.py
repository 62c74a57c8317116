"""Consumers while their broker is killed (tests.faults.consuming contains the runs), and while they are told
to stop."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

from rmqkit.client import Client
from tests.faults.consuming import KILLS, survive
from tests.faults.kit import SMALL_FILES, serving, until
from tests.programs import Program, spawn

PROGRAM = str(Path(__file__).with_name("member_program.py"))


async def test_no_message_is_lost_by_kills_of_the_broker(tmp_path: Path) -> None:
    """Every acknowledged message is handled, and no offset is committed before its messages are handled."""
    survival = await survive(tmp_path / "broker", seed=1)
    assert survival.kills == KILLS
    assert len(survival.acknowledged) > 20 * KILLS


def _member(directory: Path, namesrv: str, log: Path) -> Program:
    """A consumer in a process of its own."""
    with open(os.devnull, "r+b") as null, (directory / "stderr.txt").open("ab") as errors:
        words = [PROGRAM, namesrv, "g", "T", str(log)]
        return spawn(words, directory, stdin=null.fileno(), stdout=null.fileno(), stderr=errors.fileno())


async def test_sigterm_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """A consumer that gets SIGTERM finishes the messages in hand, commits them and ends with exit code 0; the
    next one continues after them. Every message is handled once."""
    log = tmp_path / "handled"
    log.touch()
    bodies = {b"%d" % number for number in range(400)}

    def handled() -> list[bytes]:
        return log.read_bytes().splitlines()

    home = tmp_path / "broker"
    home.mkdir()
    with serving(home, SMALL_FILES) as server:
        async with Client(server.namesrv) as client, client.producer("producers") as producer:
            await client.admin.create_topic("T", queues=3)
            for body in sorted(bodies):
                await producer.send("T", body)
        for part in (50, 150, 400):
            member = _member(tmp_path, server.namesrv, log)
            try:
                await until(lambda part=part: len(handled()) >= part)  # type: ignore[misc]
                member.send_signal(signal.SIGTERM)
                assert member.wait() == 0
            finally:
                member.kill()
    assert {body: times for body, times in Counter(handled()).items() if times > 1} == {}
    assert set(handled()) == bodies
