"""`rmqkit set-aside`: records that could not be passed on."""

from __future__ import annotations

import threading
from pathlib import Path
from subprocess import CompletedProcess

import trio

from rmqkit.client import BlockingClient, Message, ReceivedMessage, Retry
from rmqkit.protocol.record import unpack
from rmqkit.testing.broker import running_cluster
from rmqkit.toolkit.set_aside import Origin, prepare, set_aside
from tests import programs
from tests.cli.conftest import Verbs, until
from tests.cli.test_doctor import findings

#: As long as properties may be, less what the client and the broker add to a message, but not to a retry.
LONG = "x" * 32_600


def put_aside(client: BlockingClient, group: str, body: bytes) -> None:
    """Let a group refuse a message that has no room for the properties of a retry."""
    client.admin.create_topic("Long", queues=1)
    with client.producer("p") as producer:
        producer.send(Message("Long", body, properties={"p": LONG}))
    seen = threading.Event()

    async def refuse(message: ReceivedMessage) -> None:
        seen.set()
        raise Retry

    consumer = client.push_consumer(group, subscribe={"Long": "*"}, start="first")
    thread = threading.Thread(target=consumer.run, args=(refuse,))
    thread.start()
    until(lambda: seen.is_set() and all(at.lag == 0 for at in client.groups.progress(group, "Long").values()))
    consumer.stop()
    thread.join()


def test_records_are_listed_and_shown(verbs: Verbs, client: BlockingClient, tmp_path: Path) -> None:
    """With the place where they were found, the reason, what can be read, and their bytes."""
    assert verbs.json("set-aside", "list") == []
    assert len(verbs.text("set-aside", "list").splitlines()) == 1
    put_aside(client, "billing", b"one")
    put_aside(client, "shipping", b"two")
    listed = verbs.json("set-aside", "list")
    assert [(each["service"], each["topic"], each["queueId"]) for each in listed] == [
        ("send-back", "Long", 0)
    ] * 3
    assert [each["place"] for each in listed] == ["broker-a:0", "broker-a:1", "broker-a:2"]
    assert all("group" in each["reason"] and "at most 32767" in each["reason"] for each in listed)
    lines = verbs.text("set-aside", "list", "--max", "1").splitlines()
    assert (len(lines), "broker-a:0" in lines[1], "at most 32767" in lines[1]) == (2, True, True)

    shown = verbs.json("set-aside", "show", "broker-a:0", "--output", str(tmp_path / "record"))
    record = (tmp_path / "record").read_bytes()
    assert (shown["recordHex"], shown["sizeBytes"]) == (record.hex(), len(record))
    assert bytes.fromhex(shown["message"]["bodyHex"]) == unpack(record).body == b"one"
    assert shown["message"]["properties"]["p"] == LONG
    text = verbs.text("set-aside", "show", "broker-a:0")
    assert "found in:   Long:0 offset 0" in text
    assert "body:       one" in text
    assert "no record aside at offset 9" in verbs.text("set-aside", "show", "broker-a:9", code=1)
    assert "BROKER:OFFSET" in verbs.text("set-aside", "show", "nothing", code=2)


def test_records_are_sent_again(verbs: Verbs, client: BlockingClient) -> None:
    """To the topic that they were sent to, once by `--all`, by their place as often as wanted; until then
    `doctor` tells of them."""
    assert verbs.json("set-aside", "resend", "--all") == {"sent": 0, "failed": 0, "missing": []}
    put_aside(client, "billing", b"one")
    count = len(verbs.json("set-aside", "list"))
    assert findings(verbs, code=None)["records-aside"]["subject"] == "broker-a"
    places = [f"broker-a:{number} to Long" for number in range(count)]
    assert verbs.text("set-aside", "resend", "--all", "--dry-run").splitlines() == places
    assert "records-aside" in findings(verbs, code=None)
    assert verbs.json("set-aside", "resend", "--all") == {"sent": count, "failed": 0, "missing": []}
    assert verbs.text("set-aside", "resend", "--all") == "0 sent, 0 failed\n"
    assert "records-aside" not in findings(verbs, code=None)
    client.admin.create_topic("Elsewhere", queues=1)
    again = ("set-aside", "resend", "--place", "broker-a:0", "--to", "Elsewhere")
    assert verbs.text(*again) == "1 sent, 0 failed\n"
    missing = verbs.ended("set-aside", "resend", "--place", "broker-a:99", code=1)
    assert "broker-a:99 has no record aside" in missing.stderr
    bodies = [each["body"] for each in verbs.lines("consume", "Long", "--group", "reader")]
    assert bodies == ["one"] * (count + 1)
    (copied,) = verbs.lines("consume", "Elsewhere", "--group", "reader")
    assert (copied["body"], copied["properties"]["p"]) == ("one", LONG)


async def test_what_cannot_be_read_is_not_sent(tmp_path: Path) -> None:
    """A record that is damaged, or whose bytes were not kept, counts as failed, and `--all` passes over
    it."""

    async def called(*words: str) -> CompletedProcess[bytes]:
        command = ["set-aside", "resend", "--all", *words, "--namesrv", there.namesrv_text]
        return await trio.to_thread.run_sync(programs.run, command, tmp_path)

    async with running_cluster(tmp_path) as there:
        await prepare(there.broker.context)
        # The command finds the records by the route of their topic.
        await there.broker.context.topics.announced()
        for body in (b"no record", None):
            assert set_aside(
                there.broker.context, Origin("delay", "SCHEDULE_TOPIC_XXXX", 1, 2, 3), body, "a test"
            )
        listed = (await called("--dry-run")).stdout.decode().splitlines()
        assert [" is not sent: " in line for line in listed] == [True, True]
        ended = await called()
        assert (ended.returncode, ended.stdout) == (1, b"0 sent, 2 failed\n")
        assert b"its bytes were not kept" in ended.stderr
        assert (await called()).stdout == b"0 sent, 0 failed\n"
