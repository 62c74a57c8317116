"""Dead letters that are sent again while their user looks at something else: the one thing that a console
changes."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from contextlib import aclosing

import trio
from attrs import define, field

from rmqkit.client import Client, ReceivedMessage, RmqError, copying, dead_letter_views
from rmqkit.model.names import dlq_topic
from rmqkit.protocol.codes import ResponseCode
from rmqkit_console.wrong_input import WrongInput

_log = logging.getLogger(__name__)
PRODUCER_GROUP = "rmqkit_console"
#: Runs that are remembered, and failures that each remembers.
MAX_RUNS, MAX_FAULTS = 20, 10
_SAVE_S = 5


@define(eq=False, kw_only=True)
class Run:
    """One resend.

    ids   of the chosen dead letters; empty: all that have not been sent again
    rate  messages per second, at most
    """

    number: int
    group: str
    ids: frozenset[str]
    to: str
    rate: float
    user: str
    began_ms: int
    sent: int = 0
    failed: int = 0
    missing: int = 0
    faults: list[str] = field(factory=list)
    is_running: bool = True

    def fail(self, text: str) -> None:
        self.failed += 1
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(text)


class Resends:
    """The runs, of which one is under way at a time."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._runs: deque[Run] = deque(maxlen=MAX_RUNS)
        self._nursery: trio.Nursery | None = None

    @property
    def runs(self) -> tuple[Run, ...]:
        """The newest first."""
        return tuple(reversed(self._runs))

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Do what `begin` asks for until cancelled; a run then ends between two messages."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    def begin(self, client: Client, group: str, ids: frozenset[str], to: str, rate: float, user: str) -> Run:
        """Begin to send with a client, whose end is that of the run. Raises WrongInput while another run is
        under way."""
        assert self._nursery is not None, "it is running"
        if self._runs and self._runs[-1].is_running:
            raise WrongInput("dead letters are being sent again: wait for the end of that")
        number = self._runs[-1].number + 1 if self._runs else 1
        run = Run(number=number, group=group, ids=ids, to=to, rate=rate, user=user, began_ms=self._now_ms())
        _log.info(
            "%s sends %s dead letters of group %s again", user or "somebody", len(ids) or "all new", group
        )
        self._runs.append(run)
        self._nursery.start_soon(self._do, client, run)
        return run

    async def _do(self, client: Client, run: Run) -> None:
        try:
            await self._send(client, run)
        except RmqError as error:
            run.fail(str(error))
        finally:
            run.is_running = False
            _log.info("dead letters of group %s: %d sent again, %d failed", run.group, run.sent, run.failed)

    async def _send(self, client: Client, run: Run) -> None:
        """Those of a choice that fail are passed over. Of all new ones the first failure that may be over
        later is the end, and the next run goes on there."""
        wanted = set(run.ids)
        reader = copying.reader(client, dead_letter_views.RESEND_GROUP)
        async with client.producer(PRODUCER_GROUP) as producer, reader as consumer:
            span = await copying.span(client, dlq_topic(run.group))
            if not run.ids:
                span = await copying.unsent(consumer, span)
            sender = copying.Sender(producer, run.rate)
            place = copying.Place(None if run.ids else consumer)
            try:
                async with aclosing(copying.read(consumer, span)) as reading:
                    async for message in reading:
                        ids = {message.message_id, message.offset_message_id} & wanted
                        if run.ids and not ids:
                            continue
                        wanted -= ids
                        may_go_on = await self._send_one(run, sender, message)
                        if not run.ids and not may_go_on:
                            break
                        await place.passed(message)
                        if run.ids and not wanted:
                            break
            finally:
                with trio.move_on_after(_SAVE_S, shield=True):
                    await place.save()
        run.missing = len(wanted)

    async def _send_one(self, run: Run, sender: copying.Sender, message: ReceivedMessage) -> bool:
        """Whether it was sent, or never can be."""
        try:
            copy = copying.dead_letter_again(message, run.group, run.to)
            await sender.send(copy, message)
        except RmqError as error:
            run.fail(f"{message.queue} offset {message.queue_offset}: {error}")
            return error.code == ResponseCode.MESSAGE_ILLEGAL
        run.sent += 1
        return True


__all__ = ["MAX_RUNS", "Resends", "Run"]
