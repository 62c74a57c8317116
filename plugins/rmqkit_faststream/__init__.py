"""A broker of FastStream over RocketMQ.

    broker = RocketBroker("127.0.0.1:9876")

    @broker.subscriber("Orders", group="billing")
    async def charge(order: Order) -> None: ...

Needs the extra `faststream`.
"""

from rmqkit_faststream.broker import RocketBroker
from rmqkit_faststream.message import RocketMessage
from rmqkit_faststream.router import RocketPublisher, RocketRoute, RocketRouter
from rmqkit_faststream.testing import TestRocketBroker

__all__ = [
    "RocketBroker",
    "RocketMessage",
    "RocketPublisher",
    "RocketRoute",
    "RocketRouter",
    "TestRocketBroker",
]
