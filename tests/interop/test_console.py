"""The console before Apache's servers: every page shows what they tell, and what they lack is said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from attrs import frozen

from rmqkit.client import BlockingClient, Message
from rmqkit.model import properties as props
from rmqkit.model.names import dlq_topic
from rmqkit.model.topic import SubscriptionGroupConfig
from tests.interop import peers

DLQ = dlq_topic("billing")


@frozen
class Before:
    """A console before Apache's cluster with a topic, a group and a dead letter; `ids` are of a message."""

    server: peers.Server
    program: peers.Program
    http: httpx.Client
    offset_id: str
    unique_id: str

    def page(self, path: str, **query: Any) -> str:
        """The HTML of a page, which has no error; as JSON it has none either."""
        for given in (query, query | {"format": "json"}):
            answer = self.http.get(path, params=given)
            assert answer.status_code == 200, f"{path}: {answer.text}\n{self.program.tail()}"
        return self.http.get(path, params=query).text

    def values(self, path: str, **query: Any) -> Any:
        self.page(path, **query)
        return self.http.get(path, params=query | {"format": "json"}).json()


@pytest.fixture(scope="module")
def before(apache_cluster: peers.Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Before]:
    """`rmqkit console` as another process."""
    with BlockingClient(apache_cluster.namesrv) as client:
        for topic in ("Orders", DLQ):
            client.admin.create_topic(topic, queues=2)
        client.groups.put("billing", SubscriptionGroupConfig(group_name="billing"))
        with client.producer("shop") as producer, client.pull_consumer("billing") as consumer:
            sent = producer.send(Message("Orders", b'{"n": 1}', tag="new", keys=["order-1"]))
            consumer.commit(sent.queue, 0)
            producer.send(Message(DLQ, b"x", properties={props.RETRY_TOPIC: "Orders"}))
    home = tmp_path_factory.mktemp("console")
    with (
        peers.rmqkit_console(home, apache_cluster) as (program, where),
        httpx.Client(base_url=where, timeout=60) as http,
    ):
        yield Before(apache_cluster, program, http, sent.offset_message_id or "", sent.message_id)


def test_brokers(before: Before) -> None:
    """The overview and the page of the broker have its figures."""
    (broker,) = before.values("/")["brokers"]
    assert (broker["broker"], broker["answers"]) == ("apache-broker", True)
    assert broker["logBytes"] > 0
    found = before.values("/broker", address=broker["address"])
    assert found["runtime"]["brokerVersionDesc"].startswith("V5")


def test_topics_and_groups(before: Before) -> None:
    """Their queues, offsets and settings."""
    assert "Orders" in {each["topic"] for each in before.values("/topics", all="yes")["topics"]}
    before.page("/topics")
    topic = before.values("/topic", topic="Orders")
    assert sum(each["maxOffset"] for each in topic["queues"]) == 1
    assert "billing" in topic["groups"]
    rows = {each["group"]: each for each in before.values("/groups")["groups"]}
    assert rows["billing"]["lag"] == 1
    group = before.values("/group", group="billing")
    assert group["behindMs"] > 0
    assert group["settings"]["apache-broker"]["consumeEnable"] is True


@pytest.mark.parametrize(
    "query", [{}, {"key": "order-1"}, {"tag": "new"}, {"since": "1h"}, {"sql": "TAGS = 'new'"}]
)
def test_messages(before: Before, query: dict[str, str]) -> None:
    """They are found in every way; SQL92 is off at this broker, which is said."""
    if "sql" in query:
        answer = before.http.get("/messages", params={"topic": "Orders"} | query)
        assert answer.status_code == 502
        assert "does not support consumer to filter message by SQL92" in answer.text
        return
    (message,) = before.values("/messages", topic="Orders", **query)["messages"]
    assert message["messageId"] == before.unique_id


def test_one_message(before: Before) -> None:
    """By either id, with the groups of its topic."""
    for id_ in (before.unique_id, before.offset_id):
        (message,) = before.values("/message", topic="Orders", id=id_)["found"]
        assert message["shownAs"] == "json"
        assert [each["group"] for each in message["consumers"]] == ["billing"]


def test_dead_letters(before: Before) -> None:
    """They are counted, and tell where they were sent to."""
    (row,) = before.values("/dead-letters")["groups"]
    assert (row["group"], row["messages"]) == ("billing", 1)
    (letter,) = before.values("/dead-letters", group="billing")["deadLetters"]
    assert letter["originTopic"] == "Orders"
    before.page("/resends")


def test_what_apache_lacks(before: Before) -> None:
    """What a broker of Apache does not tell is a dash, and the audit says that it has none."""
    (broker,) = before.values("/backlogs")["brokers"]
    assert (broker["heldPulls"], broker["transactionsOpen"], broker["delayed"]) == (None, None, 0)
    settings = {each["key"]: each for each in before.values("/settings")["settings"]}
    assert settings["brokerName"]["values"] == {"apache-broker": "apache-broker"}
    assert "Brokers of Apache write no audit." in before.page("/audit")
