"""The accounts of RocketMQ 4."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqkit import config as settings
from rmqkit.errors import ConfigError, RequestRefused
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.testing.peer import FakePeer
from rmqkit_hook_acl.access import Access
from rmqkit_hook_acl.accounts import PlainAccounts
from rmqkit_hook_acl.hook import AccessHook
from tests.hooks.acl.kit import signed

#: As Apache ships it, with shorter names.
PLAIN = """
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.*

accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SUB
    groupPerms:
      # the group should convert to retry topic
      - groupA=DENY
      - groupB=PUB|SUB

  - accessKey: rocketmq2
    secretKey: 12345678
    whiteRemoteAddress: 192.168.1.*
    admin: true
"""
USER, ADMIN = ("RocketMQ", "12345678"), ("rocketmq2", "12345678")
Code = RequestCode


@pytest.fixture
def hook(tmp_path: Path) -> AccessHook:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "plain_acl.yml").write_text(PLAIN)
    flags = {"aclEnable": "true", "storePathRootDir": str(tmp_path), "plugins.acl.lookIntervalMs": 100}
    access = Access(settings.load(environ={}, flags=flags))
    access.load()
    return AccessHook(access)


def admitted(hook: AccessHook, command: Command, host: str = "127.0.0.1") -> bool:
    refused = (hook.before([command], FakePeer(host)) or {}).get(0)
    if refused is not None:
        assert isinstance(refused, RequestRefused)
        assert refused.code == ResponseCode.SYSTEM_ERROR
    return refused is None


def send(topic: str) -> Command:
    return Command(Code.SEND_MESSAGE_V2, ext={"a": "p", "b": topic})


def pull(topic: str, group: str) -> Command:
    return Command(Code.PULL_MESSAGE, ext={"topic": topic, "consumerGroup": group})


def test_what_accounts_may_do(hook: AccessHook) -> None:
    """Topics and groups that an account names are decided there, others by its defaults; an admin may do
    everything. A refusal has the code of RocketMQ 4."""
    for command, allowed in (
        (send("topicB"), True),
        (send("topicA"), False),
        (send("topicC"), False),
        (send("other"), False),
        (pull("topicB", "groupB"), True),
        (pull("topicC", "other"), True),
        (pull("topicC", "groupA"), False),
        (pull("other", "groupB"), False),
        (Command(Code.UPDATE_AND_CREATE_TOPIC, ext={"topic": "topicB"}), False),
    ):
        assert admitted(hook, signed(command, *USER)) is allowed, command
    assert admitted(hook, signed(Command(Code.UPDATE_BROKER_CONFIG, ext={}), *ADMIN))
    assert not admitted(hook, signed(send("topicB"), USER[0], "87654321"))
    assert not admitted(hook, send("topicB"))


def test_addresses_that_are_trusted(hook: AccessHook) -> None:
    """From some addresses nothing is checked, from others nothing of one account."""
    assert admitted(hook, send("topicA"), "10.10.103.7")
    assert not admitted(hook, send("topicA"), "10.10.104.7")
    assert admitted(hook, Command(Code.UPDATE_BROKER_CONFIG, ext={"AccessKey": ADMIN[0]}), "192.168.1.9")
    assert not admitted(hook, Command(Code.UPDATE_BROKER_CONFIG, ext={"AccessKey": USER[0]}), "192.168.1.9")


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    """An account that is removed is refused with the next look; an unreadable file changes nothing."""
    now = [0.0]
    (tmp_path / "config").mkdir()
    path = tmp_path / "config" / "plain_acl.yml"
    path.write_text(PLAIN)
    flags = {"aclEnable": "true", "storePathRootDir": str(tmp_path)}
    access = Access(settings.load(environ={}, flags=flags), time=lambda: now[0])
    access.load()
    hook = AccessHook(access)
    command = signed(send("topicB"), *USER)
    assert admitted(hook, command)
    path.write_text("accounts: [")
    now[0] += 2
    assert admitted(hook, command)
    path.write_text("accounts: []")
    assert admitted(hook, command)
    now[0] += 2
    assert not admitted(hook, command)


def test_a_directory_of_files(tmp_path: Path) -> None:
    """All files below it are read; of an account that is there twice the first one counts."""
    (tmp_path / "acl" / "more").mkdir(parents=True)
    account = "accounts: [{{accessKey: team-{0}, secretKey: secret-{1}, admin: true}}]"
    (tmp_path / "acl" / "a.yml").write_text(account.format("a", 1))
    (tmp_path / "acl" / "b.yaml").write_text(account.format("a", 2))
    (tmp_path / "acl" / "more" / "c.yml").write_text(account.format("c", 3))
    (tmp_path / "acl" / "readme.txt").write_text("no accounts")
    accounts = PlainAccounts(tmp_path / "acl")
    accounts.read()
    assert {name: user.password for name, user in accounts.users.items()} == {
        "team-a": "secret-1",
        "team-c": "secret-3",
    }


@pytest.mark.parametrize(
    "text",
    [
        "accounts: [",
        "accounts: 1",
        "accounts: [{secretKey: 12345678}]",
        "accounts: [{accessKey: geheim-name, secretKey: x}]",
        "accounts: [{accessKey: a, secretKey: geheim-12345, topicPerms: [T]}]",
        "accounts: [{accessKey: a, secretKey: geheim-12345, topicPerms: [T=WRITE]}]",
        "accounts: [{accessKey: a, secretKey: geheim-12345, whiteRemoteAddress: nowhere}]",
        "globalWhiteRemoteAddresses: [nowhere]",
        "accounts: [{accessKey: a, secretKey: geheim-12345, ",
        "!!python/object/apply:os.system [true]",
    ],
)
def test_a_file_that_makes_no_sense_stops_the_start(tmp_path: Path, text: str) -> None:
    """The error names the file and what is wrong, and has no secret."""
    path = tmp_path / "plain_acl.yml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"plain_acl\.yml") as caught:
        PlainAccounts(path).read()
    assert "geheim-12345" not in str(caught.value)


def test_a_missing_file_stops_the_start(tmp_path: Path) -> None:
    """Whoever asks for accounts gets no broker without them."""
    with pytest.raises(ConfigError, match="cannot be read"):
        PlainAccounts(tmp_path / "plain_acl.yml").read()
