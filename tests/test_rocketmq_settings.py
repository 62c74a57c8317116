"""What becomes of RocketMQ's settings that rmqkit does not read."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqkit import rocketmq_settings
from rmqkit.broker.run import checks
from rmqkit.config import Config, examine, load
from rmqkit.plugin import loader
from rmqkit.rocketmq_settings import NO_EFFECT, OFFERS, PROMISES

VECTORS = Path(__file__).parent / "vectors" / "rocketmq_settings.tsv"
DEFAULTS = VECTORS.with_name("rocketmq_defaults.properties")
#: Recognised by `rmqkit.config`, which refuses it for clients too.
CLIENTS_TOO = {"useTLS"}


def test_every_setting_of_rocketmq_is_classified() -> None:
    """Each key of RocketMQ's settings is a setting here, a promise that is not kept, a feature that is off,
    or without effect, and only one of these."""
    theirs = [line.split("\t")[1] for line in VECTORS.read_text().splitlines() if not line.startswith("#")]
    assert len(theirs) > 450
    ours = set(Config.__struct_encode_fields__)
    unused = [key for keys in NO_EFFECT.values() for key in keys]
    others = {*PROMISES, *OFFERS}
    assert [key for key in theirs if key not in ours | others | set(unused) | CLIENTS_TOO] == []
    assert sorted(unused) == sorted(set(unused))
    assert set(unused) & others == ours & (set(unused) | others) == PROMISES.keys() & OFFERS.keys() == set()
    assert set(unused) | others <= set(theirs)


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
        ("aclEnable", True),
        ("acl_enable", "TRUE"),
        ("AclEnable", 1),
        ("RMQKIT_ACL_ENABLE", "true"),
        ("authenticationEnabled", "true"),
        ("authorizationEnabled", "true"),
        ("fetchNameSrvAddrByDnsLookup", "true"),
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


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("enable_lmq", True),
        ("filterServerNums", "1"),
        ("isBrokerContainer", "TRUE"),
        ("coldCtrStrategyEnable", "true"),
        ("defaultMessageRequestMode", "POP"),
        ("controllerAddr", "127.0.0.1:9878"),
    ],
)
def test_a_feature_that_is_merely_off_is_warned_of(key: str, value: object) -> None:
    """The start continues, and the warning has the key and the reason; not when a plugin owns the key."""
    assert refused(key, value) == []
    config = load(environ={}, flags={key: value})
    (warning,) = rocketmq_settings.offers(config.unknown, config.sources, ())
    assert (warning.key, "has no effect here" in warning.text) == (key, True)
    assert list(rocketmq_settings.offers(config.unknown, config.sources, OFFERS)) == []


def test_no_default_of_apache_stops_the_start() -> None:
    """A broker.conf may spell out what is so anyway. The wildcard address alone is refused: clients would be
    told it, as Apache's broker tells them an address that it guesses."""
    lines = DEFAULTS.read_text().splitlines()
    pairs = [line.partition("=")[::2] for line in lines if not line.startswith("#")]
    assert len(pairs) > 400
    stopped = {}
    for key, value in pairs:
        config, found = examine(environ={}, flags={key: value})
        found += checks.examine(config, loader.load(config)).faults
        if found:
            stopped[key] = value
    assert stopped == {"bindAddress": "0.0.0.0"}
