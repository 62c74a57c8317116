"""What the channels of one connection share: the client, a producer, a consumer for each queue, and the
leases of messages that are not acknowledged."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

import anyio

from rmqkit.client import (
    BlockingClient,
    BlockingPopConsumer,
    BlockingProducer,
    BrokerError,
    Lease,
    Message,
    NoRoute,
    PopConsumer,
    RmqError,
)
from rmqkit_kombu.broadcasts import ROUTING_KEY, Broadcasts, Inbox, Takes
from rmqkit_kombu.names import topic_of, topic_of_exchange

log = logging.getLogger(__name__)

#: A lease is renewed when this part of it has passed.
_RENEWED_AT: Final = 1 / 3
_MOST_AT_ONCE: Final = 32


class Session:
    """A client of RocketMQ with the queues of Kombu as topics. Threads may share it.

    namesrv   the address of the name server
    group     the beginning of the names of groups: the workers of a queue are the group GROUP-TOPIC, which
              begins with the oldest message
    lease_ms  how long a message belongs to this process before its lease is renewed or ends
    creates   whether topics that are missing are created
    settings  keywords of `BlockingClient`
    """

    def __init__(
        self,
        namesrv: str,
        *,
        group: str = "kombu",
        lease_ms: int = 60_000,
        creates: bool = True,
        **settings: Any,
    ) -> None:
        self._group = group
        self._lease_ms = lease_ms
        self._creates = creates
        self._client = BlockingClient(namesrv, **settings)
        self._broadcasts = Broadcasts(self._client, f"{group}-broadcasts")
        self._producer: BlockingProducer | None = None
        self._consumers: dict[str, BlockingPopConsumer] = {}
        #: What this process has and has not settled, with its consumer. Changed in the loop's thread.
        self._held: dict[Lease, PopConsumer] = {}
        self._renewing: Future[None] | None = None
        #: Queues that get a topic when something is to come from it.
        self._postponed: set[str] = set()
        self._exchanges: set[str] = set()

    def open(self) -> None:
        """Open the client. Raises as `BlockingClient.start`."""
        self._client.start()
        try:
            self._producer = self._client.producer(self._group).start()
            self._renewing = self._client.start_soon(self._renew)
        except BaseException:
            self._client.close()
            raise

    def close(self) -> None:
        """Give back what is leased, and close the client. Does nothing in a forked child, and when it is
        closed."""
        if not self._client.is_open:
            return
        try:
            if self._renewing is not None:
                self._renewing.cancel()
            self._broadcasts.close()
            self.give_back(list(self._held))
            for consumer in self._consumers.values():
                consumer.close()
            if self._producer is not None:
                self._producer.close()
        finally:
            self._consumers.clear()
            self._client.close()

    # --- queues ---------------------------------------------------------------------------------------------

    def declare(self, queue: str, priorities: int | None = None) -> None:
        """Create the topic of a queue unless it exists; with `priorities`, of the type PRIORITY with so many.
        Raises RmqError."""
        if priorities is None:
            self._create(topic_of(queue))
        else:
            self._create(topic_of(queue), queues=priorities, message_type="PRIORITY")

    def _create(self, topic: str, **keywords: Any) -> None:
        if self._creates and self._client.admin.route(topic) is None:
            self._client.admin.create_topic(topic, **keywords)

    def declare_later(self, queue: str) -> None:
        """Create the topic of a queue when it is consumed and not bound to an exchange that broadcasts."""
        self._postponed.add(queue)

    def bind(self, queue: str, exchange: str, takes: Takes) -> None:
        """Give a queue what any process sends to an exchange from now on, as far as the routing key fits; its
        own topic is not read any more. Raises RmqError."""
        self._declare_exchange(exchange)
        self._broadcasts.bind(queue, exchange, takes)

    def forget(self, queue: str) -> None:
        """End the bindings of a queue to exchanges that broadcast."""
        self._broadcasts.forget(queue)

    def _declare_exchange(self, exchange: str) -> None:
        if exchange not in self._exchanges:
            self._create(topic_of_exchange(exchange), queues=1)
            self._exchanges.add(exchange)

    def size(self, queue: str) -> int:
        """How many messages of a queue are ready; 0 when the broker does not tell. Raises RmqError."""
        inbox = self._broadcasts.inbox(queue)
        if inbox is not None or queue in self._postponed:
            return len(inbox or ())
        topic = topic_of(queue)
        try:
            progress = self._client.groups.progress(self._group_of(topic))
            if progress:
                return sum(each.ready for each in progress.values())
            stats = self._client.admin.topic_stats(topic)
        except (BrokerError, NoRoute) as error:
            log.debug("the size of queue %s is not known: %s", queue, error)
            return 0
        return sum(each.max_offset - each.min_offset for each in stats.values())

    def purge(self, queue: str) -> int:
        """Acknowledge all messages of a queue that are ready; returns their number. Raises RmqError."""
        inbox = self._broadcasts.inbox(queue)
        if inbox is not None or queue in self._postponed:
            return 0 if inbox is None else self._client.run(inbox.clear)
        consumer = self._consumer(queue)
        purged = 0
        while leases := consumer.receive(_MOST_AT_ONCE, wait_ms=0):
            consumer.ack(*leases)
            purged += len(leases)
        return purged

    # --- messages -------------------------------------------------------------------------------------------

    def send(
        self, queue: str, body: bytes, *, properties: Mapping[str, str], priority: int | None = None
    ) -> None:
        """Send a message to a queue. Raises as `Producer.send`."""
        assert self._producer is not None
        self._producer.send(Message(topic_of(queue), body, properties=properties, priority=priority))

    def broadcast(self, exchange: str, body: bytes, routing_key: str) -> None:
        """Send a message to all queues that are bound to an exchange, in whichever process. Raises as
        `Producer.send`."""
        assert self._producer is not None
        self._declare_exchange(exchange)
        self._producer.send(
            Message(
                topic_of_exchange(exchange),
                body,
                properties={ROUTING_KEY: routing_key} if routing_key else {},
            )
        )

    def receive(self, queues: Sequence[str], wait_s: float) -> list[tuple[str, Lease | bytes]]:
        """A message of one of the queues, as soon as there is one; sometimes one of several, and none after
        `wait_s`. The leases are renewed until they are settled; of a broadcast the body is all there is.
        Raises the error that ends a consumer."""
        consumers: dict[str, PopConsumer] = {}
        inboxes: dict[str, Inbox] = {}
        for queue in queues:
            inbox = self._broadcasts.inbox(queue)
            if inbox is not None:
                inboxes[queue] = inbox
            else:
                consumers[queue] = self._consumer(queue).asynchronous
        return self._client.run(self._receive, consumers, inboxes, round(wait_s * 1000))

    def finish(self, lease: Lease) -> None:
        """Acknowledge a message. One whose lease has ended is logged: it comes again. Raises RmqError when
        the broker does not answer."""
        self._client.run(self._finish, lease)

    def give_back(self, leases: Sequence[Lease], *, counts: bool = False) -> None:
        """Have messages delivered again at once; `counts`: as another attempt. Failures are logged: those
        messages come after their leases. Does nothing when the session is closed, and in a forked child."""
        if self._client.is_open:
            self._client.run(self._give_back, leases, counts)

    def bury(self, lease: Lease, why: str) -> None:
        """Move a message to the dead letters of its group. Raises RmqError."""
        self._client.run(self._bury, lease, why)

    def _consumer(self, queue: str) -> BlockingPopConsumer:
        consumer = self._consumers.get(queue)
        if consumer is None:
            if queue in self._postponed:
                self._postponed.discard(queue)
                self.declare(queue)
            topic = topic_of(queue)
            made = self._client.pop_consumer(
                self._group_of(topic), subscribe=topic, start="first", lease_ms=self._lease_ms
            )
            consumer = self._consumers[queue] = made.start()
        return consumer

    def _group_of(self, topic: str) -> str:
        return f"{self._group}-{topic}"

    # --- in the loop's thread -------------------------------------------------------------------------------

    async def _receive(
        self, consumers: Mapping[str, PopConsumer], inboxes: Mapping[str, Inbox], wait_ms: int
    ) -> list[tuple[str, Lease | bytes]]:
        found: list[tuple[str, Lease | bytes]] = []
        errors: list[RmqError] = []
        async with anyio.create_task_group() as tasks:

            async def receive(queue: str, consumer: PopConsumer) -> None:
                try:
                    for lease in await consumer.receive(1, wait_ms=wait_ms):
                        self._held[lease] = consumer
                        found.append((queue, lease))
                except RmqError as error:
                    errors.append(error)
                if found or errors:
                    tasks.cancel_scope.cancel()

            async def hear(queue: str, inbox: Inbox) -> None:
                with anyio.move_on_after(wait_ms / 1000):
                    found.append((queue, await inbox.take()))
                    tasks.cancel_scope.cancel()

            for queue, inbox in inboxes.items():
                tasks.start_soon(hear, queue, inbox)
            for queue, consumer in consumers.items():
                tasks.start_soon(receive, queue, consumer)
        if errors and not found:
            raise errors[0]
        return found

    async def _settling(self, lease: Lease) -> PopConsumer | None:
        """The consumer of a lease that is renewed no more; None when the lease was lost. A renewal that has
        begun is over, for it changes the handle."""
        consumer = self._held.pop(lease, None)
        async with lease.changing:
            return consumer

    async def _finish(self, lease: Lease) -> None:
        consumer = await self._settling(lease)
        try:
            if consumer is not None:
                await consumer.ack(lease)
        except BrokerError as error:
            log.warning("message %s comes again: %s", lease.message.message_id, error)

    async def _bury(self, lease: Lease, why: str) -> None:
        consumer = await self._settling(lease)
        if consumer is not None:
            await consumer.dead_letter(lease, why)

    async def _give_back(self, leases: Sequence[Lease], counts: bool) -> None:
        for lease in leases:
            consumer = await self._settling(lease)
            try:
                if consumer is not None:
                    await consumer.release(lease, counts=counts)
            except RmqError as error:
                log.warning("message %s comes after its lease: %s", lease.message.message_id, error)

    async def _renew(self) -> None:
        """Renew the leases of what is not settled, until cancelled."""
        while True:
            await anyio.sleep(self._lease_ms / 1000 * _RENEWED_AT)
            await self._renew_all()

    async def _renew_all(self) -> None:
        for lease, consumer in list(self._held.items()):
            if lease not in self._held:
                continue
            try:
                await consumer.extend(lease)
            except BrokerError as error:
                if self._held.pop(lease, None) is not None:
                    log.warning("message %s comes again: %s", lease.message.message_id, error)
            except RmqError as error:
                log.warning("%s; it is tried again", error)


__all__ = ["Session"]
