"""Kills a broker repeatedly with SIGKILL while clients pop, and checks what pop consumption promises.

    python -m tests.faults.popping --runs 100 --seed 1

A run sends messages, pops them, acknowledges some, renews some, leaves the rest, and kills the broker after a
number of steps chosen by the seed. In the end everything is popped and acknowledged: no message may be lost,
none may come after its acknowledgement was answered, and none while a lease that was answered lasts.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import product
from pathlib import Path

import trio
from attrs import define, field

from rmqkit.config import Config
from rmqkit.errors import RmqError
from rmqkit.plugin import loader
from rmqkit.plugin.transport import Address
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
    SendMessageRequestHeader,
)
from rmqkit.protocol.receipt import Receipt, parse_receipt, receipts
from rmqkit.protocol.record import unpack_all
from rmqkit.testing.calls import Call, calling
from tests.faults.kit import PATIENCE_S, SMALL_FILES, Server, serving

TOPIC, GROUP, QUEUES = "Popped", "poppers", 4
_CLIENTS = 4
_LEASES_MS = (300, 1_000, 3_000)
#: The leases of the broker may end so much earlier than a client thinks: the answer takes time.
_SLACK_MS = 5


@define
class Taken:
    """A message that a client has."""

    number: int
    handle: Receipt
    topic: str


@define
class Popping:
    """One store and its runs. `sent` and `acked` have the numbers of messages whose answers came, `asked`
    those whose acknowledgement may have been stored, `until` the ends of leases."""

    directory: Path
    rng: random.Random
    store: str = "mmap"
    ordered: bool = False
    sent: set[int] = field(factory=set)
    acked: set[int] = field(factory=set)
    asked: set[int] = field(factory=set)
    until: dict[int, int] = field(factory=dict)
    done: Counter[str] = field(factory=Counter)
    serial: int = 0
    steps: int = 0

    @classmethod
    def begin(cls, directory: Path, seed: int, store: str, *, ordered: bool) -> Popping:
        directory.mkdir(parents=True)
        return cls(directory, random.Random(f"{store} {seed}"), store, ordered)

    @property
    def settings(self) -> dict[str, str]:
        return SMALL_FILES | {"store": self.store, "popOrderBy": "key"}

    async def run(self) -> None:
        """Put a broker under load, and kill it."""
        with serving(self.directory, self.settings) as server, trio.fail_after(PATIENCE_S):
            async with self._calling(server) as call:
                self.steps = self.rng.randint(5, 150)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._send_until, call, server)
                    for _ in range(_CLIENTS):
                        nursery.start_soon(self._consume, call, server)
        self.done["kills"] += 1

    async def finish(self) -> None:
        """Consume everything that is left, then stop the broker gracefully."""
        with serving(self.directory, self.settings) as server, trio.fail_after(PATIENCE_S):
            async with self._calling(server) as call:
                end_s = time.monotonic() + 60
                while self.sent - self.acked - self.asked and time.monotonic() < end_s:
                    for taken in await self._pop(call, 30_000):
                        await self._ack(call, taken)
                    await trio.sleep(0.02)
            assert server.stop() == 0
        lost = self.sent - self.acked - self.asked
        assert not lost, f"{len(lost)} messages are lost: {sorted(lost)[:10]}"
        assert "Traceback" not in (self.directory / "stderr.txt").read_text()

    @asynccontextmanager
    async def _calling(self, server: Server) -> AsyncIterator[Call]:
        config = Config()
        address = Address("tcp", *server.broker)
        async with calling(address, config, loader.load(config)) as (call, _):
            yield call

    async def _send_until(self, call: Call, server: Server) -> None:
        """Send until enough steps were made, then kill."""
        try:
            while self.steps > 0:
                await self._send(call)
        finally:
            server.kill()

    async def _send(self, call: Call) -> None:
        self.serial += 1
        number = self.serial
        header = SendMessageRequestHeader(
            producer_group="p",
            topic=TOPIC,
            queue_id=number % QUEUES,
            default_topic_queue_nums=QUEUES,
            properties=f"__SHARDINGKEY\x01k{number % 7}\x02",
        )
        answer = await call(request(RequestCode.SEND_MESSAGE, header, b"%d" % number))
        if answer.code == ResponseCode.SUCCESS:
            self.sent.add(number)
        self.steps -= 1

    async def _consume(self, call: Call, server: Server) -> None:
        """Pop, and do anything with what comes, until the broker is dead."""
        try:
            while True:
                for taken in await self._pop(call, self.rng.choice(_LEASES_MS)):
                    await self._use(call, taken)
                await trio.sleep(0.002)
        except RmqError:
            assert self.steps <= 0, "the broker failed before it was killed"

    async def _use(self, call: Call, taken: Taken) -> None:
        match self.rng.randrange(5):
            case 0:
                return
            case 1:
                await self._renew(call, taken)
            case _:
                await self._ack(call, taken)
        self.steps -= 1

    async def _pop(self, call: Call, invisible_ms: int) -> list[Taken]:
        header = PopMessageRequestHeader(
            consumer_group=GROUP,
            topic=TOPIC,
            queue_id=-1,
            max_msg_nums=self.rng.randint(1, 16),
            invisible_time=invisible_ms,
            poll_time=0,
            order=self.ordered,
        )
        answer = await call(request(RequestCode.POP_MESSAGE, header))
        if answer.code != ResponseCode.SUCCESS:
            return []
        return self._taken(answer)

    def _taken(self, answer: Command) -> list[Taken]:
        times = answer.header(PopMessageResponseHeader)
        own = receipts(times, Config().broker_name)
        found = []
        for message in unpack_all(answer.body):
            handle_text = message.properties.get("POP_CK")
            place = message.queue_id, message.queue_offset
            handle = parse_receipt(handle_text) if handle_text else own[place]
            number = int(message.body)
            assert number not in self.acked, f"message {number} comes after its acknowledgement"
            until_ms = self.until.get(number, 0)
            assert handle.pop_time_ms + _SLACK_MS >= until_ms, (
                f"message {number} comes {until_ms - handle.pop_time_ms} ms before the end of its lease"
            )
            self.until[number] = handle.pop_time_ms + handle.invisible_ms
            found.append(Taken(number, handle, handle.topic(message.topic, GROUP)))
            self.done["deliveries"] += 1
        return found

    async def _ack(self, call: Call, taken: Taken) -> None:
        assert taken.handle.offset is not None
        header = AckMessageRequestHeader(
            consumer_group=GROUP,
            topic=taken.topic,
            queue_id=taken.handle.queue_id,
            extra_info=taken.handle.text,
            offset=taken.handle.offset,
        )
        self.asked.add(taken.number)
        answer = await call(request(RequestCode.ACK_MESSAGE, header))
        if answer.code == ResponseCode.SUCCESS:
            self.acked.add(taken.number)
            self.done["acknowledgements"] += 1
        else:
            assert answer.code == ResponseCode.NO_MESSAGE, answer.remark
        self.asked.discard(taken.number)

    async def _renew(self, call: Call, taken: Taken) -> None:
        assert taken.handle.offset is not None
        header = ChangeInvisibleTimeRequestHeader(
            consumer_group=GROUP,
            topic=taken.topic,
            queue_id=taken.handle.queue_id,
            extra_info=taken.handle.text,
            offset=taken.handle.offset,
            invisible_time=self.rng.choice(_LEASES_MS),
        )
        self.until.pop(taken.number)
        answer = await call(request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header))
        if answer.code == ResponseCode.SUCCESS:
            times = answer.header(ChangeInvisibleTimeResponseHeader)
            self.until[taken.number] = times.pop_time + times.invisible_time
            self.done["renewals"] += 1


async def kill_often(directory: Path, runs: int, seed: int, store: str, *, ordered: bool) -> Counter[str]:
    """All runs over one store, and what happened. Raises AssertionError where a promise is broken."""
    popping = Popping.begin(directory, seed, store, ordered=ordered)
    for _ in range(runs):
        await popping.run()
    await popping.finish()
    return popping.done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        for store, ordered in product(("mmap", "lmdb"), (False, True)):
            order = "by key" if ordered else "any order"
            place = Path(directory) / f"{store}-{ordered}"
            runs = partial(kill_often, place, given.runs // 4, given.seed, store, ordered=ordered)
            sys.stdout.write(f"{store}, {order}: {dict(trio.run(runs))}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
