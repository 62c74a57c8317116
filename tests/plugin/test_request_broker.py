"""What processors and put hooks get is enough for a request that waits on all queues of a topic."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.errors import RequestRefused
from rmqkit.model.message import PutMessage
from rmqkit.model.queue import MessageQueue
from rmqkit.model.run import MessageRun
from rmqkit.model.subscription import SubscriptionData
from rmqkit.model.topic import SubscriptionGroupConfig, TopicConfig
from rmqkit.plugin.held import HeldRequest
from rmqkit.plugin.hooks import EachPutHook, PutMessageHook
from rmqkit.plugin.hookspecs import Register, RegisterProcessor
from rmqkit.plugin.request import EachRequest, Outcome, Peer, Ticket
from rmqkit.plugin.request_broker import NeedsBroker, RequestBroker
from rmqkit.plugin.store import ReadLimits
from rmqkit.protocol import record
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.testing.peer import FakePeer
from rmqkit.testing.processor import ProcessorContract
from rmqkit.testing.store import message
from rmqkit.toolkit.unsaved import when_saved
from tests.broker.desk import BrokerHarness, open_desk

CODE = 31_007
GROUP = "takers"
WAIT_MS = 20_000


class TakeFromAny(EachRequest):
    """Answers with the next messages of any queue of a topic, and commits them for its group; waits for all
    queues when there are none. The client locks the queue from which it takes."""

    def __init__(self, broker: RequestBroker) -> None:
        self._broker = broker

    def handle(self, request: Command, peer: Peer) -> Outcome:
        return when_saved(partial(self._take, request, peer), request, peer)

    def _take(self, request: Command, peer: Peer) -> Outcome:
        broker, topic = self._broker, request.fields().get("topic", "")
        config = broker.topics.get(topic)
        if config is None or broker.groups.get(GROUP) is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"no topic {topic[:100]!r}")
        found = self._read(request, topic, config.read_queue_nums)
        if found is not None:
            return found
        keys = tuple((topic, queue_id) for queue_id in range(config.read_queue_nums))
        ticket = peer.postpone((request,), held=True)
        held = HeldRequest(
            request,
            peer,
            keys,
            tuple(broker.offsets.get(GROUP, *key) or 0 for key in keys),
            broker.clock.now_ms() + WAIT_MS,
            None,
            partial(self._retry, ticket, topic, config.read_queue_nums),
        )
        if not broker.held.hold(held):
            ticket.complete((answer(request, ResponseCode.PULL_NOT_FOUND),))
        return ticket

    def _retry(self, ticket: Ticket, topic: str, queues: int, final: bool) -> None:
        (request,) = ticket.requests
        found = self._read(request, topic, queues)
        ticket.complete((found or answer(request, ResponseCode.PULL_NOT_FOUND),))

    def _read(self, request: Command, topic: str, queues: int) -> Command | None:
        broker, now_ms = self._broker, self._broker.clock.now_ms()
        unit = broker.filters.compiled(SubscriptionData(topic=topic), GROUP).unit
        for queue_id in range(queues):
            queue = MessageQueue(topic, broker.config.broker_name, queue_id)
            if broker.locks.lock(GROUP, [queue], "me", now_ms) != [queue]:
                continue
            offset = broker.offsets.get(GROUP, topic, queue_id) or 0
            read = broker.store.read(topic, queue_id, offset, ReadLimits(), unit)
            if read.message_count:
                broker.offsets.commit(GROUP, topic, queue_id, read.next_offset)
                broker.stats.got(GROUP, topic, read.message_count, read.total_bytes)
                return answer(request, body=b"".join(bytes(each) for each in read.slices))
        return None


class Stamp(EachPutHook, NeedsBroker):
    """Writes into each message how many topics the broker has, for which it needs the broker."""

    broker: RequestBroker

    def open(self, broker: RequestBroker) -> None:
        self.broker = broker

    def before_each(self, message: PutMessage) -> None:
        message.set_properties(message.properties | {"topics": str(len(self.broker.topics.configs))})


class Plugin:
    @hookimpl
    def rmqkit_register_processors(self, register: RegisterProcessor, broker: RequestBroker) -> None:
        register(CODE, TakeFromAny(broker), long_wait=True)

    @hookimpl
    def rmqkit_register_put_message_hooks(self, register: Register[PutMessageHook], config: Config) -> None:
        register("stamp", Stamp())


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[BrokerHarness]:
    async with open_desk(tmp_path, extra=[("taking", Plugin())]) as desk:
        yield desk


def take(topic: str = "T") -> Command:
    return Command(code=CODE, ext={"topic": topic}, opaque=7)


def taken(answer: Command | None) -> list[bytes]:
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return [each.body for each in record.unpack_all(answer.body)]


async def test_a_request_waits_for_all_queues_of_a_topic(desk: BrokerHarness) -> None:
    """It is answered by the first queue that gets a message, and what it got is committed and counted."""
    peer = FakePeer()
    assert await desk.outcome(take(), peer) is None
    assert len(desk.broker.held) == 1
    await desk.sent(body=b"news", queue_id=2)
    desk.broker.work.finish()
    assert [taken(each) for each in peer.answers] == [[b"news"]]
    assert len(desk.broker.held) == 0
    assert desk.broker.offsets.get(GROUP, "T", 2) == 1
    assert desk.broker.stats.got_messages == 1
    await desk.sent(body=b"more", queue_id=0)
    assert taken(await desk.outcome(take())) == [b"more"]


async def test_it_is_answered_at_its_deadline_without_messages(desk: BrokerHarness) -> None:
    """As a pull is."""
    peer = FakePeer()
    assert await desk.outcome(take(), peer) is None
    desk.expire_pulls(desk.clock.now_ms() + WAIT_MS)
    assert [each.code for each in peer.answers] == [ResponseCode.PULL_NOT_FOUND]


async def test_a_queue_that_another_client_has_locked_is_left_to_it(desk: BrokerHarness) -> None:
    """Its messages wait; those of other queues do not."""
    queue = MessageQueue("T", desk.broker.config.broker_name, 0)
    desk.broker.locks.lock(GROUP, [queue], "another", desk.clock.now_ms())
    await desk.sent(body=b"locked", queue_id=0)
    await desk.sent(body=b"free", queue_id=1)
    assert taken(await desk.outcome(take())) == [b"free"]
    desk.broker.locks.unlock(GROUP, [queue], "another")
    assert taken(await desk.outcome(take())) == [b"locked"]


async def test_tables_are_changed_with_attributes(desk: BrokerHarness) -> None:
    """Topics and groups are created, replaced and deleted through the port."""
    port: RequestBroker = desk.broker
    attributes = {"message.type": "FIFO"}
    topic = TopicConfig(topic_name="Made", read_queue_nums=1, write_queue_nums=1, attributes=attributes)
    assert await port.topics.put(topic)
    assert not await port.topics.put(topic)
    known = port.topics.get("Made")
    assert known is not None
    assert known.attributes == attributes
    assert await port.topics.delete("Made")
    assert port.topics.get("Made") is None
    group = SubscriptionGroupConfig(group_name="made", retry_max_times=3)
    assert await port.groups.put(group)
    assert await port.groups.ensure("made") == group
    assert await port.groups.delete("made")
    assert "made" not in port.groups.configs


async def test_a_hook_that_needs_the_broker_gets_it(desk: BrokerHarness) -> None:
    """Before the first message, so that it may look at topics, the clock, or append itself."""
    desk.broker.appender.append(MessageRun([message("T", 0, b"x")]))
    (stored,) = desk.stored()
    assert stored.properties["topics"] == str(len(desk.broker.topics.configs))


class TestTakeFromAny(ProcessorContract):
    code = CODE

    def make_processor(self, broker: RequestBroker) -> TakeFromAny:
        broker.appender.append(MessageRun([message("TBW102", 0, b"%d" % number) for number in range(5_000)]))
        return TakeFromAny(broker)

    def good(self) -> Command:
        return take("TBW102")

    def waiting(self) -> Command:
        return take("SELF_TEST_TOPIC")

    def check(self, answer: Command) -> None:
        assert taken(answer)


class AnswersNobody(TakeFromAny):
    """Keeps its waiting requests by itself, where nobody ends them."""

    def handle(self, request: Command, peer: Peer) -> Outcome:
        if request.fields().get("topic") == "SELF_TEST_TOPIC":
            return peer.postpone((request,), held=True)
        return super().handle(request, peer)


async def test_a_processor_that_holds_requests_by_itself_is_found(tmp_path: Path) -> None:
    """The contract looks for them in the broker, which limits them and ends them."""

    class Broken(TestTakeFromAny):
        def make_processor(self, broker: RequestBroker) -> TakeFromAny:
            super().make_processor(broker)
            return AnswersNobody(broker)

    with pytest.RaisesGroup(
        pytest.RaisesExc(AssertionError, match="does not wait among"), flatten_subgroups=True
    ):
        await Broken().test_a_held_request_ends_with_its_connection(tmp_path)
