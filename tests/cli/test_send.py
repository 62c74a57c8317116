"""`rmqkit send` from files and JSON lines, `rmqkit replay`, `rmqkit tail`."""

from __future__ import annotations

import base64
import json
import subprocess
import threading
from pathlib import Path

import pytest

from rmqkit.client import BlockingClient, PackedBatch
from rmqkit.protocol import batch
from tests.cli.conftest import Ready, Verbs, until
from tests.programs import PROGRAM, clean_environment


def bodies(found: list[dict[str, object]]) -> list[object]:
    return sorted(message["body"] for message in found)  # type: ignore[type-var]


@pytest.fixture(autouse=True)
def topics(client: BlockingClient) -> None:
    for topic in ("Orders", "Copies", "Later", "Earlier"):
        client.admin.create_topic(topic, queues=2)


def test_json_lines_are_messages(verbs: Verbs, tmp_path: Path) -> None:
    """A line says body, tag, keys, properties, ordering key and flag; options apply where it does not. Bodies
    may be Base64 or hexadecimal."""
    lines = [
        {"body": "one", "tag": "new", "keys": ["k1", "k2"], "properties": {"colour": "red"}, "flag": 7},
        {"bodyBase64": base64.b64encode(b"\xff\x00").decode(), "keys": "k3 k4", "orderingKey": "o"},
        {"bodyHex": "fe", "unknown": 1},
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
    words = ("--json-lines", "--file", "in.jsonl", "--tag", "old", "--property", "shape=round", "--quiet")
    assert verbs.json("send", "Orders", *words) == {"sent": 3, "failed": 0, "lines": 3}
    found = {each.get("body") or each["bodyHex"]: each for each in verbs.lines("consume", "Orders")}
    one, two, three = found["one"], found["ff00"], found["fe"]
    assert (one["tag"], one["keys"], one["properties"]["colour"]) == ("new", ["k1", "k2"], "red")
    assert {each["properties"]["shape"] for each in (one, two, three)} == {"round"}
    assert (two["tag"], two["keys"], two["properties"]["__SHARDINGKEY"]) == ("old", ["k3", "k4"], "o")


def test_what_is_consumed_can_be_sent(verbs: Verbs) -> None:
    """The output of `consume --json` is input of `send --json-lines`; ids and what else belongs to the first
    sending are left behind."""
    verbs.text("send", "Orders", "hello", "--tag", "new", "--property", "colour=red")
    printed = verbs.text("consume", "Orders", "--json")
    verbs.text("send", "Copies", "--json-lines", stdin=printed)
    (first,), (copy,) = [json.loads(printed)], verbs.lines("consume", "Copies")
    assert copy["messageId"] != first["messageId"]
    assert (copy["body"], copy["tag"], copy["properties"]["colour"]) == ("hello", "new", "red")


@pytest.mark.parametrize("road", ["json-lines", "replay"])
def test_what_a_broker_has_accepted_is_sent_again(verbs: Verbs, client: BlockingClient, road: str) -> None:
    """Text that the rules for applications forbid, but that a broker has accepted, is copied: 0x01 in a
    value, a tag with ||, keys with other blanks than a space. A replay copies bytes that are not text as they
    are, lines of JSON as they are read."""
    stored = (
        b"row\x01a\x01b\x02TAGS\x01x||y\x02KEYS\x01k\t1  k\xe3\x80\x802\x02UNIQ_KEY\x01ID\x02"
        b"half\x01\xe7\xbc\x02"
    )
    with client.producer("odd") as producer:
        body = batch.encode([batch.BatchItem(0, b"odd", stored)])
        producer.send_packed(PackedBatch(topic="Orders", body=body, count=1))
    if road == "replay":
        assert verbs.json("replay", "Orders", "--to", "Copies")["sent"] == 1
    else:
        verbs.text("send", "Copies", "--json-lines", stdin=verbs.text("consume", "Orders", "--json"))
    (copy,) = verbs.lines("consume", "Copies")
    assert (copy["tag"], copy["keys"]) == ("x||y", ["k\t1", "k\u30002"])
    assert copy["properties"] | {"WAIT": "", "UNIQ_KEY": ""} == copy["properties"] | {
        "row": "a\x01b",
        "KEYS": "k\t1  k\u30002",
        "half": "\ufffd",
        "WAIT": "",
        "UNIQ_KEY": "",
    }
    assert verbs.lines("message", "find", "Copies", "--key", "k\u30002")[0]["body"] == "odd"
    found = client.admin.query_by_key("Copies", "k\t1")[0]
    if road == "replay":
        assert found.stored_properties is not None
        assert {b"half\x01\xe7\xbc", b"row\x01a\x01b"} <= {*found.stored_properties.split(b"\x02")}
        assert found.message_id != "ID"
    else:
        assert found.stored_properties is None


def test_a_run_is_continued_by_its_line(verbs: Verbs) -> None:
    """A line that cannot be sent ends the run with exit code 1 and the line to go on with; or it is reported
    and passed over."""
    lines = '{"body": "one"}\n\n{"body": 5}\n{"body": "", "tag": "t"}\n{"body": "last"}\n'
    stopped = verbs.text("send", "Orders", "--json-lines", "--quiet", stdin=lines, code=1)
    assert "line 3: " in stopped
    assert "1 sent; continue with --from-line 3" in stopped
    rest = ("send", "Orders", "--json-lines", "--quiet", "--from-line", "3", "--keep-going")
    reported = verbs.text(*rest, stdin=lines, code=1)
    assert ["line 3:" in reported, "line 4:" in reported, "line 5:" in reported] == [True, True, False]
    assert bodies(verbs.lines("consume", "Orders")) == ["last", "one"]
    assert "exclude" in verbs.text("send", "Orders", "x", "--json-lines", code=2)
    assert "--from-line" in verbs.text("send", "Orders", "--from-line", "0", code=2)
    assert "missing.jsonl" in verbs.text("send", "Orders", "--file", "missing.jsonl", code=2)


def test_the_time_of_a_message_is_limited(verbs: Verbs, server: Ready) -> None:
    """--timeout is the time in which one is sent again and again to a broker that refuses it: far below the
    default nothing is sent any more, and no time at all is refused."""
    assert verbs.text("send", "Orders", "soon", "--timeout", "60").startswith("SEND_OK")
    ended = verbs.ended("send", "Orders", "never", "--timeout", "0", code=2)
    assert "'0' is not a number above 0" in ended.stderr
    late = verbs.ended("send", "Orders", "never", "--timeout", "0.000001", code=1)
    assert "never" not in verbs.text("consume", "Orders")
    assert late.stderr


def test_lines_are_sent_at_once_and_reported_in_order(verbs: Verbs) -> None:
    """`--in-flight` sends several lines at once. They are printed in the order of the input, and messages
    with the same ordering key keep their order."""
    lines = "".join(
        json.dumps({"body": f"{number}"} | ({"orderingKey": f"k{number % 3}"} if number % 4 else {})) + "\n"
        for number in range(200)
    )
    printed = verbs.text("send", "Orders", "--json-lines", "--in-flight", "32", "--json", stdin=lines)
    ids = [json.loads(line)["messageId"] for line in printed.splitlines()]
    found = {each["messageId"]: each for each in verbs.lines("consume", "Orders")}
    assert [found[each]["body"] for each in ids] == [f"{number}" for number in range(200)]
    for key in ("k0", "k1", "k2"):
        own = [each for each in found.values() if each["properties"].get("__SHARDINGKEY") == key]
        own.sort(key=lambda each: each["queueOffset"])
        assert len({each["queueId"] for each in own}) == 1
        assert [int(each["body"]) for each in own] == sorted(int(each["body"]) for each in own)


def test_lines_behind_a_failure(verbs: Verbs) -> None:
    """With several lines in flight the run ends at the first failure, and says how many lines behind it were
    sent. With `--keep-going` only the failed lines are missing."""
    lines = "".join(f'{{"body": "{number}"}}\n' for number in range(20)).replace('"7"', "7")
    stopped = verbs.text("send", "Orders", "--json-lines", "--quiet", "--in-flight", "4", stdin=lines, code=1)
    assert "line 8: " in stopped
    assert "continue with --from-line 8" in stopped
    sent = int(stopped.partition(" sent; continue")[0].split()[-1])
    assert len(verbs.lines("consume", "Orders")) == sent >= 7
    rest = ("send", "Later", "--json-lines", "--quiet", "--in-flight", "4", "--keep-going")
    assert verbs.json(*rest, stdin=lines, code=1) == {"sent": 19, "failed": 1, "lines": 20}
    assert len(verbs.lines("consume", "Later")) == 19
    assert "--in-flight" in verbs.text("send", "Orders", "--in-flight", "0", code=2)


def test_a_topic_is_replayed(verbs: Verbs, client: BlockingClient) -> None:
    """Messages of a topic or of a time are sent to another topic as they were written, with new ids; a dry
    run counts them."""
    for number in range(4):
        tag = "even" if number % 2 == 0 else "odd"
        verbs.text("send", "Orders", str(number), "--tag", tag, "--key", f"k{number}")
    replay = ("replay", "Orders", "--to", "Copies")
    assert verbs.text(*replay, "--dry-run") == "4 messages of Orders would be sent to Copies\n"
    assert verbs.json(*replay, "--tag", "odd", "--rate", "1000")["sent"] == 2
    copies = verbs.lines("consume", "Copies")
    assert bodies(copies) == ["1", "3"]
    assert sorted(copy["keys"][0] for copy in copies) == ["k1", "k3"]
    (last,) = client.admin.query_by_key("Orders", "k3")
    since = str(last.store_timestamp_ms)
    (third,) = client.admin.query_by_key("Orders", "k2")
    assert verbs.json("replay", "Orders", "--to", "Later", "--since", since)["found"] == 1
    until_third = str(third.store_timestamp_ms)
    found = verbs.json("replay", "Orders", "--to", "Earlier", "--until", until_third)["found"]
    assert found == 2
    # A replay into its own topic ends where the topic ended.
    assert verbs.json("replay", "Orders", "--to", "Orders", "--max", "3")["sent"] == 3
    assert verbs.text("replay", "Orders", "--to", "Orders").startswith("7 sent to Orders, 0 failed")
    assert "--rate" in verbs.text(*replay, "--rate", "0", code=2)


def test_a_topic_is_followed(verbs: Verbs, client: BlockingClient, server: Ready, tmp_path: Path) -> None:
    """From the first message, or only new ones; nothing is committed."""
    with client.producer("p") as producer:
        first = producer.send("Orders", b"old", tag="a")
        producer.send("Orders", b"other", tag="b")
    until(lambda: sum(at.max_offset for at in client.admin.topic_stats("Orders").values()) == 2)
    tail = ("tail", "Orders", "--from-first", "--tag", "a", "--max", "1")
    assert bodies(verbs.lines(*tail)) == bodies(verbs.lines(*tail)) == ["old"]
    (stored,) = client.admin.query_by_message_id("Orders", first.message_id)
    since = str(stored.store_timestamp_ms)
    assert bodies(verbs.lines("tail", "Orders", "--since", since, "--max", "2")) == ["old", "other"]
    words = [PROGRAM, "tail", "Orders", "--json", "--namesrv", server.where["namesrv"]]
    with subprocess.Popen(
        words,
        cwd=tmp_path,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        deadline = threading.Timer(300, process.kill)
        deadline.start()
        assert "following topic Orders" in process.stderr.readline()
        verbs.text("send", "Orders", "new")
        assert json.loads(process.stdout.readline())["body"] == "new"
        process.terminate()
        process.wait(300)
        deadline.cancel()
    assert client.groups.progress("rmqkit_cli_tail") == {}
    assert "topic unknown" in verbs.text("tail", "Nowhere", code=1)
    assert "is not a time" in verbs.text("tail", "Orders", "--since", "yesterday", code=2)
