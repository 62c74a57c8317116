"""Users and policies over remoting, as mqadmin changes them."""

from __future__ import annotations

import json
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, header_fields
from rmqkit.protocol.headers import CreateTopicRequestHeader
from rmqkit.remoting.pool import ConnectionPool
from rmqkit.testing.broker import dialer, running_broker
from tests.hooks.acl.kit import CHECKED, INNER, ROOT, signed

Code = RequestCode
_CALL_MS = 30_000
ADMIN_CODES = range(Code.AUTH_CREATE_USER, Code.AUTH_LIST_ACL + 1)


class Asker:
    """A connection to a broker on which several users ask."""

    def __init__(self, pool: ConnectionPool, address: str) -> None:
        self._pool = pool
        self._address = address

    async def ask(
        self, code: int, body: object = None, user: tuple[str, str] = ROOT, /, **fields: str
    ) -> Command:
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        command = signed(Command(code, ext=dict(fields), body=data), *user)
        return await self._pool.call(self._address, command, _CALL_MS)

    async def done(self, code: int, body: object = None, /, **fields: str) -> Any:
        """The body of a success."""
        answer = await self.ask(code, body, **fields)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return json.loads(answer.body) if answer.body else None


@asynccontextmanager
async def asking(directory: Path, **keys: Any) -> AsyncIterator[Asker]:
    async with (
        running_broker(directory, **{**CHECKED} | keys) as running,
        ConnectionPool(connect=dialer()) as pool,
    ):
        yield Asker(pool, str(running.address))


def acl(*entries: dict[str, Any], kind: str | None = "Custom") -> dict[str, Any]:
    return {"policies": [{"policyType": kind, "entries": list(entries)}]}


def rule(resource: str, *actions: str, decision: str = "Allow", **more: Any) -> dict[str, Any]:
    return {"resource": resource, "actions": list(actions), "decision": decision, **more}


async def test_a_user_from_its_creation_to_its_deletion(tmp_path: Path) -> None:
    """A user is created, shown, changed, found in the list, there after a restart, and deleted with its
    policies; the file is its owner's alone."""
    async with asking(tmp_path) as asker:
        await asker.done(Code.AUTH_CREATE_USER, {"password": "alice-secret"}, username="alice")
        again = await asker.ask(Code.AUTH_CREATE_USER, {"password": "x"}, username="alice")
        assert (again.code, again.remark) == (ResponseCode.NO_PERMISSION, "The user is existed")
        shown = await asker.done(Code.AUTH_GET_USER, username="alice")
        assert shown == {
            "username": "alice",
            "password": "alice-secret",
            "userType": "Normal",
            "userStatus": "enable",
        }
        await asker.done(Code.AUTH_UPDATE_USER, {"userStatus": "DISABLE"}, username="alice")
        assert (await asker.done(Code.AUTH_GET_USER, username="alice"))["userStatus"] == "disable"
        await asker.done(Code.AUTH_CREATE_ACL, acl(rule("Topic:T", "Pub")), subject="User:alice")
    mode = stat.S_IMODE((tmp_path / "config" / "acl.json").stat().st_mode)
    assert mode == 0o600
    async with asking(tmp_path) as asker:
        names = [user["username"] for user in await asker.done(Code.AUTH_LIST_USER)]
        assert sorted(names) == ["alice", "inner", "root"]
        assert [user["username"] for user in await asker.done(Code.AUTH_LIST_USER, filter="li")] == ["alice"]
        await asker.done(Code.AUTH_DELETE_USER, username="alice")
        await asker.done(Code.AUTH_DELETE_USER, username="alice")
        assert await asker.done(Code.AUTH_GET_USER, username="alice") is None
        assert await asker.done(Code.AUTH_LIST_ACL) is None


async def test_policies_from_their_creation_to_their_deletion(tmp_path: Path) -> None:
    """Rules about the same resource are replaced, others are added; they are shown by user and resource."""
    async with asking(tmp_path) as asker:
        await asker.done(Code.AUTH_CREATE_USER, {"password": "alice-secret"}, username="alice")
        subject = {"subject": "User:alice"}
        await asker.done(
            Code.AUTH_CREATE_ACL, acl(rule("Topic:T", "Pub", "sub", sourceIps=["10.0.0.0/8"])), **subject
        )
        await asker.done(Code.AUTH_UPDATE_ACL, acl(rule("Topic:T", "Pub", decision="deny")), **subject)
        await asker.done(Code.AUTH_UPDATE_ACL, acl(rule("Group:*", "All"), kind=None), **subject)
        await asker.done(Code.AUTH_UPDATE_ACL, acl(rule("*", "Get"), kind="default"), **subject)
        assert await asker.done(Code.AUTH_GET_ACL, **subject) == {
            "subject": "User:alice",
            "policies": [
                {
                    "policyType": "Custom",
                    "entries": [rule("Topic:T", "Pub", decision="Deny"), rule("Group:*", "All")],
                },
                {"policyType": "Default", "entries": [rule("*", "Get")]},
            ],
        }
        (listed,) = await asker.done(Code.AUTH_LIST_ACL, subjectFilter="ali", resourceFilter="Topic")
        assert [each["entries"] for each in listed["policies"]] == [[rule("Topic:T", "Pub", decision="Deny")]]
        assert await asker.done(Code.AUTH_LIST_ACL, resourceFilter="nothing") is None
        await asker.done(Code.AUTH_DELETE_ACL, resource="Topic:T", **subject)
        await asker.done(Code.AUTH_DELETE_ACL, resource="*", policyType="Default", **subject)
        assert (await asker.done(Code.AUTH_GET_ACL, **subject))["policies"] == [
            {"policyType": "Custom", "entries": [rule("Group:*", "All")]}
        ]
        await asker.done(Code.AUTH_DELETE_ACL, **subject)
        gone = await asker.ask(Code.AUTH_DELETE_ACL, **subject)
        assert (gone.code, gone.remark) == (ResponseCode.NO_PERMISSION, "The acl is not exist.")


async def test_a_change_holds_at_once(tmp_path: Path) -> None:
    """The next request of a user is decided by the new policies."""
    async with asking(tmp_path) as asker:
        await asker.done(Code.AUTH_CREATE_USER, {"password": "alice-secret"}, username="alice")
        alice = ("alice", "alice-secret")

        create = CreateTopicRequestHeader(topic="T", read_queue_nums=1, write_queue_nums=1, perm=6)

        async def code() -> int:
            fields = header_fields(create)
            return (await asker.ask(Code.UPDATE_AND_CREATE_TOPIC, None, alice, **fields)).code

        assert await code() == ResponseCode.NO_PERMISSION
        await asker.done(Code.AUTH_CREATE_ACL, acl(rule("Topic:T", "Create")), subject="User:alice")
        assert await code() == ResponseCode.SUCCESS
        await asker.done(Code.AUTH_UPDATE_USER, {"password": "another-one"}, username="alice")
        assert await code() == ResponseCode.NO_PERMISSION


async def test_only_super_users_touch_super_users(tmp_path: Path) -> None:
    """A user with a policy for the cluster creates users and policies, but no super user, and sees no
    password."""
    async with asking(tmp_path) as asker:
        await asker.done(Code.AUTH_CREATE_USER, {"password": "deputy-secret"}, username="deputy")
        await asker.done(Code.AUTH_CREATE_ACL, acl(rule("Cluster:*", "Update", "Get")), subject="User:deputy")
        deputy = ("deputy", "deputy-secret")
        made = await asker.ask(Code.AUTH_CREATE_USER, {"password": "x"}, deputy, username="bob")
        assert made.code == ResponseCode.SUCCESS
        for code, body, name in (
            (Code.AUTH_CREATE_USER, {"password": "x", "userType": "Super"}, "eve"),
            (Code.AUTH_UPDATE_USER, {"password": "x"}, "root"),
            (Code.AUTH_UPDATE_USER, {"userType": "Super"}, "bob"),
            (Code.AUTH_UPDATE_USER, {"userType": "Super"}, "deputy"),
            (Code.AUTH_DELETE_USER, None, "root"),
        ):
            refused = await asker.ask(code, body, deputy, username=name)
            assert refused.code == ResponseCode.SYSTEM_ERROR, (code, name)
            assert "super user" in (refused.remark or "")
        shown = await asker.ask(Code.AUTH_LIST_USER, None, deputy)
        assert "password" not in shown.body.decode()


async def test_users_of_the_settings_stay(tmp_path: Path) -> None:
    """They can be changed, and then the table counts; they are not deleted, for the settings bring them
    back."""
    async with asking(tmp_path) as asker:
        refused = await asker.ask(Code.AUTH_DELETE_USER, username="inner")
        assert refused.code == ResponseCode.NO_PERMISSION
        assert "settings" in (refused.remark or "")
        await asker.done(Code.AUTH_UPDATE_USER, {"password": "changed-secret"}, username="root")
        assert (await asker.ask(Code.AUTH_LIST_USER)).code == ResponseCode.NO_PERMISSION
        changed = await asker.ask(Code.AUTH_LIST_USER, None, ("root", "changed-secret"))
        assert changed.code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("code", "body", "fields", "wanted"),
    [
        (Code.AUTH_CREATE_USER, {"password": "x"}, {}, ResponseCode.INVALID_PARAMETER),
        (Code.AUTH_CREATE_USER, {"password": "x"}, {"username": " a"}, ResponseCode.INVALID_PARAMETER),
        (Code.AUTH_CREATE_USER, {"password": "x"}, {"username": "a" * 300}, ResponseCode.INVALID_PARAMETER),
        (Code.AUTH_CREATE_USER, {"password": " "}, {"username": "a"}, ResponseCode.NO_PERMISSION),
        (
            Code.AUTH_CREATE_USER,
            {"password": "x", "userType": "King"},
            {"username": "a"},
            ResponseCode.NO_PERMISSION,
        ),
        (Code.AUTH_UPDATE_USER, {"password": "x"}, {"username": "nobody"}, ResponseCode.NO_PERMISSION),
        (Code.AUTH_GET_USER, None, {}, ResponseCode.INVALID_PARAMETER),
        (
            Code.AUTH_CREATE_ACL,
            acl(rule("Topic:T", "Pub")),
            {"subject": "User:nobody"},
            ResponseCode.NO_PERMISSION,
        ),
        (Code.AUTH_CREATE_ACL, acl(rule("Topic:T", "Pub")), {"subject": "root"}, ResponseCode.NO_PERMISSION),
        (
            Code.AUTH_CREATE_ACL,
            acl(rule("Topic:T", "Any")),
            {"subject": "User:root"},
            ResponseCode.NO_PERMISSION,
        ),
        (Code.AUTH_CREATE_ACL, acl(rule("Topic:T")), {"subject": "User:root"}, ResponseCode.NO_PERMISSION),
        (Code.AUTH_CREATE_ACL, acl(rule("T", "Pub")), {"subject": "User:root"}, ResponseCode.NO_PERMISSION),
        (
            Code.AUTH_CREATE_ACL,
            acl(rule("*", "Pub", decision="x")),
            {"subject": "User:root"},
            ResponseCode.NO_PERMISSION,
        ),
        (
            Code.AUTH_CREATE_ACL,
            acl(rule("*", "Pub", sourceIps=["x"])),
            {"subject": "User:root"},
            ResponseCode.NO_PERMISSION,
        ),
        (Code.AUTH_CREATE_ACL, {"policies": []}, {"subject": "User:root"}, ResponseCode.NO_PERMISSION),
        (Code.AUTH_CREATE_ACL, acl(), {"subject": "User:root"}, ResponseCode.NO_PERMISSION),
        (Code.AUTH_GET_ACL, None, {"subject": "User:nobody"}, ResponseCode.NO_PERMISSION),
        (Code.AUTH_DELETE_ACL, None, {"subject": "User:root", "policyType": "x"}, ResponseCode.NO_PERMISSION),
    ],
)
async def test_what_makes_no_sense_is_refused(
    tmp_path: Path, code: int, body: object, fields: dict[str, str], wanted: int
) -> None:
    """The answer has Apache's code and a remark, and nothing changes."""
    async with asking(tmp_path) as asker:
        answer = await asker.ask(code, body, **fields)
        assert answer.code == wanted, answer.remark
        assert answer.remark
    assert not (tmp_path / "config" / "acl.json").exists()


_ODD: list[Any] = [None, True, 0, -1, 1.5, "", "x", [], ["x"], {}, {"a": 1}, [[]], [None], "é\x00", 2**70]


def _odd_body(random: Random) -> bytes:
    """A body whose members have the right names and any types, or none at all."""
    names = ["username", "password", "userType", "userStatus", "subject", "policies"]
    odd = random.choice
    policy = odd(
        [
            odd(_ODD),
            {"policyType": odd(_ODD), "entries": odd(_ODD)},
            {
                "policyType": odd(["Custom", *_ODD]),
                "entries": [
                    {
                        "resource": odd(["Topic:T", *_ODD]),
                        "actions": odd([["Pub"], *_ODD]),
                        "sourceIps": odd(_ODD),
                        "decision": odd(["Allow", *_ODD]),
                    }
                ],
            },
        ]
    )
    body: dict[str, Any] = {name: odd(_ODD) for name in names if random.random() < 0.7}
    body["policies"] = odd([[policy], policy, [policy, policy]])
    if random.random() < 0.15:
        return odd([b"", b"no json", b"[]", b"\xff\xfe", b"{" * 500, b'{"password":'])
    return json.dumps(body).encode()


async def test_requests_with_wrong_types(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever members, types and fields an administration request has, it is answered with a code and a
    remark, nothing fails, and no remark or log line has a secret."""
    random = Random(3010)
    async with asking(tmp_path) as asker:
        for _ in range(1_000):
            fields = {
                name: str(random.choice(["root", "User:root", "alice", "User:", "", "x" * 400, *_ODD]))
                for name in ("username", "subject", "policyType", "resource", "filter", "subjectFilter")
                if random.random() < 0.6
            }
            if fields.get("username") in ("root", "inner"):
                fields["username"] = "alice"
            code = random.choice(ADMIN_CODES)
            answer = await asker.ask(code, _odd_body(random), **fields)
            assert answer.code in (
                ResponseCode.SUCCESS,
                ResponseCode.SYSTEM_ERROR,
                ResponseCode.NO_PERMISSION,
                ResponseCode.INVALID_PARAMETER,
            )
            assert "failed:" not in (answer.remark or ""), answer.remark
            assert INNER[1] not in (answer.remark or "")
        assert await asker.done(Code.AUTH_LIST_USER)
    assert INNER[1] not in caplog.text
    assert "Traceback" not in caplog.text
