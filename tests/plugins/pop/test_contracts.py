"""The processors keep the contract of processors, over every store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

from rmqkit.broker.run.running import RunningBroker
from rmqkit.model.names import lite_queue
from rmqkit.model.run import MessageRun
from rmqkit.model.topic import TopicConfig
from rmqkit.plugin.request import RequestProcessor
from rmqkit.plugin.request_broker import RequestBroker
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import (
    NotificationRequestHeader,
    PollingInfoRequestHeader,
    PopLiteMessageRequestHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from rmqkit.protocol.receipt import BatchAck, BatchAckMessageRequestBody, parse_offset_infos
from rmqkit.testing.broker import running_broker
from rmqkit.testing.calls import Call, calling_broker
from rmqkit.testing.processor import ProcessorContract
from rmqkit.testing.store import message
from rmqkit_pop.acking import BatchAckProcessor
from rmqkit_pop.lite.popping import LitePopProcessor
from rmqkit_pop.notifying import NotificationProcessor, PollingInfoProcessor
from rmqkit_pop.plugin import engine_of, lites_of
from rmqkit_pop.popping import PopProcessor

FULL, EMPTY = "TBW102", "SELF_TEST_TOPIC"


class Served(ProcessorContract):
    """The processor that the plugin has registered."""

    store: ClassVar[str] = "memory"

    @asynccontextmanager
    async def serving(self, directory: Path) -> AsyncIterator[tuple[RunningBroker, Call]]:
        async with (
            running_broker(directory, scheme="memory", store=self.store) as broker,
            calling_broker(broker) as call,
        ):
            await broker.context.groups.ensure("g")
            self.make_processor(broker.context)
            yield broker, call


class PopContract(Served):
    code = RequestCode.POP_MESSAGE

    def make_processor(self, broker: RequestBroker) -> RequestProcessor:
        broker.appender.append(MessageRun([message(FULL, 0, b"%d" % number) for number in range(5_000)]))
        return PopProcessor(engine_of(broker))

    def _pop(self, topic: str) -> Command:
        header = PopMessageRequestHeader(
            consumer_group="g",
            topic=topic,
            queue_id=-1,
            max_msg_nums=2,
            invisible_time=60_000,
            poll_time=20_000,
        )
        return request(self.code, header)

    def good(self) -> Command:
        return self._pop(FULL)

    def waiting(self) -> Command:
        return self._pop(EMPTY)

    def check(self, answer: Command) -> None:
        (queue,) = parse_offset_infos(answer.header(PopMessageResponseHeader))
        assert len(queue.offsets) == 2
        assert answer.body


class TestPopInMemory(PopContract):
    store = "memory"


class TestPopMmap(PopContract):
    store = "mmap"


class TestPopLmdb(PopContract):
    store = "lmdb"


class TestPopLite(Served):
    """Of many lite topics, for each is leased by itself, and of one that is empty."""

    code = RequestCode.POP_LITE_MESSAGE

    def make_processor(self, broker: RequestBroker) -> RequestProcessor:
        lites = lites_of(broker, engine_of(broker))
        broker.topics.configs["T"] = TopicConfig(topic_name="T", attributes={"message.type": "LITE"})
        names = [f"chat-{number}" for number in range(1_000)]
        for client, subscribed in (("full", names), ("empty", ["none"])):
            subscriber = lites.subscriptions.said("g", client, "T", 0)
            lites.subscriptions.add(subscriber, [lite_queue("T", each) for each in subscribed])
        messages = [message("T", 0, name.encode()) for name in names]
        for each, name in zip(messages, names, strict=True):
            each.set_properties({"__LITE_TOPIC": name})
        broker.appender.append(MessageRun(messages))
        return LitePopProcessor(lites)

    def _pop(self, client: str) -> Command:
        header = PopLiteMessageRequestHeader(
            client_id=client,
            consumer_group="g",
            topic="T",
            max_msg_num=1,
            invisible_time=60_000,
            poll_time=20_000,
        )
        return request(self.code, header)

    def good(self) -> Command:
        return self._pop("full")

    def waiting(self) -> Command:
        return self._pop("empty")

    def check(self, answer: Command) -> None:
        assert answer.body


class TestNotification(Served):
    code = RequestCode.NOTIFICATION

    def make_processor(self, broker: RequestBroker) -> RequestProcessor:
        broker.appender.append(MessageRun([message(FULL, 0, b"x")]))
        return NotificationProcessor(engine_of(broker))

    def _ask(self, topic: str) -> Command:
        header = NotificationRequestHeader(consumer_group="g", topic=topic, queue_id=-1, poll_time=20_000)
        return request(self.code, header)

    def good(self) -> Command:
        return self._ask(FULL)

    def waiting(self) -> Command:
        return self._ask(EMPTY)


class TestBatchAck(Served):
    code = RequestCode.BATCH_ACK_MESSAGE

    def make_processor(self, broker: RequestBroker) -> RequestProcessor:
        return BatchAckProcessor(engine_of(broker))

    def good(self) -> Command:
        ack = BatchAck(
            group="g", topic=FULL, start_offset=0, queue_id=0, revive_queue=0, pop_time_ms=1, bits="AQ=="
        )
        return Command(code=self.code, body=loose_json.dumps(BatchAckMessageRequestBody(acks=[ack])))


class TestPollingInfo(Served):
    code = RequestCode.POLLING_INFO

    def make_processor(self, broker: RequestBroker) -> RequestProcessor:
        return PollingInfoProcessor(engine_of(broker))

    def good(self) -> Command:
        return request(self.code, PollingInfoRequestHeader(consumer_group="g", topic=FULL, queue_id=-1))
