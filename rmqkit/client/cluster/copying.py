"""Reading of a part of a topic, and sending of its messages anew: what commands and pages do with messages
that shall be looked at or sent again."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Final

import anyio

from rmqkit.client.cluster.dead_letter_views import first_waiting, origin_topic
from rmqkit.client.cluster.group_admin import END_MS
from rmqkit.client.consumer.pull_consumer import PullConsumer
from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.client.producing.outgoing import PackedBatch, fits_batches
from rmqkit.client.producing.producer import Producer
from rmqkit.errors import ClientError, MessageIllegal
from rmqkit.model import properties as props
from rmqkit.model.message import Message
from rmqkit.model.names import retry_topic
from rmqkit.model.queue import MessageQueue
from rmqkit.protocol import batch
from rmqkit.protocol.message_id import UniqueKeys

if TYPE_CHECKING:
    from rmqkit.client.client import Client

#: The group of reads that commit nothing.
READER_GROUP: Final = "rmqkit_cli_reader"
_PULL_MESSAGES: Final = 32
#: Messages between two commits of a `Place`.
_COMMIT_EVERY: Final = 32
#: Where a dead letter goes: to the topic that it was sent to, for all its groups, or to the retry topic of
#: its group, for this group alone.
ORIGINAL: Final = "original"
RETRY: Final = "retry"

#: Properties that each sending sets, from what the application says.
_OF_APPLICATION: Final = {props.TAGS, props.KEYS}
#: Queue -> first offset and end.
Span = Mapping[MessageQueue, tuple[int, int]]


def reader(client: Client, group: str = READER_GROUP) -> PullConsumer:
    """A consumer that shows everything, records that cannot be decoded as well, and sends none away."""
    return client.pull_consumer(group, bad_records="deliver")


async def span(client: Client, topic: str, begin_ms: int = 0, end_ms: int = END_MS) -> Span:
    """The offsets of the messages stored from `begin_ms` until before `end_ms`; by default all that are
    there now. Raises NoRoute."""
    begins = await client.groups.offsets_at(topic, begin_ms)
    ends = await client.groups.offsets_at(topic, end_ms)
    return {queue: (begin, ends[queue]) for queue, begin in begins.items() if queue in ends}


def count(offsets: Span) -> int:
    """Number of messages, before filters."""
    return sum(max(end - begin, 0) for begin, end in offsets.values())


async def read(
    consumer: PullConsumer, offsets: Span, expression: str = "*", expression_type: str | None = None
) -> AsyncGenerator[ReceivedMessage]:
    """The messages of a span, queue by queue. Nothing is committed."""
    for queue, (offset, end) in offsets.items():
        while offset < end:
            wanted = min(end - offset, _PULL_MESSAGES)
            result = await consumer.pull(
                queue, offset, expression=expression, expression_type=expression_type, max_messages=wanted
            )
            for message in result.messages:
                if message.queue_offset < end:
                    yield message
            if result.next_offset <= offset:
                break
            offset = result.next_offset


def again(message: ReceivedMessage, topic: str, added: Mapping[str, str] | None = None) -> Message:
    """The message as it was written, for another topic. It gets a new id, and loses the properties of its
    first sending; `added` are further properties. Tag and keys are copied as they are stored: a broker has
    accepted them, so they must not fail at the rules for applications."""
    own = {
        name: value
        for name, value in message.properties.items()
        if name in _OF_APPLICATION or name not in props.OF_ONE_SENDING
    }
    return Message(
        topic,
        message.body,
        properties=own | dict(added or {}),
        ordering_key=message.ordering_key,
        flag=message.flag,
    )


async def unsent(consumer: PullConsumer, offsets: Span) -> Span:
    """The part of a span that the consumer's group has not sent again, by its committed offsets."""
    return {
        queue: (first_waiting(await consumer.committed(queue), begin, end), end)
        for queue, (begin, end) in offsets.items()
    }


def dead_letter_again(message: ReceivedMessage, group: str, to: str) -> Message:
    """A dead letter of a group for `ORIGINAL`, `RETRY` or a topic. Raises ClientError when it does not name
    the topic that it was sent to and no other is given."""
    origin = origin_topic(message)
    if to == RETRY:
        # Its consumers see the topic that the message was sent to.
        return again(message, retry_topic(group), {} if origin is None else {props.RETRY_TOPIC: origin})
    topic = origin if to == ORIGINAL else to
    if topic is None:
        raise ClientError(f"dead letter {message.message_id} does not name its topic: choose one with --to")
    return again(message, topic)


class Pace:
    """Lets work through at a rate per second; None means no limit."""

    def __init__(self, rate: float | None) -> None:
        self._step_s = 0.0 if rate is None else 1 / rate
        self._next_s = anyio.current_time()

    async def turn(self) -> None:
        """Wait until the next piece of work may begin. Time that was not used is not made up for."""
        now_s = anyio.current_time()
        if self._next_s > now_s:
            await anyio.sleep_until(self._next_s)
        self._next_s = max(self._next_s, now_s) + self._step_s


class Sender:
    """Sends copies of messages one after the other, at most at a rate per second; None means no limit."""

    def __init__(self, producer: Producer, rate: float | None) -> None:
        self._producer = producer
        self._pace = Pace(rate)
        self._keys = UniqueKeys()

    async def send(self, message: Message, origin: ReceivedMessage) -> None:
        """Send a copy of a message. Raises SendFailed, and MessageIllegal when it never can be sent, because
        the original cannot be decoded for example."""
        await self._pace.turn()
        if origin.fault is not None:
            raise MessageIllegal(f"it cannot be decoded and is not sent: {origin.fault}")
        await self._send(message, origin.stored_properties)

    async def _send(self, message: Message, stored: bytes | None) -> None:
        """Bytes that are not UTF-8 go through in a batch alone: the properties of other requests are text."""
        if stored is None or not fits_batches(message):
            await self._producer.send(message)
            return
        key = self._keys.make(time.time_ns() // 1_000_000)
        properties = props.changed(stored, message.all_properties() | {props.UNIQ_KEY: key})
        body = batch.encode([batch.BatchItem(message.flag, bytes(message.body), properties)])
        if len(body) > self._producer.options.max_message_bytes:
            await self._producer.send(message)
            return
        packed = PackedBatch(topic=message.topic, body=body, count=1, ordering_key=message.ordering_key)
        await self._producer.send_packed(packed)


class Place:
    """How far a copying has come; without a consumer nothing is kept."""

    def __init__(self, consumer: PullConsumer | None) -> None:
        self._consumer = consumer
        self._offsets: dict[MessageQueue, int] = {}
        self._unsaved = 0

    async def passed(self, message: ReceivedMessage) -> None:
        """Everything up to the message is done. Raises as `save`."""
        self._offsets[message.queue] = message.queue_offset + 1
        self._unsaved += 1
        if self._unsaved >= _COMMIT_EVERY:
            await self.save()

    async def save(self) -> None:
        """Commit the offsets that were reached. Raises what `PullConsumer.commit` raises."""
        self._unsaved = 0
        if self._consumer is not None:
            for queue, offset in self._offsets.items():
                await self._consumer.commit(queue, offset)
