"""The broker class for taskiq."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from functools import partial
from typing import Unpack

from taskiq import AckableMessage, AsyncBroker, BrokerMessage

from rmqkit.client import Client, ClientError, ClientKeywords, Delivery, PopConsumer, PopKeywords, Producer
from rmqkit_taskiq.labels import message_of

log = logging.getLogger(__name__)


class RocketBroker(AsyncBroker):
    """Sends tasks to a topic, and leases them from it.

    namesrv   the address of the name server, as for `Client`; default NAMESRV_ADDR
    topic     the topic of the tasks
    group     the group of the workers; each task goes to one worker of a group. A new group begins with the
              oldest task. Also the group of the producer
    consumer  keywords of `Client.pop_consumer`. Without `prefetch` a worker leases no task before it has room
              for it; with `order="key"` tasks with one label `ordering_key` follow each other
    settings  further keywords of `Client`

    A task is leased to its worker until it is acknowledged, and the lease is renewed meanwhile; what a killed
    worker had goes to another one after `lease_ms`, 60 s by default, with one more attempt. At the end of a
    worker, tasks that it has not finished are given back, and do not count as attempts.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        topic: str = "taskiq",
        group: str = "taskiq",
        consumer: PopKeywords | None = None,
        **settings: Unpack[ClientKeywords],
    ) -> None:
        super().__init__()
        self.topic = topic
        self.group = group
        self._namesrv = namesrv
        self._settings = settings
        self._consuming: PopKeywords = {"start": "first", "prefetch": 0, **(consumer or {})}
        self._client: Client | None = None
        self._producer: Producer | None = None
        self._consumer: PopConsumer | None = None

    async def startup(self) -> None:
        """Open the client, so that handlers of the start may send tasks, and start. Raises as `Client.start`;
        when it fails or is cancelled, nothing stays open."""
        # The client belongs to the process that opens it, and brokers are made before workers fork.
        client = Client(self._namesrv, **self._settings)
        self._client = await client.start()
        try:
            self._producer = await client.producer(self.group).start()
            await super().startup()
        except BaseException:
            await self._close()
            raise

    async def shutdown(self) -> None:
        """End, and give back the tasks that are not finished."""
        try:
            await super().shutdown()
        finally:
            await self._close()

    async def kick(self, message: BrokerMessage) -> None:
        """Send a task; its labels say when and how it is delivered. Raises ClientError for a label with a
        wrong value and before the start, else as `Producer.send`. When cancelled, the task may be sent."""
        if self._producer is None:
            raise ClientError("the broker is not started; await `broker.startup()` before tasks are sent")
        await self._producer.send(message_of(self.topic, message.message, message.task_id, message.labels))

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Tasks for this worker, until it ends. Raises ClientError before the start, else as
        `PopConsumer.start` and for an error that ends the consumer."""
        if self._client is None:
            raise ClientError("the broker is not started; await `broker.startup()` before it listens")
        if self._consumer is None:
            consumer = self._client.pop_consumer(self.group, subscribe=self.topic, **self._consuming)
            self._consumer = await consumer.start()
        # Tasks go on after the end of the iteration, so the consumer stays open until the broker ends.
        async for delivery in self._consumer:
            yield AckableMessage(data=delivery.message.body, ack=partial(_acknowledge, delivery))

    async def _close(self) -> None:
        consumer, producer, client = self._consumer, self._producer, self._client
        self._consumer = self._producer = self._client = None
        try:
            if consumer is not None:
                await consumer.aclose()
            if producer is not None:
                await producer.aclose()
        finally:
            if client is not None:
                await client.aclose()


async def _acknowledge(delivery: Delivery) -> None:
    if not await delivery.ack():
        log.warning("the lease of task message %s was lost: it runs again", delivery.message.message_id)


__all__ = ["RocketBroker"]
