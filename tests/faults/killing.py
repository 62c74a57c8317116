"""A broker is killed with SIGKILL again and again, over one growing store, and must keep every promise.

    python -m tests.faults.killing --runs 200 --seed 1

A run starts the broker, compares what it has with all that it ever acknowledged, puts it under load and kills it after a number of
acknowledgements that the seed gives; now and then it is also killed while it starts. The flush policies share the runs, each with a store
of its own. The seed gives sizes, order and moments; how the processes' steps interleave is chance.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio
from attrs import define, field

from rmqkit.client import Client
from rmqkit.client.producer import Producer
from rmqkit.errors import RmqError
from rmqkit.model.message import Message
from rmqkit.model.queue import MessageQueue
from tests.faults.kit import PATIENCE_S, POLICIES, SMALL_FILES, serving, spawn
from tests.faults.ledger import READERS, Ledger, body_of

TOPIC = "Kept"
QUEUES = 4
BROKER = "broker-a"
_SENDERS = 8
_MAX_ACKNOWLEDGEMENTS = 600
_EARLY_KILLS = 0.2
_START_S = 0.7
_FULL_CHECK_EVERY = 25
_ASKED = 60


@define
class Killing:
    """One store and its runs. `done` counts what happened: kills, kills during the start, roll-overs are visible in the files."""

    directory: Path
    policy: str
    rng: random.Random
    ledger: Ledger
    store: str = "mmap"
    done: Counter[str] = field(factory=Counter)
    serial: int = 0

    @classmethod
    def begin(cls, directory: Path, policy: str, seed: int, store: str = "mmap") -> Killing:
        directory.mkdir(parents=True)
        return cls(directory, policy, random.Random(f"{policy} {seed}"), Ledger(directory / "ledger.txt", TOPIC), store)

    @property
    def settings(self) -> dict[str, str]:
        return SMALL_FILES | POLICIES[self.policy] | {"store": self.store}

    @property
    def unclean(self) -> bool:
        """Whether the store says that it was not closed."""
        return (self.directory / "data" / ("abort" if self.store == "mmap" else "lmdb/synced")).exists()

    async def run(self, number: int) -> None:
        """Check what the runs before left, then load and kill."""
        if self.rng.random() < _EARLY_KILLS:
            self._kill_while_starting()
        self.ledger.persisted = self.offsets_on_disk()
        with serving(self.directory, self.settings) as server, trio.fail_after(PATIENCE_S):
            async with Client(server.namesrv) as client:
                await self.prepare(client, number)
                await self.load(client, number, after=self.rng.randint(0, _MAX_ACKNOWLEDGEMENTS), end=server.kill)
        assert self.unclean
        self.done["kills"] += 1

    async def prepare(self, client: Client, number: int) -> None:
        """What comes before the load of run `number`: compare everything with what the runs before were promised."""
        if number == 0:
            await client.admin.create_topic(TOPIC, queues=QUEUES)
        await self._check(client, full=number % _FULL_CHECK_EVERY == _FULL_CHECK_EVERY - 1)

    async def finish(self, asked: int = _ASKED) -> None:
        """A last start, everything read, a graceful stop, and once more."""
        for _ in range(2):
            self.ledger.persisted = self.offsets_on_disk()
            with serving(self.directory, self.settings) as server:
                async with Client(server.namesrv) as client:
                    await self._check(client, full=True, asked=asked)
                assert server.stop() == 0
        assert not self.unclean
        assert "Traceback" not in (self.directory / "stderr.txt").read_text()
        self.ledger.close()

    async def _check(self, client: Client, *, full: bool, asked: int = _ASKED) -> None:
        began = time.monotonic()
        await self.ledger.check(client, full=full, asked=asked, rng=self.rng)
        self.done["ms of checks"] += int((time.monotonic() - began) * 1000)

    def _kill_while_starting(self) -> None:
        server = spawn(self.directory, self.settings)
        try:
            ready = server.await_ready(self.rng.uniform(0, _START_S))
        finally:
            server.kill()
        self.done["kills when just started" if ready else "kills while starting"] += 1

    def offsets_on_disk(self) -> dict[int, int]:
        """What consumerOffset.json says of the readers, which never goes back."""
        path = self.directory / "data" / "config" / "consumerOffset.json"
        backup = path.with_name(path.name + ".bak")
        found = next((each for each in (path, backup) if each.exists()), None)
        table = json.loads(found.read_text())["offsetTable"] if found is not None else {}
        offsets = {int(queue): int(offset) for queue, offset in table.get(f"{TOPIC}@{READERS}", {}).items()}
        for queue, offset in self.ledger.persisted.items():
            assert offsets.get(queue, -1) >= offset, f"the group's offset in queue {queue} was {offset} and is {offsets.get(queue)} now"
        return offsets

    # --- load --------------------------------------------------------------------------------------------------------

    async def load(self, client: Client, number: int, *, after: int, end: Callable[[], object]) -> None:
        """Send, consume and make a topic until the broker is gone; `end` is called once, right behind acknowledgement `after`."""
        left = after

        def acknowledged() -> None:
            nonlocal left
            left -= 1
            if left == -1:
                end()

        producer = client.producer("load", retries=0, compress_over_bytes=1 << 30, timeout_ms=PATIENCE_S * 1000)
        async with producer, trio.open_nursery() as nursery:
            for _ in range(_SENDERS):
                nursery.start_soon(self._send, producer, random.Random(self.rng.random()), acknowledged)
            nursery.start_soon(self._consume, client)
            nursery.start_soon(self._make_topic, client, f"Made{number}")

    async def _send(self, producer: Producer, rng: random.Random, acknowledged: Callable[[], None]) -> None:
        """Send until the broker is gone: single messages and batches, with and without keys, to queues chosen here."""
        while True:
            queue = MessageQueue(TOPIC, BROKER, rng.randrange(QUEUES))
            bodies = [self._body(rng) for _ in range(rng.choice((1, 1, 1, rng.randint(2, 12))))]
            messages = [Message(TOPIC, body, keys=(f"k{rng.randrange(1000)}",) if rng.random() < 0.5 else ()) for body in bodies]
            self.ledger.attempt(bodies)
            try:
                sent = await (producer.send(messages[0], queue=queue) if len(messages) == 1 else producer.send_batch(messages, queue=queue))
            except RmqError:
                return
            assert sent.is_ok, sent
            self.ledger.promise(sent, bodies)
            acknowledged()

    def _body(self, rng: random.Random) -> bytes:
        self.serial += 1
        return body_of(self.serial, rng.choice((rng.randrange(300), rng.randrange(300), rng.randrange(4_000), rng.randrange(20_000))), rng)

    async def _consume(self, client: Client) -> None:
        """Read on from the committed offsets and commit."""
        tried = self.ledger.tried
        with suppress(RmqError):
            async with client.pull_consumer(READERS) as consumer:
                queues = [MessageQueue(TOPIC, BROKER, number) for number in range(QUEUES)]
                offsets = {queue: await consumer.committed(queue) or 0 for queue in queues}
                while True:
                    for queue in queues:
                        result = await consumer.pull(queue, offsets[queue])
                        offsets[queue] = result.next_offset
                        tried[queue.queue_id] = max(result.next_offset, tried.get(queue.queue_id, 0))
                        await consumer.commit(queue, result.next_offset)
                        self.ledger.committed[queue.queue_id] = result.next_offset

    async def _make_topic(self, client: Client, topic: str) -> None:
        with suppress(RmqError):
            await client.admin.create_topic(topic, queues=1, route_wait_ms=0)
            self.ledger.topics.add(topic)


async def kill_often(
    directory: Path, policy: str, runs: int, seed: int, *, store: str = "mmap", asked_at_the_end: int = 60, show: bool = False
) -> Counter[str]:
    """So many kills over one store; what happened, counted. Raises AssertionError at the first broken promise."""
    killing = Killing.begin(directory, policy, seed, store)
    for number in range(runs):
        await killing.run(number)
        if show:
            print(f"{policy} run {number + 1}: {len(killing.ledger.promises)} promises kept until then", flush=True)  # noqa: T201
    await killing.finish(asked_at_the_end)
    killing.done["promises"] = len(killing.ledger.promises)
    killing.done["attempts"] = len(killing.ledger.attempted)
    for name, part in (("segments", "commitlog"), ("index files", "index")) if store == "mmap" else ():
        killing.done[name] = len(list((directory / "data" / part).iterdir()))
    return killing.done


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.killing", description="Kill a broker again and again; nothing may be lost."
    )
    parser.add_argument("--runs", type=int, default=200, help="shared among the flush policies (default 200)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", choices=POLICIES, action="append", help="only this one")
    parser.add_argument("--store", choices=("mmap", "lmdb"), default="mmap")
    arguments = parser.parse_args()
    policies = arguments.policy or list(POLICIES)
    directory = Path(tempfile.mkdtemp(prefix="rmqkit-killing-"))
    for policy in policies:
        began = time.monotonic()
        try:
            done = trio.run(
                partial(
                    kill_often,
                    directory / policy,
                    policy,
                    arguments.runs // len(policies),
                    arguments.seed,
                    store=arguments.store,
                    asked_at_the_end=5000,
                    show=True,
                )
            )
        except BaseException:
            words = f"--seed {arguments.seed} --policy {policy} --store {arguments.store}"
            print(f"FAILED under {policy}: replay with {words}; the store is in {directory}", flush=True)  # noqa: T201
            raise
        print(f"{policy}: {time.monotonic() - began:.0f} s, {dict(done)}", flush=True)  # noqa: T201
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
