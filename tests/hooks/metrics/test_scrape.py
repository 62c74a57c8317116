"""A broker's metrics after real traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.headers import DeleteSubscriptionGroupRequestHeader, DeleteTopicRequestHeader
from rmqkit.remoting.pool import ConnectionPool
from rmqkit.testing.broker import dialer
from rmqkit.testing.clock import FakeClock
from rmqkit_hook_metrics.gauges import version_label
from rmqkit_hook_metrics.settings import Chosen, MetricsSettings
from tests.hooks.metrics.kit import Asker, busy, measured, of, scraped

VECTOR = Path(__file__).parent.parent.parent / "vectors" / "apache_metrics.tsv"


@pytest.mark.only_store("mmap", why="is about a store that takes what it likes of a file system")
async def test_names_and_labels_are_those_of_apaches_broker(tmp_path: Path) -> None:
    """As a broker 5.3.3 shows them to Prometheus; the vector is such a scrape, without its values. What is
    ours alone has names of its own."""
    lines = [line.split("\t") for line in VECTOR.read_text().splitlines()]
    apache = {name: set(labels.split(",")) for name, labels in lines}
    keys: dict[str, Any] = {"plugins.metrics.rpcLatency": "true", "store": "mmap"}
    async with measured(tmp_path, **keys) as running, ConnectionPool(connect=dialer()) as pool:
        await busy(Asker(pool, running))
        samples = await scraped(running)
    ours: dict[str, set[str]] = {}
    for name, found in samples.items():
        base = name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
        labels = {label for labels in found for label, _ in labels} - {"le"}
        ours[base] = labels | {"cluster", "node_type", "node_id"}
    theirs = {name: labels for name, labels in ours.items() if name.startswith("rocketmq_")}
    assert theirs == {name: apache[name] for name in theirs}
    missing = {name for name in apache if name not in theirs}
    assert {name for name in missing if "_pop_" not in name} == set()
    assert {name for name in ours if name not in theirs} == {
        "rmqkit_broker_role",
        "rmqkit_storage_used_ratio",
        "rmqkit_consumer_queue_lag_messages",
        "rmqkit_hook_failures_total",
        "rmqkit_storage_read_faults_total",
        "rmqkit_disabled_filters",
        "rmqkit_open_transactions",
        "rmqkit_transaction_checks_total",
        "rmqkit_transaction_checks_unheard_total",
        "rmqkit_transactions_given_up_total",
    }


async def test_traffic_is_counted_by_topic_and_kind(tmp_path: Path) -> None:
    """Plain sends, batches and others are counted in messages, in bytes as records, and by size; a delayed
    message counts where it waits; dead letters are counted separately."""
    async with measured(tmp_path) as running, ConnectionPool(connect=dialer()) as pool:
        await busy(Asker(pool, running))
        samples = await scraped(running)
        store = running.context.store
        stored = {
            queue: [unit.size_bytes for unit in store.read_units(*queue, 0, 100)]
            for queue in (("T", 0), ("T", 1), ("SCHEDULE_TOPIC_XXXX", 0))
        }
    normal = [*stored["T", 0][:2], *stored["T", 1]]
    assert samples["rocketmq_messages_in_total"].values()
    assert of(samples, "rocketmq_messages_in_total", topic="T", message_type="normal", is_system="false") == 4
    assert of(samples, "rocketmq_throughput_in_total", topic="T", message_type="normal") == sum(normal)
    assert of(samples, "rocketmq_messages_in_total", topic="T", message_type="fifo") == 1
    assert of(
        samples,
        "rocketmq_throughput_in_total",
        topic="SCHEDULE_TOPIC_XXXX",
        message_type="delay",
        is_system="true",
    ) == sum(stored["SCHEDULE_TOPIC_XXXX", 0])
    assert of(samples, "rocketmq_message_size_bucket", topic="T", message_type="normal", le="1024") == 3
    assert of(samples, "rocketmq_message_size_bucket", topic="T", message_type="normal", le="4096") == 4
    assert of(samples, "rocketmq_message_size_count", topic="T", message_type="normal") == 4
    assert of(samples, "rocketmq_message_size_sum", topic="T", message_type="normal") == sum(normal)
    assert of(samples, "rocketmq_messages_out_total", topic="T", consumer_group="g", is_system="false") == 3
    assert of(samples, "rocketmq_throughput_out_total", topic="T", consumer_group="g") == sum(stored["T", 0])
    assert of(samples, "rocketmq_send_to_dlq_messages_total", topic="T", consumer_group="g") == 1
    assert {dict(labels)["topic"] for labels in samples["rocketmq_messages_in_total"]} == {
        "T",
        "SCHEDULE_TOPIC_XXXX",
    }


async def test_a_delayed_message_counts_under_its_topic_when_it_is_delivered(tmp_path: Path) -> None:
    """Until then it counts where it waits; the delivery counts as given to the delay service's group, and by
    type and size under the message's own topic."""
    async with (
        measured(tmp_path, messageDelayLevel="1s 1h") as running,
        ConnectionPool(connect=dialer()) as pool,
    ):
        asker = Asker(pool, running)
        delivered = trio.Event()
        running.context.stats.on_delivery.append(lambda source, topic, at: delivered.set())
        for level in (1, 2):
            assert (await asker.send(properties=f"DELAY\x01{level}\x02")).code == 0
        await delivered.wait()
        samples = await scraped(running)
        (unit,) = running.context.store.read_units("T", 0, 0, 100)
    parked = {"topic": "SCHEDULE_TOPIC_XXXX", "message_type": "delay", "is_system": "true"}
    assert of(samples, "rocketmq_messages_in_total", **parked) == 2
    given = {"topic": "SCHEDULE_TOPIC_XXXX", "consumer_group": "SCHEDULE_CONSUMER", "is_system": "true"}
    assert of(samples, "rocketmq_messages_out_total", **given) == 1
    assert of(samples, "rocketmq_throughput_out_total", **given) == unit.size_bytes
    real = {"topic": "T", "message_type": "delay", "is_system": "false"}
    assert of(samples, "rocketmq_messages_in_total", **real) == 1
    assert of(samples, "rocketmq_throughput_in_total", **real) == unit.size_bytes
    assert of(samples, "rocketmq_message_size_count", topic="T", message_type="delay") == 1


async def test_records_set_aside_are_counted(tmp_path: Path) -> None:
    """By the service that could not pass them on, and whether they were kept."""
    async with measured(tmp_path) as running:
        for kept in (True, True, False):
            running.context.stats.set_aside("delay", kept=kept)
        samples = await scraped(running)
    assert of(samples, "rmqkit_records_set_aside_total", service="delay", kept="true") == 2
    assert of(samples, "rmqkit_records_set_aside_total", service="delay", kept="false") == 1


async def test_lag_is_what_is_not_committed(tmp_path: Path) -> None:
    """Messages pulled but not committed are in flight, the others are ready; the ages are those of the oldest
    message of each. By topic, and by queue."""
    clock = FakeClock()
    async with measured(tmp_path, clock=clock) as running, ConnectionPool(connect=dialer()) as pool:
        asker = Asker(pool, running)
        for queue_id, count in ((0, 4), (1, 2)):
            for _ in range(count):
                clock.advance(1_000)
                assert (await asker.send(queue_id=queue_id)).code == 0
        assert (await asker.pull(count=3)).code == 0
        await asker.commit(1)
        await asker.commit(0, queue_id=1)
        clock.advance(500)
        samples = await scraped(running)
        labels = {"consumer_group": "g", "topic": "T", "is_retry": "false", "is_system": "false"}
        assert of(samples, "rocketmq_consumer_lag_messages", **labels) == 5
        assert of(samples, "rocketmq_consumer_inflight_messages", **labels) == 2
        assert of(samples, "rocketmq_consumer_ready_messages", **labels) == 3
        assert of(samples, "rocketmq_consumer_lag_latency_milliseconds", **labels) == 4_500
        assert of(samples, "rocketmq_consumer_queueing_latency_milliseconds", **labels) == 2_500
        queues = {
            dict(found)["queue_id"]: value
            for found, value in samples["rmqkit_consumer_queue_lag_messages"].items()
        }
        assert {queue: value for queue, value in queues.items() if value} == {"0": 3, "1": 2}
        await asker.commit(4)
        await asker.commit(2, queue_id=1)
        samples = await scraped(running)
        for name in (
            "lag_messages",
            "inflight_messages",
            "ready_messages",
            "lag_latency_milliseconds",
            "queueing_latency_milliseconds",
        ):
            assert of(samples, f"rocketmq_consumer_{name}", **labels) == 0


async def test_a_group_that_is_offline_keeps_its_lag(tmp_path: Path) -> None:
    """Its lag comes from its committed offsets; an online group without committed offsets counts from the end
    of the queue. Retry topics are labelled as such."""
    async with measured(tmp_path) as running, ConnectionPool(connect=dialer()) as pool:
        asker = Asker(pool, running)
        for _ in range(3):
            await asker.send()
        await asker.commit(1)
        assert (
            of(await scraped(running), "rocketmq_consumer_lag_messages", consumer_group="g", topic="T") == 2
        )
        await asker.heartbeat("T", "U", "%RETRY%g")
        await asker.send(topic="U")
        samples = await scraped(running)
        assert (
            of(samples, "rocketmq_consumer_lag_messages", consumer_group="g", topic="U", is_retry="false")
            == 0
        )
        assert (
            of(
                samples,
                "rocketmq_consumer_lag_messages",
                consumer_group="g",
                topic="%RETRY%g",
                is_retry="true",
            )
            == 0
        )


async def test_connections_by_language_and_version(tmp_path: Path) -> None:
    """Connections are counted by language and version, those of consumers by group and mode as well."""
    async with measured(tmp_path) as running, ConnectionPool(connect=dialer()) as pool:
        await Asker(pool, running).heartbeat("T")
        samples = await scraped(running)
    labels = {"language": "python", "version": "v5_3_1", "protocol_type": "remoting"}
    assert of(samples, "rocketmq_producer_connections", **labels) == 1
    assert (
        of(
            samples,
            "rocketmq_consumer_connections",
            consumer_group="g",
            consume_mode="push",
            is_system="false",
            **labels,
        )
        == 1
    )


@pytest.mark.parametrize(
    ("ordinal", "label"),
    [
        (479, "v5_3_3"),
        (478, "v5_3_3_snapshot"),
        (413, "v5_0_0"),
        (401, "v4_9_4"),
        (213, "v4_0_0"),
        (121, "v3_ordinal_121"),
    ],
)
def test_versions_have_javas_names(ordinal: int, label: str) -> None:
    """MQVersion has two numbers for each version from 4.0.0 on; older ones keep their number."""
    assert version_label(ordinal) == label


@pytest.mark.only_store("mmap", why="is about the flushing of one store")
async def test_the_broker_says_what_it_holds(tmp_path: Path) -> None:
    """Topics, groups, permission, and how far dispatching is behind the log."""
    clock = FakeClock()
    keys: dict[str, Any] = {
        "brokerPermission": 4,
        "flushDiskType": "ASYNC_FLUSH",
        "store": "mmap",
        "flushIntervalCommitLog": 3_600_000,
    }
    async with measured(tmp_path, clock=clock, **keys) as running, ConnectionPool(connect=dialer()) as pool:
        asker = Asker(pool, running)
        assert (await asker.send(b"x" * 1_000)).code == 0
        clock.advance(7_000)
        samples = await scraped(running)
        broker = running.context
        assert of(samples, "rocketmq_topic_number") == len(broker.topics.configs)
        assert of(samples, "rocketmq_consumer_group_number") == len(broker.groups.configs)
        assert of(samples, "rocketmq_broker_permission") == 4
        roles = {dict(labels)["role"]: value for labels, value in samples["rmqkit_broker_role"].items()}
        assert roles == {"MASTER": 1, "SLAVE": 0, "FENCED": 0}
        assert 0 < of(samples, "rmqkit_storage_used_ratio") <= 1
        statistics = broker.store.statistics()
        behind = statistics.max_physical_offset - statistics.flushed_physical_offset
        assert (
            of(samples, "rocketmq_storage_flush_behind_bytes", storage_type="local", storage_medium="disk")
            == behind
            > 1_000
        )
        assert of(samples, "rocketmq_storage_dispatch_behind_bytes") >= 0
        assert of(samples, "rocketmq_storage_message_reserve_time_milliseconds") == 7_000
        assert of(samples, "rocketmq_storage_size_bytes") > 0


async def test_what_was_deleted_is_forgotten(tmp_path: Path) -> None:
    """Metrics of deleted topics and groups are removed, so that they do not accumulate."""
    async with measured(tmp_path) as running, ConnectionPool(connect=dialer()) as pool:
        asker = Asker(pool, running)
        await asker.send()
        await asker.pull()
        await asker.commit(0)
        assert "rocketmq_messages_in_total" in await scraped(running)
        assert (
            await asker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic="T"))
        ).code == 0
        samples = await scraped(running)
        for name in ("messages_in_total", "messages_out_total", "consumer_lag_messages"):
            assert f"rocketmq_{name}" not in samples
        await asker.send()
        assert (await asker.pull()).code == 0
        await asker.commit(0)
        assert "rocketmq_consumer_lag_messages" in await scraped(running)
        gone = DeleteSubscriptionGroupRequestHeader(group_name="g")
        assert (await asker.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, gone)).code == 0
        samples = await scraped(running)
        assert "rocketmq_consumer_lag_messages" not in samples
        assert "rocketmq_messages_in_total" in samples


async def test_request_times_when_they_are_wanted(tmp_path: Path) -> None:
    """By request and answer; codes that nobody knows share one name, or a peer could make up as many
    series as it likes."""
    keys: dict[str, Any] = {"plugins.metrics.rpcLatency": "true"}
    async with measured(tmp_path, **keys) as running, ConnectionPool(connect=dialer()) as pool:
        asker = Asker(pool, running)
        await asker.send()
        for code in range(70_000, 70_005):
            assert (await asker.ask(code)).code == 3
        samples = await scraped(running)
    count = "rocketmq_rpc_latency_milliseconds_count"
    assert (
        of(samples, count, request_code="send_message_v2", response_code="success", is_long_polling="false")
        == 1
    )
    assert of(samples, count, request_code="unknown", response_code="request_code_not_supported") == 5


async def test_metrics_are_off_unless_asked_for(tmp_path: Path) -> None:
    """By `hooks`, or by RocketMQ's own setting; a disabled service counts nothing."""
    async with measured(tmp_path, hooks="") as running:
        assert "metrics" not in running.context.registry.services
    async with measured(tmp_path, hooks="", metricsExporterType="PROM") as running:
        assert of(await scraped(running), "rocketmq_broker_permission") == 6
    async with (
        measured(tmp_path, disabledServices="metrics") as running,
        ConnectionPool(connect=dialer()) as pool,
    ):
        assert (await Asker(pool, running).send()).code == 0


@pytest.mark.parametrize(
    ("topics", "groups", "topic", "pair"),
    [
        ((), (), False, False),
        (("order?",), ("*",), True, True),
        (("ord*", "other"), ("billing",), True, False),
        (("other",), ("*",), False, False),
        (("*",), ("b*", "g"), True, True),
    ],
)
def test_which_topics_and_groups_have_figures(
    topics: tuple[str, ...], groups: tuple[str, ...], topic: bool, pair: bool
) -> None:
    """A topic needs a pattern that matches the whole name, a pair of a group and a topic one of each."""
    chosen = Chosen(MetricsSettings(topics=topics, groups=groups))
    assert (chosen("orders"), chosen("orders", "g")) == (topic, pair)


async def test_a_scrape_is_limited_to_the_topics_and_groups_of_the_settings(tmp_path: Path) -> None:
    """Neither counters nor lags of others are there; figures of the broker as a whole stay."""
    keys: dict[str, Any] = {"plugins.metrics.topics": '["T*"]', "plugins.metrics.groups": '["other"]'}
    async with measured(tmp_path, **keys) as running, ConnectionPool(connect=dialer()) as pool:
        await busy(Asker(pool, running))
        samples = await scraped(running)
    topics = {dict(labels).get("topic") for found in samples.values() for labels in found} - {None}
    groups = {dict(labels).get("consumer_group") for found in samples.values() for labels in found} - {None}
    assert topics == {"T"}
    assert groups == set()
    assert "rocketmq_topic_number" in samples
