"""SIGKILL under load, repeatedly, over one store (tests.faults.killing contains the runs)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from rmqkit.client import Client
from rmqkit.protocol.record import unpack
from tests.faults.killing import BROKER, TOPIC, Killing, kill_often
from tests.faults.kit import POLICIES, SMALL_FILES, serving
from tests.faults.ledger import Ledger, Promise

RUNS = 6
RUNS_OF_OTHERS = 3
SEED = 20_261


@pytest.mark.row("S256", "S261")
@pytest.mark.parametrize("policy", POLICIES)
async def test_nothing_acknowledged_is_lost_by_kills(tmp_path: Path, policy: str) -> None:
    """Every acknowledged message stays at its place with its body and is found by its id; places are used
    once and without gaps; a group's offset is the one on disk; topics stay."""
    done = await kill_often(tmp_path / "store", policy, RUNS, SEED)
    assert done["kills"] == RUNS
    assert done["promises"] > 100
    assert done["segments"] > 2


@pytest.mark.parametrize("policy", POLICIES)
async def test_nothing_acknowledged_is_lost_by_kills_over_lmdb(tmp_path: Path, policy: str) -> None:
    """The same promises hold for the store lmdb."""
    done = await kill_often(tmp_path / "store", policy, RUNS_OF_OTHERS, SEED, store="lmdb")
    assert done["kills"] == RUNS_OF_OTHERS
    assert done["promises"] > 100


async def killed_once(directory: Path) -> Killing:
    killing = Killing.begin(directory, "ASYNC_FLUSH", SEED)
    await killing.run(0)
    assert killing.ledger.promises
    # On a slow machine the broker has written offsets during its run.
    killing.ledger.persisted = killing.offsets_on_disk()
    return killing


async def check_after(killing: Killing) -> None:
    with serving(killing.directory, SMALL_FILES) as server:
        async with Client(server.namesrv) as client:
            await killing.ledger.check(client, full=True, asked=10, rng=random.Random(1))
    killing.ledger.close()


async def test_a_record_that_is_gone_is_noticed(tmp_path: Path) -> None:
    """The check fails if the last acknowledged record is erased from the disk before the next start."""
    killing = await killed_once(tmp_path / "store")
    log = bytearray((killing.directory / "data" / "commitlog" / ("0" * 20)).read_bytes())
    places = {}
    at = 0
    while at + 8 <= len(log) and int.from_bytes(log[at : at + 4], "big"):
        stored = unpack(bytes(log), at)
        places[stored.topic, stored.queue_id, stored.queue_offset] = (at, stored.size_bytes)
        at += stored.size_bytes
    last = max(
        place for key, place in places.items() if key[0] == TOPIC and key[1:] in killing.ledger.promises
    )
    log[last[0] :] = bytes(len(log) - last[0])
    (killing.directory / "data" / "commitlog" / ("0" * 20)).write_bytes(log)
    with pytest.raises(AssertionError, match="lost: Promise"):
        await check_after(killing)


@pytest.mark.parametrize("fault", ["lost", "back", "settings", "retries"])
async def test_a_broken_promise_about_tables_is_noticed(tmp_path: Path, fault: str) -> None:
    """The check fails for a lost topic, one that reappeared, and changed settings of a topic or group."""
    killing = await killed_once(tmp_path / "store")
    tables = killing.tables
    with serving(killing.directory, killing.settings) as server:
        async with Client(server.namesrv) as client:
            await tables.check(client, random.Random(1))
            match fault:
                case "lost":
                    tables.topics["NeverMade"] = {1}
                case "back":
                    tables.topics[TOPIC] = {None}
                case "settings":
                    tables.topics[TOPIC] = {9}
                case "retries":
                    tables.groups["NeverMade"] = {9}
            with pytest.raises(AssertionError, match="acknowledged or asked for"):
                await tables.check(client, random.Random(1))
    killing.ledger.close()


@pytest.mark.parametrize("fault", ["body", "place", "id", "topic", "offset"])
async def test_a_broken_promise_is_noticed(tmp_path: Path, fault: str) -> None:
    """The check fails for another body, an unused place, another id, a topic that was never created, and a
    consumer offset that differs from the disk."""
    killing = await killed_once(tmp_path / "store")
    ledger = killing.ledger
    (queue_id, offset), given = ledger.promises.popitem()
    match fault:
        case "body":
            ledger.promises[queue_id, offset] = Promise(given.message_id, queue_id, offset, "0" * 64)
        case "place":
            ledger.promises[queue_id, 1 << 20] = given
        case "id":
            ledger.promises[queue_id, offset] = Promise("0" * 32, queue_id, offset, given.digest)
        case "topic":
            ledger.topics.add("NeverMade")
        case "offset":
            ledger.persisted[queue_id] = 1 << 20
    with pytest.raises(AssertionError, match="lost" if fault != "offset" else "committed is"):
        await check_after(killing)


def test_two_promises_of_one_place_are_noticed(tmp_path: Path) -> None:
    """Two promises of one place are also detected during the load."""
    from rmqkit.client.producing.send_result import SendResult, SendStatus
    from rmqkit.model.queue import MessageQueue

    ledger = Ledger(tmp_path / "ledger.txt", TOPIC)
    sent = SendResult(SendStatus.SEND_OK, "A", "", MessageQueue(TOPIC, BROKER, 0), 7)
    ledger.promise(sent, [b"body"])
    with pytest.raises(AssertionError, match="was promised the place"):
        ledger.promise(sent, [b"body"])
    ledger.close()
