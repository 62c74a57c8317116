"""Entries of a broker's tables that are being written to the device: what reads raise meanwhile, and how a
processor answers when they are written."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

import msgspec
import trio
from attrs import define, field

from rmqkit.errors import RequestRefused
from rmqkit.plugin.request import Outcome, Peer
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command

C = TypeVar("C", bound=msgspec.Struct)
T = TypeVar("T")

#: Called with None when a change is on the device, or with the reason why it was not made.
Settled = Callable[[RequestRefused | None], None]


@define(eq=False)
class Change(Generic[C]):
    """One entry that is being written. `config` is None for a deletion, and `log_end` the log offset before
    which what belongs to it is dead. An `optional` entry is made even if it cannot be written now: its loss
    does no harm, and a later fold writes it."""

    name: str
    config: C | None
    at_ms: int
    log_end: int = 0
    optional: bool = False
    is_settled: bool = False
    failure: RequestRefused | None = None
    waiting: list[Settled] = field(factory=list)

    def when_settled(self, then: Settled) -> None:
        """Call `then` when the outcome is known, at once if it is known already, in the order of these
        calls."""
        if self.is_settled:
            then(self.failure)
        else:
            self.waiting.append(then)

    async def done(self) -> None:
        """Wait until the change is on the device. Raises RequestRefused when it was not made."""
        settled = trio.Event()
        self.when_settled(lambda _: settled.set())
        await settled.wait()
        if self.failure is not None:
            raise self.failure


class Unsaved(RequestRefused):
    """The requested entry is being written: try again when `change` is settled (`when_saved`)."""

    def __init__(self, change: Change[C]) -> None:
        super().__init__(ResponseCode.SYSTEM_ERROR, f"{change.name} is being written to the disk, try again")
        self.change = change


def when_saved(handle: Callable[[], Outcome], request: Command, peer: Peer) -> Outcome:
    """The result of `handle()`; if it raises Unsaved, a ticket: a task of the connection runs it again, from
    the beginning, once the change is written."""
    try:
        return handle()
    except Unsaved as unsaved:
        return peer.answer_async(request, partial(again_when_saved, handle, unsaved))


async def again_when_saved(read: Callable[[], T], unsaved: Unsaved | None = None) -> T:
    """The result of `read` when no entry that it needs is being written. When cancelled, `read` is not run
    again, but the change is made. Raises RequestRefused when the change was not made."""
    while True:
        if unsaved is not None:
            await unsaved.change.done()
        try:
            return read()
        except Unsaved as another:
            unsaved = another


__all__ = ["Change", "Unsaved", "again_when_saved", "when_saved"]
