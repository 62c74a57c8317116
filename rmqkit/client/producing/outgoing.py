"""Preparation of messages for sending: checks, ids, compression, batches (behaviour sheet, A8 to A10).

Java: Validators, DefaultMQProducerImpl.sendKernelImpl, MessageBatch. Only compression in a worker thread
waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import ClassVar

import msgspec
from attrs import frozen

from rmqkit.client.producing.bodies import converted
from rmqkit.errors import ClientError, MessageIllegal
from rmqkit.limits import MAX_BATCH_MESSAGES, MAX_DERIVED_TOPIC_LENGTH, MAX_PROPERTIES_BYTES
from rmqkit.model import properties as props
from rmqkit.model.message import Message
from rmqkit.model.names import DLQ_PREFIX, RETRY_PREFIX, takes_no_sends, topic_fault
from rmqkit.model.queue import MessageQueue
from rmqkit.protocol import batch
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.compressed_body import Compression
from rmqkit.protocol.headers import SendMessageRequestHeaderV2

MAX_DELAY_LEVEL = 18
_TIMED = frozenset({props.DELAY, *props.TIMER_INPUTS, props.REPEAT})
#: Properties of messages that a batch cannot contain, or that brokers treat by themselves.
_SINGLE = _TIMED | {props.TRANSACTION_PREPARED, props.PRODUCER_GROUP, props.PRIORITY}
#: How the topics begin that accept no batches.
_NOT_IN_BATCHES = (RETRY_PREFIX, DLQ_PREFIX)
#: The properties of a message that has none of its own: these, and the id between them.
_WAITS, _WAITS_NOT = (
    f"{props.WAIT}{props.NAME_END}{value}{props.PROPERTY_END}{props.UNIQ_KEY}{props.NAME_END}"
    for value in ("true", "false")
)


@frozen(kw_only=True)
class PackedBatch:
    """Messages of one topic that the caller has encoded, for programs that create many at a time.

    body          the encoded messages, see `rmqkit.protocol.batch`. It is not checked: each message needs a
                  body and a UNIQ_KEY among its properties
    count         number of messages
    ordering_key  that of all messages, which determines the queue
    """

    topic: str
    body: bytes
    count: int
    ordering_key: str | None = None

    def messages(self) -> list[Message]:
        """The decoded messages. Raises DecodeError when the body is malformed."""
        return [
            Message(
                self.topic,
                item.body,
                properties=props.decode_bytes(item.properties),
                ordering_key=self.ordering_key,
                flag=item.flag,
            )
            for item in batch.decode(self.body)
        ]


class Outgoing(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message, or a batch, ready to be sent to any queue of its topic. `unique_keys` has one id per
    message, none for a packed batch; `count` is the number of messages."""

    topic: str
    body: bytes
    properties: str
    unique_keys: tuple[str, ...]
    sys_flag: int = 0
    flag: int = 0
    is_batch: bool = False
    count: int = 1
    reconsume_times: int = 0
    max_reconsume_times: int | None = None

    #: Whether the message is not a message yet, but the half of a transaction.
    is_half: ClassVar[bool] = False

    def again(self) -> Outgoing:
        """What the attempt after a failed one sends. The failed one may have been stored."""
        return self

    @property
    def described(self) -> str:
        """Description for error texts."""
        if not self.is_batch:
            return self.unique_keys[0]
        return f"a batch of {self.count}" if self.unique_keys else f"a packed batch of {len(self.body)} bytes"

    def command(self, group: str, queue: MessageQueue, default_queues: int, now_ms: int) -> Command:
        """The send request for one queue."""
        header = SendMessageRequestHeaderV2(
            producer_group=group,
            topic=self.topic,
            default_topic_queue_nums=default_queues,
            queue_id=queue.queue_id,
            sys_flag=self.sys_flag,
            born_timestamp=now_ms,
            flag=self.flag,
            properties=self.properties,
            reconsume_times=self.reconsume_times,
            max_reconsume_times=self.max_reconsume_times,
            batch=self.is_batch,
            bname=queue.broker_name,
        )
        return request(
            RequestCode.SEND_BATCH_MESSAGE if self.is_batch else RequestCode.SEND_MESSAGE_V2,
            header,
            self.body,
        )


class Half(Outgoing, frozen=True, kw_only=True, gc=False):
    """The half message of a transaction. Each attempt has an id of its own: if two were stored with one id,
    brokers would deliver both.

    given    its properties, without the id
    new_key  makes the ids
    """

    given: dict[str, str]
    new_key: Callable[[], str]

    is_half: ClassVar[bool] = True

    def again(self) -> Outgoing:
        """This half message with another id."""
        key = self.new_key()
        text = properties_text({**self.given, props.UNIQ_KEY: key})
        return msgspec.structs.replace(self, properties=text, unique_keys=(key,))


def check_message(message: Message, max_message_bytes: int) -> None:
    """Check a message before it is sent. Raises ClientError (topic, delay level) and MessageIllegal (body,
    keys, tag)."""
    topic = message.topic
    known = len(topic) <= MAX_DERIVED_TOPIC_LENGTH
    fault = _topic_refusal(topic) if known else _topic_refusal.__wrapped__(topic)
    if fault is not None:
        raise ClientError(fault)
    if not message.body:
        raise MessageIllegal("the body is empty; RocketMQ requires at least one byte")
    if len(message.body) > max_message_bytes:
        raise MessageIllegal(
            f"the body has {len(message.body)} bytes, at most {max_message_bytes} are allowed"
            " (max_message_bytes)"
        )
    if message.tag is not None and (not message.tag.strip() or "||" in message.tag):
        raise MessageIllegal(
            f"tag {message.tag!r} is blank or contains ||; no consumer could subscribe to it"
        )
    for key in message.keys:
        if not key or props.KEY_SEPARATOR in key:
            raise MessageIllegal(
                f"key {key!r} is empty or contains a space; keys are stored separated by spaces"
            )
    if message.delay_level is not None and not 0 <= message.delay_level <= MAX_DELAY_LEVEL:
        raise ClientError(f"delay level {message.delay_level} is not among 1..{MAX_DELAY_LEVEL}")
    if message.priority is not None and message.priority < 0:
        raise ClientError(f"priority {message.priority} is not 0 or more")


@lru_cache(maxsize=1024)
def _topic_refusal(topic: str) -> str | None:
    """Why applications cannot send to a topic, or None. A producer asks it of each message."""
    fault = topic_fault(topic)
    if fault is not None:
        return f"{fault}; a message needs a legal topic"
    if takes_no_sends(topic):
        return f"topic {topic!r} is reserved for the broker; clients cannot send to it"
    return None


def keyed_properties(message: Message, new_key: Callable[[], str]) -> tuple[str, str]:
    """The id of a message and the text of its properties. Raises MessageIllegal as `properties_text`."""
    if not (
        message.properties
        or message.tag
        or message.keys
        or message.ordering_key
        or message.delay_level
        or message.priority is not None
    ):
        key = new_key()
        return key, f"{_WAITS if message.wait_store else _WAITS_NOT}{key}{props.PROPERTY_END}"
    properties = message.all_properties()
    key = properties.setdefault(props.UNIQ_KEY, new_key())
    return key, properties_text(properties)


def properties_text(properties: dict[str, str]) -> str:
    """The properties in their form on the wire. Raises MessageIllegal when the properties are too long, hold
    a separator or are not text."""
    text = props.encode(properties)
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise MessageIllegal(
            f"the properties hold half of a surrogate pair, {text[error.start]!r}, which is not text; cut"
            " texts between characters"
        ) from error
    if size > MAX_PROPERTIES_BYTES:
        raise MessageIllegal(f"the properties have {size} bytes, at most {MAX_PROPERTIES_BYTES} are allowed")
    return text


def prepare(message: Message, new_key: Callable[[], str], *, max_message_bytes: int) -> Outgoing:
    """Prepare one message, uncompressed. Raises like `check_message`."""
    check_message(message, max_message_bytes)
    if message.topic.startswith(RETRY_PREFIX):
        return _prepare_retry(message, new_key)
    key, text = keyed_properties(message, new_key)
    return Outgoing(
        topic=message.topic, body=bytes(message.body), properties=text, unique_keys=(key,), flag=message.flag
    )


def prepare_half(message: Message, new_key: Callable[[], str], *, max_message_bytes: int) -> Half:
    """Prepare the half message of a transaction, uncompressed. Raises like `check_message`."""
    check_message(message, max_message_bytes)
    given, key = message.all_properties(), new_key()
    return Half(
        topic=message.topic,
        body=bytes(message.body),
        properties=properties_text({**given, props.UNIQ_KEY: key}),
        unique_keys=(key,),
        flag=message.flag,
        given=given,
        new_key=new_key,
    )


async def compressed(outgoing: Outgoing, compression: Compression, level: int) -> Outgoing:
    """The message with a compressed body; a body that compression does not make smaller stays as it is."""
    smaller = await converted(compression.deflate, outgoing.body, level)
    if len(smaller) >= len(outgoing.body):
        return outgoing
    return msgspec.structs.replace(outgoing, body=smaller, sys_flag=compression.sys_flag)


def _prepare_retry(message: Message, new_key: Callable[[], str]) -> Outgoing:
    """A message to a retry topic: the header has the numbers of its deliveries."""
    properties = message.all_properties()
    key = properties.setdefault(props.UNIQ_KEY, new_key())
    reconsume_times = int(properties.pop(props.RECONSUME_TIME, "0"))
    limit = properties.pop(props.MAX_RECONSUME_TIMES, None)
    max_reconsume_times = None if limit is None else int(limit)
    return Outgoing(
        topic=message.topic,
        body=bytes(message.body),
        properties=properties_text(properties),
        unique_keys=(key,),
        flag=message.flag,
        reconsume_times=reconsume_times,
        max_reconsume_times=max_reconsume_times,
    )


def prepare_batch(
    messages: Sequence[Message], new_key: Callable[[], str], *, max_message_bytes: int
) -> Outgoing:
    """Prepare a batch, of which the broker stores all messages or none. Batches are not compressed.

    Raises ClientError when the messages differ in topic, wait_store or ordering key, when one is delayed, or
    when the topic is a retry topic; MessageIllegal when the batch is too large; and like `check_message`.
    """
    if not messages:
        raise ClientError("a batch holds at least one message")
    if len(messages) > MAX_BATCH_MESSAGES:
        raise MessageIllegal(f"a batch of {len(messages)} messages, at most {MAX_BATCH_MESSAGES} are allowed")
    first = messages[0]
    if first.topic.startswith(_NOT_IN_BATCHES):
        raise ClientError("retry and dead-letter topics accept no batches; send the messages one by one")
    items, keys = [], []
    for message in messages:
        if message.topic != first.topic:
            raise ClientError(
                f"a batch has one topic, not {first.topic!r} and {message.topic!r}; send one batch per topic"
            )
        if message.wait_store != first.wait_store:
            raise ClientError(
                "the messages of a batch must have the same wait_store; send one batch per value"
            )
        if message.ordering_key != first.ordering_key:
            raise ClientError(
                "the messages of a batch go to one queue, so they have one ordering key; send one batch"
                " per key"
            )
        if is_timed(message):
            raise ClientError("a batch cannot contain delayed messages; send them one by one")
        key, item = batch_item(message, new_key, max_message_bytes=max_message_bytes)
        keys.append(key)
        items.append(item)
    return batch_of(first.topic, first.wait_store, keys, items, max_message_bytes=max_message_bytes)


def is_timed(message: Message) -> bool:
    """Whether the message has a delay level or a delivery time."""
    return bool(message.delay_level) or not _TIMED.isdisjoint(message.properties)


def fits_batches(message: Message) -> bool:
    """Whether the message may share a request with others: it has no delay and no priority, belongs to no
    transaction, and its topic is not one of retries or dead letters."""
    return (
        not message.delay_level
        and message.priority is None
        and (not message.properties or _SINGLE.isdisjoint(message.properties))
        and not message.topic.startswith(_NOT_IN_BATCHES)
    )


def batch_item(
    message: Message, new_key: Callable[[], str], *, max_message_bytes: int
) -> tuple[str, batch.BatchItem]:
    """The id of a message and its parts within a batch. Raises like `check_message`."""
    check_message(message, max_message_bytes)
    key, text = keyed_properties(message, new_key)
    return key, batch.BatchItem(message.flag, bytes(message.body), text.encode())


def batch_of(
    topic: str,
    wait_store: bool,
    keys: Iterable[str],
    items: Iterable[batch.BatchItem],
    *,
    max_message_bytes: int,
) -> Outgoing:
    """The batch of the messages of `batch_item`. Raises MessageIllegal when it is too large."""
    body = batch.encode(items)
    _check_batch_bytes(body, max_message_bytes)
    unique_keys = tuple(keys)
    return Outgoing(
        topic=topic,
        body=body,
        properties=properties_text({props.WAIT: "true" if wait_store else props.NO_WAIT}),
        unique_keys=unique_keys,
        is_batch=True,
        count=len(unique_keys),
    )


def prepare_packed(packed: PackedBatch, *, max_message_bytes: int) -> Outgoing:
    """Prepare a batch that is already encoded. Raises ClientError for a topic that accepts no batches,
    MessageIllegal when the batch is too large or empty."""
    fault = topic_fault(packed.topic)
    if fault is not None or takes_no_sends(packed.topic) or packed.topic.startswith(_NOT_IN_BATCHES):
        raise ClientError(
            f"{fault or f'topic {packed.topic!r} accepts no batches'}; a batch needs an ordinary topic"
        )
    if not 0 < packed.count <= MAX_BATCH_MESSAGES:
        raise MessageIllegal(f"a batch of {packed.count} messages, 1 to {MAX_BATCH_MESSAGES} are allowed")
    _check_batch_bytes(packed.body, max_message_bytes)
    text = properties_text({props.WAIT: "true"})
    return Outgoing(
        topic=packed.topic,
        body=packed.body,
        properties=text,
        unique_keys=(),
        is_batch=True,
        count=packed.count,
    )


def _check_batch_bytes(body: bytes, max_message_bytes: int) -> None:
    if len(body) > max_message_bytes:
        raise MessageIllegal(
            f"the batch has {len(body)} bytes, at most {max_message_bytes} are allowed; make several smaller"
            " ones"
        )
