"""Verbs that read a part of a topic, with a record in it that cannot be decoded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rmqkit.cli.copying import Sending
from rmqkit.client import BlockingClient, Message, MessageQueue, Producer, ReceivedMessage
from rmqkit.errors import SendFailed
from rmqkit.model.sysflag import COMPRESSED
from rmqkit.protocol.codes import ResponseCode
from tests.cli.conftest import Ready, Verbs
from tests.raw_sends import send_raw

WHY = "the compressed body is damaged"


@pytest.fixture
def topic(server: Ready, client: BlockingClient) -> str:
    """A topic with a bad record between good ones, all with the key k."""
    client.admin.create_topic("Orders", queues=1)
    for body, sys_flag in ((b"one", 0), (b"no zlib", COMPRESSED), (b"two", 0)):
        send_raw(server.where["broker"], "Orders", body, sys_flag=sys_flag, properties="KEYS\x01k\x02")
    return "Orders"


def bodies(found: list[Any]) -> list[tuple[str, bool]]:
    """The bodies, and whether they have a fault."""
    return [(each["body"], each.get("fault", "").startswith(WHY)) for each in found]


@pytest.mark.parametrize(
    "words",
    [
        ("consume", "Orders"),
        ("consume", "Orders", "--follow", "--max", "3"),
        ("consume", "Orders", "--member", "--max", "3"),
        ("tail", "Orders", "--from-first", "--max", "3"),
        ("message", "find", "Orders"),
        ("message", "find", "Orders", "--key", "k"),
    ],
    ids=" ".join,
)
def test_all_are_shown_and_the_bad_one_is_marked(verbs: Verbs, topic: str, words: tuple[str, ...]) -> None:
    """With the reason, in its place, in both forms; nothing becomes a dead letter."""
    wanted = [("one", False), ("no zlib", True), ("two", False)]
    again = ("--group", "another") if words[0] == "consume" else ()
    assert bodies(verbs.lines(*words)) == wanted
    lines = verbs.text(*words, *again).splitlines()
    assert [f"cannot be decoded ({WHY}" in line for line in lines] == [bad for _, bad in wanted]
    assert verbs.json("dlq", "list") == []


def test_one_message_is_shown(verbs: Verbs, topic: str) -> None:
    """`message get` says why it cannot be decoded."""
    bad = verbs.lines("message", "find", topic)[1]
    (found,) = verbs.json("message", "get", bad["offsetMessageId"])
    assert (found["body"], found["fault"]) == ("no zlib", bad["fault"])
    assert f"fault:             {WHY}" in verbs.text("message", "get", bad["offsetMessageId"])


def test_a_replay_sends_the_others(verbs: Verbs, client: BlockingClient, topic: str) -> None:
    """The bad one is reported with its place, and counts as failed."""
    client.admin.create_topic("Copy", queues=1)
    ended = verbs.ended("replay", topic, "--to", "Copy", "--json", code=1)
    assert '"sent":2,"failed":1' in ended.stdout.replace(" ", "").replace("\n", "")
    assert "broker-a:0 offset 1: it cannot be decoded and is not sent: the compressed body" in ended.stderr
    assert bodies(verbs.lines("consume", "Copy")) == [("one", False), ("two", False)]


def test_what_was_shown_is_not_sent_as_if_it_were_good(verbs: Verbs, topic: str) -> None:
    """`send --json-lines` refuses a line with a fault and sends the others."""
    lines = verbs.text("consume", topic, "--json")
    words = ("send", "Copy", "--json-lines", "--keep-going")
    ended = verbs.ended(*words, stdin=lines, code=1)
    assert "line 2: the message could not be decoded" in ended.stderr
    assert len(ended.stdout.splitlines()) == 2


def test_dead_letters(verbs: Verbs, client: BlockingClient, topic: str) -> None:
    """They are shown; sending all again passes over the bad one, which is not tried a second time."""
    with client.lite_pull_consumer("billing", subscribe=topic, start="first") as consumer:
        found: list[bytes] = []
        while len(found) < 2:
            found += [message.body for message in consumer.poll(timeout_s=30)]
    assert found == [b"one", b"two"]
    (letter,) = verbs.lines("dlq", "show", "billing")
    assert (letter["originTopic"], letter["body"]) == (topic, "no zlib")
    assert letter["fault"].startswith(WHY)
    assert f"cannot be decoded ({WHY}" in verbs.text("dlq", "show", "billing")
    resend = ("dlq", "resend", "billing", "--all")
    assert verbs.json(*resend, code=1) == {"sent": 0, "failed": 1, "missing": []}
    assert verbs.json(*resend) == {"sent": 0, "failed": 0, "missing": []}


@pytest.mark.parametrize(
    ("code", "goes_on"),
    [
        (ResponseCode.MESSAGE_ILLEGAL, True),
        (ResponseCode.SYSTEM_BUSY, False),
        (ResponseCode.NO_PERMISSION, False),
    ],
)
async def test_a_refusal_for_good_stops_nothing(code: int, goes_on: bool) -> None:
    """A message that is too large for the broker now is counted as failed, and the next one is sent; what
    another try may change is waited for."""
    refusal = SendFailed("refused")
    refusal.code = code

    class Refusing:
        async def send(self, message: Message) -> None:
            raise refusal

    origin = SimpleNamespace(
        fault=None, stored_properties=None, queue=MessageQueue("T", "broker-a", 0), queue_offset=7
    )
    sending = Sending(cast(Producer, Refusing()), None, None)
    assert await sending.send(Message("T", b"large"), cast(ReceivedMessage, origin)) is goes_on
    assert (sending.sent, sending.failed) == (0, 1)
