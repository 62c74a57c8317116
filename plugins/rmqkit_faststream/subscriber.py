"""Receives messages: `@broker.subscriber`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
from faststream._internal.configs import BrokerConfig, SubscriberSpecificationConfig, SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber import SubscriberSpecification
from faststream._internal.endpoint.subscriber.mixins import TasksMixin
from faststream._internal.endpoint.utils import process_msg
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as MessageSpec
from faststream.specification.schema import Operation, SubscriberSpec

from rmqkit.client import Batch, Client, Delivery, Message, PushConsumer, PushKeywords
from rmqkit_faststream.message import Parser, RocketMessage
from rmqkit_faststream.publisher import ReplyPublisher


@dataclass(kw_only=True)
class RocketBrokerConfig(BrokerConfig):
    """What the parts of a broker share; `client` while it is connected."""

    client: Client | None = field(default=None, init=False, repr=False)


@dataclass(kw_only=True)
class SpecificationConfig(SubscriberSpecificationConfig):
    """What a subscriber reads, for AsyncAPI."""

    topic: str


@dataclass(kw_only=True)
class SubscriberConfig(SubscriberUsecaseConfig):
    """What a subscriber reads, and how."""

    topic: str
    group: str
    expression: str
    max_workers: int
    consumer: PushKeywords
    batch: bool
    max_records: int
    linger_ms: float

    @property
    def ack_policy(self) -> AckPolicy:
        """Of the subscriber, else of the broker; by default a message whose handler fails comes again."""
        for chosen in (self._ack_policy, self._outer_config.ack_policy):
            if chosen is not EMPTY:
                return chosen
        return AckPolicy.NACK_ON_ERROR


class RocketSubscriberSpecification(SubscriberSpecification[BrokerConfig, SpecificationConfig]):
    """A subscriber in AsyncAPI."""

    @property
    def topic(self) -> str:
        """The topic with the prefix of its router."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def channel_labels(self) -> list[str]:
        return [self.topic]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        payload = resolve_payloads(self.get_payloads())
        return {
            self.name: SubscriberSpec(
                address=self.topic,
                description=self.description,
                operation=Operation(
                    message=MessageSpec(title=f"{self.name}:Message", payload=payload), bindings=None
                ),
                bindings=None,
            )
        }


class RocketSubscriber(TasksMixin):
    """A push consumer whose messages go to handlers, `max_workers` of them or of their batches at a time."""

    def __init__(self, config: SubscriberConfig, specification: Any, calls: Any) -> None:
        parser = Parser()
        config.parser = parser.parse_batch if config.batch else parser.parse_message
        config.decoder = parser.decode_batch if config.batch else parser.decode_message
        super().__init__(config, specification, calls)
        self._settings = config
        self._consumer: PushConsumer | None = None

    @property
    def topic(self) -> str:
        """The topic with the prefix of its router."""
        return f"{self._outer_config.prefix}{self._settings.topic}"

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._settings.group

    @property
    def takes_batches(self) -> bool:
        """Whether handlers get several messages at a time."""
        return self._settings.batch

    def wants(self, message: Message) -> bool:
        """Whether the topic is this one, and the expression has the tag."""
        tags = {tag.strip() for tag in self._settings.expression.split("||")}
        return message.topic == self.topic and ("*" in tags or message.tag in tags)

    async def start(self) -> None:
        """Join the group and begin to handle messages. Raises as `PushConsumer.start`."""
        await super().start()
        if self.calls:
            consumer = await self._joined()
            for _ in range(self._settings.max_workers):
                self.add_task(self._work, (consumer,), restart_on_failure=False)
        self._post_start()

    async def stop(self) -> None:
        """Take nothing more, let handlers end within the broker's `graceful_timeout`, and leave the group.
        What is not finished is delivered again."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.stop()
        await super().stop()
        if consumer is not None:
            await consumer.aclose()

    async def _work(self, consumer: PushConsumer) -> None:
        async for delivery in self._deliveries(consumer):
            await self.consume(delivery)

    def _deliveries(self, consumer: PushConsumer) -> AsyncIterator[Delivery | Batch]:
        settings = self._settings
        if settings.batch:
            return aiter(consumer.batches(settings.max_records, linger_ms=settings.linger_ms))
        return aiter(consumer)

    async def _joined(self) -> PushConsumer:
        if self._consumer is None:
            # The routers of a subscriber compose their settings with those of the broker.
            client: Client = self._outer_config.broker_config.client  # type: ignore[attr-defined]
            settings = self._settings
            consumer = client.push_consumer(
                settings.group, subscribe={self.topic: settings.expression}, **settings.consumer
            )
            self._consumer = await consumer.start()
        return self._consumer

    async def get_one(self, *, timeout: float = 5.0) -> RocketMessage | None:
        """The next message within a time in s, to be acknowledged; None without one. For subscribers without
        handlers."""
        assert not self.calls, "a subscriber with handlers gives its messages to them"
        consumer = await self._joined()
        with anyio.move_on_after(timeout):
            return await self._parsed(await anext(self._deliveries(consumer)))
        return None

    async def __aiter__(self) -> AsyncIterator[RocketMessage]:
        assert not self.calls, "a subscriber with handlers gives its messages to them"
        async for delivery in self._deliveries(await self._joined()):
            yield await self._parsed(delivery)

    async def _parsed(self, delivery: Delivery | Batch) -> RocketMessage:
        parser, decoder = self._get_parser_and_decoder()
        context = self._outer_config.context
        message = await process_msg(
            msg=delivery,
            middlewares=(make(delivery, context=context) for make in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )
        assert isinstance(message, RocketMessage)
        return message

    def _make_response_publisher(self, message: Any) -> Sequence[Any]:
        return (ReplyPublisher(self._outer_config.producer, message.reply_to),)

    def get_log_context(self, message: Any) -> dict[str, str]:
        """What log lines say about a message."""
        return {"topic": self.topic, "message_id": getattr(message, "message_id", "")}


__all__ = ["RocketBrokerConfig", "RocketSubscriber"]
