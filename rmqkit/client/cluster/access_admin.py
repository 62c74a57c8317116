"""Administration of users and policies (Java: DefaultMQAdminExt's createUser, createAcl and so on)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TypeVar

import msgspec
from attrs import frozen

from rmqkit.client.instance import Instance
from rmqkit.client.routing.masters import ADMIN_TIMEOUT_MS, Masters
from rmqkit.errors import BrokerError, ClientError, ConnectFailed, ConnectionLost, RequestTimeout
from rmqkit.model.access import AclInfo, AclTable, EntryInfo, PolicyInfo, UserInfo, subject_text
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import UnregisterClientRequestHeader
from rmqkit.protocol.headers.access import (
    AclRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    UserRequestHeader,
    VerdictResponseHeader,
)
from rmqkit.protocol.loose_json import decode

T = TypeVar("T")
H = TypeVar("H", bound=msgspec.Struct)
#: How access control refuses: with RocketMQ 5, and with RocketMQ 4.
_REFUSALS = (ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR)


@frozen
class Explanation:
    """The verdict of one broker about an action, and the rule that decides."""

    broker: str
    is_allowed: bool
    rule: str


class AccessAdmin:
    """Users and policies, available as `client.access`. Changes go to all masters, or to that of one broker;
    they stop at the first one that refuses, and return the names of the brokers. Every method raises
    NameServersUnreachable, BrokerError, ConnectFailed, ConnectionLost, RequestTimeout, and ClientError when
    there is no master."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._masters = Masters(instance)

    async def users(self, containing: str = "", *, broker: str | None = None) -> dict[str, list[UserInfo]]:
        """The users whose names contain a text, by broker. Passwords are left out."""
        header = ListUsersRequestHeader(containing=containing or None)
        found = {}
        for name, address in (await self._masters.addresses(broker)).items():
            command = request(RequestCode.AUTH_LIST_USER, header)
            answer = await self._call(address, command, f"asking {name} for its users")
            found[name] = [_without_password(each) for each in _list(answer, UserInfo)]
        return found

    async def table(self, broker: str) -> AclTable | None:
        """The users and policies of a broker, to be kept. A super user gets the passwords as well, others do
        not. None for a broker without access control."""
        (address,) = (await self._masters.addresses(broker)).values()
        users = request(RequestCode.AUTH_LIST_USER, ListUsersRequestHeader())
        acls = request(RequestCode.AUTH_LIST_ACL, ListAclsRequestHeader())
        try:
            return AclTable(
                users=_list(await self._ask(address, users, f"asking {broker} for its users"), UserInfo),
                acls=_list(await self._ask(address, acls, f"asking {broker} for its policies"), AclInfo),
            )
        except BrokerError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return None
            raise

    async def set_user(
        self,
        name: str,
        *,
        password: str | None = None,
        user_type: str | None = None,
        user_status: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Create a user, or change what is given. A new one needs a password."""
        info = UserInfo(username=name, password=password, user_type=user_type, user_status=user_status)
        brokers = []
        for each in await self._masters.addresses(broker):
            code = (
                RequestCode.AUTH_UPDATE_USER
                if await self._has_user(each, name)
                else RequestCode.AUTH_CREATE_USER
            )
            command = partial(request, code, UserRequestHeader(username=name), msgspec.json.encode(info))
            brokers += await self._masters.change(command, f"setting user {name}", broker=each)
        return brokers

    async def _has_user(self, broker: str, name: str) -> bool:
        (address,) = (await self._masters.addresses(broker)).values()
        command = request(RequestCode.AUTH_GET_USER, UserRequestHeader(username=name))
        return bool((await self._call(address, command, f"asking {broker} for user {name}")).body)

    async def delete_user(self, name: str, *, broker: str | None = None) -> list[str]:
        """Delete a user with its policies. A user that is not there is no error."""
        command = partial(request, RequestCode.AUTH_DELETE_USER, UserRequestHeader(username=name))
        return await self._masters.change(command, f"deleting user {name}", broker=broker)

    async def policies(
        self, user: str = "", resource: str = "", *, broker: str | None = None
    ) -> dict[str, list[AclInfo]]:
        """The policies of users and about resources that contain these texts, by broker."""
        header = ListAclsRequestHeader(subject_filter=user or None, resource_filter=resource or None)
        found = {}
        for name, address in (await self._masters.addresses(broker)).items():
            command = request(RequestCode.AUTH_LIST_ACL, header)
            found[name] = _list(
                await self._call(address, command, f"asking {name} for its policies"), AclInfo
            )
        return found

    async def set_policy(
        self,
        user: str,
        resources: Sequence[str],
        actions: Sequence[str],
        *,
        decision: str = "Allow",
        sources: Sequence[str] = (),
        policy_type: str = "Custom",
        broker: str | None = None,
    ) -> list[str]:
        """Set one rule for each of the resources, in place of those about the same resource."""
        entries = [
            EntryInfo(
                resource=resource, actions=list(actions), source_ips=list(sources) or None, decision=decision
            )
            for resource in resources
        ]
        info = AclInfo(
            subject=subject_text(user), policies=[PolicyInfo(policy_type=policy_type, entries=entries)]
        )
        header = AclRequestHeader(subject=subject_text(user))
        command = partial(request, RequestCode.AUTH_CREATE_ACL, header, msgspec.json.encode(info))
        return await self._masters.change(command, f"setting the policies of {user}", broker=broker)

    async def delete_policy(
        self,
        user: str,
        resource: str | None = None,
        *,
        policy_type: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Delete the rules about a resource, or all policies of a user."""
        header = AclRequestHeader(subject=subject_text(user), policy_type=policy_type, resource=resource)
        command = partial(request, RequestCode.AUTH_DELETE_ACL, header)
        return await self._masters.change(command, f"deleting policies of {user}", broker=broker)

    async def explain(
        self, user: str, action: str, resource: str, *, source: str = "", broker: str | None = None
    ) -> list[Explanation]:
        """What each broker would say, and by which rule. Raises ClientError when a broker cannot explain."""
        header = AclRequestHeader(
            subject=subject_text(user),
            explain_action=action,
            explain_resource=resource,
            explain_source=source or None,
        )
        found = []
        for name, address in (await self._masters.addresses(broker)).items():
            command = request(RequestCode.AUTH_GET_ACL, header)
            answer = await self._call(address, command, f"asking {name} about {user}")
            if not answer.fields().get("verdict"):
                raise ClientError(f"{name} at {address} is not a broker that explains what decides")
            verdict = answer.header(VerdictResponseHeader)
            found.append(Explanation(name, verdict.verdict == "Allow", verdict.rule))
        return found

    async def refusals(self, servers: Iterable[str] | None = None) -> dict[str, str]:
        """Server address -> why it refuses whoever signs this client's requests; empty: it takes them,
        whatever policies let them do, or because it checks nobody. The servers are those given, else the name
        servers and the masters, if the user may know those; the ones that do not answer are left out. Nothing
        is changed."""
        if servers is None:
            names = self._instance.name_servers
            found = {address: await self._refusal(address) for address in await names.known()}
            try:
                masters = [*(await self._masters.addresses()).values()]
            except ClientError:
                masters = []
            found |= {address: await self._refusal(address) for address in masters}
        else:
            found = {address: await self._refusal(address) for address in servers}
        return {address: refusal for address, refusal in found.items() if refusal is not None}

    async def _refusal(self, address: str) -> str | None:
        """Why a server refuses the signature of a request that asks for nothing; None without an answer."""
        header = UnregisterClientRequestHeader(client_id=self._instance.settings.effective_client_id)
        command = request(RequestCode.UNREGISTER_CLIENT, header)
        try:
            await self._instance.call(address, command, "asking who this is", ADMIN_TIMEOUT_MS)
        except BrokerError as error:
            return str(error) if error.code in _REFUSALS else ""
        except (ConnectFailed, ConnectionLost, RequestTimeout):
            return None
        return ""

    async def _ask(self, address: str, command: Command, doing: str) -> Command:
        return await self._instance.call(address, command, doing, ADMIN_TIMEOUT_MS)

    async def _call(self, address: str, command: Command, doing: str) -> Command:
        try:
            return await self._ask(address, command, doing)
        except BrokerError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise ClientError(
                    f"{doing}: {address} has no access control; set authenticationEnabled = true and"
                    " authorizationEnabled = true in its settings"
                ) from error
            raise


def _list(answer: Command, kind: type[H]) -> list[H]:
    return decode(answer.body, list[kind]) if answer.body else []  # type: ignore[valid-type]


def _without_password(user: UserInfo) -> UserInfo:
    return msgspec.structs.replace(user, password=None)
