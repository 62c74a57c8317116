"""Requests that show and change users and policies (wire-protocol sheet, section 3.10; Java:
AdminBrokerProcessor)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import msgspec

from rmqkit.errors import DecodeError, RequestRefused
from rmqkit.model.access import AclInfo, UserInfo, subject_text
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.request import EachRequest, Outcome, Peer
from rmqkit.plugin.role import Role
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers.access import (
    AclRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    ProofResponseHeader,
    UserRequestHeader,
    VerdictResponseHeader,
)
from rmqkit.protocol.signature import sign
from rmqkit.toolkit.signing import Credentials
from rmqkit_hook_acl.access import Access, Change
from rmqkit_hook_acl.decide import Need
from rmqkit_hook_acl.model import ALLOW, DENY, LITERAL, Policies, Resource, User, actions_of, refused
from rmqkit_hook_acl.wire import (
    MAX_ENTRIES,
    MAX_USERS,
    acl_info,
    changed_user,
    checked_name,
    kind_of,
    policies_of,
    subject_of,
    user_info,
)

_MAX_BODY_BYTES = 32 * 1024 * 1024
T = TypeVar("T", bound=msgspec.Struct)


class AclRequests(EachRequest):
    """Shows and changes the users and policies of this broker, which are in acl.json."""

    def __init__(self, access: Access, broker: Broker) -> None:
        self._access = access
        self._broker = broker
        self._changes: Mapping[int, Callable[[Command, bool], Change]] = {
            RequestCode.AUTH_CREATE_USER: self._create_user,
            RequestCode.AUTH_UPDATE_USER: self._update_user,
            RequestCode.AUTH_DELETE_USER: self._delete_user,
            RequestCode.AUTH_CREATE_ACL: self._set_acl,
            RequestCode.AUTH_UPDATE_ACL: self._set_acl,
            RequestCode.AUTH_DELETE_ACL: self._delete_acl,
        }
        self._queries: Mapping[int, Callable[[Command, bool], object]] = {
            RequestCode.AUTH_GET_USER: self._get_user,
            RequestCode.AUTH_LIST_USER: self._list_users,
            RequestCode.AUTH_GET_ACL: self._get_acl,
            RequestCode.AUTH_LIST_ACL: self._list_acls,
        }

    @property
    def codes(self) -> list[int]:
        return [*self._changes, *self._queries]

    def handle(self, request: Command, peer: Peer) -> Outcome:
        is_super = self._is_super(request, peer)
        query = self._queries.get(request.code)
        if query is not None:
            found = query(request, is_super)
            body = b"" if found is None else loose_json.dumps(found)
            return answer(request, header=self._extra(request, body), body=body)
        if self._broker.role.current is Role.SLAVE and self._access.credentials is not None:
            raise refused(
                "users and policies are changed at the master, from which this broker copies them",
                ResponseCode.SYSTEM_ERROR,
            )
        change = self._changes[request.code](request, is_super)
        return peer.answer_async(request, partial(self._change, request, change))

    def _is_super(self, request: Command, peer: Peer) -> bool:
        if not self._access.settings.decides or self._access.is_trusted(request, peer):
            return True
        user = self._access.users.get(self._access.principal(request, peer))
        return user is not None and user.is_super

    async def _change(self, request: Command, change: Change) -> Command:
        try:
            await self._access.update(change)
        except OSError as error:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"{self._access.file.path} cannot be written: {error.strerror}"
            ) from error
        return answer(request)

    # --- users ----------------------------------------------------------------------------------------------

    def _create_user(self, request: Command, is_super: bool) -> Change:
        name, info = checked_name(request.header(UserRequestHeader).username), _body(request, UserInfo)

        def change(users: dict[str, User], policies: dict[str, Policies]) -> None:
            if name in self._access.users:
                raise refused("The user is existed")
            if len(users) >= MAX_USERS:
                raise refused(f"there are {MAX_USERS} users already", ResponseCode.SYSTEM_ERROR)
            users[name] = changed_user(info, name, None)
            _check_super(users[name], is_super)

        return change

    def _update_user(self, request: Command, is_super: bool) -> Change:
        name, info = checked_name(request.header(UserRequestHeader).username), _body(request, UserInfo)

        def change(users: dict[str, User], policies: dict[str, Policies]) -> None:
            before = self._access.users.get(name)
            if before is None:
                raise refused("The user is not exist")
            _check_super(before, is_super)
            users[name] = changed_user(info, name, before)
            _check_super(users[name], is_super)

        return change

    def _delete_user(self, request: Command, is_super: bool) -> Change:
        name = request.header(UserRequestHeader).username

        def change(users: dict[str, User], policies: dict[str, Policies]) -> None:
            known = self._access.users.get(name)
            if known is not None:
                _check_super(known, is_super)
            if self._access.is_fixed(name):
                raise refused(
                    f"User:{name} is not one of acl.json: the settings or plain_acl.yml name it; remove it"
                    f" there, or"
                    " disable it (userStatus)"
                )
            users.pop(name, None)
            policies.pop(name, None)

        return change

    def _get_user(self, request: Command, is_super: bool) -> object:
        name = checked_name(request.header(UserRequestHeader).username)
        found = self._access.users.get(name)
        return None if found is None else user_info(found, with_password=is_super)

    def _list_users(self, request: Command, is_super: bool) -> object:
        containing = request.header(ListUsersRequestHeader).containing or ""
        return [
            user_info(user, with_password=is_super)
            for name, user in self._access.users.items()
            if containing in name
        ] or None

    # --- policies -------------------------------------------------------------------------------------------

    def _set_acl(self, request: Command, is_super: bool) -> Change:
        info = _body(request, AclInfo)
        name = subject_of(info.subject or request.header(AclRequestHeader).subject)

        def change(users: dict[str, User], policies: dict[str, Policies]) -> None:
            if name not in self._access.users:
                raise refused(f"The subject of {subject_text(name)} is not exist.")
            policies[name] = policies_of(
                info, policies.get(name) or self._access.policies.get(name) or Policies()
            )
            if sum(len(each.custom) + len(each.default) for each in policies.values()) > MAX_ENTRIES:
                raise refused(f"there are {MAX_ENTRIES} rules already", ResponseCode.SYSTEM_ERROR)

        return change

    def _delete_acl(self, request: Command, is_super: bool) -> Change:
        header = request.header(AclRequestHeader)
        name, kind = subject_of(header.subject), kind_of(header.policy_type)
        resource = Resource.parse(header.resource) if header.resource else None

        def change(users: dict[str, User], policies: dict[str, Policies]) -> None:
            if name not in self._access.users:
                raise refused("The subject is not exist.")
            found = policies.get(name)
            if not found:
                raise refused("The acl is not exist.")
            left = Policies() if resource is None else found.without(kind, resource)
            if left:
                policies[name] = left
            else:
                del policies[name]

        return change

    def _get_acl(self, request: Command, is_super: bool) -> object:
        name = subject_of(request.header(AclRequestHeader).subject)
        if name not in self._access.users:
            raise refused("The subject is not exist.")
        found = self._access.policies.get(name)
        return acl_info(name, found) if found else None

    def _extra(self, request: Command, body: bytes) -> msgspec.Struct | None:
        """What the answer to a query has besides its body."""
        challenge = request.fields().get("challenge")
        if challenge and self._access.credentials is not None:
            return ProofResponseHeader(proof=proof(self._access.credentials, request.code, challenge, body))
        return self._verdict(request)

    def _verdict(self, request: Command) -> VerdictResponseHeader | None:
        """What a request for policies may ask besides: whether the user may do something, and by which
        rule."""
        if request.code != RequestCode.AUTH_GET_ACL:
            return None
        header = request.header(AclRequestHeader)
        if not header.explain_action:
            return None
        resource = Resource.parse(header.explain_resource or "")
        if resource.pattern != LITERAL:
            raise refused(f"name one resource: {resource} are several")
        need = Need(resource.type, resource.name, actions_of(header.explain_action.split(",")))
        verdict = self._access.explained(subject_of(header.subject), need, header.explain_source or "")
        return VerdictResponseHeader(verdict=ALLOW if verdict.is_allowed else DENY, rule=verdict.rule)

    def _list_acls(self, request: Command, is_super: bool) -> object:
        header = request.header(ListAclsRequestHeader)
        subject, resource = header.subject_filter or "", header.resource_filter or ""
        found = [
            acl_info(name, policies, resource)
            for name, policies in self._access.policies.items()
            if subject in subject_text(name)
        ]
        return [each for each in found if each.policies] or None


def proof(credentials: Credentials, code: int, challenge: str, body: bytes) -> str:
    """The proof of an answer (`ProofResponseHeader`)."""
    return sign(f"{code}:{challenge}:".encode() + body, credentials.secret_key)


def _check_super(user: User, is_super: bool) -> None:
    if user.is_super and not is_super:
        raise refused("The super user can only be changed by super user", ResponseCode.SYSTEM_ERROR)


def _body(request: Command, kind: type[T]) -> T:
    """The body as a structure. Raises RequestRefused, whose text has nothing of the body: it may be a
    secret."""
    if len(request.body) > _MAX_BODY_BYTES:
        raise refused(f"a body of {len(request.body)} bytes, at most {_MAX_BODY_BYTES}")
    try:
        return request.decode_body(kind)
    except DecodeError as error:
        if isinstance(error.__cause__, msgspec.ValidationError):
            raise refused(f"the body is not a {kind.__name__}: {error}", ResponseCode.SYSTEM_ERROR) from None
        raise refused(f"the body is not a {kind.__name__}", ResponseCode.SYSTEM_ERROR) from None
