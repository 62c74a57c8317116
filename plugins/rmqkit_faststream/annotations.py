"""Annotations by which a handler gets what it is called with, as those of FastStream's own brokers.

async def charge(order: Order, message: RocketMessage) -> None: ...
"""

from __future__ import annotations

from typing import Annotated

from faststream import Context
from faststream.annotations import ContextRepo, Logger

from rmqkit_faststream import broker, message

RocketBroker = Annotated[broker.RocketBroker, Context("broker")]
RocketMessage = Annotated[message.RocketMessage, Context("message")]

__all__ = ["ContextRepo", "Logger", "RocketBroker", "RocketMessage"]
