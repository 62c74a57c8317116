"""Service "acl": a slave copies the users and policies of its master, so that it decides alike when it serves
reads or becomes the master."""

from __future__ import annotations

import hmac
import logging
import secrets
from typing import TypeVar

import msgspec
import trio

from rmqkit.errors import DecodeError, RequestRefused, RmqError
from rmqkit.model.access import AclInfo, AclTable, UserInfo
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.role import Role
from rmqkit.plugin.service import Service
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import request
from rmqkit.protocol.headers.access import ListAclsRequestHeader, ListUsersRequestHeader
from rmqkit.protocol.loose_json import decode
from rmqkit_hook_acl.access import Access
from rmqkit_hook_acl.admin import proof
from rmqkit_hook_acl.model import Policies, User
from rmqkit_hook_acl.wire import of_table

_log = logging.getLogger(__name__)
INTERVAL_S = 5.0
_TIMEOUT_MS = 3_000
_MAX_TABLE_BYTES = 64 * 1024 * 1024
T = TypeVar("T", bound=msgspec.Struct)


class CopyAcl(Service):
    """Copies as long as the broker is a slave. A table is believed when its answer is proven by the secret of
    innerClientAuthenticationCredentials: a name server may name a stranger as the master."""

    name = "acl"
    roles = frozenset({Role.SLAVE})

    def __init__(self) -> None:
        self._access: Access | None = None
        self._said = ""

    def begin(self, access: Access) -> None:
        """Set the tables of an assembled broker."""
        self._access = access

    async def run(self, broker: Broker, task_status: trio.TaskStatus[None]) -> None:
        """Copy now and then until cancelled; a failure is logged, and the next round tries again."""
        task_status.started()
        access = self._access
        if access is None or access.credentials is None:
            await trio.sleep_forever()
            return
        while True:
            changed = trio.Event()
            broker.replication.on_change.append(changed.set)
            try:
                await self._round(broker, access)
                with trio.move_on_after(INTERVAL_S):
                    await changed.wait()
            finally:
                broker.replication.on_change.remove(changed.set)

    async def _round(self, broker: Broker, access: Access) -> None:
        master = broker.replication.master
        if not master:
            await trio.lowlevel.checkpoint()
            return
        try:
            await copy(broker, access, master)
            self._said = ""
        except (RmqError, OSError) as error:
            if str(error) != self._said:
                self._said = str(error)
                _log.warning("users and policies of %s were not copied, trying again: %s", master, error)


async def copy(broker: Broker, access: Access, master: str) -> None:
    """Copy the tables of a master once. Raises RequestRefused for an answer that is not proven or cannot be
    read, OSError, and what `Pool.call` raises."""
    challenge = secrets.token_hex(16)
    users = await _list(
        broker,
        access,
        master,
        RequestCode.AUTH_LIST_USER,
        ListUsersRequestHeader(challenge=challenge),
        UserInfo,
    )
    acls = await _list(
        broker, access, master, RequestCode.AUTH_LIST_ACL, ListAclsRequestHeader(challenge=challenge), AclInfo
    )
    read_users, read_policies = of_table(AclTable(users=users, acls=acls))

    def change(known: dict[str, User], policies: dict[str, Policies]) -> None:
        known.clear()
        known.update(access.without_given(read_users))
        policies.clear()
        policies.update(read_policies)

    await access.update(change)


async def _list(
    broker: Broker, access: Access, master: str, code: RequestCode, header: msgspec.Struct, kind: type[T]
) -> list[T]:
    credentials = access.credentials
    assert credentials is not None, "the service runs with them alone"
    answer = await broker.pool.call(master, request(code, header), _TIMEOUT_MS)
    if answer.code != ResponseCode.SUCCESS:
        raise RequestRefused(answer.code, f"{code.name}: {answer.remark}")
    wanted = proof(credentials, code, getattr(header, "challenge", ""), answer.body)
    if not hmac.compare_digest(answer.fields().get("proof", "").encode(), wanted.encode()):
        raise RequestRefused(
            ResponseCode.NO_PERMISSION,
            "it does not prove that it has the secret of innerClientAuthenticationCredentials",
        )
    if len(answer.body) > _MAX_TABLE_BYTES:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{code.name}: {len(answer.body)} bytes")
    if not answer.body:
        return []
    try:
        return decode(answer.body, list[kind])  # type: ignore[valid-type]
    except DecodeError as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{code.name} cannot be read: {error}") from None


__all__ = ["CopyAcl", "copy"]
