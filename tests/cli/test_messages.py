"""`rmqkit send` and `rmqkit consume` against a server."""

from __future__ import annotations

import json

from tests.cli.conftest import Ready, Run


def test_what_is_sent_is_consumed_once_by_a_group(rmqkit: Run, server: Ready) -> None:
    """Lines of standard input are messages; a group continues where it stopped."""
    namesrv = ("--namesrv", server.where["namesrv"])
    sent = rmqkit("send", "Orders", "--tag", "new", "--key", "k1", *namesrv, "--json", stdin="one\ntwo\nthree\n")
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
    other = rmqkit("consume", "Orders", "--group", "h", "--max", "2", *namesrv)
    assert len(other.stdout.splitlines()) == 2


def test_following_ends_after_the_asked_number(rmqkit: Run, server: Ready) -> None:
    """`--follow --max N` prints N messages, commits them and stops."""
    namesrv = ("--namesrv", server.where["namesrv"])
    assert rmqkit("send", "Orders", "--tag", "a", *namesrv, stdin="1\n2\n3\n").returncode == 0
    assert rmqkit("send", "Orders", "--tag", "b", *namesrv, stdin="4\n").returncode == 0
    followed = rmqkit("consume", "Orders", "--tags", "a", "--follow", "--max", "3", *namesrv, "--json")
    assert followed.returncode == 0, followed.stderr
    assert sorted(json.loads(line)["body"] for line in followed.stdout.splitlines()) == ["1", "2", "3"]


def test_a_missing_topic_says_what_to_do(rmqkit: Run, server: Ready) -> None:
    """One line, no traceback, the next step named."""
    result = rmqkit("consume", "Nowhere", "--namesrv", server.where["namesrv"])
    assert result.returncode == 1
    assert "no route for topic 'Nowhere'" in result.stderr
    assert "rmqkit topic create Nowhere" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unreachable_name_server_is_named(rmqkit: Run) -> None:
    """Port 1 on loopback refuses; the address stands in the error."""
    result = rmqkit("send", "Orders", "x", "--namesrv", "127.0.0.1:1")
    assert result.returncode == 1
    assert "127.0.0.1:1" in result.stderr
    assert "Traceback" not in result.stderr


def test_nothing_to_send_is_an_error(rmqkit: Run, server: Ready) -> None:
    """Neither a text nor a line on standard input."""
    result = rmqkit("send", "Orders", "--namesrv", server.where["namesrv"])
    assert result.returncode == 2
    assert "nothing to send" in result.stderr
