"""The server of the pages."""

from __future__ import annotations

import httpx
import trio

from rmqkit.client import Client
from rmqkit.testing.listening import PATIENCE_S
from rmqkit_console import serving
from rmqkit_console.app import Application
from rmqkit_console.serving import Doors, serve_pages
from tests.plugins.console.asking import console_of

PATH = "/static/console.css"


async def test_connections_have_a_limit() -> None:
    """One more is told so and closed; when another has ended there is room again."""
    async with (
        Client("127.0.0.1:1") as client,
        console_of(client, listen="127.0.0.1:0") as console,
        trio.open_nursery() as nursery,
    ):
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        app = Application(console).asgi()
        await nursery.start(Doors(app, serving._http_config(), most=2).serve, listener)
        port = listener.socket.getsockname()[1]
        idle = await trio.open_tcp_stream("127.0.0.1", port)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            assert (await http.get(PATH)).status_code == 200
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as second:
                refused = await second.get(PATH)
                assert refused.status_code == 503
                assert refused.text == "The console has as many connections as it may.\r\n"
            assert (await http.get(PATH)).status_code == 200
            await idle.aclose()
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as third:
                with trio.fail_after(PATIENCE_S):
                    while (await third.get(PATH)).status_code == 503:
                        pass
        nursery.cancel_scope.cancel()


async def test_when_cancelled_connections_are_closed() -> None:
    """Also those on which nothing is under way."""
    async with Client("127.0.0.1:1") as client, console_of(client, listen="127.0.0.1:0") as console:
        async with trio.open_nursery() as nursery:
            address = await nursery.start(serve_pages, console)
            stream = await trio.open_tcp_stream(address.host, address.port)
            await stream.send_all(f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
            nursery.cancel_scope.cancel()
        with trio.fail_after(PATIENCE_S):
            while await stream.receive_some():
                pass
        await stream.aclose()


async def test_other_protocols() -> None:
    """A websocket is refused, and so is what is not HTTP."""
    async with (
        Client("127.0.0.1:1") as client,
        console_of(client, listen="127.0.0.1:0") as console,
        trio.open_nursery() as nursery,
    ):
        address = await nursery.start(serve_pages, console)
        head = f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        upgrade = f"{head}Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        for sent, status in ((upgrade.encode(), b"HTTP/1.1 403"), (b"\x00\x01\r\n\r\n", b"HTTP/1.1 400")):
            stream = await trio.open_tcp_stream(address.host, address.port)
            await stream.send_all(sent)
            with trio.fail_after(PATIENCE_S):
                assert (await stream.receive_some()).startswith(status)
            await stream.aclose()
        nursery.cancel_scope.cancel()
