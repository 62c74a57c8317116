"""Lag of consumer groups (Java: ConsumerLagCalculator), for groups that are online or have committed an
offset here.

Lag counts messages that are not committed, in flight those that were pulled and are not committed, ready
those that were not pulled. A group that has committed nothing in a queue counts from its end, as in Java.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from time import perf_counter

import trio
from attrs import define, field, frozen

from rmqkit.model import names
from rmqkit.model.sysflag import PERM_READ
from rmqkit.plugin.broker import Broker
from rmqkit.toolkit.cold_reads import read_when_cached
from rmqkit_hook_metrics.counting import Counts

#: Maximum time for which a scrape occupies the event loop.
SLICE_S = 0.001
Queue = tuple[str, str, int]


class TimeSlices:
    """Lets the broker work during a long computation: call `await slices.step()` often."""

    def __init__(self) -> None:
        self._began_s = perf_counter()

    async def step(self) -> None:
        if perf_counter() - self._began_s > SLICE_S:
            await trio.lowlevel.checkpoint()
            self._began_s = perf_counter()


@frozen
class QueueLag:
    """One queue of a group, in messages."""

    queue_id: int
    messages: int


@define
class TopicLag:
    """A group and a topic. `waiting_ms` and `queueing_ms` are the ages of the oldest message that is not
    committed, and of the oldest that is not pulled; 0 without one."""

    group: str
    topic: str
    messages: int = 0
    in_flight: int = 0
    ready: int = 0
    waiting_ms: int = 0
    queueing_ms: int = 0
    queues: list[QueueLag] = field(factory=list)

    @property
    def is_retry(self) -> bool:
        return self.topic.startswith(names.RETRY_PREFIX)

    @property
    def is_system(self) -> bool:
        return names.is_system_topic(self.topic) or names.is_system_group(self.group)


class LagMeter:
    """Keeps store times between scrapes: for a group without progress they are not looked up again."""

    def __init__(self, broker: Broker, counts: Counts, chosen: Callable[[str, str], bool]) -> None:
        """`chosen`: whether a topic and a group are of interest."""
        self._broker = broker
        self._chosen = chosen
        self._counts = counts
        #: (queue, whether for the first message not pulled rather than not committed) -> offset, store time.
        self._times: dict[tuple[Queue, bool], tuple[int, int]] = {}

    async def topics(self, slices: TimeSlices) -> AsyncIterator[TopicLag]:
        """One result for each group and topic, in order."""
        seen: set[Queue] = set()
        for group, topic in await self._consumed(slices):
            config = self._broker.topics.get(topic)
            if config is None or not self._chosen(topic, group):
                continue
            if not (config.perm & self._broker.config.broker_permission & PERM_READ):
                continue
            lag = TopicLag(group, topic)
            for queue_id in range(config.read_queue_nums):
                await self._add(lag, queue_id)
                seen.add((group, topic, queue_id))
                await slices.step()
            yield lag
        for time in list(self._times):
            if time[0] not in seen:
                self._times.pop(time, None)
            await slices.step()
        for queue in list(self._counts.pulled):
            if queue not in seen:
                self._counts.pulled.pop(queue, None)
            await slices.step()

    async def _consumed(self, slices: TimeSlices) -> list[tuple[str, str]]:
        """Groups and their topics: subscriptions of online groups, and committed offsets, which may outlive
        their group."""
        found: set[tuple[str, str]] = set()
        for group in list(self._broker.clients.consumers.values()):
            found.update((group.name, topic) for topic in group.subscriptions)
            await slices.step()
        for key in list(self._broker.offsets.table().offset_table):
            topic, _, name = key.partition("@")
            if name in self._broker.groups.configs:
                found.add((name, topic))
            await slices.step()
        return sorted(found)

    async def _add(self, lag: TopicLag, queue_id: int) -> None:
        group, topic = lag.group, lag.topic
        store = self._broker.store
        start, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        committed = self._broker.offsets.get(group, topic, queue_id)
        committed = end if committed is None else min(max(committed, start), end)
        pulled = min(max(self._counts.pulled.get((group, topic, queue_id), committed), committed), end)
        leased = self._broker.offsets.leased(group, topic, queue_id)
        pulled = max(pulled, min(committed + leased.behind, end))
        lag.messages += end - committed + leased.before
        lag.in_flight += pulled - committed + leased.before
        lag.ready += end - pulled
        lag.queues.append(QueueLag(queue_id, end - committed + leased.before))
        now_ms = self._broker.clock.now_ms()
        if committed < end:
            stored_ms = await self._stored_ms((group, topic, queue_id), False, committed, now_ms)
            lag.waiting_ms = max(lag.waiting_ms, now_ms - stored_ms)
        if pulled < end:
            stored_ms = await self._stored_ms((group, topic, queue_id), True, pulled, now_ms)
            lag.queueing_ms = max(lag.queueing_ms, now_ms - stored_ms)

    async def _stored_ms(self, queue: Queue, pulled: bool, offset: int, now_ms: int) -> int:
        """The store time of the message; the present time when it has been deleted."""
        known = self._times.get((queue, pulled))
        if known is not None and known[0] == offset:
            return known[1]
        _, topic, queue_id = queue
        store = self._broker.store
        stored_ms = await read_when_cached(store, partial(store.store_time, topic, queue_id, offset))
        if stored_ms <= 0:
            return now_ms
        self._times[queue, pulled] = (offset, stored_ms)
        return stored_ms
