"""Progress of groups: consume statistics, time spans, corrections, copies, units of queues (Java:
AdminBrokerProcessor)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import trio

from rmqkit.broker.processors.by_code import ProcessorByCode
from rmqkit.broker.processors.queues import queue_of, topic_at
from rmqkit.broker.run.context import BrokerContext
from rmqkit.errors import RequestRefused
from rmqkit.limits import MAX_BODY_BYTES, MAX_CONSUME_QUEUE_UNITS
from rmqkit.model import names
from rmqkit.model.queue import MessageQueue
from rmqkit.plugin.request import Outcome
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer, json_answer
from rmqkit.protocol.headers import (
    CloneGroupOffsetRequestHeader,
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    GetTopicStatsInfoRequestHeader,
    GroupRequestHeader,
    QueryConsumeQueueRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryCorrectionOffsetHeader,
)
from rmqkit.toolkit.cold_reads import all_of, read_when_cached

#: Java: Long.MAX_VALUE, for a queue that needs no correction.
_NO_CORRECTION = (1 << 63) - 1
#: Number of groups processed before the broker does other work.
_GROUPS_AT_A_TIME = 16


class _Stats(NamedTuple):
    """Java: ConsumeStats, with its totals."""

    table: dict[str, object]
    lag: int
    in_flight: int


class ConsumeStatsProcessor(ProcessorByCode):
    """Answers queries about the progress of consumer groups. It searches the kernel's own tables by group and
    by topic, which no port offers: their form may change.

    `pullOffset` minus `consumerOffset` is what the group has got and not finished, as Java's tools show it;
    `leased`, which Java lacks, is the part of it before `consumerOffset`."""

    _broker: BrokerContext

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._handlers = {
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self._consumed_by,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self._topics_of_group,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self._subscription,
            RequestCode.QUERY_CORRECTION_OFFSET: self._correction,
            RequestCode.CLONE_GROUP_OFFSET: self._clone,
        }
        self._readers = {
            RequestCode.GET_CONSUME_STATS: self._stats_of_group,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self._time_span,
            RequestCode.QUERY_CONSUME_QUEUE: self._units,
        }
        self._tasks = {RequestCode.GET_BROKER_CONSUME_STATS: self._all_stats}

    # Topics of groups, and groups of topics.

    def _consumed_by(self, request: Command) -> Outcome:
        topic = request.header(GetTopicStatsInfoRequestHeader).topic
        groups = set(self._broker.offsets.groups_of(topic)) | set(
            self._broker.clients.groups_consuming(topic)
        )
        return json_answer(request, {"groupList": sorted(groups)})

    def _topics_of_group(self, request: Command) -> Outcome:
        group = request.header(GroupRequestHeader).group
        online = self._broker.clients.consumers.get(group)
        topics = set(self._broker.offsets.topics_of(group)) | set(online.subscriptions if online else ())
        return json_answer(request, {"brokerAddr": self._broker.address, "topicList": sorted(topics)})

    def _subscription(self, request: Command) -> Outcome:
        header = request.header(GroupRequestHeader)
        body: dict[str, object] = {"group": header.group, "topic": header.topic}
        subscription = self._broker.clients.subscription(header.group, header.topic or "")
        if subscription is not None:
            body["subscriptionData"] = subscription
        return json_answer(request, body)

    def _consumes(self, group: str, topic: str) -> bool:
        """Whether an online group has subscribed to the topic, or pops from it as a retry topic; an offline
        group consumes all topics with committed offsets."""
        online = self._broker.clients.consumers.get(group)
        subscribed = online is None or not online.subscriptions or topic in online.subscriptions
        return subscribed or topic.startswith(names.RETRY_PREFIX)

    # Progress of groups.

    def _stats_of_group(self, request: Command) -> Command:
        header = request.header(GetConsumeStatsRequestHeader)
        group = header.consumer_group
        topics: Iterable[str]
        if header.topic_list:
            topics = header.topic_list.split(";")
        else:
            chosen = [header.topic] if header.topic else sorted(self._broker.offsets.topics_of(group))
            topics = [topic for topic in chosen if self._consumes(group, topic)]
        topics = [topic for topic in topics if topic in self._broker.topics.configs]
        found = self._stats(group, topics)
        return json_answer(request, found.table, raw_keys=True)

    def _stats(self, group: str, topics: Iterable[str]) -> _Stats:
        """Every queue of existing topics. Raises NotInMemory."""
        broker, store = self._broker, self._broker.store
        places, tps = [], 0.0
        for topic in topics:
            tps += broker.stats.groups.per_second((group, topic))
            for queue_id in range(broker.topics.configs[topic].read_queue_nums):
                places.append((topic, queue_id, max(broker.offsets.get(group, topic, queue_id) or 0, 0)))
        times = all_of(
            partial(store.store_time, topic, queue_id, consumed - 1) for topic, queue_id, consumed in places
        )
        table: dict[MessageQueue, dict[str, int]] = {}
        lag = in_flight = 0
        for (topic, queue_id, consumed), stored_ms in zip(places, times, strict=True):
            end = store.max_offset(topic, queue_id)
            leased = broker.offsets.leased(group, topic, queue_id)
            mark = broker.offsets.pulled.get(group, topic, queue_id) or 0
            pulled = max(consumed + leased.behind, mark) + leased.before
            entry = table[queue_of(broker, topic, queue_id)] = {
                "brokerOffset": end,
                "consumerOffset": consumed,
                "lastTimestamp": max(stored_ms, 0),
                "pullOffset": pulled,
            }
            if leased.before:
                entry["leased"] = leased.before
            lag += end - consumed + leased.before
            in_flight += pulled - consumed
        return _Stats({"consumeTps": tps, "offsetTable": table}, lag, in_flight)

    async def _all_stats(self, request: Command) -> Command:
        """Every group and topic (Java: fetchAllConsumeStatsInBroker); other work runs between a few
        groups."""
        broker = self._broker
        only_ordered = request.header(GetConsumeStatsInBrokerHeader).is_order
        topics_of = await self._consumed_topics()
        found: list[dict[str, list[dict[str, object]]]] = []
        lag = in_flight = size_bytes = 0
        for number, group in enumerate(list(broker.groups.configs)):
            if number % _GROUPS_AT_A_TIME == 0:
                await trio.lowlevel.checkpoint()
            stats = []
            for topic in topics_of.get(group, ()):
                config = broker.topics.configs.get(topic)
                if config is None or (only_ordered and not config.order) or not self._consumes(group, topic):
                    continue
                one = await self._warm_stats(group, topic)
                stats.append(one.table)
                lag, in_flight, size_bytes = (
                    lag + one.lag,
                    in_flight + one.in_flight,
                    size_bytes + len(str(one.table)),
                )
            if size_bytes > MAX_BODY_BYTES:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    "there are too many groups and queues for one answer: ask group by group",
                )
            found.append({group: stats})
        body = {
            "brokerAddr": broker.address,
            "consumeStatsList": found,
            "totalDiff": lag,
            "totalInflightDiff": in_flight,
        }
        return json_answer(request, body, raw_keys=True)

    async def _consumed_topics(self) -> dict[str, list[str]]:
        """Group -> topics with committed offsets."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for number, (topic, group) in enumerate(self._broker.offsets.pairs()):
            found[group].append(topic)
            if number % 1_024 == 0:
                await trio.lowlevel.checkpoint()
        return found

    async def _warm_stats(self, group: str, topic: str) -> _Stats:
        return await read_when_cached(self._broker.store, partial(self._stats, group, [topic]))

    def _time_span(self, request: Command) -> Command:
        """Java: QueryConsumeTimeSpanBody. Times in ms, -1 where there is no message."""
        header = request.header(QueryConsumeTimeSpanRequestHeader)
        broker, store, topic = self._broker, self._broker.store, header.topic
        reads = []
        for queue_id in range(topic_at(broker, topic).write_queue_nums):
            first, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            consumed = broker.offsets.get(header.group, topic, queue_id) or 0
            last_consumed = consumed - 1 if consumed > 0 else first
            reads += [
                partial(store.store_time, topic, queue_id, at)
                for at in (first, end - 1, last_consumed, max(consumed, first))
            ]
        times = iter(all_of(reads))
        spans: list[dict[str, object]] = []
        for queue_id, (first_ms, last_ms, consumed_ms, next_ms) in enumerate(
            zip(times, times, times, times, strict=True)
        ):
            spans.append(
                {
                    "messageQueue": queue_of(broker, topic, queue_id),
                    "minTimeStamp": first_ms,
                    "maxTimeStamp": last_ms,
                    "consumeTimeStamp": consumed_ms,
                    "delayTime": max(broker.clock.now_ms() - next_ms, 0) if next_ms >= 0 else 0,
                }
            )
        return json_answer(request, {"consumeTimeSpanSet": spans})

    # Offsets.

    def _correction(self, request: Command) -> Outcome:
        """The smallest offset of any group in each queue; Long.MAX_VALUE where it is beyond that of the
        compared group."""
        header = request.header(QueryCorrectionOffsetHeader)
        offsets, topic = self._broker.offsets, header.topic
        left_out = set((header.filter_groups or "").split(","))
        smallest: dict[int, int] = {}
        for group in offsets.groups_of(topic):
            if group in left_out:
                continue
            for queue_id, offset in offsets.queues(group, topic).items():
                if offset >= self._broker.store.min_offset(topic, queue_id):
                    smallest[queue_id] = min(offset, smallest.get(queue_id, offset))
        for queue_id, offset in offsets.queues(header.compare_group, topic).items():
            if smallest.get(queue_id, _NO_CORRECTION) > offset:
                smallest[queue_id] = _NO_CORRECTION
        return json_answer(request, {"correctionOffsets": smallest})

    def _clone(self, request: Command) -> Outcome:
        """Copy the offsets of another group."""
        header = request.header(CloneGroupOffsetRequestHeader)
        source, target = header.src_group, header.dest_group
        if target not in self._broker.groups.configs:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"consumer group {target!r} does not exist: create it first, and the offsets can be copied",
            )
        topics = [header.topic] if header.topic else self._broker.offsets.topics_of(source)
        for topic in topics:
            if topic in self._broker.topics.configs and (header.offline or self._consumes(source, topic)):
                for queue_id, offset in self._broker.offsets.queues(source, topic).items():
                    self._broker.offsets.commit(target, topic, queue_id, offset)
        return answer(request)

    # Units.

    def _units(self, request: Command) -> Command:
        """The stored units of a queue (Java: QueryConsumeQueueResponseBody)."""
        header = request.header(QueryConsumeQueueRequestHeader)
        broker, store = self._broker, self._broker.store
        topic, queue_id = header.topic, header.queue_id
        config = broker.topics.get(topic)
        if config is None or not 0 <= queue_id < max(config.read_queue_nums, config.write_queue_nums):
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        first, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        if not first <= header.index < end:
            return answer(request, remark=f"Index {header.index} of {queue_id}@{topic} is not exist!")
        body: dict[str, object] = {"maxQueueIndex": end, "minQueueIndex": first}
        if header.consumer_group is not None:
            subscription = broker.clients.subscription(header.consumer_group, topic)
            body["filterData"] = "null" if subscription else f"{header.consumer_group}@{topic} is not online!"
            if subscription is not None:
                body["subscriptionData"] = subscription
        count = max(0, min(header.count, MAX_CONSUME_QUEUE_UNITS))
        body["queueData"] = [
            {
                "eval": False,
                "physicOffset": unit.physical_offset,
                "physicSize": unit.size_bytes,
                "tagsCode": unit.tags_code,
            }
            for unit in store.read_units(topic, queue_id, header.index, count)
        ]
        return json_answer(request, body)
