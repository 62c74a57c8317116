"""The bounds on what a producer has in flight (Java: DefaultMQProducerImpl, semaphoreAsyncSendNum and
semaphoreAsyncSendSize; behaviour sheet, A11)."""

from __future__ import annotations

from collections import deque

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

    def take(self, messages: int, size_bytes: int) -> bool:
        """Count it in, if it fits."""
        if not self.fits(messages, size_bytes):
            return False
        self.messages += messages
        self.size_bytes += size_bytes
        return True

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

    def take(self, messages: int, size_bytes: int) -> bool:
        """Take the room if there is any and no earlier send waits for room; False otherwise. The owner of
        the room calls `leave`."""
        return not self._waiting and self._load.take(messages, size_bytes)

    async def idle(self) -> None:
        """Wait until nothing is in flight and nothing waits."""
        while self._load.messages or self._waiting:
            self._idle = self._idle or anyio.Event()
            await self._idle.wait()

    async def take_later(self, messages: int, size_bytes: int, deadline_s: float) -> None:
        """Wait for room, behind the sends that wait already, and take it. Raises SendFailed at the deadline
        (of the event loop's clock). When cancelled, no room is taken."""
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
            self.leave(waiter.messages, waiter.size_bytes)
        else:
            self._waiting.remove(waiter)
            self._grant()

    def leave(self, messages: int, size_bytes: int) -> None:
        """Give room back, to the sends that wait for it."""
        self._load.remove(messages, size_bytes)
        if self._waiting or self._idle is not None:
            self._grant()

    def _grant(self) -> None:
        while self._waiting and self._load.take(self._waiting[0].messages, self._waiting[0].size_bytes):
            self._waiting.popleft().granted.set()
        if self._idle is not None and not self._load.messages and not self._waiting:
            self._idle.set()
            self._idle = None
