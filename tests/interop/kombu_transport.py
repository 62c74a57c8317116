"""A transport of Kombu over RocketMQ's Python client of version 5, for the tests: a queue is a topic, what is
unacknowledged is a lease. It uses the client as the transport does that is proposed for Kombu: a producer for
each channel, and a simple consumer for each queue."""

from __future__ import annotations

from queue import Empty
from typing import Any

from kombu.transport import virtual
from kombu.utils.json import dumps, loads
from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

GROUP = "kombu"
LEASE_S = 30
AWAIT_S = 1


class Channel(virtual.Channel):  # type: ignore[misc]
    """Leases messages one at a time."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        info = self.connection.client
        self._configuration = ClientConfiguration(f"{info.hostname}:{info.port}", Credentials())
        self._producer: Producer | None = None
        self._receivers: dict[str, SimpleConsumer] = {}
        self._leases: dict[str, tuple[SimpleConsumer, Any]] = {}

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        if self._producer is None:
            self._producer = Producer(self._configuration)
            self._producer.startup()
        sent = Message()
        sent.topic, sent.body = queue, dumps(message).encode()
        self._producer.send(sent)

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        consumer = self._receivers.get(queue)
        if consumer is None:
            subscription = {queue: FilterExpression("*")}
            consumer = SimpleConsumer(self._configuration, f"{GROUP}-{queue}", subscription, AWAIT_S)
            consumer.startup()
            self._receivers[queue] = consumer
        found = consumer.receive(1, LEASE_S)
        if not found:
            raise Empty
        payload: dict[str, Any] = loads(found[0].body.decode())
        self._leases[payload["properties"]["delivery_tag"]] = consumer, found[0]
        return payload

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        consumer, message = self._leases.pop(delivery_tag)
        consumer.ack(message)
        super().basic_ack(delivery_tag, multiple)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        consumer, message = self._leases.pop(delivery_tag)
        if requeue:
            consumer.change_invisible_duration(message, 1)
        else:
            consumer.ack(message)
        self.qos.ack(delivery_tag)

    def close(self) -> None:
        super().close()
        for each in (*self._receivers.values(), self._producer):
            if each is not None:
                each.shutdown()
        self._receivers, self._producer = {}, None


class Transport(virtual.Transport):  # type: ignore[misc]
    """`rmq://HOST:PORT`, once it is among `kombu.transport.TRANSPORT_ALIASES`."""

    Channel = Channel
    driver_type = driver_name = "rocketmq"
    polling_interval = 0.1
    implements = virtual.Transport.implements.extend(exchange_type=frozenset({"direct"}))


__all__ = ["Channel", "Transport"]
