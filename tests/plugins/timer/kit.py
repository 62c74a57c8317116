"""A broker with timers, whose clock the test moves, and files of timers made by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from rmqkit.errors import RequestRefused
from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.model.run import MessageRun
from rmqkit_timer.entering import Entering
from rmqkit_timer.service import TimerService
from rmqkit_timer.timers import Place
from tests.broker.desk import BrokerHarness

#: Virtual seconds in which new messages are entered, and slots that are over are read.
A_LOOK_S = 1.25


def service_of(desk: BrokerHarness) -> TimerService:
    service = desk.broker.registry.services["timer"]
    assert isinstance(service, TimerService)
    return service


def entering_of(desk: BrokerHarness) -> Entering:
    """The part of the running service that writes checkpoints."""
    entering = service_of(desk)._entering
    assert entering is not None
    return entering


@asynccontextmanager
async def timing(desk: BrokerHarness, *, graceful: bool = True) -> AsyncIterator[TimerService]:
    """The service of timers runs; leaving stops it, gracefully or as a crash would."""
    service = service_of(desk)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run, desk.broker)
        yield service
        if graceful:
            await service.stop(desk.broker)
        nursery.cancel_scope.cancel()


async def after(desk: BrokerHarness, ms: int) -> None:
    """Let the service look, move the broker's clock, and let it look again."""
    await trio.sleep(A_LOOK_S)
    desk.clock.advance(ms)
    await trio.sleep(A_LOOK_S)


def found(desk: BrokerHarness, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    return [message.body for message in desk.stored(topic, queue_id)]


def timed(body: bytes, properties: Mapping[str, str], topic: str = "T", queue_id: int = 0) -> PutMessage:
    message = PutMessage(topic=topic, queue_id=queue_id, body=body, properties={}, properties_bytes=b"")
    message.set_properties(properties)
    return message


def put(desk: BrokerHarness, *messages: PutMessage) -> list[RequestRefused]:
    """Append messages as one run; returns the refusals."""
    results = desk.broker.appender.append(MessageRun(list(messages)))
    return [result for result in results if isinstance(result, RequestRefused)]


def parked(body: bytes, slot_ms: int, **properties: Any) -> PutMessage:
    """A message as it is stored in the timer topic."""
    given = {props.TIMER_OUT_MS: str(slot_ms), props.REAL_TOPIC: "T", props.REAL_QUEUE_ID: "0"} | properties
    return timed(body, {name: value for name, value in given.items() if value}, names.TIMER_TOPIC)


def place(physical_offset: int = 0, *, deletes: bool = False) -> Place:
    return Place(physical_offset, 100, 84, deletes)
