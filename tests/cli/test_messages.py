"""`rmqkit send` and `rmqkit consume` against a server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from tests.cli.conftest import Ready, Run, Start
from tests.programs import PROGRAM, clean_environment, run


def test_what_is_sent_is_consumed_once_by_a_group(rmqkit: Run, server: Ready) -> None:
    """Each line of standard input is a message, and a group continues where it stopped."""
    namesrv = ("--namesrv", server.where["namesrv"])
    sent = rmqkit(
        "send", "Orders", "--tag", "new", "--key", "k1", *namesrv, "--json", stdin="one\ntwo\nthree\n"
    )
    assert sent.returncode == 0, sent.stderr
    results = [json.loads(line) for line in sent.stdout.splitlines()]
    assert [result["status"] for result in results] == ["SEND_OK"] * 3

    consumed = rmqkit("consume", "Orders", "--group", "g", *namesrv, "--json")
    assert consumed.returncode == 0, consumed.stderr
    messages = [json.loads(line) for line in consumed.stdout.splitlines()]
    assert sorted(message["body"] for message in messages) == ["one", "three", "two"]
    assert {message["messageId"] for message in messages} == {result["messageId"] for result in results}
    assert all(message["tag"] == "new" and message["keys"] == ["k1"] for message in messages)

    again = rmqkit("consume", "Orders", "--group", "g", *namesrv)
    assert (again.returncode, again.stdout) == (0, "")
    assert (
        "group g continues where it stopped and skips 3 messages; --from first reads from the start"
        in again.stderr
    )
    assert "no messages to print: group g is at the end of topic Orders" in again.stderr
    once_more = rmqkit("consume", "Orders", "--group", "g", "--from", "first", *namesrv)
    assert (len(once_more.stdout.splitlines()), once_more.stderr) == (3, "")
    last = rmqkit("consume", "Orders", "--group", "g", "--from", "last", *namesrv)
    assert last.stdout == ""
    other = rmqkit("consume", "Orders", "--group", "h", "--max", "2", *namesrv)
    assert len(other.stdout.splitlines()) == 2


def test_a_namespace_separates_topics_and_groups(rmqkit: Run, server: Ready) -> None:
    """With `--namespace` a verb names topics and groups without it, and sees those of the namespace alone."""
    namesrv = ("--namesrv", server.where["namesrv"])
    shop = (*namesrv, "--namespace", "shop")
    assert rmqkit("send", "Orders", "of the shop", *shop).returncode == 0
    assert rmqkit("send", "Orders", "of nobody", *namesrv).returncode == 0
    consumed = rmqkit("consume", "Orders", "--group", "g", *shop, "--json")
    assert [json.loads(line)["body"] for line in consumed.stdout.splitlines()] == ["of the shop"]
    listed = rmqkit("topic", "list", *namesrv, "--json").stdout
    assert '"shop%Orders"' in listed
    assert "shop%" not in rmqkit("topic", "list", *shop, "--json").stdout
    refused = rmqkit("topic", "list", *namesrv, "--namespace", "a%b")
    assert refused.returncode == 2
    assert "namespace" in refused.stderr


def test_lines_are_sent_as_they_come(rmqkit: Run, server: Ready, tmp_path: Path) -> None:
    """Each line from an open pipe is sent before the next one is written; a last line without an end is sent
    too."""
    words = [PROGRAM, "send", "Orders", "--json", "--namesrv", server.where["namesrv"]]
    with subprocess.Popen(
        words, cwd=tmp_path, env=clean_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        deadline = threading.Timer(300, process.kill)
        deadline.start()
        for line in (b"one\n", b"\ntwo\n"):
            process.stdin.write(line)
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["status"] == "SEND_OK"
        process.stdin.write(b"a line in " + b"p" * 100_000)
        process.stdin.close()
        assert json.loads(process.stdout.readline())["status"] == "SEND_OK"
        assert process.wait(300) == 0
        deadline.cancel()
    consumed = rmqkit("consume", "Orders", "--namesrv", server.where["namesrv"], "--json")
    bodies = [json.loads(line)["body"] for line in consumed.stdout.splitlines()]
    assert sorted(len(body) for body in bodies) == [3, 3, 100_010]


def test_bytes_that_are_no_text(server: Ready, tmp_path: Path) -> None:
    """A body may contain any bytes; a tag that is not UTF-8 causes an error line."""
    namesrv = ["--namesrv", server.where["namesrv"]]
    sent = run(["send", "Orders", b"caf\xe9", *namesrv], tmp_path)
    assert sent.returncode == 0, sent.stderr
    consumed = run(["consume", "Orders", *namesrv, "--json"], tmp_path)
    assert json.loads(consumed.stdout)["bodyHex"] == b"caf\xe9".hex()
    refused = run(["send", "Orders", "x", "--tag", b"caf\xe9", *namesrv], tmp_path)
    assert refused.returncode == 2
    assert b"tag" in refused.stderr
    assert b"Traceback" not in refused.stderr


def test_help_names_the_defaults(rmqkit: Run) -> None:
    """The help contains the default group and the default start."""
    shown = " ".join(rmqkit("consume", "--help").stdout.split())
    assert "(default rmqkit_cli_consumer)" in shown
    assert (
        "committed, where the group stopped, which is the first message for a new group (the default)"
        in shown
    )


def test_following_ends_after_the_asked_number(rmqkit: Run, server: Ready) -> None:
    """`--follow --max N` prints N messages, commits them and stops."""
    namesrv = ("--namesrv", server.where["namesrv"])
    assert rmqkit("send", "Orders", "--tag", "a", *namesrv, stdin="1\n2\n3\n").returncode == 0
    assert rmqkit("send", "Orders", "--tag", "b", *namesrv, stdin="4\n").returncode == 0
    followed = rmqkit("consume", "Orders", "--tag", "a", "--follow", "--max", "3", *namesrv, "--json")
    assert followed.returncode == 0, followed.stderr
    assert sorted(json.loads(line)["body"] for line in followed.stdout.splitlines()) == ["1", "2", "3"]


@pytest.mark.parametrize("how", [(), ("--follow",), ("--member",)])
def test_a_condition_chooses_messages(rmqkit: Run, start: Start, how: tuple[str, ...]) -> None:
    """`--sql` gets the messages whose properties satisfy it, with each way to consume; a broker without SQL92
    filters is named, and tags beside a condition are refused."""
    words = ("--data", "data", "--namesrv", "127.0.0.1:0", "--broker", "127.0.0.1:0", "--set", "store=memory")
    server = start("serve", *words, "--set", "enablePropertyFilter=true")
    namesrv = ("--namesrv", server.where["namesrv"])
    for amount in (5, 15, 25):
        sent = rmqkit("send", "Orders", f"for {amount}", "--property", f"amount={amount}", *namesrv)
        assert sent.returncode == 0, sent.stderr
    condition = ("consume", "Orders", "--sql", "amount > 10", *namesrv, "--json")
    found = rmqkit(*condition, "--max", "2", *how)
    assert found.returncode == 0, found.stderr
    assert sorted(json.loads(line)["body"] for line in found.stdout.splitlines()) == ["for 15", "for 25"]
    assert rmqkit(*condition, "--tag", "a").returncode == 2


def test_a_condition_needs_a_broker_with_filters(rmqkit: Run, server: Ready) -> None:
    """The error names the setting of the broker."""
    namesrv = ("--namesrv", server.where["namesrv"])
    assert rmqkit("send", "Orders", "one", *namesrv).returncode == 0
    refused = rmqkit("consume", "Orders", "--sql", "amount > 10", *namesrv)
    assert refused.returncode == 1
    assert "enablePropertyFilter" in refused.stderr


def test_a_member_leaves_its_group_in_order(rmqkit: Run, server: Ready, tmp_path: Path) -> None:
    """`--member` prints what the group has not read, and ends after N messages or by a signal with exit code
    0. What was printed is committed then."""
    namesrv = ("--namesrv", server.where["namesrv"])
    words = ("consume", "Orders", "--group", "g", *namesrv, "--json")
    assert rmqkit("send", "Orders", *namesrv, stdin="1\n2\n3\n").returncode == 0
    first = rmqkit(*words, "--member", "--max", "3")
    assert first.returncode == 0, first.stderr
    assert sorted(json.loads(line)["body"] for line in first.stdout.splitlines()) == ["1", "2", "3"]
    for number in (signal.SIGTERM, signal.SIGINT):
        assert rmqkit("send", "Orders", number.name, *namesrv).returncode == 0
        with subprocess.Popen(
            [PROGRAM, *words, "--member"], cwd=tmp_path, env=clean_environment(), stdout=subprocess.PIPE
        ) as process:
            deadline = threading.Timer(300, process.kill)
            deadline.start()
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["body"] == number.name
            process.send_signal(number)
            assert process.stdout.read() == b""
            assert process.wait(300) == 0
            deadline.cancel()
    assert rmqkit(*words).stdout == ""


def test_a_member_without_a_reader_finishes_nothing(rmqkit: Run, server: Ready, tmp_path: Path) -> None:
    """When the reader of standard output has gone, the verb ends with exit code 1 and without a
    traceback, and the message is still there for the group. An unknown topic is one line."""
    namesrv = ("--namesrv", server.where["namesrv"])
    words = ("consume", "Orders", "--group", "g", *namesrv)
    assert rmqkit("send", "Orders", "1", *namesrv).returncode == 0
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as closed:
        ended = subprocess.run(
            [PROGRAM, *words, "--member"],
            cwd=tmp_path,
            env=clean_environment(),
            stdout=closed,
            stderr=subprocess.PIPE,
            timeout=300,
            check=False,
        )
    assert (ended.returncode, b"Traceback" in ended.stderr) == (1, False)
    assert rmqkit(*words).stdout.endswith(" 1\n")
    unknown = rmqkit("consume", "Nowhere", "--member", *namesrv)
    assert (unknown.returncode, len(unknown.stderr.splitlines())) == (1, 1)


def test_a_missing_topic_says_what_to_do(rmqkit: Run, server: Ready) -> None:
    """The error is one line without a traceback and contains the next step."""
    result = rmqkit("consume", "Nowhere", "--namesrv", server.where["namesrv"])
    assert result.returncode == 1
    assert "no route for topic 'Nowhere'" in result.stderr
    assert "rmqkit topic create Nowhere" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unreachable_name_server_is_named(rmqkit: Run) -> None:
    """The error for a refused connection contains the address."""
    result = rmqkit("send", "Orders", "x", "--namesrv", "127.0.0.1:1")
    assert result.returncode == 1
    assert "127.0.0.1:1" in result.stderr
    assert "Traceback" not in result.stderr


def test_nothing_to_send_is_an_error(rmqkit: Run, server: Ready) -> None:
    """Sending without a text and without lines on standard input is an error."""
    result = rmqkit("send", "Orders", "--namesrv", server.where["namesrv"])
    assert result.returncode == 2
    assert "nothing to send" in result.stderr
