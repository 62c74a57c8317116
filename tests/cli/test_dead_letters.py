"""`rmqkit dlq`: dead letters of groups, shown and sent again."""

from __future__ import annotations

import threading

import pytest

from rmqkit.client import BlockingClient, DeadLetter, ReceivedMessage
from tests.cli.conftest import Verbs, until


def killed(client: BlockingClient, group: str, *texts: bytes) -> None:
    """Let a group refuse messages of topic Orders, so that they become dead letters."""
    dead: list[bytes] = []

    async def refuse(message: ReceivedMessage) -> None:
        dead.append(message.body)
        raise DeadLetter("a test")

    for name in ("Orders", "Elsewhere"):
        client.admin.create_topic(name, queues=1)
    with client.producer("p") as producer:
        for text in texts:
            producer.send("Orders", text, tag="new", keys=["k"], properties={"colour": "red"})
    consumer = client.push_consumer(group, subscribe={"Orders": "*"}, start="first")
    thread = threading.Thread(target=consumer.run, args=(refuse,))
    thread.start()
    topic = f"%DLQ%{group}"
    until(lambda: topic in client.admin.topics())
    until(lambda: sum(at.max_offset for at in client.admin.topic_stats(topic).values()) == len(texts))
    consumer.stop()
    thread.join()


def test_dead_letters_are_shown(verbs: Verbs, client: BlockingClient) -> None:
    """Groups with dead letters are listed with their number; each message is shown with the topic that it was
    sent to."""
    assert verbs.json("dlq", "list") == []
    killed(client, "billing", b"one", b"two")
    (entry,) = verbs.json("dlq", "list")
    assert (entry["group"], entry["messages"], entry["notResent"]) == ("billing", 2, 2)
    assert verbs.text("dlq", "list").splitlines()[1].split()[:3] == ["billing", "2", "2"]
    letters = verbs.lines("dlq", "show", "billing")
    assert sorted(each["body"] for each in letters) == ["one", "two"]
    assert {each["originTopic"] for each in letters} == {"Orders"}
    assert all(each["originMessageId"] for each in letters)
    said = {(each["cause"], each["attempts"], each["error"]) for each in letters}
    assert said == {("asked", 1, "a test")}
    shown = verbs.text("dlq", "show", "billing", "--max", "1")
    assert "from Orders" in shown
    assert "asked after 1 deliveries: a test" in shown
    assert "has no dead letters" in verbs.text("dlq", "show", "nobody", code=1)


def test_all_are_sent_again_once(verbs: Verbs, client: BlockingClient) -> None:
    """`--all` sends what it has not sent before; `--again` begins anew. A dry run sends nothing. The copies
    are as the messages were written."""
    killed(client, "billing", b"one", b"two")
    before = verbs.lines("consume", "Orders", "--group", "reader")
    assert len(verbs.text("dlq", "resend", "billing", "--all", "--dry-run").splitlines()) == 2
    resend = ("dlq", "resend", "billing", "--all")
    assert verbs.json(*resend, "--rate", "1000") == {"sent": 2, "failed": 0, "missing": []}
    assert verbs.text(*resend) == "0 sent, 0 failed\n"
    assert verbs.json("dlq", "list")[0]["notResent"] == 0
    copies = verbs.lines("consume", "Orders", "--group", "reader")
    assert sorted(each["body"] for each in copies) == ["one", "two"]
    for copy in copies:
        assert (copy["tag"], copy["keys"], copy["properties"]["colour"]) == ("new", ["k"], "red")
        assert copy["messageId"] not in {each["messageId"] for each in before}
        assert "RETRY_TOPIC" not in copy["properties"]
    assert verbs.json(*resend, "--again", "--to", "Elsewhere")["sent"] == 2
    assert len(verbs.lines("consume", "Elsewhere")) == 2


def test_one_is_sent_to_its_group_alone(verbs: Verbs, client: BlockingClient) -> None:
    """A message chosen by its id goes to the retry topic of the group, whose members see the original topic;
    other groups do not get it."""
    killed(client, "billing", b"one", b"two")
    two = next(each for each in verbs.lines("dlq", "show", "billing") if each["body"] == "two")
    verbs.text("dlq", "resend", "billing", "--id", two["offsetMessageId"], "--to", "retry")
    got: list[tuple[str, bytes]] = []

    async def handle(message: ReceivedMessage) -> None:
        got.append((message.topic, message.body))

    consumer = client.push_consumer("billing", subscribe={"Orders": "*"}, start="first")
    thread = threading.Thread(target=consumer.run, args=(handle,))
    thread.start()
    until(lambda: got)
    consumer.stop()
    thread.join()
    assert got == [("Orders", b"two")]
    assert len(verbs.lines("consume", "Orders", "--group", "other")) == 2
    missing = verbs.text("dlq", "resend", "billing", "--id", "0" * 32, code=1)
    assert "has the id 0000" in missing


@pytest.mark.parametrize("words", [(), ("--all", "--id", "1")])
def test_a_choice_is_needed(verbs: Verbs, words: tuple[str, ...]) -> None:
    """Either ids, or all."""
    assert "--id" in verbs.text("dlq", "resend", "billing", *words, code=2)
