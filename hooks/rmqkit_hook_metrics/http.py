"""A small HTTP/1.1 server: GET and HEAD for a few paths. Bodies are sent in pieces as they are produced (h11
implements the protocol)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping

import h11
import trio
from attrs import frozen

_log = logging.getLogger(__name__)
#: A scraper's request has a few hundred bytes.
MAX_REQUEST_BYTES = 16 * 1024
#: Time limit for a request to arrive, and for the peer to accept each piece of an answer.
TIMEOUT_S = 10.0
#: Maximum number of connections; one scraper needs one.
MAX_CONNECTIONS = 32
#: Pieces are joined up to this size, so that lines are not sent one by one.
PIECE_BYTES = 16 * 1024


@frozen
class Page:
    """The answer of a path."""

    content_type: str
    body: Callable[[], AsyncIterator[str]]


class Responder:
    """`await Responder(pages).serve(stream)` for each accepted connection. Raises nothing except
    Cancelled."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._pages = dict(pages)
        self._open = 0

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Serve until the peer closes the connection, violates the protocol, is silent for too long, or was
        answered while there were too many connections."""
        async with stream:
            if self._open >= MAX_CONNECTIONS:
                return
            self._open += 1
            try:
                await self._serve(_Connection(stream))
            except (
                h11.ProtocolError,
                trio.BrokenResourceError,
                trio.ClosedResourceError,
                trio.TooSlowError,
            ) as error:
                _log.debug("metrics: a connection ended: %s", error)
            except Exception:  # noqa: BLE001 - somebody who asks for metrics must not end the broker
                _log.exception("metrics: a request failed")
            finally:
                self._open -= 1

    async def _serve(self, connection: _Connection) -> None:
        while True:
            request = await connection.request()
            if request is None:
                return
            await self._answer(connection, request)
            if not connection.again():
                return

    async def _answer(self, connection: _Connection, request: h11.Request) -> None:
        path = request.target.partition(b"?")[0].decode("latin-1")
        page = self._pages.get(path)
        if request.method not in (b"GET", b"HEAD"):
            await connection.short(405, "only GET and HEAD", [("Allow", "GET, HEAD")])
        elif page is None:
            await connection.short(404, f"there are: {', '.join(sorted(self._pages))}")
        else:
            await connection.send(
                h11.Response(status_code=200, headers=[("Content-Type", page.content_type)])
            )
            if request.method == b"GET":
                await connection.pieces(page.body())
            await connection.send(h11.EndOfMessage())


class _Connection:
    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_REQUEST_BYTES)

    async def request(self) -> h11.Request | None:
        """The next complete request; None when the peer has closed. Raises ProtocolError after answering it,
        TooSlowError."""
        with trio.fail_after(TIMEOUT_S):
            request: h11.Request | None = None
            while True:
                try:
                    event = self._http.next_event()
                except h11.RemoteProtocolError as error:
                    if self._http.our_state is h11.IDLE or self._http.our_state is h11.SEND_RESPONSE:
                        await self.short(error.error_status_hint, str(error))
                    raise
                if event is h11.NEED_DATA:
                    self._http.receive_data(bytes(await self._stream.receive_some(MAX_REQUEST_BYTES)))
                elif isinstance(event, h11.Request):
                    request = event
                elif isinstance(event, h11.EndOfMessage):
                    return request
                elif isinstance(event, h11.ConnectionClosed):
                    return None

    def again(self) -> bool:
        """Whether the connection may carry another request."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def short(self, status: int, text: str, headers: list[tuple[str, str]] | None = None) -> None:
        """Send a complete answer with a line of text."""
        body = f"{text}\n".encode()
        given = [
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(body))),
            *(headers or []),
        ]
        await self.send(h11.Response(status_code=status, headers=given))
        await self.send(h11.Data(data=body))
        await self.send(h11.EndOfMessage())

    async def pieces(self, body: AsyncIterator[str]) -> None:
        waiting: list[str] = []
        size = 0
        async for text in body:
            waiting.append(text)
            size += len(text)
            if size >= PIECE_BYTES:
                await self.send(h11.Data(data="".join(waiting).encode()))
                waiting.clear()
                size = 0
        await self.send(h11.Data(data="".join(waiting).encode()))

    async def send(self, event: h11.Event) -> None:
        """Raises TooSlowError when the peer does not accept the data in time."""
        data = self._http.send(event)
        if data:
            with trio.fail_after(TIMEOUT_S):
                await self._stream.send_all(data)
