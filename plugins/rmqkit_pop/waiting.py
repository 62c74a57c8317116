"""What POP_MESSAGE and NOTIFICATION have in common: their checks, the queues that they read, and the wait."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import msgspec

from rmqkit.errors import RequestRefused
from rmqkit.model import names
from rmqkit.model.sysflag import PERM_READ, PULL_SUBSCRIPTION
from rmqkit.model.topic import SubscriptionGroupConfig, TopicConfig
from rmqkit.plugin.filter import CompiledFilter
from rmqkit.plugin.held import QueueKey as HeldKey
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.headers import (
    NotificationRequestHeader,
    PollingInfoRequestHeader,
    PopMessageRequestHeader,
    PullMessageRequestHeader,
)
from rmqkit_pop.engine import Engine, waiting_key
from rmqkit_pop.leases import Queue, QueueKey
from rmqkit_pop.limits import MAX_ATTEMPT_ID, MAX_POLL_MS

Waiting = PopMessageRequestHeader | NotificationRequestHeader
QUEUE, KEY = "queue", "key"
#: Where a new group begins: `initMode` of a pop for the first message.
_FROM_FIRST = 0


class Source(msgspec.Struct, frozen=True, gc=False):
    """A queue from which a request may be answered; `is_retry` for one of a retry topic."""

    key: QueueKey
    is_retry: bool


def check(
    engine: Engine, header: Waiting | PollingInfoRequestHeader
) -> tuple[TopicConfig, SubscriptionGroupConfig]:
    """The topic and the group of a request that may read. Raises RequestRefused, Unsaved."""
    engine.require_ready()
    broker = engine.broker
    name = broker.config.broker_name
    if not broker.config.broker_permission & PERM_READ:
        raise RequestRefused(ResponseCode.NO_PERMISSION, f"broker {name} may not be read now")
    topic = broker.topics.settled(header.topic)
    if topic is None:
        raise RequestRefused(
            ResponseCode.TOPIC_NOT_EXIST, f"topic {header.topic[:300]!r} does not exist at broker {name}"
        )
    if not topic.readable:
        raise RequestRefused(ResponseCode.NO_PERMISSION, f"topic {header.topic} may not be read")
    if header.queue_id >= topic.read_queue_nums or header.queue_id < -1:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"queue {header.queue_id} of topic {header.topic} does not exist, it has {topic.read_queue_nums}:"
            " use one of them, or -1 for all",
        )
    group = broker.groups.get(header.consumer_group)
    if group is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"consumer group {header.consumer_group[:300]!r} does not exist",
        )
    if not group.consume_enable:
        raise RequestRefused(ResponseCode.NO_PERMISSION, group.consume_refusal)
    fault = _retry_fault(header.topic, header.consumer_group)
    if fault:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"messages that group {header.consumer_group} does not acknowledge would have no retry topic:"
            f" {fault}; use a shorter name for the group",
        )
    return topic, group


@lru_cache(maxsize=1_024)
def _retry_fault(topic: str, group: str) -> str | None:
    """What is wrong with the name of the retry topic."""
    return names.topic_fault(names.pop_retry_topic(topic, group))


def check_wait(header: Waiting, now_ms: int) -> int:
    """The time until which a request waits, from its arrival on. Java counts from `bornTime`, and refuses
    what seems to be late (isTimeoutTooMuch): a client whose clock is behind by more than its wait gets
    nothing there. Raises RequestRefused for odd fields."""
    if header.attempt_id is not None and len(header.attempt_id) > MAX_ATTEMPT_ID:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER, f"an attemptId has at most {MAX_ATTEMPT_ID} characters"
        )
    if header.order_by not in (None, QUEUE, KEY):
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER, f"orderBy is {QUEUE} or {KEY}, not {header.order_by[:30]!r}"
        )
    return now_ms + min(max(header.poll_time, 0), MAX_POLL_MS)


def filter_of(engine: Engine, header: PopMessageRequestHeader) -> CompiledFilter:
    """The filter of a pop: that of a pull with the same subscription. Raises RequestRefused."""
    return engine.broker.filters.of(
        PullMessageRequestHeader(
            consumer_group=header.consumer_group,
            topic=header.topic,
            queue_id=0,
            queue_offset=0,
            sys_flag=PULL_SUBSCRIPTION,
            subscription=header.exp or None,
            expression_type=header.exp_type or None,
        )
    )


def retry_sources(engine: Engine, topic: str, group: str) -> list[Source]:
    """The queues of the retry topics that exist."""
    settings, found = engine.settings, []
    versions = [settings.enable_retry_topic_v2]
    if settings.enable_retry_topic_v2 and settings.retrieve_message_from_pop_retry_topic_v1:
        versions.append(False)
    for v2 in versions:
        name = names.pop_retry_topic(topic, group, v2=v2)
        config = engine.broker.topics.get(name)
        for queue_id in range(config.read_queue_nums if config is not None else 0):
            found.append(Source(QueueKey(group, name, queue_id), is_retry=True))
    return found


def own_sources(header: Waiting, config: TopicConfig, first: int) -> list[Source]:
    """The queues of the topic itself, all beginning with a different one each time."""
    count = config.read_queue_nums
    ids = [header.queue_id] if header.queue_id >= 0 else [(first + at) % count for at in range(count)]
    return [
        Source(QueueKey(header.consumer_group, header.topic, queue_id), is_retry=False) for queue_id in ids
    ]


def ranked_sources(engine: Engine, header: Waiting, config: TopicConfig) -> list[Source]:
    """The queues of the topic itself, that of the highest priority first."""
    sources = own_sources(header, config, 0)
    return sources[::-1] if engine.settings.priority_order_asc else sources


def first_offset(engine: Engine, source: Source, from_first: bool) -> int:
    """Where a group begins that has read nothing of a queue: at the first message that is there, or (Java:
    PopMessageProcessor.getInitOffset) at the last one, unless all of the queue is in memory. Raises
    NotInMemory."""
    store, (_, topic, queue_id) = engine.broker.store, source.key
    low = store.min_offset(topic, queue_id)
    if from_first or source.is_retry:
        return low
    if low == 0:
        units = store.read_units(topic, queue_id, 0, 1)
        if not units or store.end_offset - units[0].physical_offset <= engine.memory_bytes:
            return 0
    return max(low, store.max_offset(topic, queue_id) - 1)


def queue_of(engine: Engine, source: Source, header: Waiting) -> Queue:
    """The queue of a source. Raises NotInMemory, RequestRefused."""
    from_first = isinstance(header, NotificationRequestHeader) or header.init_mode == _FROM_FIRST
    ordered = bool(header.order) and not source.is_retry
    return engine.queue(source.key, lambda: first_offset(engine, source, from_first), ordered=ordered)


def held_keys(engine: Engine, header: Waiting, config: TopicConfig) -> tuple[HeldKey, ...]:
    """What a request waits for: its queues, those of the retry topics, which need not exist yet, and the end
    of leases."""
    group, topic = header.consumer_group, header.topic
    keys = [source.key[1:] for source in own_sources(header, config, 0)]
    for v2 in {engine.settings.enable_retry_topic_v2, False}:
        keys.append((names.pop_retry_topic(topic, group, v2=v2), 0))
    pops = isinstance(header, PopMessageRequestHeader)
    return (*keys, waiting_key(group, topic, header.queue_id, pops=pops))


def held_offsets(engine: Engine, header: Waiting, keys: tuple[HeldKey, ...]) -> Iterator[int]:
    """The offsets at which a request waits that has looked at all of its queues: an ordered queue is not
    looked at again for what lies behind unfinished messages."""
    store = engine.broker.store
    for topic, queue_id in keys[:-1]:
        queue = engine.leases.queues.get(QueueKey(header.consumer_group, topic, queue_id))
        if queue is None or queue.ordered:
            yield store.max_offset(topic, queue_id)
        else:
            yield queue.position
    yield 0


__all__ = [
    "KEY",
    "QUEUE",
    "Source",
    "Waiting",
    "check",
    "check_wait",
    "filter_of",
    "held_keys",
    "held_offsets",
    "own_sources",
    "queue_of",
    "ranked_sources",
    "retry_sources",
]
