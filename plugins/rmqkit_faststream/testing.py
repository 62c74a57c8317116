"""A broker of FastStream for tests, without servers; with `with_real=True` over those of `rmqkit.testing`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import MagicMock

from faststream._internal.testing.broker import TestBroker, change_producer

from rmqkit.client import Message, MessageQueue, ReceivedMessage
from rmqkit_faststream.broker import RocketBroker
from rmqkit_faststream.publisher import RocketBatchPublisher, RocketCommand, RocketProducer, RocketPublisher
from rmqkit_faststream.subscriber import RocketSubscriber


class _Handed:
    """A message that has no consumer: nothing comes of its acknowledgement."""

    def __init__(self, *messages: ReceivedMessage) -> None:
        self.message = messages[0]
        self.messages = messages

    async def ack(self) -> bool:
        return True

    async def retry(self, after_ms: float | None = None) -> bool:
        return True

    async def __aenter__(self) -> ReceivedMessage:
        return self.message

    async def __aexit__(self, *_: object) -> bool:
        return True


class TestRocketBroker(TestBroker[RocketBroker, Any], broker=RocketBroker):
    """Gives what is published to the handlers of one subscriber of each group, at once and in the caller's
    task.

        async with TestRocketBroker(broker) as under_test:
            await under_test.publish({"id": 7}, "Orders")
            charge.mock.assert_called_once_with({"id": 7})

    With `with_real=True` messages go through the servers of the broker.
    """

    def create_publisher_fake_subscriber(
        self, broker: RocketBroker, publisher: RocketPublisher
    ) -> tuple[RocketSubscriber, bool]:
        """The subscriber that shows what a publisher publishes, and whether it is one of the application."""
        for each in _subscribers(self.brokers):
            if each.topic == publisher.topic:
                return each, True
        group = f"tests-{publisher.topic}"
        made = broker.subscriber(
            publisher.topic,
            group=group,
            consumer={"start": "first"},
            batch=isinstance(publisher, RocketBatchPublisher),
            persistent=False,
        )
        return made, False

    @contextmanager
    def _patch_producer(self, broker: RocketBroker) -> Iterator[None]:
        with change_producer(broker.config.broker_config, _Handing(broker, self.brokers)):
            yield

    async def _fake_connect(self, broker: RocketBroker, *_: Any, **__: Any) -> Any:
        return MagicMock()


class _Handing(RocketProducer):
    """Gives messages to subscribers instead of sending them."""

    def __init__(self, broker: RocketBroker, brokers: Sequence[RocketBroker]) -> None:
        config = broker.config.broker_config
        super().__init__(config.broker_parser, config.broker_decoder)
        self.connect(None, config.fd_config._serializer, config.broker_codec)
        self._brokers = brokers

    async def publish(self, command: RocketCommand) -> None:
        """Give a message to one subscriber of each group that subscribes to its topic and tag."""
        await self._hand(await self.message(command))

    async def publish_batch(self, command: RocketCommand) -> None:
        """Give messages to one subscriber of each group, together if it takes batches."""
        await self._hand(*await self.messages(command))

    async def _hand(self, *messages: Message) -> None:
        groups: set[str] = set()
        for each in _subscribers(self._brokers):
            wanted = [_received(message) for message in messages if each.wants(message)]
            if not wanted or each.group in groups:
                continue
            groups.add(each.group)
            for batch in [wanted] if each.takes_batches else [[message] for message in wanted]:
                await each.process_message(_Handed(*batch))


def _subscribers(brokers: Sequence[RocketBroker]) -> Iterator[RocketSubscriber]:
    for broker in brokers:
        for each in broker.subscribers:
            assert isinstance(each, RocketSubscriber)
            yield each


def _received(message: Message) -> ReceivedMessage:
    now_ms = time.time_ns() // 1_000_000
    return ReceivedMessage(
        topic=message.topic,
        body=message.body,
        tag=message.tag,
        keys=tuple(message.keys),
        properties=message.properties,
        queue=MessageQueue(message.topic, "tests", 0),
        queue_offset=0,
        message_id=f"test-{now_ms}",
        offset_message_id="",
        born_timestamp_ms=now_ms,
        store_timestamp_ms=now_ms,
        born_host="",
        store_host="",
        physical_offset=0,
    )


__all__ = ["TestRocketBroker"]
