"""Requests that a broker relays to consumers."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from rmqkit.errors import RequestTimeout
from rmqkit.model.queue import MessageQueue
from rmqkit.model.subscription import ConsumerData, SubscriptionData
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import ConsumerClientRequestHeader, GetConsumerStatusRequestHeader
from rmqkit.testing.peer import FakePeer
from tests.broker.desk import BrokerHarness


async def online(
    desk: BrokerHarness, on_call: Callable[[Command], Command], client_id: str = "c1"
) -> FakePeer:
    """A member of group g with its own peer."""
    peer = FakePeer(port=41_000 + len(desk.broker.clients.consumers), on_call=on_call)
    group = ConsumerData(group_name="g", subscription_data_set=[SubscriptionData(topic="T")])
    assert (await desk.heartbeat(group, client_id=client_id, peer=peer)).code == 0
    return peer


async def running_info(desk: BrokerHarness, client_id: str = "c1") -> Command:
    return await desk.ask(
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        ConsumerClientRequestHeader(consumer_group="g", client_id=client_id),
    )


@pytest.mark.row("S070")
async def test_running_information_comes_from_the_consumer(desk: BrokerHarness) -> None:
    """Code, remark, fields and body of the answer are the consumer's."""
    asked: list[Command] = []

    def play(command: Command) -> Command:
        asked.append(command)
        return answer(command, 0, "as asked", body=b'{"properties":{}}')

    await online(desk, play)
    found = await running_info(desk)
    assert (found.code, found.remark, found.body) == (0, "as asked", b'{"properties":{}}')
    assert (asked[0].code, asked[0].fields()) == (307, {"consumerGroup": "g", "clientId": "c1"})


async def test_consumers_that_cannot_be_asked(desk: BrokerHarness) -> None:
    """A consumer that is offline, too old, silent, or gone is answered with RocketMQ's code for each case."""
    missing = await running_info(desk)
    assert (missing.code, missing.remark) == (ResponseCode.SYSTEM_ERROR, "The Consumer <g> <c1> not online")

    def silent(command: Command) -> Command:
        raise RequestTimeout("c1", 10_000)

    peer = await online(desk, silent)
    late = await running_info(desk)
    assert late.code == ResponseCode.CONSUME_MSG_TIMEOUT
    assert "consumer <g> <c1> Timeout" in (late.remark or "")
    peer.closed = True
    assert (await running_info(desk)).code == ResponseCode.SYSTEM_ERROR
    desk.broker.clients.consumers["g"].members[peer].version = 61
    assert "too low to finish, please upgrade it to V3_1_8_SNAPSHOT" in (
        (await running_info(desk)).remark or ""
    )


@pytest.mark.row("S070")
async def test_a_message_is_consumed_directly(desk: BrokerHarness) -> None:
    """The consumer gets the stored record and the broker's name; a wrong id is refused before."""
    message_id = (await desk.sent(body=b"once more")).msg_id
    asked: list[Command] = []

    def play(command: Command) -> Command:
        asked.append(command)
        return answer(command, body=b'{"consumeResult":"CR_SUCCESS"}')

    await online(desk, play)
    header = ConsumerClientRequestHeader(consumer_group="g", client_id="c1", msg_id=message_id, topic="T")
    found = await desk.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
    assert (found.code, found.body) == (0, b'{"consumeResult":"CR_SUCCESS"}')
    assert b"once more" in asked[0].body
    assert asked[0].fields() | {"brokerName": "broker-a", "topicSysFlag": "0"} == asked[0].fields()
    for wrong, code in (
        ("zz", ResponseCode.INVALID_PARAMETER),
        (message_id[:-16] + "00000000000FFFFF", ResponseCode.SYSTEM_ERROR),
    ):
        header = ConsumerClientRequestHeader(consumer_group="g", client_id="c1", msg_id=wrong)
        assert (await desk.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)).code == code
    assert len(asked) == 1


async def test_status_of_all_consumers_of_a_group(desk: BrokerHarness) -> None:
    """All members that answer are listed by client id, or a single one; without members the request is
    refused."""
    header = GetConsumerStatusRequestHeader(topic="T", group="g")
    assert (
        await desk.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)
    ).code == ResponseCode.SYSTEM_ERROR
    body = b'{"messageQueueTable":{{"brokerName":"broker-a","queueId":1,"topic":"T"}:7}}'
    await online(desk, lambda command: answer(command, body=body))
    await online(desk, lambda command: answer(command, 1, "no"), client_id="c2")
    found = await desk.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)
    ((key, offset),) = loose_json.loads(found.body)["consumerTable"]["c1"].items()
    assert (msgspec.json.decode(key, type=MessageQueue), offset) == (MessageQueue("T", "broker-a", 1), 7)
    only = GetConsumerStatusRequestHeader(topic="T", group="g", client_addr="c2")
    found = await desk.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, only)
    assert loose_json.loads(found.body)["consumerTable"] == {}
