"""Declares subscribers and publishers: what brokers and routers have in common."""

from __future__ import annotations

from typing import Any, Literal, overload

from faststream._internal.broker.registrator import Registrator
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream.middlewares import AckPolicy

from rmqkit.client import Batch, Delivery, PushKeywords
from rmqkit_faststream.publisher import (
    PublisherConfig,
    RocketBatchPublisher,
    RocketPublisher,
    RocketPublisherSpecification,
)
from rmqkit_faststream.publisher import SpecificationConfig as PublisherSpecificationConfig
from rmqkit_faststream.subscriber import (
    RocketBrokerConfig,
    RocketSubscriber,
    RocketSubscriberSpecification,
    SubscriberConfig,
)
from rmqkit_faststream.subscriber import SpecificationConfig as SubscriberSpecificationConfig


class RocketRegistrator(Registrator[Delivery | Batch, RocketBrokerConfig]):
    """Something with subscribers and publishers: a broker, or a router that it includes."""

    def subscriber(  # type: ignore[override]
        self,
        topic: str,
        *,
        group: str,
        expression: str = "*",
        max_workers: int = 1,
        consumer: PushKeywords | None = None,
        batch: bool = False,
        max_records: int = 32,
        linger_ms: float = 100,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Any = (),
        parser: Any = None,
        decoder: Any = None,
        codec: Any = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
    ) -> RocketSubscriber:
        """A member of a consumer group, whose messages the decorated function handles.

        expression   tags to receive, as in `Client.push_consumer`
        max_workers  messages, or batches of them, that are handled at a time
        consumer     keywords of `Client.push_consumer`, such as `start` and `order`
        batch        whether the function gets a list of messages, `max_records` at most; a list that has its
                     first message waits for others for `linger_ms`. They are acknowledged together

        A client has one subscriber of a group. The other keywords are FastStream's.
        """
        calls: CallsCollection[Delivery | Batch] = CallsCollection()
        specification = RocketSubscriberSpecification(
            self.config,  # type: ignore[arg-type]
            SubscriberSpecificationConfig(
                topic=topic, title_=title, description_=description, include_in_schema=include_in_schema
            ),
            calls,
        )
        config = SubscriberConfig(
            topic=topic,
            group=group,
            expression=expression,
            max_workers=max_workers,
            consumer=consumer or {},
            batch=batch,
            max_records=max_records,
            linger_ms=linger_ms,
            no_reply=no_reply,
            _outer_config=self.config,  # type: ignore[arg-type]
            _ack_policy=ack_policy,
        )
        made = RocketSubscriber(config, specification, calls)
        super().subscriber(made, persistent=persistent)
        return made.add_call(
            parser_=parser or self._parser,
            decoder_=decoder or self._decoder,
            dependencies_=dependencies,
            codec_=codec,
        )

    @overload  # type: ignore[override]
    def publisher(self, topic: str, *, batch: Literal[True], **keywords: Any) -> RocketBatchPublisher: ...

    @overload
    def publisher(self, topic: str, *, batch: Literal[False] = False, **keywords: Any) -> RocketPublisher: ...

    def publisher(
        self,
        topic: str,
        *,
        batch: bool = False,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any = None,
        include_in_schema: bool = True,
        **options: Any,
    ) -> RocketPublisher:
        """Publishes what the decorated function returns, with `batch` the items of what it returns, all at
        once. `options` are keywords of `Message`, such as `tag`."""
        specification = RocketPublisherSpecification(
            self.config,  # type: ignore[arg-type]
            PublisherSpecificationConfig(
                topic=topic,
                schema_=schema,
                title_=title,
                description_=description,
                include_in_schema=include_in_schema,
            ),
        )
        config = PublisherConfig(
            topic=topic,
            options=options,
            _outer_config=self.config,  # type: ignore[arg-type]
        )
        made = (RocketBatchPublisher if batch else RocketPublisher)(config, specification)
        super().publisher(made, persistent=persistent)
        return made


__all__ = ["RocketRegistrator"]
