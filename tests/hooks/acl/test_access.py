"""Users and policies of one process: when files are read again, what a change that fails leaves, and which
requests are admitted by one look."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import trio

from rmqkit.errors import RequestRefused
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.signature import AUTHORIZATION, DATE_TIME, PROXY_KEY, PROXY_SIGNATURE, Secret, content_of
from rmqkit.testing.peer import FakePeer
from rmqkit_hook_acl.access import ANONYMOUS, Access
from rmqkit_hook_acl.decide import Need
from rmqkit_hook_acl.model import DISABLED, Action, Policies, User
from tests.hooks.acl.kit import INNER, ROOT, access_of, policies, signed
from tests.hooks.acl.test_hook import received, send

ALICE = User("alice", "alice-secret")
RULES = {"alice": policies(["Topic:T Pub Allow"])}


def admitted(access: Access, command: Command) -> bool:
    """Whether one look admits a request; otherwise it is decided about, and may not be refused."""
    command, peer = received(command), FakePeer()
    if access.was_admitted(command, "127.0.0.1"):
        return True
    access.check(access.principal(command, peer), command, peer)
    return False


def alices(topic: str = "T") -> Command:
    return signed(send(topic), "alice", "alice-secret")


def test_a_request_like_an_earlier_one_is_admitted_by_one_look(tmp_path: Path) -> None:
    """Until users or policies change; a wrong signature, another topic and another user are looked at."""
    access = access_of(tmp_path, [ALICE], RULES)
    assert [admitted(access, alices()) for _ in range(3)] == [False, True, True]
    for other in (signed(send(), "alice", "wrong"), alices("U"), send()):
        assert not access.was_admitted(received(other), "127.0.0.1")
    access.change({"alice": ALICE}, {})
    assert not access.was_admitted(received(alices()), "127.0.0.1")
    with pytest.raises(RequestRefused, match="no permission"):
        admitted(access, alices())


def test_a_policy_about_addresses_is_asked_for_each_address(tmp_path: Path) -> None:
    """What was allowed from one address says nothing about another one."""
    access = access_of(tmp_path, [ALICE], {"alice": policies(["Topic:T Pub Allow 127.0.0.1"])})
    assert [admitted(access, alices()) for _ in range(2)] == [False, True]
    command, elsewhere = received(alices()), FakePeer("10.0.0.7")
    assert not access.was_admitted(command, "10.0.0.7")
    with pytest.raises(RequestRefused, match=r"from 10\.0\.0\.7"):
        access.check("alice", command, elsewhere)


def test_a_file_that_cannot_be_read_leaves_everything(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A look comes after the interval of the settings; it logs the fault, and a mended file counts."""
    now = [0.0]
    access = access_of(tmp_path, (), None, lambda: now[0], **{"plugins.acl.lookIntervalMs": 1000})
    access.file.write({"alice": ALICE}, {})
    good = access.file.path.read_bytes()
    access.file.path.write_bytes(good[:-3])
    now[0] = 0.999
    access.look()
    assert not caplog.records
    assert "alice" not in access.users
    now[0] = 1.0
    access.look()
    assert "access control goes on with what it knows" in caplog.text
    assert {*access.users} == {ROOT[0], INNER[0]}
    access.file.path.write_bytes(good)
    now[0] = 2.0
    access.look()
    assert access.users["alice"] == ALICE


async def test_a_change_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither when it is refused, nor when the device does not take it; the next one is made."""
    access = access_of(tmp_path)

    def refusing(users: dict[str, User], rules: dict[str, Policies]) -> None:
        users["alice"] = ALICE
        raise access.refusal("no")

    def adding(users: dict[str, User], rules: dict[str, Policies]) -> None:
        users["alice"] = ALICE

    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(RequestRefused, match="no"):
        await access.update(refusing)
    with monkeypatch.context() as patch:
        patch.setattr(access.file, "write", full)
        with pytest.raises(OSError, match="No space left"):
            await access.update(adding)
    assert "alice" not in access.users
    await access.update(adding)
    assert access.users["alice"] == ALICE
    assert not access.is_fixed("alice")
    assert access.is_fixed(ROOT[0])


async def test_a_cancelled_change_counts_when_it_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File and memory agree afterwards."""
    access = access_of(tmp_path)
    write = access.file.write
    with trio.CancelScope() as scope:

        def cancelling(users: dict[str, User], rules: dict[str, Policies]) -> None:
            trio.from_thread.run_sync(scope.cancel)
            write(users, rules)

        monkeypatch.setattr(access.file, "write", cancelling)
        await access.update(lambda users, _: users.update(alice=ALICE))
    assert access.users["alice"] == ALICE
    again = access_of(tmp_path)
    again.file.read()
    assert again.file.users == access.file.users


def test_who_is_explained_and_who_is_anonymous(tmp_path: Path) -> None:
    """A disabled user, an unknown one, and a request that needs no proof."""
    need = Need("Topic", "T", Action.PUB)
    disabled = User("bob", "bob-secret", status=DISABLED)
    access = access_of(tmp_path, [ALICE, disabled], RULES, authenticationWhitelist="310")
    assert access.explained("alice", need, "10.0.0.1").is_allowed
    assert access.explained("bob", need, "10.0.0.1") == (False, "the user is disabled", "")
    assert not access.explained("nobody", need, "10.0.0.1").is_allowed
    assert access.principal(received(send()), FakePeer()) == ANONYMOUS
    with pytest.raises(RequestRefused, match="username cannot be null"):
        access.principal(Command(RequestCode.PULL_MESSAGE, ext={}), FakePeer())
    open_access = access_of(tmp_path, [ALICE], authorizationEnabled="false")
    assert open_access.explained("nobody", need, "10.0.0.1").is_allowed


def passed_on(proxy: tuple[str, str], user: tuple[str, str] = ("alice", "alice-secret")) -> Command:
    """A request of a client of gRPC, as a proxy passes it on over remoting."""
    command, date = send(), "20261126T030000Z"
    fields = command.ext = dict(command.fields())
    digest = Secret(user[1]).digest(date.encode()).hex().upper()
    proof = f"MQv2-HMAC-SHA1 Credential={user[0]}, SignedHeaders=x-mq-date-time, Signature={digest}"
    fields |= {AUTHORIZATION: proof, DATE_TIME: date, PROXY_KEY: proxy[0]}
    content = content_of(fields, command.body, (PROXY_SIGNATURE,))
    fields[PROXY_SIGNATURE] = Secret(proxy[1]).sign(content).decode()
    command.ext = fields
    return command


def test_what_a_proxy_vouches_for(tmp_path: Path) -> None:
    """A super user may say that a request came as a call of gRPC; it is that of the client who has proven who
    it is, with the client's rights."""
    access = access_of(tmp_path, [ALICE], RULES)
    assert access.principal(received(passed_on(ROOT)), FakePeer()) == "alice"
    assert not admitted(access, passed_on(ROOT))
    with pytest.raises(RequestRefused, match="signature failed"):
        access.principal(received(passed_on(ROOT, ("alice", "wrong"))), FakePeer())


@pytest.mark.parametrize(
    ("proxy", "said"),
    [
        (("alice", "alice-secret"), "username cannot be null"),
        ((ROOT[0], "wrong"), "signature failed"),
        (("nobody", "wrong"), "not found"),
        (("", ""), "username cannot be null"),
    ],
)
def test_a_proxy_that_may_not_vouch(tmp_path: Path, proxy: tuple[str, str], said: str) -> None:
    """The proof of the client does not count, for it covers no more than a date."""
    access = access_of(tmp_path, [ALICE], RULES)
    with pytest.raises(RequestRefused, match=said):
        access.principal(received(passed_on(proxy)), FakePeer())


def test_a_request_that_is_changed_on_its_way(tmp_path: Path) -> None:
    """What the proxy has signed is the whole request."""
    access = access_of(tmp_path, [ALICE], RULES)
    command = passed_on(ROOT)
    command.body += b"!"
    with pytest.raises(RequestRefused, match="signature failed"):
        access.principal(received(command), FakePeer())
