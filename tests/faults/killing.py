"""Kills a broker repeatedly with SIGKILL over one growing store and checks that it keeps every promise.

    python -m tests.faults.killing --runs 200 --seed 1

A run starts the broker, compares its content with everything that it has ever acknowledged, puts it under
load and kills it after a number of acknowledgements chosen by the seed; sometimes it is also killed during
the start. The load sends, consumes, creates, changes and deletes topics and groups. The ways of storing
(`WAYS`) share the runs, each with its own store. The seed determines sizes, order and times; the interleaving
of the processes is random.
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
from rmqkit.client.producing.producer import Producer
from rmqkit.errors import RmqError
from rmqkit.model.message import Message
from rmqkit.model.queue import MessageQueue
from tests.faults.changing_tables import ChangingTables
from tests.faults.kit import PATIENCE_S, POLICIES, SMALL_FILES, serving, spawn
from tests.faults.ledger import READERS, Ledger, body_of

TOPIC = "Kept"
QUEUES = 4
BROKER = "broker-a"
#: The ways of storing that share `--runs`.
WAYS = (*(("mmap", policy) for policy in POLICIES), ("lmdb", "ASYNC_FLUSH"))
_SENDERS = 8
_MAX_ACKNOWLEDGEMENTS = 600
_EARLY_KILLS = 0.2
_START_S = 0.7
_FULL_CHECK_EVERY = 25
_ASKED = 60


@define
class Killing:
    """One store and its runs. `done` counts the events: kills, kills during the start, roll-overs seen in the
    files."""

    directory: Path
    policy: str
    rng: random.Random
    ledger: Ledger
    store: str = "mmap"
    tables: ChangingTables = field(factory=ChangingTables)
    done: Counter[str] = field(factory=Counter)
    serial: int = 0

    @classmethod
    def begin(cls, directory: Path, policy: str, seed: int, store: str = "mmap") -> Killing:
        directory.mkdir(parents=True)
        return cls(
            directory,
            policy,
            random.Random(f"{policy} {seed}"),
            Ledger(directory / "ledger.txt", TOPIC),
            store,
        )

    @property
    def settings(self) -> dict[str, str]:
        return SMALL_FILES | POLICIES[self.policy] | {"store": self.store}

    @property
    def unclean(self) -> bool:
        """Whether the store was not closed properly."""
        return (self.directory / "data" / ("abort" if self.store == "mmap" else "lmdb/synced")).exists()

    async def run(self, number: int) -> None:
        """Check the promises of earlier runs, then load and kill."""
        if self.rng.random() < _EARLY_KILLS:
            self._kill_while_starting()
        self.ledger.persisted = self.offsets_on_disk()
        with serving(self.directory, self.settings) as server, trio.fail_after(PATIENCE_S):
            async with Client(server.namesrv) as client:
                await self.prepare(client, number)
                await self.load(
                    client, number, after=self.rng.randint(0, _MAX_ACKNOWLEDGEMENTS), end=server.kill
                )
        assert self.unclean
        self.done["kills"] += 1

    async def prepare(self, client: Client, number: int) -> None:
        """Before the load of run `number`, compare everything with the promises of earlier runs."""
        if number == 0:
            await client.admin.create_topic(TOPIC, queues=QUEUES)
        await self._check(client, full=number % _FULL_CHECK_EVERY == _FULL_CHECK_EVERY - 1)

    async def finish(self, asked: int = _ASKED) -> None:
        """Start once more, read everything, stop gracefully, and repeat."""
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
        await self.tables.check(client, self.rng)
        self.done["ms of checks"] += int((time.monotonic() - began) * 1000)

    def _kill_while_starting(self) -> None:
        server = spawn(self.directory, self.settings)
        try:
            ready = server.await_ready(self.rng.uniform(0, _START_S))
        finally:
            server.kill()
        self.done["kills when just started" if ready else "kills while starting"] += 1

    def offsets_on_disk(self) -> dict[int, int]:
        """The readers' offsets in consumerOffset.json, which never decrease."""
        path = self.directory / "data" / "config" / "consumerOffset.json"
        backup = path.with_name(path.name + ".bak")
        found = next((each for each in (path, backup) if each.exists()), None)
        table = json.loads(found.read_text())["offsetTable"] if found is not None else {}
        offsets = {int(queue): int(offset) for queue, offset in table.get(f"{TOPIC}@{READERS}", {}).items()}
        for queue, offset in self.ledger.persisted.items():
            assert offsets.get(queue, -1) >= offset, (
                f"the group's offset in queue {queue} was {offset} and is {offsets.get(queue)} now"
            )
        return offsets

    # --- load -----------------------------------------------------------------------------------------------

    async def load(
        self,
        client: Client,
        number: int,
        *,
        after: int,
        end: Callable[[], object],
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        """Send, consume and change the tables until the broker is dead; `end` is called once, at the first
        acknowledgement behind number `after` at which `ready` holds."""
        left, ended = after, False

        def acknowledged() -> None:
            nonlocal left, ended
            left -= 1
            if left < 0 and not ended and ready():
                ended = True
                end()

        producer = client.producer(
            "load", retries=0, compress_over_bytes=1 << 30, timeout_ms=PATIENCE_S * 1000
        )
        async with producer, trio.open_nursery() as nursery:
            for _ in range(_SENDERS):
                nursery.start_soon(self._send, producer, random.Random(self.rng.random()), acknowledged)
            nursery.start_soon(self._consume, client)
            nursery.start_soon(self.tables.load, client, producer, number, self.rng, acknowledged)

    async def _send(self, producer: Producer, rng: random.Random, acknowledged: Callable[[], None]) -> None:
        """Send until the broker is dead: single messages and batches, with and without keys, to queues chosen
        here."""
        while True:
            queue = MessageQueue(TOPIC, BROKER, rng.randrange(QUEUES))
            bodies = [self._body(rng) for _ in range(rng.choice((1, 1, 1, rng.randint(2, 12))))]
            messages = [
                Message(TOPIC, body, keys=(f"k{rng.randrange(1000)}",) if rng.random() < 0.5 else ())
                for body in bodies
            ]
            self.ledger.attempt(bodies)
            try:
                sent = await (
                    producer.send(messages[0], queue=queue)
                    if len(messages) == 1
                    else producer.send_batch(messages, queue=queue)
                )
            except RmqError:
                return
            assert sent.is_ok, sent
            self.ledger.promise(sent, bodies)
            acknowledged()

    def _body(self, rng: random.Random) -> bytes:
        self.serial += 1
        return body_of(
            self.serial,
            rng.choice((rng.randrange(300), rng.randrange(300), rng.randrange(4_000), rng.randrange(20_000))),
            rng,
        )

    async def _consume(self, client: Client) -> None:
        """Continue reading from the committed offsets and commit."""
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


async def kill_often(
    directory: Path,
    policy: str,
    runs: int,
    seed: int,
    *,
    store: str = "mmap",
    asked_at_the_end: int = 60,
    show: bool = False,
) -> Counter[str]:
    """Kill the broker this often over one store; returns the counts of events. Raises AssertionError at the
    first broken promise."""
    killing = Killing.begin(directory, policy, seed, store)
    for number in range(runs):
        await killing.run(number)
        if show:
            print(  # noqa: T201
                f"{policy} run {number + 1}: {len(killing.ledger.promises)} promises kept until then",
                flush=True,
            )
    await killing.finish(asked_at_the_end)
    killing.done["promises"] = len(killing.ledger.promises)
    killing.done["changes of tables"] = killing.tables.changes
    killing.done["attempts"] = len(killing.ledger.attempted)
    for name, part in (("segments", "commitlog"), ("index files", "index")) if store == "mmap" else ():
        killing.done[name] = len(list((directory / "data" / part).iterdir()))
    return killing.done


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.killing",
        description="Kill a broker again and again; nothing may be lost.",
    )
    parser.add_argument("--runs", type=int, default=200, help="shared among the ways to store (default 200)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", choices=POLICIES, action="append", help="only this one")
    parser.add_argument("--store", choices=("mmap", "lmdb"), help="only over this one")
    arguments = parser.parse_args()
    ways = [
        (store, policy)
        for store, policy in WAYS
        if arguments.store in (None, store) and policy in (arguments.policy or [policy])
    ]
    directory = Path(tempfile.mkdtemp(prefix="rmqkit-killing-"))
    for number, (store, policy) in enumerate(ways):
        runs = arguments.runs // len(ways) + (number < arguments.runs % len(ways))
        began = time.monotonic()
        run = partial(kill_often, directory / f"{store}-{policy}", policy, runs, arguments.seed, store=store)
        try:
            done = trio.run(partial(run, asked_at_the_end=5000, show=True))
        except BaseException:
            words = f"--seed {arguments.seed} --policy {policy} --store {store}"
            print(  # noqa: T201
                f"FAILED over {store} under {policy}: replay with {words}; the store is in {directory}",
                flush=True,
            )
            raise
        print(f"{store} {policy}: {time.monotonic() - began:.0f} s, {dict(done)}", flush=True)  # noqa: T201
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
