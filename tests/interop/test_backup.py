"""`rmqkit cluster backup` of Apache's master while it works, and rmqkit's broker on what `restore` makes of
it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from rmqkit.client import BlockingClient, Message, ReceivedMessage
from rmqkit.model.topic import SubscriptionGroupConfig
from tests.hooks.acl.kit import CHECKED, ROOT
from tests.interop import peers
from tests.interop.builds import OLD_SERVER_VERSION, SERVER_VERSION, BuildError
from tests.interop.test_access_control import SETTINGS as ACCESS
from tests.programs import run

TOPIC, GROUP = "Kept", "keepers"
#: Java's broker warms a log file by writing zeros to all of it.
LOG_FILE_BYTES = 1024 * 1024
#: The level of a delay of ten seconds.
LEVEL = 3


def send(client: BlockingClient, numbers: range) -> None:
    with client.producer("producers") as producer:
        for number in numbers:
            producer.send(Message(TOPIC, b"%d" % number + b"." * 500, keys=[f"k{number}"], tag="kept"))


def consumed(client: BlockingClient, are_enough: Callable[[list[int]], bool]) -> list[int]:
    """The numbers of the next messages of the group, which are committed."""
    found: list[int] = []
    consumer = client.push_consumer(GROUP, subscribe={TOPIC: "*"}, start="first")

    def handle(message: ReceivedMessage) -> None:
        found.append(int(message.body.rstrip(b".")))
        if are_enough(found):
            consumer.stop()

    consumer.run(handle)
    return found


def verb(
    *words: str, home: Path, code: int = 0, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    ended = run(words, home, env=env)
    assert ended.returncode == code, ended.stderr.decode()
    return ended


def test_users_of_apaches_broker(tmp_path: Path) -> None:
    """They come along with their passwords, for a super user, and rmqkit's broker checks them."""
    home = tmp_path / "ours"
    home.mkdir()
    keys = {"RMQKIT_ACCESS_KEY": ROOT[0], "RMQKIT_SECRET_KEY": ROOT[1]}
    alice = {"RMQKIT_ACCESS_KEY": "alice", "RMQKIT_SECRET_KEY": "alice-secret"}
    try:
        with peers.apache_cluster(tmp_path, settings=ACCESS) as apache:
            namesrv = ("--namesrv", apache.namesrv)
            new = ("acl", "user", "set", "alice", *namesrv)
            verb(*new, home=home, env=keys | {"RMQKIT_USER_PASSWORD": "alice-secret"})
            verb(
                "acl",
                "policy",
                "set",
                "alice",
                "Pub,Sub",
                "Topic:*",
                "Group:*",
                *namesrv,
                home=home,
                env=keys,
            )
            backup = verb("cluster", "backup", "copy", "--json", *namesrv, home=home, env=keys)
    except (BuildError, peers.PeerError) as problem:
        pytest.fail(str(problem), pytrace=False)
    (one,) = json.loads(backup.stdout)
    assert one["accounts"] == "taken"
    assert b"secret" not in backup.stdout + backup.stderr
    verb("cluster", "restore", "copy", "--to", "data", home=home)
    words = ["--set", "brokerName=apache-broker"]
    words += [word for key, value in CHECKED.items() for word in ("--set", f"{key}={value}")]
    with peers.rmqkit_serve(home, arguments=words) as ours:
        namesrv = ("--namesrv", ours.namesrv)
        verb("topic", "create", TOPIC, *namesrv, home=home, env=keys)
        verb("send", TOPIC, "hello", *namesrv, home=home, env=alice)
        verb("topic", "delete", TOPIC, *namesrv, home=home, env=alice, code=1)


@pytest.mark.parametrize("version", [SERVER_VERSION, OLD_SERVER_VERSION])
def test_apaches_master_comes_back_with_rmqkit(tmp_path: Path, version: str) -> None:
    """Messages, keys, topics, a group's settings and offsets, and a message that waits. The second backup has
    only what is new. Without access control there are no users to take."""
    home = tmp_path / "ours"
    home.mkdir()
    settings = {"mappedFileSizeCommitLog": LOG_FILE_BYTES, "maxMessageSize": 65_536}
    try:
        with (
            peers.apache_cluster(tmp_path, version=version, settings=settings) as apache,
            BlockingClient(apache.namesrv) as client,
        ):
            client.admin.create_topic(TOPIC, queues=2)
            client.groups.put(GROUP, SubscriptionGroupConfig(group_name=GROUP, retry_max_times=7))
            send(client, range(60))
            first = consumed(client, lambda found: len(found) >= 20)
            namesrv = ("--namesrv", apache.namesrv)
            (one,) = json.loads(verb("cluster", "backup", "copy", "--json", *namesrv, home=home).stdout)
            assert (one["start"], one["accounts"], one["users"]) == (0, "none", 0)
            assert one["newBytes"] == one["end"] > 60 * 500
            send(client, range(60, 80))
            with client.producer("producers") as producer:
                producer.send(Message(TOPIC, b"80", delay_level=LEVEL))
            first += consumed(client, lambda found: len(found) >= 5)
            (two,) = json.loads(verb("cluster", "backup", "copy", "--json", *namesrv, home=home).stdout)
            assert 0 < two["newBytes"] == two["end"] - one["end"] < 20 * 1_500
    except (BuildError, peers.PeerError) as problem:
        pytest.fail(str(problem), pytrace=False)
    assert verb("store", "verify", "copy/apache-broker", home=home).stdout
    verb("cluster", "restore", "copy", "--to", "data", home=home)
    words = ["--set", "brokerName=apache-broker"]
    words += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    with peers.rmqkit_serve(home, arguments=words) as ours, BlockingClient(ours.namesrv) as client:
        assert client.admin.topic_configs(ours.broker)[TOPIC].read_queue_nums == 2
        (config,) = client.groups.configs()[GROUP].values()
        assert config.retry_max_times == 7
        assert [each.body[:2] for each in client.admin.query_by_key(TOPIC, "k79")] == [b"79"]
        rest = consumed(client, lambda found: {*first, *found} == {*range(81)})
        assert len(rest) < 81, "the group began where it was"
