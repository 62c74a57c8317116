"""Sends messages: the producer of a broker, and `@broker.publisher`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from faststream._internal.configs import BrokerConfig, PublisherSpecificationConfig, PublisherUsecaseConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import BatchCodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import FeatureNotSupportedException, IncorrectState
from faststream.response.publish_type import PublishType
from faststream.response.response import BatchPublishCommand, PublishCommand
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as MessageSpec
from faststream.specification.schema import Operation, PublisherSpec

from rmqkit.client import Message, Producer, SendResult
from rmqkit_faststream.message import CONTENT_TYPE, CORRELATION_ID, REPLY_TO, Parser

_NO_REQUESTS = "a RocketBroker does not wait for answers; subscribe to the topic that they are published to"


class RocketCommand(BatchPublishCommand):
    """What is published, one message or several, and how: `options` are keywords of `Message`."""

    def __init__(
        self, body: Any, *bodies: Any, topic: str, options: dict[str, Any] | None = None, **keywords: Any
    ) -> None:
        super().__init__(body, *bodies, destination=topic, **keywords)
        self.options = options or {}

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> RocketCommand:
        """A command of FastStream as one of this broker; with `batch` a sequence is several messages."""
        if isinstance(cmd, RocketCommand):
            return cmd
        body, more = cls._parse_bodies(cmd.body, batch=batch)
        return cls(
            body,
            *more,
            topic=cmd.destination,
            correlation_id=cmd.correlation_id,
            headers=cmd.headers,
            reply_to=cmd.reply_to,
            _publish_type=cmd.publish_type,
        )


class RocketProducer(ProducerProto[RocketCommand]):
    """Encodes and sends, while it is connected."""

    def __init__(self, parser: Any = None, decoder: Any = None) -> None:
        default = Parser()
        self._parser = ParserComposition(parser, default.parse_message)
        self._decoder = ParserComposition(decoder, default.decode_message)
        self.codec = DefaultCodec()
        self._serializer: Any = None
        self._producer: Producer | None = None

    def connect(self, producer: Producer | None, serializer: Any, codec: Any) -> None:
        """Use a producer of the client from now on; None for none."""
        self._producer, self._serializer = producer, serializer
        self.codec = codec or DefaultCodec()

    async def messages(self, command: RocketCommand) -> list[Message]:
        """The messages of a command. Raises TypeError for a header that is not text."""
        bodies = command.batch_bodies
        if isinstance(self.codec, BatchCodecProto):
            encoded = await self.codec.encode_batch(bodies, self._serializer)
        else:
            encoded = [await self.codec.encode(body, self._serializer) for body in bodies]
        return [_message(command, body, content_type) for body, content_type in encoded]

    async def message(self, command: RocketCommand) -> Message:
        """The message of a command that has one. Raises as `messages`."""
        return _message(command, *await self.codec.encode(command.body, self._serializer))

    async def publish(self, command: RocketCommand) -> SendResult | None:
        """Send a message. Raises as `Producer.send`, IncorrectState when the broker is not connected."""
        return await self._connected().send(await self.message(command))

    async def publish_batch(self, command: RocketCommand) -> SendResult | None:
        """Send messages at once: all or none are stored, in order, in one queue. Raises as
        `Producer.send_batch`, IncorrectState when the broker is not connected."""
        return await self._connected().send_batch(await self.messages(command))

    def _connected(self) -> Producer:
        if self._producer is None:
            raise IncorrectState("the broker is not connected; await `broker.connect()` before it publishes")
        return self._producer

    async def request(self, command: RocketCommand) -> Any:
        """Refuse to wait for an answer. Raises FeatureNotSupportedException."""
        raise FeatureNotSupportedException(_NO_REQUESTS)


def _message(command: RocketCommand, body: bytes, content_type: str | None) -> Message:
    own = {CONTENT_TYPE: content_type, CORRELATION_ID: command.correlation_id, REPLY_TO: command.reply_to}
    options = dict(command.options)
    properties = {**(command.headers or {}), **(options.pop("properties", None) or {})}
    properties |= {key: value for key, value in own.items() if value}
    return Message(command.destination, body, properties=properties, **options)


class ReplyPublisher(FakePublisher):
    """Publishes what a handler returns to the topic that its message names."""

    def __init__(self, producer: ProducerProto[Any], topic: str) -> None:
        super().__init__(producer=producer)
        self._topic = topic

    def patch_command(self, command: PublishCommand) -> RocketCommand:
        """The command with its destination."""
        patched = RocketCommand.from_cmd(super().patch_command(command))
        patched.destination = self._topic
        return patched


@dataclass(kw_only=True)
class SpecificationConfig(PublisherSpecificationConfig):
    """Where a publisher sends to, for AsyncAPI."""

    topic: str


@dataclass(kw_only=True)
class PublisherConfig(PublisherUsecaseConfig):
    """Where and how a publisher sends."""

    topic: str
    options: dict[str, Any]


class RocketPublisherSpecification(PublisherSpecification[BrokerConfig, SpecificationConfig]):
    """A publisher in AsyncAPI."""

    @property
    def topic(self) -> str:
        """The topic with the prefix of its router."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        return {
            self.name: PublisherSpec(
                address=self.topic,
                description=self.config.description_,
                operation=Operation(
                    message=MessageSpec(title=f"{self.name}:Message", payload=payload), bindings=None
                ),
                bindings=None,
            )
        }


class RocketPublisher(PublisherUsecase):
    """Publishes what a decorated handler returns, or what it is called with."""

    def __init__(self, config: PublisherConfig, specification: PublisherSpecification[Any, Any]) -> None:
        super().__init__(config, specification)
        self._topic = config.topic
        self._options = config.options

    @property
    def topic(self) -> str:
        """The topic with the prefix of its router."""
        return f"{self._outer_config.prefix}{self._topic}"

    async def publish(
        self,
        message: Any,
        topic: str = "",
        *,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        **options: Any,
    ) -> Any:
        """Send a message to the topic, or to another one. `options` are keywords of `Message`. Raises as
        `Producer.send`."""
        command = RocketCommand(
            message,
            topic=topic or self.topic,
            options=self._options | options,
            headers=headers,
            correlation_id=correlation_id or self._outer_config.id_generator(),
            _publish_type=PublishType.PUBLISH,
        )
        return await self._basic_publish(command, producer=self._outer_config.producer, _extra_middlewares=())

    async def _publish(self, command: PublishCommand, *, _extra_middlewares: Iterable[Any]) -> None:
        own = self._complete(RocketCommand.from_cmd(command))
        await self._basic_publish(
            own, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares
        )

    def _complete(self, command: RocketCommand) -> RocketCommand:
        command.destination = command.destination or self.topic
        command.options = self._options | command.options
        return command

    async def request(self, *_: Any, **__: Any) -> Any:
        """Refuse to wait for an answer. Raises FeatureNotSupportedException."""
        raise FeatureNotSupportedException(_NO_REQUESTS)


class RocketBatchPublisher(RocketPublisher):
    """Publishes the items of what a decorated handler returns at once, or what it is called with."""

    async def publish(
        self,
        *messages: Any,
        topic: str = "",
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        **options: Any,
    ) -> Any:
        """Send messages to the topic, or to another one. `options` are keywords of `Message`, of each. Raises
        as `Producer.send_batch`."""
        command = RocketCommand(
            *(messages or (None,)),
            topic=topic or self.topic,
            options=self._options | options,
            headers=headers,
            correlation_id=correlation_id or self._outer_config.id_generator(),
            _publish_type=PublishType.PUBLISH,
        )
        producer = self._outer_config.producer
        return await self._basic_publish_batch(command, producer=producer, _extra_middlewares=())

    async def _publish(self, command: PublishCommand, *, _extra_middlewares: Iterable[Any]) -> None:
        own = self._complete(RocketCommand.from_cmd(command, batch=True))
        if own.batch_bodies:
            await self._basic_publish_batch(
                own, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares
            )


__all__ = ["ReplyPublisher", "RocketBatchPublisher", "RocketCommand", "RocketProducer", "RocketPublisher"]
