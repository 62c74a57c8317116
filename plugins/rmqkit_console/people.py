"""People who have logged in as users of the cluster: each session has a client that signs with their keys, in
memory and nowhere else."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable

import trio
from attrs import define

from rmqkit.client import Client, NameServersUnreachable
from rmqkit_console.sessions import Session

_log = logging.getLogger(__name__)
#: Sessions at the same time; another one ends the one that was used least recently.
MAX_PEOPLE = 64
#: A session that asks for nothing ends after so long.
IDLE_MS = 60 * 60 * 1000
_LOOK_S = 60.0
_CLOSE_S = 2.0

#: Makes a client that signs with an access key and a secret key.
OpenAs = Callable[[str, str], Client]


class WrongKeys(Exception):
    """The servers refuse access key or secret key."""


class NobodyChecks(Exception):
    """No server checks signatures: a log-in would prove nothing."""


@define(eq=False)
class _Person:
    session: Session
    client: Client
    used_ms: int


class People:
    """The clients of the sessions. Everything belongs to one event loop."""

    def __init__(self, open_as: OpenAs, now_ms: Callable[[], int]) -> None:
        self._open_as = open_as
        self._now_ms = now_ms
        self._known: dict[str, _Person] = {}

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """End what is too old until cancelled; then end everything."""
        try:
            task_status.started()
            while True:
                await self.end_old()
                await trio.sleep(_LOOK_S)
        finally:
            for person in list(self._known.values()):
                await self.end(person.session)

    async def proven(self, access_key: str, secret_key: str) -> Client:
        """An open client of a user whose keys a server has taken that refuses others. Raises WrongKeys,
        NobodyChecks, NameServersUnreachable when no server answers."""
        client = await self._open_as(access_key, secret_key).start()
        try:
            await self._prove(client, access_key)
        except BaseException:
            await _close(client)
            raise
        return client

    async def _prove(self, client: Client, access_key: str) -> None:
        refusals = await client.access.refusals()
        if not refusals:
            raise NameServersUnreachable("no server of the cluster answers")
        taken = [address for address, refusal in refusals.items() if not refusal]
        if not taken:
            _log.info("a log-in to the console: %s", next(iter(refusals.values())))
            raise WrongKeys
        # A server that checks nobody takes every secret.
        async with self._open_as(access_key, secrets.token_urlsafe(24)) as stranger:
            if not any((await stranger.access.refusals(taken)).values()):
                raise NobodyChecks

    async def begin(self, session: Session, client: Client) -> None:
        """Give a session its client, which is closed when the session ends."""
        while len(self._known) >= MAX_PEOPLE:
            await self.end(min(self._known.values(), key=lambda each: each.used_ms).session)
        self._known[session.id] = _Person(session, client, self._now_ms())

    def client_of(self, session: Session) -> Client | None:
        """The client of a session; None when it has ended."""
        person = self._known.get(session.id)
        if person is None or self._is_old(person):
            return None
        person.used_ms = self._now_ms()
        return person.client

    @property
    def clients(self) -> tuple[Client, ...]:
        """The clients of all sessions, the one that was used last first."""
        by_use = sorted(self._known.values(), key=lambda each: each.used_ms, reverse=True)
        return tuple(each.client for each in by_use if not self._is_old(each))

    async def end_old(self) -> None:
        """End the sessions whose time is over."""
        for person in [each for each in self._known.values() if self._is_old(each)]:
            await self.end(person.session)

    async def end(self, session: Session) -> None:
        """Close the client of a session, if it has one. Cancelled: it is closed at once."""
        person = self._known.pop(session.id, None)
        if person is not None:
            await _close(person.client)

    def _is_old(self, person: _Person) -> bool:
        now_ms = self._now_ms()
        return person.session.ends_ms <= now_ms or person.used_ms + IDLE_MS <= now_ms


async def _close(client: Client) -> None:
    with trio.move_on_after(_CLOSE_S, shield=True):
        await client.aclose()


__all__ = ["IDLE_MS", "MAX_PEOPLE", "NobodyChecks", "OpenAs", "People", "WrongKeys"]
