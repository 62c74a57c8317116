"""`rmqkit cluster backup|restore`: a running broker's messages and tables come back with another broker."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from rmqkit.cli.backup import BackupStalled, _accounts, _catch_up, back_up
from rmqkit.client import BlockingClient, Message
from rmqkit.config import Config
from rmqkit.errors import BrokerError, ConnectFailed
from rmqkit.model.access import AclTable
from rmqkit.testing.broker import running_broker
from tests.cli.conftest import Ready, Run, Start, Verbs
from tests.cli.test_acl import AS_ROOT
from tests.hooks.acl.kit import CHECKED

#: Small files, so that a backup has several.
SMALL = ("--set", "mappedFileSizeCommitLog=131072", "--set", "maxMessageSize=16384")


def serving(start: Start, data: str, *words: str, role: str = "ASYNC_MASTER") -> Ready:
    where = ("--namesrv", "127.0.0.1:0", "--broker", "127.0.0.1:0", "--data", data)
    return start("serve", *where, "--set", f"brokerRole={role}", *SMALL, *words)


def send(client: BlockingClient, numbers: range) -> None:
    with client.producer("p") as producer:
        for number in numbers:
            producer.send(Message("Orders", b"%d" % number + b"." * 1_000, keys=[f"k{number}"]))


def read(run: Run, namesrv: tuple[str, str], count: int) -> int:
    """The number of the next messages of the group, which are committed."""
    words = ("--group", "billing", "--max", str(count), "--json")
    return len(run("consume", "Orders", *words, *namesrv).stdout.splitlines())


@pytest.mark.parametrize("store", ["mmap", "lmdb"])
def test_a_running_broker_comes_back(start: Start, rmqkit: Run, tmp_path: Path, store: str) -> None:
    """With its messages, topics, groups and offsets, from a copy in either store; a second backup copies
    only what is new."""
    first = serving(start, "first")
    namesrv = ("--namesrv", first.where["namesrv"])
    with BlockingClient(first.where["namesrv"]) as client:
        client.admin.create_topic("Orders", queues=2)
        send(client, range(80))
        assert read(rmqkit, namesrv, 30) == 30
        backup = ("cluster", "backup", "copy", "--set", f"store={store}", *namesrv)
        (one,) = json.loads(rmqkit(*backup, "--json").stdout)
        assert (one["broker"], one["store"], one["start"]) == ("broker-a", store, 0)
        assert one["newBytes"] == one["end"] > 80_000
        send(client, range(80, 100))
        (two,) = json.loads(rmqkit(*backup, "--json").stdout)
        assert 0 < two["newBytes"] == two["end"] - one["end"] < 30_000
        table = rmqkit(*backup).stdout.splitlines()
        assert table[1].split()[:5] == ["broker-a", store, "0", str(two["end"]), "0"]
    assert first.stop() == 0
    verified = rmqkit("store", "verify", "copy/broker-a", *SMALL)
    assert verified.returncode == 0, verified.stdout
    restored = rmqkit("cluster", "restore", "copy", "--to", "second")
    start_it = restored.stdout.splitlines()[1]
    assert start_it.startswith("rmqkit broker --set brokerName=broker-a")
    assert start_it.endswith(" ".join(("", *SMALL)))
    second = serving(start, "second", "--set", f"store={store}")
    with BlockingClient(second.where["namesrv"]) as client:
        progress = client.groups.progress("billing", "Orders")
        assert sum(each.lag for each in progress.values()) == 70
        assert read(rmqkit, ("--namesrv", second.where["namesrv"]), 90) == 70
        assert [each.body[:2] for each in client.admin.query_by_key("Orders", "k99")] == [b"99"]


def test_users_and_policies_come_along(start: Start, rmqkit: Run, tmp_path: Path) -> None:
    """With their passwords, in a file for its owner alone, when a super user makes the backup; they are
    printed nowhere. To another user the broker gives no passwords, and both verbs say what to do."""
    checks = [word for key, value in CHECKED.items() for word in ("--set", f"{key}={value}")]
    inner = (
        "--set",
        f"innerClientAuthenticationCredentials={CHECKED['innerClientAuthenticationCredentials']}",
    )
    first = serving(start, "first", *checks)
    namesrv = ("--namesrv", first.where["namesrv"])
    alice = {"RMQKIT_ACCESS_KEY": "alice", "RMQKIT_SECRET_KEY": "alice-secret"}
    new = rmqkit(
        "acl", "user", "set", "alice", *namesrv, env=AS_ROOT | {"RMQKIT_USER_PASSWORD": "alice-secret"}
    )
    assert new.returncode == 0, new.stderr
    rule = rmqkit("acl", "policy", "set", "alice", "All", "Cluster:*", *namesrv, env=AS_ROOT)
    assert rule.returncode == 0, rule.stderr
    withheld = rmqkit("cluster", "backup", "less", *inner, *namesrv, env=alice)
    assert withheld.returncode == 0, withheld.stderr
    assert withheld.stdout.splitlines()[1].split()[-1] == "withheld"
    assert "it gives no passwords; make the backup as a super user" in withheld.stderr
    assert not (tmp_path / "less" / "broker-a" / "config" / "acl.json").exists()
    whole = rmqkit("cluster", "backup", "copy", *namesrv, "--json", env=AS_ROOT)
    assert whole.returncode == 0, whole.stderr
    (one,) = json.loads(whole.stdout)
    assert (one["accounts"], one["users"]) == ("taken", 3)
    assert first.stop() == 0
    told = withheld.stdout + withheld.stderr + whole.stdout + whole.stderr
    assert "secret" not in told + (tmp_path / "copy" / "backup.json").read_text()
    less = rmqkit("cluster", "restore", "less", "--to", "other")
    assert (less.returncode, "copy acl.json of their directory to other/config" in less.stderr) == (0, True)
    restored = rmqkit("cluster", "restore", "copy", "--to", "second")
    assert (restored.returncode, restored.stderr) == (0, "")
    for directory in ("copy/broker-a", "second"):
        table = tmp_path / directory / "config" / "acl.json"
        assert stat.S_IMODE(table.stat().st_mode) == 0o600
        assert b"alice-secret" in table.read_bytes()
    second = serving(start, "second", *checks)
    listed = rmqkit("topic", "list", "--namesrv", second.where["namesrv"], env=alice)
    assert listed.returncode == 0, listed.stderr


def test_settings_of_running_servers(verbs: Verbs, server: Ready) -> None:
    """They are shown and changed, at brokers and at name servers; what is refused is named, and changes
    nothing."""
    assert verbs.json("cluster", "settings", "fileReservedTime") == {"broker-a": {"fileReservedTime": "72"}}
    table = verbs.text("cluster", "settings", "--broker", "broker-a").splitlines()
    assert ["broker-a", "fileReservedTime", "72"] in [line.split() for line in table]
    said = verbs.text("cluster", "set", "fileReservedTime=48", "deleteFileBatchMax=9")
    assert said.startswith("broker-a: changed, until the next start only")
    (changed,) = verbs.json("cluster", "set", "fileReservedTime=24", "--cluster", "DefaultCluster")
    assert (changed["server"], "until the next start only" in changed["remark"]) == ("broker-a", True)
    assert verbs.json("cluster", "settings", "fileReservedTime") == {"broker-a": {"fileReservedTime": "24"}}
    failed = verbs.text("cluster", "set", "fileReservedTime=x", code=1)
    assert "nothing was changed" in failed
    assert "no server has a setting 'nothing'" in verbs.text("cluster", "settings", "nothing", code=2)
    where = server.where["namesrv"]
    said = verbs.text("cluster", "set", "scanNotActiveBrokerInterval=7000", "--name-servers")
    assert said.startswith(f"{where}: changed")
    shown = verbs.json("cluster", "settings", "scanNotActiveBrokerInterval", "--name-servers")
    assert shown == {where: {"scanNotActiveBrokerInterval": "7000"}}


def test_what_cannot_be_backed_up_or_restored(start: Start, rmqkit: Run, tmp_path: Path) -> None:
    """Each error says what to do."""
    alone = start("serve", "--namesrv", "127.0.0.1:0", "--broker", "127.0.0.1:0", "--set", "store=memory")
    namesrv = ("--namesrv", alone.where["namesrv"])
    failed = rmqkit("cluster", "backup", "copy", *namesrv)
    assert (failed.returncode, "--set brokerRole=ASYNC_MASTER" in failed.stderr) == (2, True)
    failed = rmqkit("cluster", "backup", "copy", "--broker", "broker-z", *namesrv)
    assert (failed.returncode, "there are broker-a" in failed.stderr) == (2, True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    failed = rmqkit("cluster", "restore", "full", "--to", "new")
    assert (failed.returncode, "holds no backup" in failed.stderr) == (2, True)
    brokers = [
        {"broker": name, "cluster": "c", "address": "127.0.0.1:1", "store": "mmap", "start": 0, "end": 0}
        | {"newBytes": 0, "topics": 0, "groups": 0}
        for name in ("a", "b")
    ]
    manifest = {"finishedAt": 0, "rmqkit": "1", "brokers": brokers}
    (tmp_path / "full" / "backup.json").write_text(json.dumps(manifest))
    failed = rmqkit("cluster", "restore", "full", "--to", "new")
    assert (failed.returncode, "--broker: a, b" in failed.stderr) == (2, True)
    failed = rmqkit("cluster", "restore", "full", "--broker", "a", "--to", "full")
    assert (failed.returncode, "is not empty" in failed.stderr) == (2, True)


def test_a_restored_log_keeps_its_holes(rmqkit: Run, tmp_path: Path) -> None:
    """The copy takes no more of the disk than the backup, and every byte is the same."""
    log = tmp_path / "copy" / "broker-a" / "commitlog" / "0"
    log.parent.mkdir(parents=True)
    with log.open("wb") as file:
        file.write(b"x" * 5_000)
        file.truncate(64 * 1024 * 1024)
    one = {"broker": "broker-a", "cluster": "c", "address": "127.0.0.1:1", "store": "mmap", "start": 0}
    one |= {"end": 5_000, "newBytes": 5_000, "topics": 0, "groups": 0}
    one |= {"accounts": "none"}
    manifest = {"finishedAt": 0, "rmqkit": "1", "brokers": [one]}
    (tmp_path / "copy" / "backup.json").write_text(json.dumps(manifest))
    shown = json.loads(rmqkit("cluster", "restore", "copy", "--to", "new", "--json").stdout)
    assert (shown["broker"], shown["to"]) == ("broker-a", 5_000)
    copy = tmp_path / "new" / "commitlog" / "0"
    assert copy.read_bytes() == log.read_bytes()
    assert copy.stat().st_blocks * 512 < 1024 * 1024


async def test_a_backup_that_gets_nothing_gives_up(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The error says how far it came."""

    async def nobody() -> None:
        return None

    async with running_broker(tmp_path, scheme="memory", brokerName="broker-a") as running:
        with pytest.raises(
            BackupStalled, match=r"nothing of broker-a has come for 5 s, .* copied to 0 of 99"
        ):
            await _catch_up(running, 99, 5.0, lambda done, total: None, nobody)


class Accounts:
    """A client whose broker answers so when it is asked for users and policies."""

    def __init__(self, answer: AclTable | BrokerError | None) -> None:
        self.access, self._answer = self, answer

    async def table(self, broker: str) -> AclTable | None:
        if isinstance(self._answer, BrokerError):
            raise self._answer
        return self._answer


@pytest.mark.parametrize(
    ("answer", "acl_enable", "signs", "found"),
    [
        (None, "false", True, ("none", "")),
        (None, "true", True, ("withheld", "conf/plain_acl.yml")),
        (BrokerError(1, "try again", "a"), "false", False, ("none", "")),
        (BrokerError(1, "try again", "a"), "false", True, ("withheld", "as a super user")),
        (BrokerError(16, "no", "a"), "false", False, ("withheld", "as a super user")),
    ],
)
async def test_a_broker_that_gives_no_accounts(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    answer: AclTable | BrokerError | None,
    acl_enable: str,
    signs: bool,
    found: tuple[str, str],
) -> None:
    """One without any, RocketMQ 4 with a file of its own, Apache's without access control, which cannot list
    users, and one that refuses. The table of an earlier backup goes only when there are none."""
    table = tmp_path / "config" / "acl.json"
    table.parent.mkdir()
    table.touch()
    client: Any = Accounts(answer)
    said = await _accounts(client, "b", {"aclEnable": acl_enable}, tmp_path, signs=signs)
    assert said == (found[0], 0)
    assert found[1] in caplog.text
    assert bool(caplog.text) == table.exists() == (found[0] == "withheld")


class NoMaster:
    """A client whose name server still has a master that is gone; `others` are what it has later."""

    def __init__(self, *others: str) -> None:
        self.admin, self.others, self.asked = self, iter(others), list[str]()

    async def replication_address(self, address: str) -> str:
        self.asked.append(address)
        raise ConnectFailed(address, "refused")

    async def masters(self, *, broker: str) -> dict[str, str]:
        return {broker: next(self.others, "b")}


def unused(values: Mapping[str, str]) -> Config:
    raise AssertionError("no slave was made")


async def test_a_lost_master_is_waited_for(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Until another one is elected, for as long as the patience says; then the error is that of the last
    one."""
    client: Any = NoMaster("a", "a", "a", "b")
    began = trio.current_time()
    with pytest.raises(ConnectFailed, match="b"):
        await back_up(client, "orders", "a", tmp_path, unused, 60.0, lambda done, total: None)
    assert client.asked == ["a", "b"]
    assert trio.current_time() == began + 3 * 2 + 60


async def test_a_master_that_refuses_is_not_waited_for(tmp_path: Path) -> None:
    """Another master is, where there is one."""

    class Refusing(NoMaster):
        async def replication_address(self, address: str) -> str:
            self.asked.append(address)
            raise BrokerError(16, "no", address)

    client: Any = Refusing("b")
    with pytest.raises(BrokerError):
        await back_up(client, "orders", "a", tmp_path, unused, 60.0, lambda done, total: None)
    assert client.asked == ["a", "b"]
