"""A broker of taskiq over RocketMQ: tasks are messages of one topic, which workers lease one by one.

    broker = RocketBroker("127.0.0.1:9876")

    @broker.task
    async def resize(path: str) -> None: ...

Needs the extra `taskiq`.
"""

from rmqkit_taskiq.broker import RocketBroker

__all__ = ["RocketBroker"]
