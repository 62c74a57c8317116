"""Exchanges that broadcast: what is sent to one is a message of its topic, and every process reads that topic
for the queues that it has bound, from the time of the binding on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Final

import anyio

from rmqkit.client import BlockingClient, MessageQueue, NoRoute, PullConsumer, ReceivedMessage, RmqError
from rmqkit.log_limit import limited_logger
from rmqkit_kombu.names import topic_of_exchange

log = limited_logger(__name__)

#: The property of a message that has its routing key.
ROUTING_KEY: Final = "KOMBU_ROUTING_KEY"
#: How many messages wait for a queue; then the oldest go.
_MOST_WAITING: Final = 10_000
_PAUSE_S: Final = 1.0

#: Whether a binding takes messages with a routing key.
Takes = Callable[[str], bool]


class Inbox:
    """What has come for a queue that is bound to exchanges that broadcast. Used in the loop's thread, but for
    `bind` and `len`."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._bindings: list[tuple[str, Takes]] = []
        self._bodies: deque[bytes] = deque()
        self._arrived = anyio.Event()

    def __len__(self) -> int:
        return len(self._bodies)

    def bind(self, exchange: str, takes: Takes) -> None:
        """Take from an exchange what has a fitting routing key."""
        self._bindings = [*self._bindings, (exchange, takes)]

    def is_bound(self, exchange: str) -> bool:
        """Whether anything of an exchange is taken."""
        return any(each == exchange for each, _ in self._bindings)

    def offer(self, exchange: str, routing_key: str, body: bytes) -> None:
        """Put in a message if a binding takes it; one message comes once. The oldest goes when there are too
        many."""
        if not any(each == exchange and takes(routing_key) for each, takes in self._bindings):
            return
        if len(self._bodies) >= _MOST_WAITING:
            log.warning("queue %s has %d messages waiting: the oldest is dropped", self._queue, _MOST_WAITING)
            self._bodies.popleft()
        self._bodies.append(body)
        self._arrived.set()

    async def take(self) -> bytes:
        """The next message, as soon as there is one. When cancelled, none is lost."""
        while not self._bodies:
            self._arrived = anyio.Event()
            await self._arrived.wait()
        return self._bodies.popleft()

    async def clear(self) -> int:
        """Drop what waits; returns the number."""
        count = len(self._bodies)
        self._bodies.clear()
        return count


class Broadcasts:
    """The queues of a connection that are bound to exchanges that broadcast, and what reads for them.

    client  an open one
    group   as which the topics are read; no offsets are kept
    """

    def __init__(self, client: BlockingClient, group: str) -> None:
        self._client = client
        self._group = group
        self._consumer: PullConsumer | None = None
        self._inboxes: dict[str, Inbox] = {}
        self._readers: dict[str, Future[None]] = {}

    def bind(self, queue: str, exchange: str, takes: Takes) -> None:
        """Give a queue what is sent to an exchange from now on and has a fitting routing key. An exchange
        without a topic is logged: nothing of it comes. Raises RmqError."""
        if exchange not in self._readers:
            ends = self._client.run(self._ends, topic_of_exchange(exchange))
            self._readers[exchange] = self._client.start_soon(partial(self._follow, exchange, ends))
        # A reader gives what it has read to the queues that are bound by then.
        self._inboxes.setdefault(queue, Inbox(queue)).bind(exchange, takes)

    def inbox(self, queue: str) -> Inbox | None:
        """What has come for a queue; None when it is bound to no exchange that broadcasts."""
        return self._inboxes.get(queue)

    def forget(self, queue: str) -> None:
        """End the bindings of a queue, and the reading for it."""
        self._inboxes.pop(queue, None)
        for exchange in list(self._readers):
            if not any(each.is_bound(exchange) for each in self._inboxes.values()):
                self._readers.pop(exchange).cancel()

    def close(self) -> None:
        """End all reading."""
        for reader in self._readers.values():
            reader.cancel()
        self._readers.clear()
        self._inboxes.clear()
        if self._consumer is not None:
            self._client.run(self._consumer.aclose)
            self._consumer = None

    # --- in the loop's thread -------------------------------------------------------------------------------

    async def _opened(self) -> PullConsumer:
        if self._consumer is None:
            made = self._client.asynchronous.pull_consumer(self._group, bad_records="deliver")
            self._consumer = await made.start()
        return self._consumer

    async def _ends(self, topic: str) -> Mapping[MessageQueue, int]:
        """Where the next messages of a topic will be."""
        consumer = await self._opened()
        try:
            return {queue: await consumer.max_offset(queue) for queue in await consumer.queues(topic)}
        except NoRoute as error:
            log.warning("%s: what other processes send to this exchange does not come", error)
            return {}

    async def _follow(self, exchange: str, ends: Mapping[MessageQueue, int]) -> None:
        consumer = await self._opened()
        async with anyio.create_task_group() as tasks:
            for queue, offset in ends.items():
                tasks.start_soon(self._read, exchange, consumer, queue, offset)

    async def _read(self, exchange: str, consumer: PullConsumer, queue: MessageQueue, offset: int) -> None:
        """Read a queue from an offset on, until cancelled."""
        while True:
            try:
                result = await consumer.pull(queue, offset, block=True)
            except RmqError as error:
                log.warning("exchange %s: %s; it is tried again", exchange, error)
                await anyio.sleep(_PAUSE_S)
                continue
            offset = result.next_offset
            for message in result.messages:
                self._hand_out(exchange, message)

    def _hand_out(self, exchange: str, message: ReceivedMessage) -> None:
        if message.fault is not None:
            log.warning("message %s of exchange %s: %s", message.message_id, exchange, message.fault)
            return
        for inbox in list(self._inboxes.values()):
            inbox.offer(exchange, message.properties.get(ROUTING_KEY, ""), message.body)


__all__ = ["ROUTING_KEY", "Broadcasts", "Inbox", "Takes"]
