"""A console before a cluster in the test's own process, and requests to its application."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import trio
from attrs import frozen

from rmqkit.client import Client
from rmqkit.testing.broker import Cluster, running_cluster
from rmqkit_console.app import Application
from rmqkit_console.console import Console
from rmqkit_console.resending import Resends
from rmqkit_console.samples import Samples
from rmqkit_console.settings import ConsoleSettings, Login

NOW_MS = 1_800_000_000_000
SECRET = "correct horse"
TOKEN = re.compile(r'name="token" value="([0-9a-f]+)"')


@frozen
class Asking:
    """A browser without scripts: `http` keeps cookies."""

    console: Console
    cluster: Cluster
    http: httpx.AsyncClient

    async def page(self, path: str, status: int = 200, **query: Any) -> str:
        """The HTML of a page."""
        answer = await self.http.get(path, params=query)
        assert answer.status_code == status, f"{answer.status_code} {answer.text}"
        assert answer.headers["content-type"].startswith("text/html")
        return answer.text

    async def values(self, path: str, status: int = 200, **query: Any) -> Any:
        """The JSON of a page."""
        answer = await self.http.get(path, params=query | {"format": "json"})
        assert answer.status_code == status, f"{answer.status_code} {answer.text}"
        return answer.json()

    async def token(self, path: str, **query: Any) -> str:
        """The token of the forms of a page."""
        found = TOKEN.search(await self.page(path, **query))
        assert found is not None
        return found[1]


@asynccontextmanager
async def console_of(client: Client, **settings: Any) -> AsyncIterator[Console]:
    """A console without its server; with a user, the password is `SECRET`."""
    given = ConsoleSettings(**settings)
    login = Login(given.user, SECRET) if given.user else None
    samples = Samples(lambda: client.admin, lambda: NOW_MS)
    resends = Resends(client, lambda: NOW_MS)
    async with trio.open_nursery() as nursery:
        await nursery.start(resends.run)
        yield Console(
            client=client,
            settings=given,
            login=login,
            samples=samples,
            resends=resends,
            now_ms=lambda: NOW_MS,
        )
        nursery.cancel_scope.cancel()


def http_of(console: Console) -> httpx.AsyncClient:
    """A client of the console's application."""
    transport = httpx.ASGITransport(app=Application(console).asgi())
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080")


@asynccontextmanager
async def asking(directory: Path, **settings: Any) -> AsyncIterator[Asking]:
    """A cluster with a console before it."""
    async with (
        running_cluster(directory, enablePropertyFilter=True) as cluster,
        Client(cluster.namesrv_text, connect=cluster.connect) as client,
        console_of(client, **settings) as console,
        http_of(console) as http,
    ):
        yield Asking(console, cluster, http)
