"""Produces all metrics, in pieces, between which the broker can work."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from typing import Generic, TypeVar

from rmqkit.config import Config
from rmqkit.model import names
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.metrics import LOCAL, Family, Labels
from rmqkit.plugin.metrics import STORAGE as STORAGE_LABELS
from rmqkit.plugin.role import Role
from rmqkit.plugin.service import Service
from rmqkit.toolkit.log_state import dispatch_behind_bytes
from rmqkit_hook_metrics import gauges
from rmqkit_hook_metrics.counting import Counts, Histogram
from rmqkit_hook_metrics.hooks import SCHEDULE_GROUP, flag
from rmqkit_hook_metrics.lag import LagMeter, TimeSlices, TopicLag
from rmqkit_hook_metrics.settings import Chosen, ExporterSettings, MetricsSettings, parse_labels
from rmqkit_hook_metrics.text import Form

T = TypeVar("T")
_TOPIC = ("topic", "message_type", "is_system")
_OUT = ("topic", "consumer_group", "is_system")
_LAG = ("consumer_group", "topic", "is_retry", "is_system")

IN = Family("rocketmq_messages_in_total", "counter", "Messages stored for clients", _TOPIC)
IN_BYTES = Family("rocketmq_throughput_in_total", "counter", "Bytes stored for clients, as records", _TOPIC)
SIZE = Family(
    "rocketmq_message_size", "histogram", "Sizes of messages stored for clients, as records", _TOPIC
)
OUT = Family("rocketmq_messages_out_total", "counter", "Messages given to consumers", _OUT)
OUT_BYTES = Family("rocketmq_throughput_out_total", "counter", "Bytes given to consumers, as records", _OUT)
DEAD = Family(
    "rocketmq_send_to_dlq_messages_total",
    "counter",
    "Messages that went to dead-letter topics",
    ("consumer_group", "topic", "is_system"),
)
TOPIC_MS = Family(
    "rocketmq_topic_create_execution_time",
    "histogram",
    "Time of requests that make or change a topic",
    ("invocation_status", "is_system"),
    "milliseconds",
)
GROUP_MS = Family(
    "rocketmq_consumer_group_create_execution_time",
    "histogram",
    "Time of requests that make or change a consumer group",
    ("invocation_status",),
    "milliseconds",
)
RPC_MS = Family(
    "rocketmq_rpc_latency",
    "histogram",
    "Time of requests; a pull that may be held counts as long polling",
    ("is_long_polling", "request_code", "response_code", "protocol_type", "result"),
    "milliseconds",
)
PERMISSION = Family("rocketmq_broker_permission", "gauge", "What the broker permits: 4 read, 2 write")
ROLE = Family("rmqkit_broker_role", "gauge", "1 for the role of the broker, 0 for the others", ("role",))
TOPICS = Family("rocketmq_topic_number", "gauge", "Topics")
GROUPS = Family("rocketmq_consumer_group_number", "gauge", "Consumer groups")
PRODUCERS = Family(
    "rocketmq_producer_connections",
    "gauge",
    "Connections of producers",
    ("language", "version", "protocol_type"),
)
WATER_MARK = Family(
    "rocketmq_processor_watermark", "gauge", "Requests that have arrived and wait for others", ("processor",)
)
CONSUMERS = Family(
    "rocketmq_consumer_connections",
    "gauge",
    "Connections of consumers",
    ("consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system"),
)
LAG = Family("rocketmq_consumer_lag_messages", "gauge", "Messages a group has not finished", _LAG)
LAG_MS = Family(
    "rocketmq_consumer_lag_latency",
    "gauge",
    "Age of the oldest message a group has not committed",
    _LAG,
    "milliseconds",
)
IN_FLIGHT = Family(
    "rocketmq_consumer_inflight_messages", "gauge", "Messages a group has got and not finished", _LAG
)
QUEUEING_MS = Family(
    "rocketmq_consumer_queueing_latency",
    "gauge",
    "Age of the oldest message a group has not pulled",
    _LAG,
    "milliseconds",
)
READY = Family("rocketmq_consumer_ready_messages", "gauge", "Messages a group has not got", _LAG)
QUEUE_LAG = Family(
    "rmqkit_consumer_queue_lag_messages",
    "gauge",
    "Messages a group has not finished, by queue",
    ("consumer_group", "topic", "queue_id"),
)
STORAGE = Family(
    "rocketmq_storage_size", "gauge", "What is used of the log's file system", STORAGE_LABELS, "bytes"
)
USED = Family(
    "rmqkit_storage_used_ratio",
    "gauge",
    "Used part of the log's file system, as the limits of usage count it",
    STORAGE_LABELS,
)
FLUSH = Family(
    "rocketmq_storage_flush_behind_bytes",
    "gauge",
    "Bytes of the log that are not on the device",
    STORAGE_LABELS,
    "bytes",
)
DISPATCH = Family(
    "rocketmq_storage_dispatch_behind_bytes",
    "gauge",
    "Bytes of the log the slowest dispatcher has not taken",
    STORAGE_LABELS,
    "bytes",
)
RESERVE = Family(
    "rocketmq_storage_message_reserve_time",
    "gauge",
    "Age of the oldest message in the log",
    STORAGE_LABELS,
    "milliseconds",
)
_REPLICA = ("replica",)
REPLICA_BYTES = Family(
    "rmqkit_replica_behind_bytes", "gauge", "Bytes of the log that a replica does not have", _REPLICA, "bytes"
)
REPLICA_MS = Family(
    "rmqkit_replica_behind_milliseconds",
    "gauge",
    "Age of the oldest message that a replica does not have",
    _REPLICA,
    "milliseconds",
)
READ_FAULTS = Family(
    "rmqkit_storage_read_faults_total",
    "counter",
    "Damaged places of the store that reads have met",
    STORAGE_LABELS,
)
ASIDE = Family(
    "rmqkit_records_set_aside_total",
    "counter",
    "Records that could not be passed on; those that are not kept are gone",
    ("service", "kept"),
)
FAILURES = Family(
    "rmqkit_hook_failures_total",
    "counter",
    "Calls of a hook that raised what it may not raise",
    ("kind", "plugin", "hook"),
)
DISABLED_FILTERS = Family(
    "rmqkit_disabled_filters", "gauge", "Filters that were disabled because they failed", ("expression_type",)
)


def common_labels(config: Config) -> dict[str, str]:
    """The labels of every sample of a broker."""
    return parse_labels(config.owned(ExporterSettings).metrics_label) | {
        "cluster": config.broker_cluster_name,
        "node_type": "broker",
        "node_id": config.broker_name,
    }


class Scrape(Generic[T]):
    """Produces the figures of one broker in some form. Several scrapes may run at a time."""

    def __init__(self, broker: Broker, counts: Counts, settings: MetricsSettings, form: Form[T]) -> None:
        self._broker = broker
        self._counts = counts
        self._settings = settings
        self._chosen = Chosen(settings)
        self._form = form
        self._lag = LagMeter(broker, counts, self._chosen)

    async def parts(self) -> AsyncGenerator[T]:
        """The figures, a few at a time."""
        slices = TimeSlices()
        self._forget()
        for lines in (self._counted(), self._broker_gauges(), self._services()):
            for line in lines:
                yield line
                await slices.step()
        async for line in self._lags(slices):
            yield line
            await slices.step()
        for line in await self._storage():
            yield line

    def _forget(self) -> None:
        """Remove the counters of deleted topics and groups, which would otherwise stay for ever."""
        topics, groups = self._broker.topics.configs, self._broker.groups.configs
        self._counts.incoming.keep(lambda key: key[0] in topics)
        self._counts.outgoing.keep(
            lambda key: key[0] in topics and (key[1] in groups or key[1] == SCHEDULE_GROUP)
        )

    def _counted(self) -> Iterator[T]:
        lines, counts = self._form.lines, self._counts
        incoming = [
            ((topic, kind, flag(names.is_system_topic(topic))), counted)
            for (topic, kind), counted in sorted(counts.incoming.items())
            if self._chosen(topic)
        ]
        yield from lines(IN, [(labels, counted.messages) for labels, counted in incoming])
        yield from lines(IN_BYTES, [(labels, counted.size_bytes) for labels, counted in incoming])
        yield from lines(SIZE, [(labels, counted.sizes) for labels, counted in incoming])
        outgoing = [
            ((*key, _system(*key)), counted)
            for key, counted in sorted(counts.outgoing.items())
            if self._chosen(*key)
        ]
        yield from lines(OUT, [(labels, counted.messages) for labels, counted in outgoing])
        yield from lines(OUT_BYTES, [(labels, counted.size_bytes) for labels, counted in outgoing])
        dead = sorted(
            ((group, topic), item.count)
            for (group, topic), item in self._broker.stats.dead_lettered.items()
            if self._chosen(topic, group)
        )
        yield from lines(
            DEAD, [((group, topic, _system(topic, group)), count) for (group, topic), count in dead]
        )
        aside = sorted(self._broker.stats.aside.items())
        yield from lines(ASIDE, [((service, flag(kept)), count) for (service, kept), count in aside])
        yield from lines(TOPIC_MS, _histograms(counts.topics.items()))
        yield from lines(GROUP_MS, _histograms(counts.groups.items()))
        yield from lines(
            RPC_MS,
            [
                ((*key, "remoting", "success"), histogram)
                for key, histogram in sorted(counts.requests.items(), key=_key)
            ],
        )

    def _broker_gauges(self) -> Iterator[T]:
        lines, broker, registry = self._form.lines, self._broker, self._broker.registry
        yield from lines(PERMISSION, [((), broker.config.broker_permission)])
        yield from lines(ROLE, [((each.value,), int(each is broker.role.current)) for each in Role])
        yield from lines(TOPICS, [((), len(broker.topics.configs))])
        yield from lines(GROUPS, [((), len(broker.groups.configs))])
        yield from lines(WATER_MARK, gauges.waiting(broker))
        yield from lines(PRODUCERS, sorted(gauges.producers(broker).items()))
        consumers = gauges.consumers(broker).items()
        yield from lines(CONSUMERS, sorted(item for item in consumers if self._chosen.group(item[0][0])))
        replicas = broker.replication.replicas()
        yield from lines(REPLICA_BYTES, [((each.address,), each.lag_bytes) for each in replicas])
        yield from lines(REPLICA_MS, [((each.address,), each.lag_ms) for each in replicas])
        hooks = (
            registry.send_message_hooks,
            registry.consume_message_hooks,
            registry.rpc_hooks,
            registry.put_message_hooks,
        )
        yield from lines(
            FAILURES,
            [
                ((kind.kind, entry.plugin, entry.name), entry.failures)
                for kind in hooks
                for entry in kind.entries
            ],
        )

        yield from lines(
            DISABLED_FILTERS,
            [((kind,), len(server.disabled())) for kind, server in sorted(registry.filter_servers.items())],
        )

    def _services(self) -> Iterator[T]:
        """What services tell of themselves; a family that several have is written once."""
        found: dict[Family, list[tuple[Labels, float]]] = {}
        for service in self._broker.registry.services.values():
            if isinstance(service, Service):
                for family, samples in service.metrics():
                    found.setdefault(family, []).extend(samples)
        for family, values in found.items():
            yield from self._form.lines(family, values)

    async def _lags(self, slices: TimeSlices) -> AsyncIterator[T]:
        found = [(_labels(lag), lag) async for lag in self._lag.topics(slices)]
        values: tuple[tuple[Family, Callable[[TopicLag], int]], ...] = (
            (LAG, lambda lag: lag.messages),
            (LAG_MS, lambda lag: lag.waiting_ms),
            (IN_FLIGHT, lambda lag: lag.in_flight),
            (QUEUEING_MS, lambda lag: lag.queueing_ms),
            (READY, lambda lag: lag.ready),
        )
        for family, value_of in values:
            for line in self._form.lines(family, ((labels, value_of(lag)) for labels, lag in found)):
                yield line
        if self._settings.queue_lag:
            queues = (
                ((lag.group, lag.topic, str(queue.queue_id)), queue.messages)
                for _, lag in found
                for queue in lag.queues
            )
            for line in self._form.lines(QUEUE_LAG, queues):
                yield line

    async def _storage(self) -> list[T]:
        store = self._broker.store
        disk = await gauges.disk(store)
        values: list[tuple[Family, float | None]] = [
            (STORAGE, None if disk is None else disk.used_bytes),
            (USED, None if disk is None else disk.percent / 100),
            (FLUSH, gauges.flush_behind_bytes(store)),
            (DISPATCH, dispatch_behind_bytes(self._broker)),
            (RESERVE, await gauges.reserve_ms(self._broker)),
            (READ_FAULTS, store.read_faults),
        ]
        return [
            line
            for family, value in values
            if value is not None
            for line in self._form.lines(family, [(LOCAL, value)])
        ]


def _labels(lag: TopicLag) -> Labels:
    return lag.group, lag.topic, flag(lag.is_retry), flag(lag.is_system)


def _system(topic: str, group: str) -> str:
    return flag(names.is_system_topic(topic) or names.is_system_group(group))


def _histograms(items: Iterable[tuple[Labels, Histogram]]) -> list[tuple[Labels, Histogram]]:
    return sorted(items, key=_key)


def _key(item: tuple[Labels, Histogram]) -> Labels:
    return item[0]
