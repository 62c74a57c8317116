"""Access control with given users and policies, signed requests, and brokers that check them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

from rmqkit import config as settings
from rmqkit.client import Client
from rmqkit.protocol.command import Command
from rmqkit.testing.broker import Cluster, running_cluster
from rmqkit.toolkit.signing import Credentials, SignCalls
from rmqkit_hook_acl.access import Access
from rmqkit_hook_acl.model import Entry, Policies, Resource, User, actions_of

ROOT, INNER = ("root", "root-secret"), ("inner", "inner-secret")
#: Settings of servers that check everything, with a super user and one for the servers themselves.
CHECKED: Mapping[str, Any] = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": ROOT[0], "password": ROOT[1]}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": INNER[0], "secretKey": INNER[1]}),
}


def signed(command: Command, name: str, secret: str, token: str = "") -> Command:
    """The request with the signature of a user."""
    SignCalls(Credentials(name, secret, token)).before_call(command, "")
    return command


def entry(text: str) -> Entry:
    """A rule from `RESOURCE ACTIONS DECISION SOURCES...`."""
    resource, actions, decision, *sources = text.split()
    return Entry(
        Resource.parse(resource), actions_of(actions.split(",")), tuple(sources), decision == "Allow"
    )


def policies(custom: Sequence[str] = (), default: Sequence[str] = ()) -> Policies:
    return Policies(tuple(map(entry, custom)), tuple(map(entry, default)))


def access_of(
    directory: Path,
    users: Sequence[User] = (),
    rules: Mapping[str, Policies] | None = None,
    time: Callable[[], float] = monotonic,
    /,
    **keys: Any,
) -> Access:
    """Access control of a server with these users in acl.json."""
    config = settings.load(environ={}, flags={**CHECKED, "storePathRootDir": str(directory)} | keys)
    access = Access(config, time=time)
    access.load()
    access.change({user.name: user for user in users}, rules or {})
    return access


@asynccontextmanager
async def checked_cluster(directory: Path, **keys: Any) -> AsyncIterator[Cluster]:
    """A name server and a broker that check everything."""
    async with running_cluster(directory, **{**CHECKED, "defaultTopicQueueNums": 2} | keys) as cluster:
        yield cluster


def client_of(cluster: Cluster, user: tuple[str, str] = ROOT, **keys: Any) -> Client:
    """A client of a user that has not been opened."""
    return Client(
        cluster.namesrv_text, connect=cluster.connect, access_key=user[0], secret_key=user[1], **keys
    )
