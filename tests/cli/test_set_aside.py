"""`rmqkit set-aside`: records that could not be passed on."""

from __future__ import annotations

import threading
from pathlib import Path

from rmqkit.client import BlockingClient, Message, ReceivedMessage, Retry
from rmqkit.protocol.record import unpack
from tests.cli.conftest import Verbs, until

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
