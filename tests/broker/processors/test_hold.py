"""Long polling: which pulls are held, and how they are woken and ended."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from rmqkit import hookimpl
from rmqkit.broker.pulling import held_pulls
from rmqkit.config import Config
from rmqkit.limits import MAX_HOLD_MS
from rmqkit.model.buffer import Buffer
from rmqkit.model.subscription import ConsumerData, SubscriptionData
from rmqkit.model.topic import SubscriptionGroupConfig, TopicConfig
from rmqkit.plugin.filter import CompiledFilter, FilterServer
from rmqkit.plugin.hookspecs import Register
from rmqkit.protocol import record
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.headers import UnregisterClientRequestHeader
from rmqkit.testing.peer import FakePeer
from tests.broker.desk import BrokerHarness, bodies, places

Opened = Callable[..., AbstractAsyncContextManager[BrokerHarness]]
HOLD = 2 | 4


async def hold(desk: BrokerHarness, *, peer: FakePeer | None = None, **fields: Any) -> None:
    """A held pull."""
    fields = dict[str, Any](sys_flag=HOLD, suspend_timeout_millis=15_000) | fields
    assert await desk.outcome(desk.pull_request(**fields), peer) is None


@pytest.mark.row("S046", "S065", "S068", "S113", "S119")
async def test_a_pull_at_the_end_is_held_until_a_message_arrives(desk: BrokerHarness) -> None:
    """The pull is answered once, to its own connection, with the message."""
    peer = FakePeer()
    await hold(desk, peer=peer)
    assert peer.answers == []
    await desk.sent(body=b"news")
    (answer,) = peer.answers
    assert (answer.code, answer.opaque, bodies(answer)) == (0, 7, [b"news"])
    assert places(answer) == (1, 0, 1)
    await desk.sent(body=b"more")
    desk.expire_pulls(desk.clock.now_ms() + 60_000)
    assert len(peer.answers) == 1


async def test_the_garbage_collector_visits_no_held_pull(desk: BrokerHarness) -> None:
    """A hundred held pulls add nothing to what a pass over all objects visits: with ten objects each, 100 000
    of them stopped the event loop for a tenth of a second."""
    await hold(desk)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(100):
        await hold(desk)
    gc.collect()
    # Over a transport, the test's own client keeps some objects for each call.
    assert len(gc.get_objects()) - before < (50 if desk.wire is None else 1_000)
    assert len(desk.broker.held) == 101


async def test_without_the_hold_bit_the_answer_comes_at_once(desk: BrokerHarness) -> None:
    """The answer is PULL_NOT_FOUND."""
    assert (await desk.pull()).code == ResponseCode.PULL_NOT_FOUND
    assert len(desk.broker.held) == 0


@pytest.mark.row("S113")
async def test_only_a_pull_at_the_very_end_is_held(desk: BrokerHarness) -> None:
    """A pull beyond the end gets the end offset at once."""
    await desk.sent()
    assert (await desk.pull(offset=2, sys_flag=HOLD)).code == ResponseCode.PULL_OFFSET_MOVED
    await hold(desk, offset=1)


@pytest.mark.row("S049")
async def test_only_matching_tags_wake_a_pull(desk: BrokerHarness) -> None:
    """A message with another tag does not wake the pull; the answer to a matching one contains only that
    message."""
    await hold(desk, subscription="B")
    await desk.sent(properties={"TAGS": "A"})
    assert desk.peer.answers == []
    await desk.sent(body=b"mine", properties={"TAGS": "B"})
    (answer,) = desk.peer.answers
    assert bodies(answer) == [b"mine"]
    assert places(answer) == (2, 0, 2)


class PriceFilter(FilterServer):
    """Expression type PRICE: matches records whose property `price` is the expression. It needs the records;
    `reads` counts those it was shown."""

    expression_type = "PRICE"

    def __init__(self) -> None:
        self.reads = 0

    def compile(self, subscription: SubscriptionData, group: str) -> CompiledFilter:
        def matches(found: Sequence[Buffer]) -> list[bool]:
            self.reads += len(found)
            return [record.unpack(each).properties.get("price") == subscription.sub_string for each in found]

        return CompiledFilter(records=matches)

    def subscription(self, topic: str, expression: str, version: int) -> SubscriptionData:
        return SubscriptionData(topic=topic, sub_string=expression, expression_type="PRICE")

    @hookimpl
    def rmqkit_register_filter_servers(self, register: Register[FilterServer], config: Config) -> None:
        register("PRICE", self)


async def test_a_filter_that_reads_the_messages_holds_the_pull_on(opened: Opened) -> None:
    """Messages that the filter rejects do not end the hold, each is shown to the filter once, and the answer
    comes with the first that matches."""
    prices = PriceFilter()
    async with opened(extra=[("prices", prices)]) as desk:
        await hold(desk, subscription="5", expression_type="PRICE")
        for _ in range(3):
            await desk.sent(properties={"price": "4"})
        assert (desk.peer.answers, prices.reads, len(desk.broker.held)) == ([], 3, 1)
        await desk.sent(body=b"mine", properties={"price": "5"})
        (answer,) = desk.peer.answers
        assert bodies(answer) == [b"mine"]
        assert places(answer) == (4, 0, 4)
        assert prices.reads == 4


@pytest.mark.parametrize("end", ["deadline", "recheck"])
async def test_a_pull_whose_filter_rejected_everything_goes_on_behind_it(opened: Opened, end: str) -> None:
    """At its deadline, and at a recheck that finds newer messages, the consumer gets the offset to continue
    at."""
    prices = PriceFilter()
    async with opened(extra=[("prices", prices)]) as desk:
        await hold(desk, subscription="5", expression_type="PRICE")
        for _ in range(3):
            await desk.sent(properties={"price": "4"})
        if end == "deadline":
            desk.expire_pulls(desk.clock.now_ms() + 60_000)
        else:
            desk.broker.held.recheck(lambda topic, queue_id: 3)
            desk.broker.work.finish()
            assert desk.peer.answers == []
            desk.broker.held.recheck(lambda topic, queue_id: 4)
            desk.broker.work.finish()
        (answer,) = desk.peer.answers
        assert (answer.code, places(answer)) == (ResponseCode.PULL_NOT_FOUND, (3, 0, 3))


async def test_queues_wake_their_own_pulls(desk: BrokerHarness) -> None:
    """Messages of other queues and topics do not wake the pull."""
    await hold(desk, queue_id=0)
    await hold(desk, queue_id=1)
    await desk.sent(queue_id=2)
    await desk.sent("Other")
    assert desk.peer.answers == []
    await desk.sent(body=b"one", queue_id=1)
    (answer,) = desk.peer.answers
    assert bodies(answer) == [b"one"]
    assert len(desk.broker.held) == 1


@pytest.mark.row("S048")
async def test_a_hold_ends_after_the_time_the_client_says(desk: BrokerHarness) -> None:
    """The answer is PULL_NOT_FOUND with the four numbers, and the pull is not held again."""
    await hold(desk, suspend_timeout_millis=15_000)
    began = desk.clock.now_ms()
    desk.expire_pulls(began + 14_999)
    assert desk.peer.answers == []
    desk.expire_pulls(began + 15_000)
    (answer,) = desk.peer.answers
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert places(answer) == (0, 0, 0)
    assert len(desk.broker.held) == 0


@pytest.mark.parametrize(("asked", "held_ms"), [(2**62, MAX_HOLD_MS), (-5, 0), (0, 0)])
async def test_a_hold_has_limits(desk: BrokerHarness, asked: int, held_ms: int) -> None:
    """The hold time is limited to MAX_HOLD_MS, and negative times count as 0."""
    await hold(desk, suspend_timeout_millis=asked)
    began = desk.clock.now_ms()
    desk.expire_pulls(began + held_ms - 1)
    assert len(desk.peer.answers) == 0
    desk.expire_pulls(began + held_ms)
    assert len(desk.peer.answers) == 1


async def test_without_long_polling_a_hold_is_short(opened: Opened) -> None:
    """shortPollingTimeMills applies, whatever the client requests."""
    async with opened(longPollingEnable=False) as desk:
        await hold(desk)
        desk.expire_pulls(desk.clock.now_ms() + 1_000)
        assert len(desk.peer.answers) == 1


@pytest.mark.row("S047")
async def test_the_safety_net_finds_a_message_that_woke_nobody(desk: BrokerHarness) -> None:
    """A message with another tag advances the pull: PULL_RETRY_IMMEDIATELY with the next offset."""
    await hold(desk, subscription="B")
    await desk.sent(properties={"TAGS": "A"})
    desk.broker.held.recheck(desk.broker.store.max_offset)
    desk.broker.work.finish()
    (answer,) = desk.peer.answers
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert places(answer) == (1, 0, 1)


async def test_one_message_wakes_every_group(desk: BrokerHarness) -> None:
    """Held pulls of many groups and connections on one queue are all woken."""
    peers = [FakePeer(port=port) for port in range(40_000, 40_020)]
    for number, peer in enumerate(peers):
        await hold(desk, peer=peer, consumer_group=f"g{number}")
    await desk.sent(body=b"all")
    assert [bodies(peer.answers[0]) for peer in peers] == [[b"all"]] * 20


async def test_what_changed_meanwhile_counts(desk: BrokerHarness) -> None:
    """If the topic was deleted or the group disabled while the pull was held, the second run reports it."""
    await hold(desk)
    await desk.broker.topics.delete("T")
    desk.expire_pulls(desk.clock.now_ms() + 15_000)
    assert desk.peer.answers.pop().code == ResponseCode.TOPIC_NOT_EXIST
    await desk.broker.topics.put(TopicConfig(topic_name="T"))
    await hold(desk)
    await desk.broker.groups.put(SubscriptionGroupConfig(group_name="g", consume_enable=False))
    await desk.sent()
    assert desk.peer.answers.pop().code == ResponseCode.NO_PERMISSION


async def test_a_pull_too_many_is_answered_at_once(
    desk: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client then polls, which is slower but harmless."""
    monkeypatch.setattr(held_pulls, "MAX_HELD_PULLS_PER_CONNECTION", 1)
    await hold(desk)
    assert (await desk.pull(sys_flag=HOLD)).code == ResponseCode.PULL_NOT_FOUND


@pytest.mark.parametrize("subscription", ["*", "news"])
async def test_a_pull_of_a_member_that_has_left_moves_nothing(desk: BrokerHarness, subscription: str) -> None:
    """A held pull whose consumer has unregistered is refused when a message arrives, and the group's pull
    offset stays; a pull of a connection that never was a member goes on."""
    data = ConsumerData(group_name="g", subscription_data_set=[SubscriptionData(topic="T")])
    await desk.heartbeat(data, client_id="c1")
    await hold(desk, subscription=subscription)
    pulled = desk.broker.offsets.pulled
    pulled.set("g", "T", 0, 0)
    header = UnregisterClientRequestHeader(client_id="c1", consumer_group="g")
    assert (await desk.ask(RequestCode.UNREGISTER_CLIENT, header)).code == 0
    await desk.sent(body=b"x", properties={"TAGS": "news"})
    (refused,) = desk.peer.answers
    assert refused.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    assert pulled.get("g", "T", 0) == 0
    other = FakePeer()
    await hold(desk, peer=other, offset=1)
    await desk.sent(body=b"y")
    assert bodies(other.answers[0]) == [b"y"]
    assert pulled.get("g", "T", 0) == 2


async def test_a_pull_of_a_connection_that_is_gone_is_not_answered(desk: BrokerHarness) -> None:
    """The message is still delivered to others."""
    gone, alive = FakePeer(), FakePeer()
    await hold(desk, peer=gone)
    await hold(desk, peer=alive)
    gone.close()
    await desk.sent(body=b"x")
    assert gone.answers == []
    assert bodies(alive.answers[0]) == [b"x"]


async def test_a_held_pull_commits_once(desk: BrokerHarness) -> None:
    """The offset is committed by the first run; the second must not overwrite later commits."""
    await hold(desk, sys_flag=HOLD | 1, commit_offset=0)
    desk.broker.offsets.commit("g", "T", 0, 5)
    await desk.sent()
    assert len(desk.peer.answers) == 1
    assert desk.broker.offsets.get("g", "T", 0) == 5
