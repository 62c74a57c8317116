"""Findings from observations that a test cannot easily cause."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from attrs import evolve

from rmqkit.client import GroupConnections, GroupMemberInfo, MessageQueue, Progress, QueueStats
from rmqkit.client.cluster import diagnosis
from rmqkit.errors import ConnectFailed, ConnectionLost, RequestTimeout, RmqError
from rmqkit.protocol.value_frames import NOT_ROCKETMQ

_QUEUE = MessageQueue("Orders", "broker-a", 0)


def progress(committed: int, end: int) -> Mapping[MessageQueue, Progress]:
    return {_QUEUE: Progress(committed=committed, end=end, pulled=committed, last_consumed_ms=0)}


def online(*versions: int, model: str = "CLUSTERING") -> GroupConnections:
    members = tuple(
        GroupMemberInfo(
            client_id=f"c{number}",
            address="127.0.0.1:1",
            language="JAVA",
            version=version,
            brokers=("broker-a",),
        )
        for number, version in enumerate(versions)
    )
    return GroupConnections(
        members=members,
        consume_type="CONSUME_PASSIVELY",
        message_model=model,
        consume_from_where="",
        subscriptions={},
    )


@pytest.mark.parametrize(
    ("ratio", "words"), [("0.5", ""), ("0.8", "deletes old messages early"), ("0.95", "refuses messages")]
)
def test_a_full_disk(ratio: str, words: str) -> None:
    """Above three quarters messages are deleted early, above nine tenths they are refused."""
    found = list(diagnosis.of_runtime("broker-a", {"commitLogDiskRatio": ratio}, 0, 0))
    assert [each.check for each in found] == (["full-disk"] if words else [])
    assert all(words in each.text for each in found)


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, 1),
        ({"brokerRole": "ASYNC_MASTER", "inSyncReplicas": "1"}, 1),
        ({"brokerRole": "SYNC_MASTER"}, 2),
        ({"brokerRole": "SYNC_MASTER", "inSyncReplicas": "1", "totalReplicas": "1"}, 1),
        ({"brokerRole": "SYNC_MASTER", "inSyncReplicas": "3"}, 3),
        ({"brokerRole": "SYNC_MASTER", "minInSyncReplicas": "2", "totalReplicas": "3"}, 3),
        ({"brokerRole": "ASYNC_MASTER", "totalReplicas": "2"}, 2),
    ],
)
def test_missing_replicas(settings: dict[str, str], wanted: int) -> None:
    """As many copies are expected as there are by the settings, else as an answer waits for."""
    assert diagnosis.copies_wanted(settings) == wanted
    assert list(diagnosis.missing_replicas("broker-a", wanted, wanted)) == []
    (found,) = diagnosis.missing_replicas("broker-a", wanted, wanted - 1)
    assert found.text == f"{wanted - 1} of {wanted} copies are in sync, its own included"


@pytest.mark.parametrize(
    ("now_ms", "words"), [(1_063_000, ""), (1_000_000, "64 s ahead of"), (1_128_000, "behind")]
)
def test_clock_skew(now_ms: int, words: str) -> None:
    """The time of a broker that tells none is its start and its run time; a few seconds are not reported."""
    table = {"bootTimestamp": "1000000", "runtime": "[ 0 days, 0 hours, 1 minutes, 4 seconds ]"}
    found = list(diagnosis.of_runtime("broker-a", table, now_ms, now_ms))
    assert [each.check for each in found] == (["clock-skew"] if words else [])
    assert all(words in each.text for each in found)
    assert diagnosis.skew({"runtime": "a while"}, now_ms, now_ms) is None
    assert diagnosis.skew(table, 0, 2_000_000) == 0


@pytest.mark.parametrize(
    ("log", "queues", "words"),
    [
        ("0.8", "0.8", "its disk is 80%"),
        ("0.8", "0.1", "its log's disk is 80%"),
        ("0.1", "0.95", "its queues' disk is 95%"),
    ],
)
def test_the_fuller_disk_is_named(log: str, queues: str, words: str) -> None:
    """Log and queues may be on different disks."""
    table = {"commitLogDiskRatio": log, "consumeQueueDiskRatio": queues}
    (found,) = diagnosis.of_runtime("broker-a", table, 0, 0)
    assert words in found.text


@pytest.mark.parametrize(
    "table",
    [
        {
            "currentTimestamp": "5000",
            "bootTimestamp": "9" * 12,
            "runtime": "[ 0 days, 0 hours, 0 minutes, 0 seconds ]",
        },
        {"bootTimestamp": "756864005000", "runtime": "[ -8,760 days, 0 hours, 0 minutes, 0 seconds ]"},
        {"bootTimestamp": "90005000", "runtime": "[ -1 days, -1 hours, 0 minutes, 0 seconds ]"},
    ],
)
def test_a_clock_that_was_set_back_after_the_start_is_right(table: dict[str, str]) -> None:
    """The present time counts, not that of the start; brokers of Java tell a negative run time."""
    assert list(diagnosis.of_runtime("broker-a", table, 5_000, 5_000)) == []
    (found,) = diagnosis.of_runtime("broker-a", table, 65_000, 65_000)
    assert "60 s behind" in found.text


def test_versions_differ() -> None:
    """Of brokers, and of members of a group in one language."""
    assert list(diagnosis.of_versions({"a": "V5_3_3", "b": "V5_3_3"})) == []
    (found,) = diagnosis.of_versions({"a": "V5_3_3", "b": "V4_9_8"})
    assert found.text.endswith("a V5_3_3, b V4_9_8")
    (found,) = diagnosis.of_group("g", online(409, 479), progress(1, 1), progress(1, 1))
    assert (found.check, "JAVA 4.9.8, JAVA 5.3.3" in found.text) == ("member-versions", True)


def test_a_growing_lag() -> None:
    """More is stored than consumed between two looks. Members of a broadcasting group commit elsewhere."""
    assert list(diagnosis.of_group("g", online(479), progress(1, 9), progress(5, 9))) == []
    (found,) = diagnosis.of_group("g", online(479), progress(1, 9), progress(5, 20))
    assert (found.check, found.text) == ("growing-lag", "its lag grew from 8 to 15 while it consumed 4")
    broadcasting = online(479, model="BROADCASTING")
    assert list(diagnosis.of_group("g", broadcasting, progress(1, 9), progress(1, 20))) == []


def test_behind_retention() -> None:
    """The next message of the group is deleted already."""
    stats = {_QUEUE: QueueStats(10, 20, 0)}
    (found,) = diagnosis.behind_retention("g", progress(4, 20), stats)
    assert "6 messages of Orders were deleted" in found.text
    assert list(diagnosis.behind_retention("g", progress(10, 20), stats)) == []


def test_an_address_of_the_brokers_own_machine() -> None:
    """A loopback address is useless for clients on other machines, unless the name server has one, too."""
    far = diagnosis.unreachable("broker-a", "127.0.0.1:10911", ["10.0.0.1:9876"], "refused")
    assert "set brokerIP1" in far.advice
    near = diagnosis.unreachable("broker-a", "127.0.0.1:10911", ["127.0.0.1:9876"], "refused")
    assert "start the broker" in near.advice


def test_a_disabled_filter_is_found() -> None:
    (found,) = diagnosis.of_runtime("broker-a", {"disabledFilters": "cheap: it raised ValueError()"}, 0, 0)
    assert (found.check, found.subject) == ("disabled-filter", "broker-a")
    assert "cheap: it raised ValueError()" in found.text
    assert list(diagnosis.of_runtime("broker-a", {"disabledFilters": ""}, 0, 0)) == []


def test_offsets_beyond_the_end() -> None:
    """Both offsets are told; an offset at the end is right."""
    assert list(diagnosis.beyond_the_end("billing", progress(13, 13))) == []
    (found,) = diagnosis.beyond_the_end("billing", progress(1000, 13))
    assert (found.check, found.subject) == ("offset-beyond-end", "billing")
    assert "Orders@broker-a:0 1000 (end 13)" in found.text
    assert next(iter(progress(1000, 13).values())).lag == 0


def test_members_with_one_client_id() -> None:
    """Their addresses are told; for members with ids of their own nothing is reported."""
    group = online(1, 1)
    assert list(diagnosis.same_client_id("billing", group)) == []
    twice = evolve(group, members=(*group.members, evolve(group.members[0], address="127.0.0.2:2")))
    (found,) = diagnosis.same_client_id("billing", twice)
    assert (found.check, found.subject) == ("same-client-id", "billing")
    assert found.text == "the same client id c0 on 2 connections: 127.0.0.1:1, 127.0.0.2:2"


def test_something_else_at_the_address_is_named() -> None:
    """The advice is about the settings that lead there; it names them for a port that is closed as well."""
    other = diagnosis.unreachable("b", "10.0.0.5:10911", [], f"it speaks HTTP, {NOT_ROCKETMQ}")
    assert "it speaks HTTP, not RocketMQ" in other.text
    assert other.advice.startswith("something else answers there")
    closed = diagnosis.unreachable("b", "10.0.0.5:10911", [], "refused")
    for finding in (other, closed):
        assert "brokerIP1" in finding.advice
        assert "bindAddress" in finding.advice


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (ConnectionLost("10.0.0.5:80", f"it speaks HTTP, {NOT_ROCKETMQ}"), "something else answers there: "),
        (RequestTimeout("10.0.0.5:80", 5000), "something takes connections there and says nothing, "),
        (ConnectFailed("10.0.0.5:80", "refused"), "start it, or correct --namesrv"),
    ],
)
def test_a_name_server_that_is_none(error: RmqError, advice: str) -> None:
    """The advice depends on whether anything is there."""
    found = diagnosis.unreachable_name_server("10.0.0.5:80", error)
    assert found.text == str(error)
    assert found.advice.startswith(advice)
