"""The HTTP responder: its answers, its refusals, and that no client can harm the server."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import h11
import pytest
import trio
import trio.testing

from rmqkit.toolkit.http import (
    JOINED_S,
    MAX_CONNECTIONS,
    MAX_REQUEST_BYTES,
    PIECE_BYTES,
    TIMEOUT_S,
    Page,
    Responder,
)
from tests.toolkit.http_client import exchange


async def words() -> AsyncGenerator[str]:
    """A body in pieces, longer than one send."""
    for at in range(10_000):
        yield f"{at} "


async def broken() -> AsyncGenerator[str]:
    yield "begun "
    raise ValueError("boom")


def responder() -> Responder:
    return Responder("pages", {"/words": Page("text/plain", words), "/broken": Page("text/plain", broken)})


Pair = tuple[trio.testing.MemorySendStream, Any]


async def talk(nursery: trio.Nursery, served: Responder) -> trio.abc.Stream:
    """The client's end of a connection that the server handles."""
    here, there = trio.testing.memory_stream_pair()
    nursery.start_soon(served.serve, there)
    return here


async def test_a_page_is_answered(nursery: trio.Nursery) -> None:
    """The page is sent in pieces; a query is ignored; HEAD gets the head alone; the connection can carry
    another request."""
    stream, http = await talk(nursery, responder()), h11.Connection(h11.CLIENT)
    response, body = await exchange(stream, http, "/words?x=y")
    assert (response.status_code, body) == (200, "".join([f"{at} " for at in range(10_000)]))
    assert dict(response.headers)[b"transfer-encoding"] == b"chunked"
    http.start_next_cycle()
    response, body = await exchange(stream, http, "/words", "HEAD")
    assert (response.status_code, body) == (200, "")
    http.start_next_cycle()
    assert (await exchange(stream, http, "/words"))[0].status_code == 200


@pytest.mark.parametrize(
    ("method", "target", "status"), [("GET", "/else", 404), ("POST", "/words", 405), ("DELETE", "/", 405)]
)
async def test_other_paths_and_methods_are_refused(
    nursery: trio.Nursery, method: str, target: str, status: int
) -> None:
    """An unknown path is answered 404 with the list of paths, an unknown method with an error of its own."""
    response, body = await exchange(
        await talk(nursery, responder()), h11.Connection(h11.CLIENT), target, method
    )
    assert response.status_code == status
    assert ("/broken, /words" in body) == (status == 404)


async def shouted(body: bytes) -> bytes:
    if not body.isascii():
        raise ValueError("only ASCII")
    await trio.lowlevel.checkpoint()
    return json.dumps(body.decode().upper()).encode()


@pytest.mark.parametrize(
    ("target", "sent", "status", "said"),
    [
        ("/shout?loud", b"hello", 200, '"HELLO"'),
        ("/shout", b"", 200, '""'),
        ("/shout", "ä".encode(), 400, "only ASCII"),
        ("/whisper", b"", 404, "there are: /shout"),
        ("/words", b"", 405, "only GET and HEAD"),
        ("/shout", bytes(MAX_REQUEST_BYTES + 1), 413, "bytes are allowed"),
    ],
)
async def test_actions(nursery: trio.Nursery, target: str, sent: bytes, status: int, said: str) -> None:
    """A POST does something with its body, and is answered with JSON, or with what is wrong."""
    served = Responder("pages", {"/words": Page("text/plain", words)}, {"/shout": shouted})
    stream, http = await talk(nursery, served), h11.Connection(h11.CLIENT)
    response, body = await exchange(stream, http, target, "POST", sent)
    assert response.status_code == status
    assert said in body


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"hello\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /" + b"x" * (MAX_REQUEST_BYTES + 1), b"431"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", b"400"),
    ],
)
async def test_what_is_no_request_ends_the_connection(
    nursery: trio.Nursery, sent: bytes, status: bytes
) -> None:
    """The connection is closed after an error answer; the server does not read on."""
    stream = await talk(nursery, responder())
    await stream.send_all(sent)
    answer = b"".join([data async for data in receiving(stream)])
    assert answer.startswith(b"HTTP/1.1 " + status)


async def receiving(stream: trio.abc.Stream) -> AsyncIterator[bytes]:
    while data := await stream.receive_some(65_536):
        yield bytes(data)


async def test_who_says_nothing_is_sent_away(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """A request must be complete within a time limit, however slowly its bytes come."""
    stream = await talk(nursery, responder())

    async def dribble() -> None:
        while True:
            await stream.send_all(b"G")
            await trio.sleep(TIMEOUT_S / 4)

    began_s = trio.current_time()
    with trio.fail_after(2 * TIMEOUT_S), pytest.raises(trio.BrokenResourceError):
        await dribble()
    assert trio.current_time() - began_s <= 1.5 * TIMEOUT_S


async def test_who_takes_nothing_is_sent_away(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """Sending an answer to a peer that does not read ends after a time limit."""
    here, there = trio.testing.lockstep_stream_pair()
    nursery.start_soon(responder().serve, there)
    await here.send_all(b"GET /words HTTP/1.1\r\nHost: x\r\n\r\n")
    await trio.sleep(TIMEOUT_S + 1)
    taken = b"".join([data async for data in receiving(here)])
    assert not taken.endswith(b"0\r\n\r\n")


async def test_the_slowest_client_gives_its_place(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """When all places are taken, a new connection gets that of the client that has been waited for longest:
    first of one that takes no answer, then of those that have not asked, in order."""
    served = responder()
    greedy, there = trio.testing.lockstep_stream_pair()
    nursery.start_soon(served.serve, there)
    await greedy.send_all(b"GET /words HTTP/1.1\r\nHost: x\r\n\r\n")
    await trio.testing.wait_all_tasks_blocked()
    streams = []
    for _ in range(MAX_CONNECTIONS - 1):
        await trio.sleep(0.01)
        streams.append(await talk(nursery, served))
        await trio.testing.wait_all_tasks_blocked()
    for gone in (greedy, streams[0], streams[1]):
        await trio.sleep(0.01)
        scraper = await talk(nursery, served)
        response, body = await exchange(scraper, h11.Connection(h11.CLIENT), "/words")
        assert (response.status_code, len(body)) == (200, len("".join([f"{at} " for at in range(10_000)])))
        taken = b"".join([data async for data in receiving(gone)])
        assert not taken.endswith(b"0\r\n\r\n")
    exchanged = await exchange(streams[2], h11.Connection(h11.CLIENT), "/words")
    assert exchanged[0].status_code == 200


async def test_scrapers_at_the_same_time_share_a_page(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """Who asks while a page is produced gets the same one from its beginning, also when the first one goes
    away; who asks when it is finished, or old, gets a new one."""
    produced: list[int] = []
    go_on = trio.Event()

    async def page() -> AsyncGenerator[str]:
        number = len(produced)
        produced.append(number)
        yield f"{number} " + "x" * PIECE_BYTES
        await go_on.wait()
        yield " end"

    served = Responder("pages", {"/page": Page("text/plain", page)})
    first, http = await talk(nursery, served), h11.Connection(h11.CLIENT)
    await first.send_all(http.send(h11.Request(method="GET", target="/page", headers=[("Host", "x")])) or b"")
    await trio.testing.wait_all_tasks_blocked()
    bodies: list[str] = []

    async def scrape() -> None:
        _, body = await exchange(await talk(nursery, served), h11.Connection(h11.CLIENT), "/page")
        bodies.append(body)

    for _ in range(3):
        nursery.start_soon(scrape)
    await trio.testing.wait_all_tasks_blocked()
    await first.aclose()
    await trio.sleep(JOINED_S)
    nursery.start_soon(scrape)
    await trio.testing.wait_all_tasks_blocked()
    go_on.set()
    await trio.testing.wait_all_tasks_blocked()
    await scrape()
    assert sorted(body[0] + body[-3:] for body in bodies) == ["0end", "0end", "0end", "1end", "2end"]
    assert produced == [0, 1, 2]


async def test_a_page_that_breaks_ends_its_connection_only(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is logged; the scraper sees a truncated answer that does not look complete."""
    served = responder()
    stream, http = await talk(nursery, served), h11.Connection(h11.CLIENT)
    with pytest.raises(h11.RemoteProtocolError):
        await exchange(stream, http, "/broken")
    assert "boom" in caplog.text
    assert "pages: a request failed" in caplog.text
    assert (await exchange(await talk(nursery, served), h11.Connection(h11.CLIENT), "/words"))[
        0
    ].status_code == 200
