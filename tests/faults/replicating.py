"""Kills a master and its slave repeatedly with SIGKILL under load. One seed replays the choices of a run.

    python -m tests.faults.replicating --runs 50 --seed 1

Under SYNC_MASTER with two copies a producer goes on while either broker, or both, are killed and started
again; half of the killed brokers with log files (the mmap store's) also get a torn record at the end of the
log, as a crash in the middle of a write leaves it. In the end every message that was answered with SEND_OK is
in both logs, and the slave's records are, byte for byte, the master's up to where its log ends. The pairs of
stores take turns. The seed determines what is killed and when, counted in
messages; the interleaving of the processes is random.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import trio
from attrs import define, field

from rmqkit.client import Client, Producer, RmqError, SendStatus
from rmqkit.protocol.record import MAGIC_BLANK, peek_size_and_magic
from tests import programs
from tests.faults.disturbing import Disturbed
from tests.faults.kit import SMALL_FILES, Server, set_words, spawn, started
from tests.ports import free_port
from tests.seeded_runs import repeat

KILLS = 4
#: The stores of master and slave; the seed of a run chooses.
STORES = (("mmap", "mmap"), ("lmdb", "mmap"), ("mmap", "lmdb"), ("lmdb", "lmdb"))
TOPIC = "T"
PAIR = SMALL_FILES | {
    "brokerName": "pair",
    "haSendHeartbeatInterval": "200",
    "slaveTimeout": "500",
    "plugins.ha.retryIntervalMs": "50",
    "plugins.ha.tablesIntervalMs": "100",
}


@define(kw_only=True)
class Pair(Disturbed):
    """One run with two brokers."""

    directory: Path
    ports: tuple[int, int, int]
    stores: tuple[str, str]
    servers: dict[str, Server] = field(factory=dict)
    kills: int = 0
    torn: int = 0

    @classmethod
    def begin(cls, directory: Path, seed: int, stores: tuple[str, str]) -> Pair:
        for name in ("master", "slave"):
            (directory / name).mkdir(parents=True)
        ports = free_port(), free_port(-2), free_port()
        pair = cls(directory=directory, chance=random.Random(seed), ports=ports, stores=stores)
        pair.start("master", "slave")
        return pair

    @property
    def namesrv(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    def start(self, *names: str) -> None:
        for name in names:
            self.servers[name] = self._master() if name == "master" else self._slave()

    def _master(self) -> Server:
        keys = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2", "haListenPort": f"{self.ports[2]}"}
        keys["store"] = self.stores[0]
        return spawn(self.directory / "master", PAIR | keys, ports=self.ports[:2])

    def _slave(self) -> Server:
        keys = {
            "brokerRole": "SLAVE",
            "brokerId": "1",
            "store": self.stores[1],
            "haMasterAddress": f"127.0.0.1:{self.ports[2]}",
            "plugins.ha.masterAddress": f"127.0.0.1:{self.ports[1]}",
        }
        words = ["broker", "--data", "data", "--broker", "127.0.0.1:0", *set_words(PAIR | keys)]
        return started(words, self.directory / "slave")

    async def await_ready(self, *names: str) -> None:
        for name in names:
            assert await trio.to_thread.run_sync(self.servers[name].await_ready), name

    async def produce(self, producer: Producer) -> None:
        """Send until the kills are over; what was answered with SEND_OK counts."""
        number = 0
        while not self.over.is_set():
            number += 1
            body = b"%d " % number + b"x" * (number * 7919 % 2_000)
            try:
                found = await producer.send(TOPIC, body)
            except RmqError:
                continue
            if found.status is SendStatus.SEND_OK:
                self.acknowledged.add(body)

    async def kill_some(self) -> None:
        """Kill one broker or both, and start them again."""
        names = self.chance.choice([("master",), ("slave",), ("master", "slave"), ("slave", "master")])
        for name in names:
            await trio.to_thread.run_sync(self.servers[name].kill)
            self.kills += 1
        for name in names:
            if self.chance.random() < 0.5:
                self.torn += tear(self.directory / name / "data", self.chance)
        self.start(*names)
        await self.await_ready(*names)

    def check(self) -> None:
        """Stop both brokers, and compare what they have."""
        for name, store in zip(("master", "slave"), self.stores, strict=True):
            assert self.servers[name].stop() == 0, name
            words = ["store", "verify", "data", *set_words(SMALL_FILES | {"store": store})]
            checked = programs.run(words, self.directory / name)
            assert checked.returncode == 0, (name, checked.stdout[-2_000:], checked.stderr[-2_000:])
        master, slave = (records(self.directory / name / "data") for name in ("master", "slave"))
        end = max(slave, default=-1)
        assert slave == {at: record for at, record in master.items() if at <= end}, "the logs differ"
        for name, log in (("the master", master), ("the slave", slave)):
            self.check_none_lost(log.values(), name)

    def kill(self) -> None:
        for server in self.servers.values():
            if server.process.poll() is None:
                server.kill()


def log_files(data: Path) -> list[Path]:
    return sorted((data / "commitlog").glob("*[0-9]"))


def sizes(log: bytes) -> list[int]:
    """The sizes of the records at the beginning of a log, blank ones included."""
    found, at = [], 0
    while at + 8 <= len(log):
        size, _ = peek_size_and_magic(log, at)
        if not 8 <= size <= len(log) - at:
            break
        found.append(size)
        at += size
    return found


def whole_records(data: Path) -> bytes:
    """A log that was never trimmed, up to its end."""
    log = b"".join(path.read_bytes() for path in log_files(data))
    return log[: sum(sizes(log))]


def records(data: Path) -> dict[int, bytes]:
    """The records of a log that was never trimmed, by their log offsets, without blank ones."""
    if (data / "lmdb").is_dir():
        # Imported here because it needs the package lmdb.
        from rmqkit_store_lmdb.tools.copying import read_log

        with read_log(data) as source:
            pieces = list(source.pieces)
    else:
        pieces = [(0, whole_records(data))]
    found = {}
    for offset, piece in pieces:
        at = 0
        for size in sizes(piece):
            if peek_size_and_magic(piece, at)[1] != MAGIC_BLANK:
                found[offset + at] = piece[at : at + size]
            at += size
    return found


def tear(data: Path, chance: random.Random) -> bool:
    """Write the beginning of another record behind the last one, as far as the file goes. Returns whether
    there are log files with a record."""
    log = whole_records(data)
    found = sizes(log)
    if not found:
        return False
    last = log[len(log) - found[-1] :]
    file_bytes = log_files(data)[0].stat().st_size
    path, at = log_files(data)[len(log) // file_bytes], len(log) % file_bytes
    part = last[: min(chance.randrange(1, max(2, len(last) - 8)), file_bytes - at)]
    with path.open("r+b") as file:
        file.seek(at)
        file.write(part)
    return True


async def survive(directory: Path, seed: int, stores: tuple[str, str] = STORES[0]) -> Pair:
    """One run, with the stores of master and slave. Raises AssertionError at the first broken promise."""
    pair = Pair.begin(directory, seed, stores)
    try:
        await pair.await_ready("master", "slave")
        async with (
            Client(pair.namesrv) as client,
            client.producer("producers", timeout_ms=10_000) as producer,
            trio.open_nursery() as nursery,
        ):
            await client.admin.create_topic(TOPIC, queues=2)
            nursery.start_soon(pair.disturb, [pair.kill_some] * KILLS, 150)
            await pair.produce(producer)
        await trio.to_thread.run_sync(pair.check)
    finally:
        await trio.to_thread.run_sync(pair.kill)
    return pair


def _kills(directory: Path, seed: int) -> dict[str, int]:
    pair = trio.run(survive, directory, seed, STORES[seed % len(STORES)])
    return {
        "kills": pair.kills,
        "torn ends": pair.torn,
        "messages acknowledged and in both logs": len(pair.acknowledged),
    }


if __name__ == "__main__":
    sys.exit(
        repeat(
            "tests.faults.replicating",
            "Kill a master and its slave again and again; nothing acknowledged may be lost.",
            _kills,
        )
    )
