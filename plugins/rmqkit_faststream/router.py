"""Routers: subscribers and publishers that a broker includes, with a prefix of their topics if it wants."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.constants import EMPTY
from faststream.middlewares import AckPolicy

from rmqkit.client import Batch, Delivery
from rmqkit_faststream.registrator import RocketRegistrator
from rmqkit_faststream.subscriber import RocketBrokerConfig


class RocketPublisher(ArgsContainer):
    """A publisher of a `RocketRoute`; the arguments are those of `RocketBroker.publisher`."""

    def __init__(self, topic: str, **keywords: Any) -> None:
        super().__init__(topic, **keywords)


class RocketRoute(SubscriberRoute):
    """A handler with its subscriber and its publishers, for `RocketRouter(handlers=[...])`. The other
    arguments are those of `RocketBroker.subscriber`."""

    def __init__(
        self,
        call: Callable[..., Any],
        topic: str,
        *,
        group: str,
        publishers: Iterable[RocketPublisher] = (),
        **keywords: Any,
    ) -> None:
        super().__init__(call, topic, group=group, publishers=publishers, **keywords)


class RocketRouter(RocketRegistrator, BrokerRouter[Delivery | Batch, RocketBrokerConfig]):
    """Subscribers and publishers for `broker.include_router`.

    prefix    what the topics begin with; groups have none
    handlers  routes that are declared without decorators

    The other keywords are FastStream's, with the meanings that they have for its own routers.
    """

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[RocketRoute] = (),
        *,
        dependencies: Any = (),
        middlewares: Any = (),
        routers: Iterable[RocketRegistrator] = (),
        parser: Any = None,
        decoder: Any = None,
        codec: Any = None,
        include_in_schema: bool | None = None,
        ack_policy: AckPolicy = EMPTY,
    ) -> None:
        config = RocketBrokerConfig(
            prefix=prefix,
            ack_policy=ack_policy,
            broker_dependencies=dependencies,
            broker_middlewares=middlewares,
            broker_parser=parser,
            broker_decoder=decoder,
            broker_codec=codec,
            include_in_schema=include_in_schema,
        )
        super().__init__(config=config, handlers=handlers, routers=routers)


__all__ = ["RocketPublisher", "RocketRoute", "RocketRouter"]
