"""`rmqkit group`: what groups consume, and where they continue."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest

from rmqkit.client import BlockingClient, ReceivedMessage
from rmqkit.model.topic import GroupRetryPolicy
from tests.cli.conftest import Ready, Run, Start, Verbs, until


def served(start: Start, *settings: str) -> Ready:
    words = [word for setting in settings for word in ("--set", setting)]
    where = ("--data", "data", "--namesrv", "127.0.0.1:0", "--broker", "127.0.0.1:0", "--set", "store=memory")
    return start("serve", *where, *words)


@pytest.fixture
def group(rmqkit: Run, server: Ready) -> Verbs:
    """The verb `group`."""
    return Verbs(rmqkit, server, "group")


def sent(client: BlockingClient, topic: str, count: int) -> None:
    with client.producer("p") as producer:
        client.admin.create_topic(topic, queues=1)
        for number in range(count):
            producer.send(topic, b"%d" % number)


def committed(client: BlockingClient, name: str, topic: str) -> int:
    (progress,) = client.groups.progress(name, topic).values()
    return progress.committed


def test_what_a_group_has_left(group: Verbs, client: BlockingClient) -> None:
    """The lag is counted for each queue and in total, with the age of the first message that is left; the
    exit code tells a script that it is too large."""
    sent(client, "Orders", 5)
    with client.pull_consumer("billing") as consumer:
        (queue,) = consumer.queues("Orders")
        until(lambda: consumer.max_offset(queue) == 5)
        consumer.commit(queue, 2)
    found = group.json("lag", "billing")
    (entry,) = found["queues"]
    assert (found["lag"], entry["committed"], entry["end"], entry["queueId"]) == (3, 2, 5, 0)
    assert found["behindMs"] == entry["behindMs"] >= 0
    assert entry["lastConsumedTimestamp"] > 0
    shown = group.text("lag", "billing", "--topic", "Orders", "--fail-above", "3").splitlines()
    assert shown[1].split()[:5] == ["Orders", "broker-a:0", "2", "5", "3"]
    assert shown[2].startswith("total: 3 messages, ")
    assert group.text("lag", "billing", "--fail-above", "2", code=1) == ""
    assert "group 'nobody' has no offsets" in group.text("lag", "nobody", code=1)


def test_groups_and_their_members(group: Verbs, client: BlockingClient) -> None:
    """Groups are listed with members and lag; a member is shown with its id, language, version, address and
    subscriptions. Groups of RocketMQ itself need --all."""
    sent(client, "Orders", 1)
    assert group.json("list") == []
    assert "CID_RMQ_SYS_TRANS" in group.text("list", "--all")
    with client.push_consumer("billing", subscribe={"Orders": "new || paid"}):
        until(lambda: client.groups.connections("billing"))
        until(lambda: client.groups.progress("billing"))
        (found,) = group.json("list")
        assert (found["group"], found["members"], found["brokers"]) == ("billing", 1, ["broker-a"])
        assert "Orders" in found["topics"]
        online = group.json("connections", "billing")
        (member,) = online["members"]
        assert (member["clientId"], member["language"], member["versionName"]) == (
            client.client_id,
            "PYTHON",
            "5.3.1",
        )
        assert member["address"].startswith("127.0.0.1:")
        assert online["messageModel"] == "CLUSTERING"
        assert online["subscriptions"]["Orders"] == {"expression": "new || paid", "type": "TAG"}
        assert client.client_id in group.text("connections", "billing")
        shown = group.text("show", "billing")
        assert "retryMaxTimes=16" in shown
        assert client.client_id in shown
        assert group.json("show", "billing")["settings"]["broker-a"]["consumeEnable"] is True
    until(lambda: client.groups.connections("billing") is None)
    assert group.text("connections", "billing") == "no members are online\n"
    assert group.json("connections", "billing")["members"] == []
    assert "no broker knows group 'nobody'" in group.text("show", "nobody", code=1)


@pytest.mark.parametrize("at_the_broker", ["true", "false"])
def test_a_group_without_members_continues_elsewhere(start: Start, rmqkit: Run, at_the_broker: str) -> None:
    """A group is reset to the first message, the end, a time or an offset, also by a broker that has only
    members reset, as RocketMQ 4; a dry run changes nothing."""
    server = served(start, f"useServerSideResetOffset={at_the_broker}")
    group = Verbs(rmqkit, server, "group")
    with BlockingClient(server.where["namesrv"]) as client:
        sent(client, "Orders", 4)
        with client.pull_consumer("billing") as consumer:
            (queue,) = consumer.queues("Orders")
            until(lambda: client.groups.connections("billing"))
            until(lambda: consumer.max_offset(queue) == 4)
            consumer.commit(queue, 2)
            second_ms = consumer.pull(queue, 1).messages[0].store_timestamp_ms
            expected = consumer.offset_for_time(queue, second_ms)
        until(lambda: client.groups.connections("billing") is None)
        for to, offset in (("first", 0), ("last", 4), (str(second_ms), expected)):
            before = committed(client, "billing", "Orders")
            (planned,) = group.json("reset", "billing", "Orders", "--to", to, "--dry-run")["queues"]
            assert (planned["before"], planned["after"]) == (before, offset)
            assert committed(client, "billing", "Orders") == before
            (done,) = group.json("reset", "billing", "Orders", "--to", to)["queues"]
            assert done == planned
            assert committed(client, "billing", "Orders") == offset
        shown = group.text("reset", "billing", "Orders", "--offset", "3", "--queue", "broker-a:0")
        assert shown.splitlines()[1].split() == ["Orders", "broker-a:0", str(expected), "3"]
        assert committed(client, "billing", "Orders") == 3
        wrong = group.text("reset", "billing", "Orders", "--offset", "9", "--queue", "broker-a:0", code=1)
        assert "offset 9 is not in" in wrong
        alone = group.text("reset", "billing", "Orders", "--offset", "1", code=2)
        assert "belong together" in alone


def test_online_members_take_a_reset_over(group: Verbs, client: BlockingClient) -> None:
    """A member that is online handles the messages after the new offset again, for a time and for an
    offset."""
    sent(client, "Orders", 3)
    handled: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        handled.append(message.body)

    with client.push_consumer("billing", subscribe={"Orders": "*"}, start="first") as consumer:
        thread = threading.Thread(target=consumer.run, args=(handle,))
        thread.start()
        until(lambda: sorted(handled) == [b"0", b"1", b"2"])
        group.text("reset", "billing", "Orders", "--to", "first")
        until(lambda: len(handled) >= 6)
        group.text("reset", "billing", "Orders", "--offset", "2", "--queue", "broker-a:0")
        until(lambda: handled.count(b"2") >= 3)
        consumer.stop()
        thread.join()


def test_an_offset_for_members_of_an_old_broker(start: Start, rmqkit: Run) -> None:
    """A broker that cannot give online members an offset is not asked to: the error says what works."""
    server = served(start, "useServerSideResetOffset=false")
    with BlockingClient(server.where["namesrv"]) as client:
        sent(client, "Orders", 3)
        with client.push_consumer("billing", subscribe={"Orders": "*"}):
            until(lambda: client.groups.connections("billing"))
            words = ("reset", "billing", "Orders", "--offset", "1", "--queue", "broker-a:0")
            assert "stop the members first" in Verbs(rmqkit, server, "group").text(*words, code=1)


def test_a_group_is_deleted(group: Verbs, client: BlockingClient) -> None:
    """Deleting wants --yes and no members; group, offsets and retry topic are gone afterwards."""
    sent(client, "Orders", 1)
    with client.push_consumer("billing", subscribe={"Orders": "*"}):
        until(lambda: client.groups.connections("billing"))
        until(lambda: "%RETRY%billing" in client.admin.topics())
        assert "say so with --yes" in group.text("delete", "billing", code=2)
        assert client.client_id in group.text("delete", "billing", "--yes", code=1)
    until(lambda: client.groups.connections("billing") is None)
    assert group.text("delete", "billing", "--yes").splitlines() == [
        "group billing deleted on broker-a",
        "topic %RETRY%billing deleted",
    ]
    assert "billing" not in client.groups.configs()
    assert "%RETRY%billing" not in client.admin.topics()
    assert client.groups.progress("billing") == {}
    assert "no broker knows group 'billing'" in group.text("delete", "billing", "--yes", code=1)


def test_messages_in_flight(group: Verbs, client: BlockingClient) -> None:
    """`group lag` tells popped messages that are not finished from those that nobody has got."""
    sent(client, "Orders", 5)
    with client.pop_consumer("workers", subscribe="Orders", start="first") as consumer:
        first, *_ = consumer.receive(3, lease_ms=60_000)
        consumer.ack(first)
        found = group.json("lag", "workers", "--topic", "Orders")
        (queue,) = found["queues"]
        assert (found["lag"], queue["inFlight"], queue["ready"], queue["committed"]) == (4, 2, 2, 3)
        titles, row = (
            line.split() for line in group.text("lag", "workers", "--topic", "Orders").splitlines()[:2]
        )
        assert titles[4:8] == ["LAG", "IN", "FLIGHT", "READY"]
        assert row[2:7] == ["3", "5", "4", "2", "2"]


def test_an_offset_beyond_the_end(group: Verbs, verbs: Verbs, client: BlockingClient) -> None:
    """`group lag` and `doctor` show it, `--fail-above` counts it; `consume` lets the group go on where the
    broker says, and prints what arrives then."""
    sent(client, "Orders", 5)
    with client.pull_consumer("billing") as consumer:
        (queue,) = consumer.queues("Orders")
        until(lambda: consumer.max_offset(queue) == 5)
        consumer.commit(queue, 1_000_000)
    found = group.json("lag", "billing")
    assert (found["lag"], found["queuesBeyondEnd"], found["queues"][0]["beyondEnd"]) == (0, 1, 999_995)
    shown = group.text("lag", "billing")
    assert "999995 beyond the end" in shown.splitlines()[1]
    assert "the offsets of 1 queues are beyond the end" in shown
    assert group.ended("lag", "billing", "--fail-above", "10", code=1).stdout
    words = ("doctor", "--group", "billing", "--interval", "0.1", "--ignore", "full-disk")
    assert "offset-beyond-end" in verbs.ended(*words, code=1).stdout
    assert "offset-beyond-end" in verbs.ended(*words, "--json", code=1).stdout
    told = verbs.ended("consume", "Orders", "--group", "billing")
    assert (told.stdout, "is beyond the end 5 of Orders@broker-a:0: it goes on at 5" in told.stderr) == (
        "",
        True,
    )
    assert "is at the end" not in told.stderr
    sent(client, "Orders", 1)
    assert [each["body"] for each in verbs.lines("consume", "Orders", "--group", "billing")] == ["0"]
    assert group.json("lag", "billing")["queuesBeyondEnd"] == 0


def test_two_members_with_one_client_id(
    group: Verbs, verbs: Verbs, client: BlockingClient, server: Ready
) -> None:
    """Each connection is a row, and `doctor` names them."""
    sent(client, "Orders", 1)
    with ExitStack() as stack:
        for _ in range(2):
            same = stack.enter_context(BlockingClient(server.where["namesrv"], client_id="172.17.0.1@1"))
            stack.enter_context(same.push_consumer("billing", subscribe="Orders"))
        rows = group.text("connections", "billing").splitlines()
        assert sum(row.startswith("172.17.0.1@1") for row in rows) == 2
        members = group.json("connections", "billing")["members"]
        assert len({each["address"] for each in members}) == 2
        words = ("doctor", "--group", "billing", "--interval", "0.1", "--ignore", "full-disk")
        found = verbs.ended(*words, code=1).stdout
        assert "the same client id 172.17.0.1@1 on 2 connections" in found


def test_settings_of_a_group(group: Verbs, client: BlockingClient) -> None:
    """A group is created with them, and what is not named stays; a retry policy comes in two forms, and goes
    again. What cannot be meant is refused."""
    assert group.json("set", "chosen", "--retries", "5", "--retry-delays", "500ms,1m") == {
        "group": "chosen",
        "created": ["broker-a"],
    }
    config = client.groups.configs()["chosen"]["broker-a"]
    policy = config.group_retry_policy
    assert isinstance(policy, GroupRetryPolicy)
    assert (config.retry_max_times, config.consume_enable) == (5, True)
    assert [policy.delay_ms(failed) for failed in range(3)] == [500, 60_000, 60_000]

    said = group.text("set", "chosen", "--retry-exponential", "5s:1m:3")
    assert said == "group chosen updated on broker-a\n"
    policy = client.groups.configs()["chosen"]["broker-a"].group_retry_policy
    assert isinstance(policy, GroupRetryPolicy)
    assert [policy.delay_ms(failed) for failed in range(4)] == [5_000, 15_000, 45_000, 60_000]

    group.text("set", "chosen", "--retry-by-client", "--consume", "off", "--ordered", "on")
    config = client.groups.configs()["chosen"]["broker-a"]
    assert not isinstance(config.group_retry_policy, GroupRetryPolicy)
    assert (config.consume_enable, config.consume_message_orderly) == (False, True)
    assert config.retry_max_times == 5
    assert "unchanged" in group.text("set", "chosen", "--consume", "off")

    assert "nothing is to be changed" in group.text("set", "chosen", code=1)
    assert "retries=-1" in group.text("set", "chosen", "--retries", "-1", code=1)
    for words in (("--retry-delays", "soon"), ("--retry-exponential", "5s:2"), ("--consume", "maybe")):
        assert words[1] in group.text("set", "chosen", *words, code=2)


def test_a_pause(group: Verbs, client: BlockingClient) -> None:
    """A group that nobody knows yet can be paused; what is done twice changes nothing."""
    assert group.json("pause", "halted") == {"group": "halted", "created": ["broker-a"]}
    config = client.groups.configs()["halted"]["broker-a"]
    assert (config.consume_enable, config.attributes) == (False, {"paused": "true"})
    assert group.text("pause", "halted") == "group halted unchanged on broker-a\n"
    assert group.text("resume", "halted") == "group halted updated on broker-a\n"
    assert client.groups.configs()["halted"]["broker-a"].consume_enable
