"""Administration of users and policies (wire-protocol sheet, section 3.10)."""

from __future__ import annotations

import msgspec

from rmqkit.protocol.headers.base import Header


class UserRequestHeader(Header, kw_only=True):
    """AUTH_CREATE_USER (3001), AUTH_UPDATE_USER (3002), AUTH_DELETE_USER (3003), AUTH_GET_USER (3004)."""

    username: str = ""


class ListUsersRequestHeader(Header, kw_only=True):
    """AUTH_LIST_USER (3005). With `challenge` one of rmqkit's brokers proves its answer."""

    containing: str | None = msgspec.field(default=None, name="filter")
    challenge: str | None = None


class AclRequestHeader(Header, kw_only=True):
    """AUTH_CREATE_ACL (3006), AUTH_UPDATE_ACL (3007), AUTH_DELETE_ACL (3008), AUTH_GET_ACL (3009): `subject`
    is `User:NAME`. The last three fields ask rmqkit's brokers for a verdict, with AUTH_GET_ACL."""

    subject: str = ""
    policy_type: str | None = None
    resource: str | None = None
    explain_action: str | None = None
    explain_resource: str | None = None
    explain_source: str | None = None


class ListAclsRequestHeader(Header, kw_only=True):
    """AUTH_LIST_ACL (3010); `challenge` as in `ListUsersRequestHeader`."""

    subject_filter: str | None = None
    resource_filter: str | None = None
    challenge: str | None = None


class ProofResponseHeader(Header, kw_only=True):
    """The proof that a list comes from a broker of the cluster: the signature of the challenge and the body,
    made with the secret that all its brokers have."""

    proof: str = ""


class VerdictResponseHeader(Header, kw_only=True):
    """The verdict in an answer to AUTH_GET_ACL: Allow or Deny, and the rule that decides."""

    verdict: str
    rule: str = ""
