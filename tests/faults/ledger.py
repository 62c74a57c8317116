"""The promises to clients, stored outside the broker, and the comparison with the broker's content."""

from __future__ import annotations

import hashlib
import os
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import trio
from attrs import define, frozen

from rmqkit.client import Client
from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.client.producing.send_result import SendResult
from rmqkit.model.queue import MessageQueue
from tests.faults.kit import read_queue

#: Number of verified messages that every check reads again.
_OVERLAP = 200
_ASKERS = 8


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


@frozen
class Promise:
    """One acknowledged message."""

    message_id: str
    queue_id: int
    queue_offset: int
    digest: str


@define
class _Seen:
    """What an earlier check found at one place."""

    message_id: str
    digest: str


class Ledger:
    """Promises to the senders of one topic on one broker. Each one is on the device (O_DSYNC) before its
    sender continues.

    attempted  digest by message id of everything that may have been stored, acknowledged or not
    topics     topics whose creation was acknowledged
    committed  by queue id, the last acknowledged commit
    tried      by queue id, the highest offset that a consumer tried to commit
    persisted  by queue id, the offset in the broker's own table on disk; set it before the broker starts
    """

    def __init__(self, path: Path, topic: str) -> None:
        self.path = path
        self.topic = topic
        self.promises: dict[tuple[int, int], Promise] = {}
        self._given: list[Promise] = []
        self._read_bytes = 0
        self.attempted: dict[str, str] = {}
        self.topics: set[str] = set()
        self.committed: dict[int, int] = {}
        self.tried: dict[int, int] = {}
        self.persisted: dict[int, int] = {}
        self._seen: dict[int, list[_Seen]] = defaultdict(list)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_DSYNC | os.O_CLOEXEC, 0o644)

    def close(self) -> None:
        os.close(self._fd)

    def promise(self, result: SendResult, bodies: Sequence[bytes]) -> None:
        """Record an acknowledged send of one message or a batch."""
        lines = []
        for number, (message_id, body) in enumerate(zip(result.message_id.split(","), bodies, strict=True)):
            promise = Promise(message_id, result.queue.queue_id, result.queue_offset + number, digest(body))
            place = promise.queue_id, promise.queue_offset
            assert place not in self.promises, f"{promise} was promised the place of {self.promises[place]}"
            self.promises[place] = promise
            self._given.append(promise)
            lines.append(f"{promise.message_id} {promise.queue_id} {promise.queue_offset} {promise.digest}\n")
        os.write(self._fd, "".join(lines).encode())

    def _read_back(self) -> None:
        """Read the new part of the file, so that the check uses what the file contains."""
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            data = file.read()
        self._read_bytes += len(data)
        lines = [line.split() for line in data.decode().splitlines()]
        found = [Promise(name, int(queue), int(offset), code) for name, queue, offset, code in lines]
        assert found == self._given, "the ledger's file is not what was written into it"
        self._given = []

    def attempt(self, bodies: Sequence[bytes]) -> None:
        """Record bodies before they are sent, because a send may store a message and fail."""
        for body in bodies:
            self.attempted[body[:_SERIAL].decode()] = digest(body)

    # --- the check ------------------------------------------------------------------------------------------

    async def check(self, client: Client, *, full: bool, asked: int, rng: random.Random) -> None:
        """Raises AssertionError for messages that are lost, changed, duplicated or foreign.

        full   read every queue from its start, not only what is new since the last check
        asked  number of messages looked up by their id, half of them among the last
        """
        self._read_back()
        async with client.pull_consumer("checker") as consumer:
            queues = await consumer.queues(self.topic)
            by_id = {queue.queue_id: queue for queue in queues}
            ends = {}
            for number, queue in by_id.items():
                assert await consumer.min_offset(queue) == 0, f"{queue} does not begin at 0"
                ends[number] = await consumer.max_offset(queue)
                start = 0 if full else max(0, len(self._seen[number]) - _OVERLAP)
                assert ends[number] >= len(self._seen[number]), (
                    f"{queue} ends at {ends[number]}, it has been at {len(self._seen[number])}"
                )
                self._compare(number, start, await read_queue(consumer, queue, start, ends[number]))
            for (queue_id, offset), promise in self.promises.items():
                assert queue_id in by_id, f"lost with its queue: {promise}"
                assert offset < ends[queue_id], f"lost: {promise}; the queue ends at {ends[queue_id]}"
                seen = self._seen[queue_id][offset]
                assert (seen.message_id, seen.digest) == (promise.message_id, promise.digest), (
                    f"lost: {promise}; in its place is {seen}"
                )
            self._nothing_twice()
            await self._check_commits(client, by_id, ends)
        await self._ask_by_id(client, asked, rng)
        missing = self.topics - set(await client.admin.topics())
        assert not missing, f"topics lost: {missing}"

    def _compare(self, queue_id: int, start: int, found: Sequence[ReceivedMessage]) -> None:
        known = self._seen[queue_id]
        for at, message in enumerate(found, start):
            code = digest(message.body)
            serial = message.body[:_SERIAL].decode()
            assert self.attempted.get(serial) == code, (
                f"queue {queue_id} offset {at} holds {message.message_id}, which nobody sent like this"
            )
            new = _Seen(message.message_id, code)
            if at < len(known):
                assert known[at] == new, f"queue {queue_id} offset {at} was {known[at]}, now it is {new}"
            else:
                known.append(new)

    def _nothing_twice(self) -> None:
        """No send was retried, so every message must exist once."""
        total = sum(map(len, self._seen.values()))
        assert len({seen.message_id for queue in self._seen.values() for seen in queue}) == total, (
            "a message is stored twice"
        )

    async def _check_commits(
        self, client: Client, by_id: dict[int, MessageQueue], ends: dict[int, int]
    ) -> None:
        """A group continues at the offset in the table on disk, which is beyond neither its requests nor the
        existing messages."""
        async with client.pull_consumer(READERS) as reader:
            for number, queue in by_id.items():
                offset = await reader.committed(queue)
                assert offset == self.persisted.get(number), (
                    f"{queue}: committed is {offset}, on disk it was {self.persisted.get(number)}"
                )
                assert offset is None or offset <= min(self.tried[number], ends[number]), (
                    f"{queue}: {offset} is beyond {self.tried} or {ends}"
                )

    async def _ask_by_id(self, client: Client, asked: int, rng: random.Random) -> None:
        promises = list(self.promises.values())
        chosen = promises[-(asked // 2) :] + rng.sample(promises, min(len(promises), asked - asked // 2))

        async def ask(some: Sequence[Promise]) -> None:
            for promise in some:
                found = await client.admin.query_by_message_id(self.topic, promise.message_id)
                places = [(one.queue.queue_id, one.queue_offset, digest(one.body)) for one in found]
                assert places == [(promise.queue_id, promise.queue_offset, promise.digest)], (
                    f"by its id {promise} is found at {places}"
                )

        async with trio.open_nursery() as nursery:
            for number in range(_ASKERS):
                nursery.start_soon(ask, chosen[number::_ASKERS])


#: Length of the serial number at the start of a body.
_SERIAL = 12
READERS = "readers"


def body_of(serial: int, size_bytes: int, rng: random.Random) -> bytes:
    """A unique body."""
    return f"{serial:0{_SERIAL}d}".encode() + rng.randbytes(size_bytes)
