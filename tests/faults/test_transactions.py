"""A broker with open transactions is killed, again and again: each message is delivered as its transaction
ended, a committed one once."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
import trio

from rmqkit.client import Client, ReceivedMessage
from rmqkit.errors import RmqError
from tests.faults.kit import PATIENCE_S, SMALL_FILES, Server, serving

TOPIC, GROUP = "Orders", "orders_p"
RUNS, SENDERS = 5, 4
#: The broker asks soon, and never gives up; ends stay in memory for longer than it lives.
SOON = {
    "transactionTimeOut": "200",
    "transactionCheckInterval": "200",
    "transactionCheckMax": "1000000",
    "transactionOpBatchInterval": "5000",
    "plugins.transaction.rowsPerFile": "64",
}


class Transactions:
    """The transactions of all runs. `outcomes` tells what becomes of each, decided before its half message is
    sent; those in `begun` were acknowledged."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.outcomes: dict[bytes, bool] = {}
        self.begun: set[bytes] = set()
        self._serial = 0

    def check(self, half: ReceivedMessage) -> bool | None:
        return None if self.rng.random() < 0.2 else self.outcomes.get(half.body, False)

    async def load(self, client: Client, server: Server, count: int) -> None:
        """Run transactions, and kill the broker after so many that began."""
        stop = len(self.begun) + count
        async with client.producer(GROUP, check=self.check) as producer, trio.open_nursery() as nursery:

            async def send() -> None:
                while len(self.begun) < stop:
                    self._serial += 1
                    body = b"%d" % self._serial
                    self.outcomes[body] = commits = self.rng.random() < 0.6
                    try:
                        async with producer.transaction(TOPIC, body) as tx:
                            self.begun.add(body)
                            await trio.sleep(self.rng.choice([0, 0, 0.05]))
                            if self.rng.random() < 0.3:
                                await tx.unknown()
                            elif not commits:
                                await tx.rollback()
                    except RmqError:
                        if body not in self.begun:
                            self.outcomes[body] = False
                server.kill()
                nursery.cancel_scope.cancel()

            for _ in range(SENDERS):
                nursery.start_soon(send)

    async def finish(self, client: Client) -> Counter[bytes]:
        """Answer all questions, and read until a message that comes after all of them."""
        expected = {body for body in self.begun if self.outcomes[body]}
        found: Counter[bytes] = Counter()
        async with (
            client.producer(GROUP, check=lambda half: self.outcomes.get(half.body, False)) as producer,
            client.lite_pull_consumer("reader", subscribe=TOPIC, start="first") as consumer,
        ):
            while not expected <= found.keys():
                found.update(message.body for message in await consumer.poll(timeout_s=1))
            # Rounds that might ask once more, for what has ended.
            await trio.sleep(1)
            await producer.send(TOPIC, b"last")
            while not found[b"last"]:
                found.update(message.body for message in await consumer.poll(timeout_s=1))
        del found[b"last"]
        return found


@pytest.mark.parametrize("keeping", ["half-topics", "state-table"])
@pytest.mark.parametrize("store", ["mmap", "lmdb"])
async def test_transactions_of_a_broker_that_is_killed(tmp_path: Path, keeping: str, store: str) -> None:
    """Between the two phases, between a commit and what tells of it, and during rounds of questions."""
    transactions = Transactions(seed=7)
    settings = SMALL_FILES | SOON | {"store": store, "plugins.transaction.store": keeping}
    for run in range(RUNS):
        with serving(tmp_path, settings) as server, trio.fail_after(PATIENCE_S):
            async with Client(server.namesrv) as client:
                if run == 0:
                    await client.admin.create_topic(TOPIC, queues=1)
                await transactions.load(client, server, transactions.rng.randint(20, 60))
    with serving(tmp_path, settings) as server, trio.fail_after(PATIENCE_S):
        async with Client(server.namesrv) as client:
            found = await transactions.finish(client)
        assert server.stop() == 0
    commit = {body for body, commits in transactions.outcomes.items() if commits}
    # A half message may be stored whose sender was not told so.
    assert transactions.begun & commit <= found.keys() <= commit
    assert set(found.values()) == {1}
    assert len(found) > 50
    assert "Traceback" not in (tmp_path / "stderr.txt").read_text()
