"""Sends of many tasks gathered into batches (Java: ProduceAccumulator; behaviour sheet, A10).

A gathering takes the messages of one topic that may travel in one request. It departs when it is full, when
its time is over, or when the producer is closed; then it is sent, in the client's task group, and every
sender gets the result of its own message. A task that has sent one waits for the next: starting a task costs
as much as three messages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import anyio
from attrs import define, field

from rmqkit.client.hooks import ClientSendContext
from rmqkit.client.producing.send_result import SendResult
from rmqkit.limits import MAX_BATCH_MESSAGES
from rmqkit.model.message import Message
from rmqkit.model.queue import MessageQueue
from rmqkit.protocol.batch import BatchItem
from rmqkit.remoting.backend import Wakeup

#: Tasks that wait for a gathering to send, at most.
_IDLE_TASKS = 16
#: What the messages of one gathering have in common: topic, queue (None when any queue will do), whether they
#: wait for flush and replicas, time limit in ms.
GatheringKey = tuple[str, MessageQueue | None, bool, int]


@define(eq=False)
class Entry:
    """One message of a gathering.

    item     its parts within a batch
    context  what the hooks of its send see, None without hooks
    done     awaited by the sender
    outcome  its result or error, once there is one; none when the client was closed meanwhile
    """

    message: Message
    unique_key: str
    item: BatchItem
    size_bytes: int
    context: ClientSendContext | None
    done: Wakeup
    outcome: SendResult | Exception | None = None


@define(eq=False)
class Gathering:
    """Messages that go out together, until `deadline_s`. A cancelled send takes its message back until
    `departed`.

    closed  whether it takes no more messages
    full    set when it is closed, if it waits for the end of its linger time
    """

    key: GatheringKey
    deadline_s: float
    entries: dict[Entry, None] = field(factory=dict)
    size_bytes: int = 0
    closed: bool = False
    departed: bool = False
    full: anyio.Event | None = None


@define(eq=False)
class Courier:
    """A task that sends gatherings: the one that it sends, and what it awaits afterwards. It ends when it is
    woken without a gathering."""

    gathering: Gathering | None
    next: Wakeup


class Deliver(Protocol):
    """Sends the entries in one request until the deadline, and sets their outcomes. An error that it raises
    is that of every entry without one."""

    def __call__(self, entries: Sequence[Entry], key: GatheringKey, deadline_s: float) -> Awaitable[None]: ...


class Accumulator:
    """Gathers messages.

    linger_s      how long a gathering waits after its first message; 0: until the tasks that can run now have
                  run
    batch_bytes   size of a full batch
    deliver       sends a batch
    wakeup, wake  make what one task awaits, and wake that task
    start_soon    starts a task in the client's task group
    """

    def __init__(
        self,
        linger_s: float,
        batch_bytes: int,
        deliver: Deliver,
        wakeup: Callable[[], Wakeup],
        wake: Callable[[Wakeup], None],
        start_soon: Callable[[Callable[[Any], Awaitable[None]], object], object],
    ) -> None:
        self._linger_s = linger_s
        self._batch_bytes = batch_bytes
        self._deliver = deliver
        self._wakeup = wakeup
        self._wake = wake
        self._start_soon = start_soon
        self._gatherings: dict[GatheringKey, Gathering] = {}
        self._idle: list[Courier] = []
        self._closed = False

    def add(self, entry: Entry, key: GatheringKey, deadline_s: float) -> Gathering:
        """Add a message to the gathering of its key and return that. The deadline of a batch is that of its
        first message. The sender waits for `entry.done`; if it is cancelled, it calls `withdraw`."""
        gathering = self._gatherings.get(key)
        if gathering is not None and gathering.size_bytes + entry.size_bytes > self._batch_bytes:
            self._close(gathering)
            gathering = None
        if gathering is None:
            gathering = self._gatherings[key] = Gathering(key, deadline_s)
            self._hand_over(gathering)
        gathering.entries[entry] = None
        gathering.size_bytes += entry.size_bytes
        if gathering.size_bytes >= self._batch_bytes or len(gathering.entries) == MAX_BATCH_MESSAGES:
            self._close(gathering)
        return gathering

    def withdraw(self, entry: Entry, gathering: Gathering) -> None:
        """Take a message back, unless its batch has departed."""
        if not gathering.departed:
            del gathering.entries[entry]
            gathering.size_bytes -= entry.size_bytes

    def close(self) -> None:
        """Let everything gathered so far depart, and let nothing wait from now on."""
        self._linger_s = 0
        self._closed = True
        for gathering in list(self._gatherings.values()):
            self._close(gathering)
        while self._idle:
            self._wake(self._idle.pop().next)

    def _hand_over(self, gathering: Gathering) -> None:
        """Let a task that waits, or else a new one, send the gathering."""
        if self._idle:
            courier = self._idle.pop()
            courier.gathering = gathering
            self._wake(courier.next)
        else:
            self._start_soon(self._serve, Courier(gathering, self._wakeup()))

    async def _serve(self, courier: Courier) -> None:
        """Send one gathering after the other, until the accumulator is closed."""
        try:
            while courier.gathering is not None:
                await self._run(courier.gathering)
                courier.gathering, courier.next = None, self._wakeup()
                if self._closed or len(self._idle) >= _IDLE_TASKS:
                    return
                self._idle.append(courier)
                await courier.next
        finally:
            if courier in self._idle:
                self._idle.remove(courier)

    def _close(self, gathering: Gathering) -> None:
        if self._gatherings.get(gathering.key) is gathering:
            del self._gatherings[gathering.key]
        gathering.closed = True
        if gathering.full is not None:
            gathering.full.set()

    async def _linger(self, gathering: Gathering) -> None:
        """The tasks that could run when the gathering began have run already: this one is behind them."""
        if not self._linger_s:
            return
        gathering.full = anyio.Event()
        with anyio.move_on_after(self._linger_s):
            await gathering.full.wait()

    async def _run(self, gathering: Gathering) -> None:
        try:
            if not gathering.closed:
                await self._linger(gathering)
                self._close(gathering)
            gathering.departed = True
            entries = list(gathering.entries)
            if entries:
                await self._deliver(entries, gathering.key, gathering.deadline_s)
        except Exception as error:  # noqa: BLE001 - the senders get it
            _share(error, [entry for entry in gathering.entries if entry.outcome is None])
        finally:
            gathering.departed = True
            for entry in gathering.entries:
                self._wake(entry.done)


def _share(error: Exception, entries: Sequence[Entry]) -> None:
    """Give each entry an error object of its own: several tasks that raise one object would mix up its
    traceback."""
    for entry in entries:
        own = type(error).__new__(type(error), *error.args)
        own.__dict__.update(error.__dict__)
        own.__cause__ = error.__cause__ or error
        entry.outcome = own
