"""A small HTTP/1.1 server: GET and HEAD for a few paths, and POST for actions. Bodies are sent in pieces as
they are produced (h11 implements the protocol), for the pages of plugins.

Clients that are slow keep no place from others: when all places are taken, a new connection gets that of the
client that has been waited for longest. Clients that ask at the same time get the same production of a page.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from math import inf

import h11
import trio
from attrs import frozen

_log = logging.getLogger(__name__)
#: A scraper's request has a few hundred bytes.
MAX_REQUEST_BYTES = 16 * 1024
#: Time limit for a request to arrive, and for the peer to accept each piece of an answer.
TIMEOUT_S = 10.0
#: Maximum number of connections; a scraper needs one, a browser six.
MAX_CONNECTIONS = 32
#: A production that began this long ago is too old for a client that asks now.
JOINED_S = 5.0
#: Productions of one page that are kept because clients still read them; those of the oldest are sent away.
MAX_PRODUCTIONS = 3
#: Pieces are joined up to this size, so that lines are not sent one by one.
PIECE_BYTES = 16 * 1024


@frozen
class Page:
    """The answer of a path. `status` is called once for each request; None is 200."""

    content_type: str
    body: Callable[[], AsyncGenerator[str]]
    status: Callable[[], int] | None = None


#: Does what a POST asks for, with its body, and returns the answer, which is JSON. ValueError says what is
#: wrong with the request.
Action = Callable[[bytes], Awaitable[bytes]]


class _Production:
    """A page while it is produced and read. Whoever needs the next piece produces it, for all."""

    def __init__(self, body: AsyncGenerator[str]) -> None:
        self.readers: set[_Connection] = set()
        self.is_finished = False
        self._failure: Exception | None = None
        self._began_s = trio.current_time()
        self._body = body
        self._pieces: list[bytes] = []
        self._producing = trio.Lock()

    @property
    def may_be_joined(self) -> bool:
        """Whether a client that asks now gets this production: it is recent, and nobody has its end."""
        return not self.is_finished and trio.current_time() < self._began_s + JOINED_S

    async def aclose(self) -> None:
        """End the production when nobody reads it."""
        with trio.CancelScope(shield=True):
            async with self._producing:
                self.is_finished = True
                await self._body.aclose()

    async def pieces(self) -> AsyncGenerator[bytes]:
        """All pieces from the first on. Raises what the body raises."""
        at = 0
        while True:
            async with self._producing:
                if at == len(self._pieces) and not self.is_finished:
                    # Others need the piece also if this client goes away.
                    with trio.CancelScope(shield=True):
                        await self._produce()
            if at == len(self._pieces):
                if self._failure is not None:
                    raise self._failure
                return
            yield self._pieces[at]
            at += 1

    async def _produce(self) -> None:
        texts: list[str] = []
        size = 0
        try:
            async for text in self._body:
                texts.append(text)
                size += len(text)
                if size >= PIECE_BYTES:
                    self._pieces.append("".join(texts).encode())
                    return
        except Exception as error:  # noqa: BLE001 - all readers raise it
            self._failure = error
        self.is_finished = True
        if texts:
            self._pieces.append("".join(texts).encode())


class Responder:
    """`await Responder(name, pages).serve(stream)` for each accepted connection. Raises nothing except
    Cancelled.

    name     who serves, in lines of the log
    pages    by path
    actions  of POST, by path
    """

    def __init__(
        self, name: str, pages: Mapping[str, Page], actions: Mapping[str, Action] | None = None
    ) -> None:
        self._name = name
        self._pages = dict(pages)
        self._actions = dict(actions or {})
        self._open: set[_Connection] = set()
        self._productions: dict[str, list[_Production]] = {path: [] for path in pages}

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Serve until the peer closes the connection, violates the protocol, is silent for too long, or loses
        its place to another one."""
        async with stream:
            if len(self._open) >= MAX_CONNECTIONS and not await self._make_room():
                return
            connection = _Connection(stream)
            self._open.add(connection)
            try:
                await self._serve(connection)
            except (
                h11.ProtocolError,
                trio.BrokenResourceError,
                trio.ClosedResourceError,
                trio.TooSlowError,
            ) as error:
                _log.debug("%s: a connection ended: %s", self._name, error)
            except Exception:  # noqa: BLE001 - no request may end the server
                _log.exception("%s: a request failed", self._name)
            finally:
                self._open.discard(connection)

    async def _make_room(self) -> bool:
        """Close the connection whose client has been waited for longest. Returns False when all are being
        served."""
        slow = [each for each in self._open if each.waits_since < inf]
        if slow:
            await self._send_away(min(slow, key=lambda each: each.waits_since))
        return bool(slow)

    async def _send_away(self, connection: _Connection) -> None:
        self._open.discard(connection)
        await connection.close()

    async def _serve(self, connection: _Connection) -> None:
        while True:
            asked = await connection.request()
            if asked is None:
                return
            request, body = asked
            if request.method == b"POST":
                await self._act(connection, request, body)
            else:
                await self._answer(connection, request)
            if not connection.again():
                return

    async def _answer(self, connection: _Connection, request: h11.Request) -> None:
        path = _path_of(request)
        page = self._pages.get(path)
        if request.method not in (b"GET", b"HEAD"):
            await connection.short(405, "only GET and HEAD", [("Allow", "GET, HEAD")])
        elif page is None:
            await connection.short(404, f"there are: {', '.join(sorted(self._pages))}")
        else:
            status = 200 if page.status is None else page.status()
            await connection.send(
                h11.Response(status_code=status, headers=[("Content-Type", page.content_type)])
            )
            if request.method == b"GET":
                await self._send_page(connection, path, page)
            await connection.send(h11.EndOfMessage())

    async def _act(self, connection: _Connection, request: h11.Request, body: bytes) -> None:
        action = self._actions.get(_path_of(request))
        if action is None and (not self._actions or _path_of(request) in self._pages):
            await connection.short(405, "only GET and HEAD", [("Allow", "GET, HEAD")])
            return
        if action is None:
            await connection.short(404, f"there are: {', '.join(sorted(self._actions))}")
            return
        try:
            answer = await action(body)
        except ValueError as error:
            await connection.short(400, str(error))
            return
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(answer)))]
        await connection.send(h11.Response(status_code=200, headers=headers))
        await connection.send(h11.Data(data=answer))
        await connection.send(h11.EndOfMessage())

    async def _send_page(self, connection: _Connection, path: str, page: Page) -> None:
        productions = self._productions[path]
        if not (productions and productions[-1].may_be_joined):
            while len(productions) >= MAX_PRODUCTIONS:
                for reader in list(productions.pop(0).readers):
                    await self._send_away(reader)
            productions.append(_Production(page.body()))
        production = productions[-1]
        production.readers.add(connection)
        try:
            async with aclosing(production.pieces()) as pieces:
                async for piece in pieces:
                    await connection.send(h11.Data(data=piece))
        finally:
            production.readers.discard(connection)
            if not production.readers:
                if production in productions:
                    productions.remove(production)
                await production.aclose()


class _Connection:
    """One connection. `waits_since` is when the wait for its client began (trio's clock), infinite while it
    is being served."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.waits_since = inf
        self._stream = stream
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_REQUEST_BYTES)

    async def request(self) -> tuple[h11.Request, bytes] | None:
        """The next complete request and its body; None when the peer has closed. Raises ProtocolError after
        answering it, TooSlowError."""
        with self._waiting():
            request: h11.Request | None = None
            body = b""
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
                elif isinstance(event, h11.Data):
                    body += bytes(event.data)
                    if len(body) > MAX_REQUEST_BYTES:
                        await self.short(413, f"at most {MAX_REQUEST_BYTES} bytes are allowed")
                        return None
                elif isinstance(event, h11.EndOfMessage):
                    return None if request is None else (request, body)
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

    async def send(self, event: h11.Event) -> None:
        """Send a part of a response. Raises TooSlowError when the peer does not accept the data in time."""
        data = self._http.send(event)
        if data:
            with self._waiting():
                await self._stream.send_all(data)

    async def close(self) -> None:
        """Close at once; what is under way raises ClosedResourceError."""
        await trio.aclose_forcefully(self._stream)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """The time in which something is expected of the client. Raises TooSlowError when it takes too
        long."""
        outer = self.waits_since
        self.waits_since = min(outer, trio.current_time())
        try:
            with trio.fail_after(TIMEOUT_S):
                yield
        finally:
            self.waits_since = outer


def _path_of(request: h11.Request) -> str:
    return request.target.partition(b"?")[0].decode("latin-1")
