"""The broker class for FastStream."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from types import TracebackType
from typing import Any, Unpack

from fast_depends import dependency_provider
from faststream._internal.broker import BrokerUsecase
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream.exceptions import FeatureNotSupportedException
from faststream.middlewares import AckPolicy
from faststream.response.publish_type import PublishType
from faststream.specification.schema import BrokerSpec

from rmqkit.client import Batch, Client, ClientKeywords, Delivery, Producer, RmqError, SendResult
from rmqkit_faststream import publisher as publishing
from rmqkit_faststream import subscriber as subscribing
from rmqkit_faststream.registrator import RocketRegistrator


class _LoggerStorage(DefaultLoggerStorage):
    """The logger of a broker, whose lines name the topic."""

    def __init__(self) -> None:
        super().__init__()
        self._level = logging.INFO

    def set_level(self, level: int) -> None:
        self._level = level

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Nothing: lines are not aligned."""

    def get_logger(self, *, context: ContextRepo) -> Any:
        logger = self._get_logger_ref()
        if logger is None:
            logger = get_broker_logger(
                name="rocketmq",
                default_context={"topic": ""},
                message_id_ln=10,
                fmt="%(asctime)s %(levelname)-8s - %(topic)s | %(message_id)s - %(message)s",
                context=context,
                log_level=self._level,
            )
            self._logger_ref.add(logger)
        return logger


_logger_state = partial(make_logger_state, default_storage_cls=_LoggerStorage)


class RocketBroker(
    RocketRegistrator, BrokerUsecase[Delivery | Batch, Client, subscribing.RocketBrokerConfig]
):
    """Topics of RocketMQ for FastStream.

    namesrv        the address of the name server, as for `Client`; default NAMESRV_ADDR
    group          the group of the producer
    ack_policy     of all subscribers that have none; default NACK_ON_ERROR: a message whose handler fails is
                   delivered again later, and in the end a dead letter
    settings       further keywords of `Client`

    The other keywords are FastStream's, with the meanings that they have for its own brokers.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        group: str = "faststream",
        ack_policy: AckPolicy = EMPTY,
        middlewares: Any = (),
        dependencies: Any = (),
        routers: Iterable[RocketRegistrator] = (),
        parser: Any = None,
        decoder: Any = None,
        codec: Any = None,
        graceful_timeout: float | None = 15.0,
        description: str | None = None,
        logger: Any = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        **settings: Unpack[ClientKeywords],
    ) -> None:
        self._namesrv = namesrv
        self._settings = settings
        self._group = group
        self._sender: Producer | None = None
        config = subscribing.RocketBrokerConfig(
            producer=publishing.RocketProducer(parser, decoder),
            broker_middlewares=middlewares,
            broker_parser=parser,
            broker_decoder=decoder,
            broker_codec=codec,
            logger=_logger_state(logger=logger, log_level=log_level),
            fd_config=FastDependsConfig(
                use_fastdepends=apply_types,
                serializer=EMPTY,
                provider=dependency_provider,
                context=ContextRepo(),
            ),
            broker_dependencies=dependencies,
            graceful_timeout=graceful_timeout,
            ack_policy=ack_policy,
            extra_context={"broker": self},
        )
        specification = BrokerSpec(
            url=[f"rocketmq://{namesrv or 'localhost:9876'}"],
            protocol="rocketmq",
            protocol_version=None,
            description=description,
            tags=(),
            security=None,
        )
        super().__init__(config=config, specification=specification, routers=routers)

    # --- life -----------------------------------------------------------------------------------------------

    async def _connect(self) -> Client:
        client = await Client(self._namesrv, **self._settings).start()
        try:
            self._sender = await client.producer(self._group).start()
        except BaseException:
            await client.aclose()
            raise
        config = self.config.broker_config
        config.client = client
        assert isinstance(config.producer, publishing.RocketProducer)
        config.producer.connect(self._sender, config.fd_config._serializer, config.broker_codec)
        return client

    async def start(self) -> None:
        """Connect, and start all subscribers. Raises as `Client.start` and `PushConsumer.start`."""
        await self.connect()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Stop all subscribers, and close the client."""
        try:
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            client, sender = self._connection, self._sender
            self._connection = self._sender = None
            self.config.broker_config.client = None
            if sender is not None:
                await sender.aclose()
            if client is not None:
                await client.aclose()

    async def ping(self, timeout: float | None = None) -> bool:
        """Whether a name server answers."""
        if self._connection is None:
            return False
        try:
            await self._connection.admin.cluster_info()
        except RmqError:
            return False
        return True

    # --- messages -------------------------------------------------------------------------------------------

    async def publish(
        self,
        message: Any,
        topic: str,
        *,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **options: Any,
    ) -> SendResult:
        """Send a message: bytes, text, or what FastStream encodes as JSON.

        headers   properties of the message
        reply_to  the topic to which the result of the handler is published
        options   keywords of `Message`, such as `tag`, `keys`, `ordering_key` and `delay_level`

        Raises as `Producer.send`.
        """
        command = self._command([message], topic, headers, correlation_id, reply_to, options)
        result: SendResult = await self._basic_publish(command, producer=self.config.producer)
        return result

    async def publish_batch(  # type: ignore[override]
        self,
        *messages: Any,
        topic: str,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **options: Any,
    ) -> SendResult:
        """Send messages to a topic at once: all or none are stored, in order, in one queue. The keywords are
        those of `publish`, for each of the messages. Raises as `Producer.send_batch`."""
        command = self._command(messages or [None], topic, headers, correlation_id, reply_to, options)
        result: SendResult = await self._basic_publish_batch(command, producer=self.config.producer)
        return result

    def _command(
        self,
        messages: Iterable[Any],
        topic: str,
        headers: dict[str, str] | None,
        correlation_id: str | None,
        reply_to: str,
        options: dict[str, Any],
    ) -> publishing.RocketCommand:
        return publishing.RocketCommand(
            *messages,
            topic=topic,
            options=options,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            reply_to=reply_to,
            _publish_type=PublishType.PUBLISH,
        )

    async def request(self, *_: Any, **__: Any) -> Any:
        """Refuse to wait for an answer. Raises FeatureNotSupportedException."""
        raise FeatureNotSupportedException(publishing._NO_REQUESTS)


__all__ = ["RocketBroker"]
