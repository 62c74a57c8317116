"""Queues that a broker assigns to a client of a group, and the mode in which a group gets messages."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest

from rmqkit.errors import ConnectFailed
from rmqkit.model.route import QueueData, TopicRouteData, compact
from rmqkit.model.subscription import ConsumerData, SubscriptionData
from rmqkit.model.topic import TopicConfig
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import FLAG_RESPONSE, RequestCode, ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.testing.peer import FakePeer
from rmqkit_pop.assignment import RequestModes
from tests.broker.desk import BrokerHarness

Opened = Callable[..., AbstractAsyncContextManager[BrokerHarness]]


async def assigned(desk: BrokerHarness, **fields: Any) -> Command:
    body = {
        "topic": "T",
        "consumerGroup": "g",
        "clientId": "c1",
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
    } | fields
    command = Command(RequestCode.QUERY_ASSIGNMENT, opaque=7, body=loose_json.dumps(body))
    peer = FakePeer()
    answer = await desk.outcome(command, peer)
    if answer is None:
        await peer.all_answered()
        (answer,) = peer.answers
    return answer


def queues(answer: Command, mode: str = "PULL") -> list[tuple[str, int]] | None:
    """Broker names and numbers of the assigned queues, which are to be read in this mode; None for an answer
    without a list."""
    assert answer.code == 0, answer.remark
    found = msgspec.json.decode(answer.body)
    if "messageQueueAssignments" not in found:
        return None
    assert {each["mode"] for each in found["messageQueueAssignments"]} <= {mode}
    places = [each["messageQueue"] for each in found["messageQueueAssignments"]]
    assert {place["topic"] for place in places} <= {"T"}
    return [(place["brokerName"], place["queueId"]) for place in places]


async def join(desk: BrokerHarness, *client_ids: str) -> None:
    data = ConsumerData(group_name="g", subscription_data_set=[SubscriptionData(topic="T")])
    for client_id in client_ids:
        await desk.heartbeat(data, client_id=client_id, peer=FakePeer())


async def test_the_members_of_a_group_share_the_queues(desk: BrokerHarness) -> None:
    """Each client gets its part, by the strategy that it names; one that has not joined gets none. Without
    members the list is missing, so that a client keeps its queues."""
    own = desk.broker.config.broker_name
    await desk.broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=5, write_queue_nums=5))
    assert queues(await assigned(desk)) is None
    await join(desk, "c2", "c1")
    assert queues(await assigned(desk)) == [(own, 0), (own, 1), (own, 2)]
    assert queues(await assigned(desk, clientId="c2")) == [(own, 3), (own, 4)]
    circle = await assigned(desk, strategyName="AVG_BY_CIRCLE")
    assert queues(circle) == [(own, 0), (own, 2), (own, 4)]
    assert queues(await assigned(desk, clientId="stranger")) == []
    everything = [(own, number) for number in range(5)]
    assert queues(await assigned(desk, messageModel="BROADCASTING", consumerGroup="b")) == everything
    assert queues(await assigned(desk, topic="missing")) is None
    refused = await assigned(desk, strategyName="MINE")
    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert "AVG, AVG_BY_CIRCLE, CONSISTENT_HASH" in (refused.remark or "")


async def test_the_queues_are_those_of_all_brokers(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server says which queues there are, the next one is asked when one does not answer, and without
    an answer the list is missing."""
    route = TopicRouteData(
        queue_datas=[
            QueueData(broker_name="b", read_queue_nums=2, write_queue_nums=2, perm=6),
            QueueData(broker_name="a", read_queue_nums=1, write_queue_nums=1, perm=4),
            QueueData(broker_name="c", read_queue_nums=1, write_queue_nums=1, perm=2),
        ]
    )
    answers: dict[str, Command | Exception] = {}

    async def call(address: str, command: Command, timeout_ms: int) -> Command:
        found = answers[address]
        if isinstance(found, Exception):
            raise found
        return found

    async with opened(namesrvAddr="10.0.0.8:9876;10.0.0.9:9876") as desk:
        monkeypatch.setattr(desk.broker.pool, "call", call)
        await join(desk, "c1")
        answers["10.0.0.8:9876"] = ConnectFailed("10.0.0.8:9876", "refused")
        answers["10.0.0.9:9876"] = Command(0, FLAG_RESPONSE, body=compact(route))
        assert queues(await assigned(desk)) == [("a", 0), ("b", 0), ("b", 1)]
        answers["10.0.0.9:9876"] = Command(ResponseCode.TOPIC_NOT_EXIST, FLAG_RESPONSE)
        assert queues(await assigned(desk)) is None
        answers["10.0.0.9:9876"] = Command(0, FLAG_RESPONSE, body=b"{")
        assert queues(await assigned(desk)) is None


async def set_mode(desk: BrokerHarness, **fields: Any) -> Command:
    body = {"topic": "T", "consumerGroup": "g", "mode": "PULL", "popShareQueueNum": 0} | fields
    command = Command(RequestCode.SET_MESSAGE_REQUEST_MODE, opaque=7, body=loose_json.dumps(body))
    peer = FakePeer()
    answer = await desk.outcome(command, peer)
    if answer is None:
        await peer.all_answered()
        (answer,) = peer.answers
    return answer


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, ResponseCode.SUCCESS),
        ({"mode": "POP"}, ResponseCode.SUCCESS),
        ({"mode": "TELEPATHY"}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "missing"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"consumerGroup": "new"}, ResponseCode.SUCCESS),
        ({"consumerGroup": "no group"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"topic": "%RETRY%g"}, ResponseCode.NO_PERMISSION),
    ],
)
async def test_the_mode_of_a_group(desk: BrokerHarness, fields: dict[str, str], code: int) -> None:
    """PULL or POP may be set, also as the first use of a group; others, and what does not exist, are refused
    with the reason."""
    answer = await set_mode(desk, **fields)
    assert answer.code == code
    assert bool(answer.remark) == bool(code)


async def test_in_mode_pop_members_share_queues(desk: BrokerHarness) -> None:
    """By default each pops all queues of a broker, which have the number -1; else its own and those of some
    members behind it. Members beyond the number of queues have one queue each. Retry topics are pulled."""
    own = desk.broker.config.broker_name
    await join(desk, "c1", "c2", "c3", "c4")
    await set_mode(desk, mode="POP")
    assert queues(await assigned(desk), "POP") == [(own, -1)]
    await set_mode(desk, mode="POP", popShareQueueNum=1)
    assert queues(await assigned(desk), "POP") == [(own, 0), (own, 1)]
    assert queues(await assigned(desk, clientId="c4"), "POP") == [(own, 3), (own, 0)]
    assert queues(await assigned(desk, clientId="stranger"), "POP") == []
    await join(desk, "c5")
    assert queues(await assigned(desk, clientId="c5"), "POP") == [(own, 0)]
    await set_mode(desk, mode="POP", popShareQueueNum=4)
    assert queues(await assigned(desk, clientId="c5"), "POP") == [(own, -1)]
    await set_mode(desk, mode="PULL")
    assert queues(await assigned(desk, clientId="c1")) == [(own, 0)]


async def test_modes_outlive_a_restart(opened: Opened) -> None:
    """They are kept in RocketMQ's file."""
    async with opened() as desk:
        await set_mode(desk, mode="POP", popShareQueueNum=3)
        path = desk.broker.config.config_path / "messageRequestMode.json"
        found = msgspec.json.decode(path.read_bytes())["messageRequestModeMap"]["T"]["g"]
        assert (found["mode"], found["popShareQueueNum"]) == ("POP", 3)
        again = RequestModes(desk.broker).get("T", "g")
        assert again is not None
        assert again.mode == "POP"


async def test_the_default_mode_is_a_setting(opened: Opened) -> None:
    """Of groups for which none was set."""
    async with opened(defaultMessageRequestMode="POP", brokerName="b") as desk:
        await join(desk, "c1")
        assert queues(await assigned(desk), "POP") == [("b", -1)]
