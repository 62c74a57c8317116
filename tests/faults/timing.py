"""Kills a broker with timers repeatedly with SIGKILL over one growing store, and checks that each timed
message is delivered once, none early, and none that was deleted.

    python -m tests.faults.timing --runs 50 --seed 1

A run starts the broker, sends messages that are due at once, within the run, after it, and beyond the window
in which they wait, deletes some, and kills the broker at a time chosen by the seed.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import trio
from attrs import define, field

from rmqkit.client import Client, Message
from rmqkit.client.producing.producer import Producer
from rmqkit.client.producing.send_result import SendStatus
from rmqkit.errors import RmqError
from tests.faults.kit import POLICIES, SMALL_FILES, Server, read_all, serving, until

TOPIC = "Timed"
#: Slots of a tenth of a second, a window of two seconds, small files.
SETTINGS = {
    "timerPrecisionMs": "100",
    "timerRollWindowSlot": "20",
    "timerFlushIntervalMs": "200",
    "mappedFileSizeTimerLog": "5000",
}
_MESSAGES = 60
_LONGEST_MS = 6_000
#: A deletion counts when it was acknowledged so long before the time of its message.
_DELETION_MS = 1_000


@define
class Timing:
    """One store, its runs, and what was promised.

    due_ms   body -> the time of an acknowledged message
    asked    bodies that were sent, acknowledged or not
    deleted  bodies that must not come
    """

    directory: Path
    settings: dict[str, str]
    rng: random.Random
    due_ms: dict[bytes, int] = field(factory=dict)
    asked: set[bytes] = field(factory=set)
    deleted: set[bytes] = field(factory=set)
    kills: int = 0

    @classmethod
    def begin(cls, directory: Path, policy: str, seed: int, store: str = "mmap") -> Timing:
        directory.mkdir(parents=True)
        settings = SMALL_FILES | SETTINGS | POLICIES[policy] | {"store": store}
        return cls(directory, settings, random.Random(f"{policy} {seed}"))

    async def run(self, number: int) -> None:
        """Start the broker, send, and kill it."""
        with serving(self.directory, self.settings) as server:
            async with (
                Client(server.namesrv) as client,
                client.producer("p", retries=0) as producer,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(self._kill_after, server, self.rng.uniform(0.1, 3.0))
                for serial in range(_MESSAGES):
                    with suppress(RmqError):
                        await self._send(producer, b"%d %d" % (number, serial))
                    await trio.sleep(0.02)
        self.kills += 1

    async def _kill_after(self, server: Server, seconds: float) -> None:
        await trio.sleep(seconds)
        server.kill()

    async def _send(self, producer: Producer, body: bytes) -> None:
        due_ms = int(time.time() * 1000) + self.rng.randint(0, _LONGEST_MS)
        asks = {"TIMER_DELIVER_MS": str(due_ms)}
        self.asked.add(body)
        sent = await producer.send(Message(TOPIC, body, properties=asks))
        if sent.status is not SendStatus.SEND_OK:
            return
        if self.rng.random() < 0.2:
            # It may come until its deletion is acknowledged in time.
            key = {"TIMER_DEL_UNIQKEY": f"{TOPIC}+{sent.message_id}"}
            deletion = await producer.send(Message(TOPIC, b"0", properties=asks | key))
            now_ms = int(time.time() * 1000)
            if deletion.status is SendStatus.SEND_OK and now_ms + _DELETION_MS < due_ms:
                self.deleted.add(body)
            return
        self.due_ms[body] = due_ms

    async def finish(self) -> None:
        """Start once more, wait for everything, and compare."""
        with serving(self.directory, self.settings) as server:
            async with Client(server.namesrv) as client:
                counts: Counter[bytes] = Counter()

                async def is_all_there() -> bool:
                    nonlocal counts
                    counts = await self._received(client)
                    return self.due_ms.keys() <= counts.keys()

                last_ms = max(self.due_ms.values())
                await trio.sleep(max(0.0, last_ms / 1000 - time.time()) + 0.5)
                await until(is_all_there)
                assert set(counts.values()) <= {1}, [each for each in counts if counts[each] > 1]
                assert counts.keys() <= self.asked
                assert not counts.keys() & self.deleted
            assert server.stop() == 0
        assert "Traceback" not in (self.directory / "stderr.txt").read_text()

    async def _received(self, client: Client) -> Counter[bytes]:
        found = [each for queue in (await read_all(client, TOPIC)).values() for each in queue]
        for message in found:
            assert message.store_timestamp_ms >= int(message.properties["TIMER_DELIVER_MS"])
        return Counter(message.body for message in found)


async def kill_often(directory: Path, policy: str, runs: int, seed: int, store: str = "mmap") -> Timing:
    """Some runs over one store, and the check; returns what was promised."""
    timing = Timing.begin(directory, policy, seed, store)
    for number in range(runs):
        await timing.run(number)
    await timing.finish()
    return timing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", default="mmap")
    parser.add_argument("--policy", default="ASYNC_FLUSH", choices=POLICIES)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        done = trio.run(
            kill_often, Path(directory) / "store", given.policy, given.runs, given.seed, given.store
        )
    sys.stdout.write(
        f"{done.kills} kills, {len(done.due_ms)} messages delivered once, {len(done.deleted)} deleted\n"
    )


if __name__ == "__main__":
    main()
