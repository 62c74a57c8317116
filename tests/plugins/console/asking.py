"""A console before a cluster in the test's own process, and requests to its application."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import trio
from attrs import evolve, frozen

from rmqkit.client import Client
from rmqkit.config import load as load_config
from rmqkit.plugin.address import Connect
from rmqkit.testing.broker import Cluster, running_cluster
from rmqkit_console import serving
from rmqkit_console.app import Application
from rmqkit_console.clients import Clients
from rmqkit_console.console import Console
from rmqkit_console.settings import ConsoleSettings, Login, LogsIn

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
async def console_of(
    client: Client, connect: Connect | None = None, signs: tuple[str, str] | None = None, **settings: Any
) -> AsyncIterator[Console]:
    """A console without its server; with a user, the password is `SECRET`. `signs` are keys of its own."""
    given = ConsoleSettings(**settings)
    user, given = given.user, msgspec.structs.replace(given, user="")
    keys = {"namesrvAddr": ";".join(client.settings.name_servers)}
    if signs is not None:
        keys |= {"accessKey": signs[0], "secretKey": signs[1]}
    clients = Clients(
        namesrv=keys["namesrvAddr"], config=load_config(environ={}, flags=keys), connect=connect
    )
    made = serving.console_of(client, clients, given, lambda: NOW_MS)
    if user:
        # Its password would be in a file.
        given = msgspec.structs.replace(given, user=user)
        made = evolve(made, settings=given, login=Login(user, SECRET), logs_in=LogsIn.BY_PASSWORD)
    async with trio.open_nursery() as nursery:
        await nursery.start(made.people.run)
        await nursery.start(made.resends.run)
        yield made
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
        console_of(client, cluster.connect, **settings) as console,
        http_of(console) as http,
    ):
        yield Asking(console, cluster, http)
