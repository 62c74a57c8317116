"""Sending of messages anew with a bar that shows how far it is, and lines for what failed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

import anyio

from rmqkit.cli import shown
from rmqkit.client import Message, Producer, PullConsumer, ReceivedMessage
from rmqkit.client.cluster.copying import (
    READER_GROUP,
    Pace,
    Place,
    Sender,
    Span,
    again,
    count,
    read,
    reader,
    span,
    unsent,
)
from rmqkit.errors import MessageIllegal, SendFailed
from rmqkit.protocol.codes import ResponseCode
from rmqkit.toolkit import output


class Sending:
    """Sends messages one after the other, counts them, and shows a bar. `total` is None when it is
    unknown."""

    def __init__(self, producer: Producer, rate: float | None, total: int | None) -> None:
        self.sent = self.failed = 0
        self._sender = Sender(producer, rate)
        self._total = total
        self._bar = output.ProgressBar(" messages")

    async def send(self, message: Message, origin: ReceivedMessage) -> bool:
        """Send a copy of a message. A failure is counted, and reported on standard error. Returns False when
        sending may succeed later; an original that cannot be decoded, and a copy that cannot be sent or that
        the broker refuses as illegal, never will."""
        try:
            await self._sender.send(message, origin)
        except (SendFailed, MessageIllegal) as error:
            self.failed += 1
            output.error(f"{shown.queue_text(origin.queue)} offset {origin.queue_offset}: {error}")
            return error.code == ResponseCode.MESSAGE_ILLEGAL
        finally:
            self._bar(self.sent + self.failed + 1, self._total)
        self.sent += 1
        return True

    def end(self) -> None:
        """Remove the bar."""
        self._bar.end()


class Again(NamedTuple):
    """A message that is to be sent again: the name that a user knows it by, the original with its place, and
    the copy."""

    name: str
    origin: ReceivedMessage
    copy: Message


async def resend(
    chosen: AsyncIterator[Again], sending: Sending, consumer: PullConsumer | None, *, dry_run: bool
) -> None:
    """Send messages again, or list them with `dry_run`. With a consumer its group keeps how far it has come,
    and the first failure to send is the end, so that the next call continues there; messages that never can
    be sent are passed over. Raises as `PullConsumer.commit`."""
    place = Place(consumer)
    try:
        async for name, origin, copy in chosen:
            if dry_run:
                fault = origin.fault
                output.line(f"{name} " + (f"to {copy.topic}" if fault is None else f"is not sent: {fault}"))
            elif await sending.send(copy, origin):
                await place.passed(origin)
            elif consumer is not None:
                break
    finally:
        sending.end()
        with anyio.move_on_after(5, shield=True):
            await place.save()


__all__ = [
    "READER_GROUP",
    "Again",
    "Pace",
    "Sending",
    "Span",
    "again",
    "count",
    "read",
    "reader",
    "resend",
    "span",
    "unsent",
]
