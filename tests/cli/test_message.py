"""`rmqkit message get|find`."""

from __future__ import annotations

import pytest

from rmqkit.client import BlockingClient, DeadLetter
from rmqkit_hook_trace import MessageTrace
from tests.cli.conftest import Ready, Run, Start, Verbs, until


def test_a_message_and_its_consumers(verbs: Verbs, client: BlockingClient) -> None:
    """A message is found by the id of its producer or of its broker, with properties, place, and what each
    group has done with it."""
    client.admin.create_topic("Orders", queues=1)
    with client.producer("p") as producer:
        sent = producer.send("Orders", b"one", tag="new", keys=["k"], properties={"colour": "red"})
        producer.send("Orders", b"two", tag="new")
    with client.pull_consumer("done") as done, client.pull_consumer("slow") as slow:
        (queue,) = done.queues("Orders")
        until(lambda: done.max_offset(queue) == 2)
        done.commit(queue, 1)
        slow.commit(queue, 0)
        until(lambda: client.groups.connections("done"))
        until(lambda: client.groups.connections("slow"))
    with client.push_consumer("picky", subscribe={"Orders": "other"}) as picky:
        until(lambda: client.groups.connections("picky"))
        client.run(_commit, client, "picky", queue, 2)
        del picky
        (found,) = verbs.json("message", "get", sent.message_id, "--topic", "Orders")
        assert (found["body"], found["properties"]["colour"], found["queueOffset"]) == ("one", "red", 0)
        states = {each["group"]: each["state"] for each in found["consumers"]}
        assert states == {"done": "consumed", "slow": "waiting", "picky": "filtered"}
        assert [each["online"] for each in found["consumers"] if each["group"] == "picky"] == [True]
    shown = verbs.text("message", "get", sent.offset_message_id)
    assert "broker-a:0 offset 0" in shown
    assert "colour=red" in shown
    lines = [line.split() for line in shown.splitlines()]
    assert [line[1:] for line in lines if line[:1] == ["done"]] == [["consumed", "1", "no"]]
    assert "try --topic" in verbs.text("message", "get", sent.message_id, code=1)
    assert "has no message" in verbs.text("message", "get", "0" * 32, "--topic", "Orders", code=1)


def test_a_message_that_is_a_dead_letter(verbs: Verbs, client: BlockingClient) -> None:
    """What a group that could not consume it has of it is shown, with the cause."""
    client.admin.create_topic("Refunds", queues=1)
    with client.producer("p") as producer:
        sent = producer.send("Refunds", b"one")
    assert "KEPT AS" not in verbs.text("message", "get", sent.message_id, "--topic", "Refunds")
    with client.push_consumer("strict", subscribe="Refunds", start="first") as consumer:
        for delivery in consumer:
            with delivery:
                consumer.stop()
                raise DeadLetter("no use")
    (found,) = verbs.json("message", "get", sent.message_id, "--topic", "Refunds")
    (copy,) = found["copies"]
    assert (copy["group"], copy["kept"], copy["topic"]) == ("strict", "dead letter", "%DLQ%strict")
    assert (copy["cause"], copy["error"]) == ("asked", "no use")
    shown = verbs.text("message", "get", sent.message_id, "--topic", "Refunds")
    (line,) = [each for each in shown.splitlines() if "dead letter" in each]
    assert line.startswith("strict")
    assert line.endswith("asked: no use")


async def _commit(client: BlockingClient, group: str, queue: object, offset: int) -> None:
    reader = client.asynchronous.raw_reader(group)
    await reader.offsets.commit(group, queue, offset)  # type: ignore[arg-type]


def test_messages_are_found(verbs: Verbs, client: BlockingClient) -> None:
    """By key, by a tag, and by the time of their storage; nothing found is exit code 1."""
    client.admin.create_topic("Orders", queues=1)
    with client.producer("p") as producer:
        for number in range(3):
            producer.send("Orders", b"%d" % number, tag=f"t{number}", keys=[f"k{number}"])
    until(lambda: client.admin.query_by_key("Orders", "k2"))
    (one,) = verbs.lines("message", "find", "Orders", "--key", "k1")
    assert one["body"] == "1"
    (two,) = verbs.lines("message", "find", "Orders", "--tag", "t2")
    assert two["body"] == "2"
    since = str(two["storeTimestamp"])
    assert two["messageId"] in {
        each["messageId"] for each in verbs.lines("message", "find", "Orders", "--since", since)
    }
    assert two["messageId"] not in verbs.text("message", "find", "Orders", "--until", since)
    assert len(verbs.text("message", "find", "Orders", "--max", "2").splitlines()) == 2
    assert "no message matches" in verbs.text("message", "find", "Orders", "--key", "none", code=1)
    assert "exclude" in verbs.text("message", "find", "Orders", "--key", "k", "--tag", "t", code=2)


def test_the_trace_of_a_message(start: Start, rmqkit: Run) -> None:
    """With a trace topic, the message is shown with its sending and its consumption."""
    where = ("--data", "data", "--namesrv", "127.0.0.1:0", "--broker", "127.0.0.1:0", "--set", "store=memory")
    server: Ready = start("serve", *where, "--set", "traceTopicEnable=true")
    with BlockingClient(server.where["namesrv"], hooks=[MessageTrace()]) as client:
        client.admin.create_topic("Orders", queues=1)
        with client.producer("p") as producer:
            sent = producer.send("Orders", b"one")
        with client.push_consumer("g", subscribe="Orders", start="first") as consumer:
            for delivery in consumer:
                with delivery as message:
                    assert message.body == b"one"
                break
    verbs = Verbs(rmqkit, server)
    (found,) = verbs.json("message", "get", sent.message_id, "--topic", "Orders")
    assert [(each["event"], each["group"]) for each in found["trace"]][:2] == [
        ("Pub", "p"),
        ("SubBefore", "g"),
    ]
    assert found["trace"][0]["success"] is True
    assert "SubBefore" in verbs.text("message", "get", sent.message_id, "--topic", "Orders")


@pytest.mark.parametrize("words", [("message",), ("message", "find", "Orders", "--max", "0")])
def test_wrong_arguments(verbs: Verbs, words: tuple[str, ...]) -> None:
    """An action is needed, and a number above 0."""
    verbs.text(*words, code=2)
