"""The bounds on what a producer has in flight (Java: DefaultMQProducerImpl, semaphoreAsyncSendNum and
semaphoreAsyncSendSize; behaviour sheet, A11)."""

from __future__ import annotations

from collections import deque
from types import TracebackType

import anyio
from attrs import define, frozen

from rmqkit.errors import ClientErrorCode, SendFailed


@frozen
class Bounds:
    """Maximum number of messages in flight, and of bytes of their bodies. A send that is larger than a bound
    passes when nothing else is in flight."""

    messages: int
    size_bytes: int

    def error(self, waited_ms: int) -> SendFailed:
        """The error of a send that found no room in time."""
        error = SendFailed(
            f"the producer has its {self.messages} messages or {self.size_bytes} bytes in flight, and no room"
            f" came free within {waited_ms} ms; nothing was sent. The brokers are slower than the senders:"
            " send fewer at a time, gather them (linger_ms), or raise max_in_flight, max_in_flight_bytes or"
            " timeout_ms"
        )
        error.code = ClientErrorCode.ACCESS_BROKER_TIMEOUT
        return error


class Load:
    """What is in flight, without waiting and without locks; the waiting is up to the owner."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.messages = 0
        self.size_bytes = 0

    def fits(self, messages: int, size_bytes: int) -> bool:
        """Whether so much more is within the bounds."""
        return not self.messages or (
            self.messages + messages <= self.bounds.messages
            and self.size_bytes + size_bytes <= self.bounds.size_bytes
        )

    def add(self, messages: int, size_bytes: int) -> None:
        """Count it in."""
        self.messages += messages
        self.size_bytes += size_bytes

    def remove(self, messages: int, size_bytes: int) -> None:
        """Count it out again."""
        self.messages -= messages
        self.size_bytes -= size_bytes


@define(eq=False)
class _Waiter:
    messages: int
    size_bytes: int
    granted: anyio.Event


class InFlight:
    """Lets sends wait until there is room for them, in the order of their arrival."""

    def __init__(self, bounds: Bounds) -> None:
        self._load = Load(bounds)
        self._waiting: deque[_Waiter] = deque()
        self._idle: anyio.Event | None = None

    def room(self, messages: int, size_bytes: int, deadline_s: float) -> Room:
        """`async with in_flight.room(1, len(body), deadline_s): ...` Entering waits for room; it raises
        SendFailed at the deadline (of the event loop's clock). When cancelled, no room is taken."""
        return Room(self, messages, size_bytes, deadline_s)

    async def idle(self) -> None:
        """Wait until nothing is in flight and nothing waits."""
        while self._load.messages or self._waiting:
            self._idle = self._idle or anyio.Event()
            await self._idle.wait()

    async def _enter(self, messages: int, size_bytes: int, deadline_s: float) -> None:
        if not self._waiting and self._load.fits(messages, size_bytes):
            self._load.add(messages, size_bytes)
            return
        waiter = _Waiter(messages, size_bytes, anyio.Event())
        self._waiting.append(waiter)
        began_s = anyio.current_time()
        entered = False
        try:
            with anyio.CancelScope(deadline=deadline_s):
                await waiter.granted.wait()
            entered = waiter.granted.is_set()
        finally:
            if not entered:
                self._withdraw(waiter)
        if not entered:
            raise self._load.bounds.error(int((anyio.current_time() - began_s) * 1000))

    def _withdraw(self, waiter: _Waiter) -> None:
        if waiter.granted.is_set():
            self._leave(waiter.messages, waiter.size_bytes)
        else:
            self._waiting.remove(waiter)
            self._grant()

    def _leave(self, messages: int, size_bytes: int) -> None:
        self._load.remove(messages, size_bytes)
        self._grant()

    def _grant(self) -> None:
        while self._waiting and self._load.fits(self._waiting[0].messages, self._waiting[0].size_bytes):
            waiter = self._waiting.popleft()
            self._load.add(waiter.messages, waiter.size_bytes)
            waiter.granted.set()
        if self._idle is not None and not self._load.messages and not self._waiting:
            self._idle.set()
            self._idle = None


class Room:
    """Room for one send, as an asynchronous context manager."""

    __slots__ = ("_deadline_s", "_in_flight", "_messages", "_size_bytes")

    def __init__(self, in_flight: InFlight, messages: int, size_bytes: int, deadline_s: float) -> None:
        self._in_flight = in_flight
        self._messages = messages
        self._size_bytes = size_bytes
        self._deadline_s = deadline_s

    async def __aenter__(self) -> None:
        await self._in_flight._enter(self._messages, self._size_bytes, self._deadline_s)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._in_flight._leave(self._messages, self._size_bytes)
