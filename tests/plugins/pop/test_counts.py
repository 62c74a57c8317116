"""How far a group that pops is, in consume statistics."""

from __future__ import annotations

from typing import Any

from rmqkit.model.topic import TopicConfig
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import GetConsumeStatsInBrokerHeader, GetConsumeStatsRequestHeader
from tests.plugins.pop.pop_desk import GROUP, LEASE_MS, TOPIC, PopDesk


def numbers(table: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Topic -> consumer offset, pull offset, leased messages and end of its first queue."""
    names = ("consumerOffset", "pullOffset", "leased", "brokerOffset")
    found = ((loose_json.loads(queue.encode()), each) for queue, each in table.items())
    return {
        queue["topic"]: tuple(each.get(name, 0) for name in names)
        for queue, each in found
        if queue["queueId"] == 0
    }


async def progress(pops: PopDesk) -> dict[str, tuple[int, ...]]:
    header = GetConsumeStatsRequestHeader(consumer_group=GROUP)
    answer = await pops.ask(request(RequestCode.GET_CONSUME_STATS, header))
    return numbers(loose_json.loads(answer.body)["offsetTable"])


async def all_progress(pops: PopDesk) -> Any:
    header = GetConsumeStatsInBrokerHeader(is_order=False)
    answer: Command = await pops.ask(request(RequestCode.GET_BROKER_CONSUME_STATS, header))
    return loose_json.loads(answer.body)


async def test_leased_messages_are_in_flight(pops: PopDesk) -> None:
    """`pullOffset` minus `consumerOffset`, which Java's tools show, is their number, although the group's
    offset is behind them; those that are finished are not counted, and one whose lease has ended is in the
    retry topic."""
    await pops.desk.broker.topics.put(TopicConfig(topic_name=TOPIC, read_queue_nums=1, write_queue_nums=1))
    for _ in range(5):
        await pops.desk.sent()
    first, *_ = await pops.pop(max_msg_nums=3)
    assert (await progress(pops))[TOPIC] == (3, 6, 3, 5)
    found = await all_progress(pops)
    assert (found["totalDiff"], found["totalInflightDiff"]) == (5, 3)
    await pops.acked(first)
    assert (await progress(pops))[TOPIC] == (3, 5, 2, 5)
    await pops.pass_time(LEASE_MS + 64)
    await pops.pop()
    found = await progress(pops)
    assert found.pop(TOPIC) == (5, 7, 2, 5)
    (retries,) = found.values()
    assert retries == (2, 4, 2, 2)


async def test_leases_of_an_ordered_queue_are_behind_the_offset(pops: PopDesk) -> None:
    """The group's offset is that of the first message that is not finished."""
    await pops.desk.broker.topics.put(TopicConfig(topic_name=TOPIC, read_queue_nums=1, write_queue_nums=1))
    for _ in range(5):
        await pops.desk.sent()
    first, *_ = await pops.pop(max_msg_nums=3, order=True)
    assert (await progress(pops))[TOPIC] == (0, 3, 0, 5)
    await pops.acked(first)
    assert (await progress(pops))[TOPIC] == (1, 3, 0, 5)
