"""Sends of threads that do not wait for the answer (Java: SendCallback; behaviour sheet, A8 and A11)."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import anyio
from attrs import define

from rmqkit.client.producing.in_flight import Bounds, Load
from rmqkit.client.producing.producer import Producer
from rmqkit.client.producing.send_options import SendOptions
from rmqkit.client.producing.send_result import SendResult
from rmqkit.errors import ClientError
from rmqkit.model.message import Message


@define(eq=False)
class _Send:
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    size_bytes: int
    future: Future[SendResult]


class AsyncSends:
    """Sends of a producer, begun by any thread and run in the event loop.

    wake     calls a function in the loop soon, from any thread but the loop's
    in_loop  whether the caller is the loop's thread
    """

    def __init__(
        self,
        producer: Producer[Any],
        wake: Callable[[Callable[[], object]], object],
        in_loop: Callable[[], bool],
    ) -> None:
        self._producer = producer
        self._wake = wake
        self._in_loop = in_loop
        options = producer.options
        self._load = Load(Bounds(options.max_in_flight, options.max_in_flight_bytes))
        #: Guards the fields above and below, and is notified when one of them shrinks.
        self._changed = threading.Condition()
        self._new: deque[_Send] = deque()
        #: Sends whose tasks have not run yet, and sends whose futures have no result yet.
        self._beginning = 0
        self._unfinished = 0
        self._woken = False

    def send(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Future[SendResult]:
        """Begin a send with the arguments of `Producer.send`. Waits for room in flight until the time-out of
        the send; in the loop's thread, which cannot wait, no room is an error at once. A value is encoded in
        the calling thread."""
        if self._producer.codec is not None:
            arguments, keywords = self._encoded(*arguments, **keywords)
        message = arguments[0] if arguments else keywords.get("message")
        body = message.body if isinstance(message, Message) else (*arguments, None, None)[1]
        size = len(keywords.get("body", body) or b"")
        timeout_ms = keywords.get("timeout_ms")
        limit_s = (self._producer.options.timeout_ms if timeout_ms is None else timeout_ms) / 1000
        sent = _Send(arguments, keywords, size, Future())
        with self._changed:
            began_s = time.monotonic()
            room = self._changed.wait_for(lambda: self._load.take(1, size), 0 if self._in_loop() else limit_s)
            if not room:
                raise self._load.bounds.error(int((time.monotonic() - began_s) * 1000))
            self._beginning += 1
            self._unfinished += 1
            self._new.append(sent)
            wake, self._woken = not self._woken, True
        if wake:
            self._wake_up()
        return sent.future

    def _encoded(
        self, message: Message | str, body: Any = None, **keywords: Any
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        options = SendOptions(**keywords)
        given = options.message(message, body, self._producer.codec)
        return (given,), {"queue": options.queue, "timeout_ms": options.timeout_ms}

    async def begun(self) -> None:
        """Wait until the tasks of all sends have begun."""
        while self._beginning:
            await anyio.lowlevel.checkpoint()

    def wait(self) -> None:
        """Wait until every future has its result and its callbacks have run."""
        with self._changed:
            self._changed.wait_for(lambda: not self._unfinished)

    def _wake_up(self) -> None:
        try:
            if self._in_loop():
                self._begin()
            else:
                self._wake(self._begin)
        except BaseException as error:
            # Otherwise the sends would wait for a loop that has ended.
            for sent in self._taken():
                self._begin_one()
                self._end(sent, error=error if isinstance(error, Exception) else _closed())
            raise

    def _taken(self) -> list[_Send]:
        with self._changed:
            self._woken = False
            taken = list(self._new)
            self._new.clear()
        return taken

    def _begin(self) -> None:
        for sent in self._taken():
            self._producer.start_soon(self._run, sent)

    def _begin_one(self) -> None:
        with self._changed:
            self._beginning -= 1

    async def _run(self, sent: _Send) -> None:
        self._begin_one()
        if not sent.future.set_running_or_notify_cancel():
            self._end(sent)
            return
        try:
            result = await self._producer.send(*sent.arguments, **sent.keywords)
        except Exception as error:  # noqa: BLE001 - the future has it
            self._end(sent, error=error)
        except BaseException:
            self._end(sent, error=_closed())
            raise
        else:
            self._end(sent, result)

    def _end(self, sent: _Send, result: SendResult | None = None, error: Exception | None = None) -> None:
        """Make room, then complete the future, which runs its callbacks."""
        with self._changed:
            self._load.remove(1, sent.size_bytes)
            self._changed.notify_all()
        if result is not None:
            sent.future.set_result(result)
        elif error is not None:
            sent.future.set_exception(error)
        with self._changed:
            self._unfinished -= 1
            self._changed.notify_all()


def _closed() -> ClientError:
    return ClientError("the client was closed while the message was being sent; a broker may have stored it")
