"""What becomes of RocketMQ's settings that rmqkit does not read."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqkit import rocketmq_settings
from rmqkit.config import Config, load
from rmqkit.rocketmq_settings import NO_EFFECT, PROMISES

VECTORS = Path(__file__).parent / "vectors" / "rocketmq_settings.tsv"
#: Recognised by `rmqkit.config`, which refuses it for clients too.
CLIENTS_TOO = {"useTLS"}


def test_every_setting_of_rocketmq_is_classified() -> None:
    """Each key of RocketMQ's settings is a setting here, a promise that is not kept, or without effect, and
    only one of these."""
    theirs = [line.split("\t")[1] for line in VECTORS.read_text().splitlines() if not line.startswith("#")]
    assert len(theirs) > 450
    ours = set(Config.__struct_encode_fields__)
    unused = [key for keys in NO_EFFECT.values() for key in keys]
    assert [key for key in theirs if key not in ours | set(PROMISES) | set(unused) | CLIENTS_TOO] == []
    assert sorted(unused) == sorted(set(unused))
    assert set(unused) & set(PROMISES) == ours & (set(unused) | set(PROMISES)) == set()
    assert set(unused) | set(PROMISES) <= set(theirs)


def refused(key: str, value: object, claimed: tuple[str, ...] = ()) -> list[str]:
    """The keys that are refused when a command line gives this one."""
    # A slave has a number above 0.
    further = {"brokerId": 1} if value == "SLAVE" else {}
    config = load(environ={}, flags={key: value, **further})
    return [fault.key for fault in rocketmq_settings.faults(config.unknown, config.sources, claimed)]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("brokerRole", "SYNC_MASTER"),
        ("brokerRole", "SLAVE"),
        ("inSyncReplicas", "2"),
        ("inSyncReplicas", 2),
        ("in_sync_replicas", 2),
        ("enableDLegerCommitLog", "true"),
        ("filterServerNums", "1"),
        ("aclEnable", True),
        ("acl_enable", "TRUE"),
        ("AclEnable", 1),
        ("RMQKIT_ACL_ENABLE", "true"),
        ("authenticationEnabled", "true"),
        ("authorizationEnabled", "true"),
        ("fetchNamesrvAddrByAddressServer", "true"),
        ("storeType", "defaultRocksDB"),
        ("litePullMessageEnable", "false"),
    ],
)
def test_a_promise_that_is_not_kept_is_refused(key: str, value: object) -> None:
    """Values that ask for something this build does not do are refused, in any spelling of the key."""
    assert refused(key, value) == [key]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("brokerRole", "ASYNC_MASTER"),
        ("inSyncReplicas", 1),
        ("enableDLegerCommitLog", "false"),
        ("filterServerNums", 0),
        ("aclEnable", " False "),
        ("storeType", "default"),
        ("litePullMessageEnable", True),
        ("sendMessageThreadPoolNums", 16),
        ("somethingElse", "true"),
    ],
)
def test_values_that_promise_nothing_are_taken(key: str, value: object) -> None:
    """RocketMQ's own defaults, settings without effect and unknown keys do not stop a start."""
    assert refused(key, value) == []


def test_a_claimed_setting_is_not_refused() -> None:
    """A plugin that claims a setting is responsible for it; the others are still refused."""
    assert refused("aclEnable", "true", ("aclEnable",)) == []
    assert refused("acl_enable", "true", ("aclEnable",)) == []
    assert refused("aclEnable", "true", ("brokerRole",)) == ["aclEnable"]


def test_settings_without_effect_are_listed_with_the_reason() -> None:
    """Keys as they were given, under the reason they share; claimed and unknown ones are not among them."""
    given = [
        "sendMessageThreadPoolNums",
        "RMQKIT_PULL_THREAD_POOL_QUEUE_CAPACITY",
        "transactionTimeOut",
        "popPollingSize",
        "unknownKey",
    ]
    found = rocketmq_settings.without_effect(given, ["popPollingSize"])
    assert list(found.values()) == [given[:2], ["transactionTimeOut"]]
    assert "transactional messages" in list(found)[1]
