"""The run-time key/values of GET_BROKER_RUNTIME_INFO (wire-protocol sheet, section 4.4; Java:
AdminBrokerProcessor.prepareRuntimeInfo)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import trio

from rmqkit import rocketmq_settings, speedups
from rmqkit.broker.dispatch.manager import DispatchProgress
from rmqkit.broker.run.context import BrokerContext
from rmqkit.broker.stats import BrokerStats
from rmqkit.config import Config
from rmqkit.plugin.flush import Level
from rmqkit.plugin.request import Waiting
from rmqkit.protocol.codes import VERSION, VERSION_NAME
from rmqkit.toolkit import request_kinds
from rmqkit.toolkit.disk import DiskUsage, disk_usage
from rmqkit.toolkit.log_state import dispatch_behind_bytes, earliest_store_time_ms

#: Pool of a Java broker -> the kind of its requests, and Apache's default of its queue's capacity. This
#: broker has no such queues: what waits takes their place. Dashboards divide by the capacities.
_POOLS = {
    "send": (request_kinds.SEND, 10_000),
    "pull": (request_kinds.PULL, 100_000),
    "litePull": (request_kinds.LITE_PULL, 100_000),
    "query": (request_kinds.QUERY, 20_000),
    "ack": (request_kinds.ACK, 100_000),
}
#: What a Java broker without a pool of buffers tells.
_NO_POOL = 2**31 - 1
#: Keys of parts that this broker does not have.
_ZERO = (
    "pageCacheLockTimeMills startAcceptSendRequestTimeStamp timerReadBehind timerOffsetBehind timerCongestNum"
    " dispatchMaxBuffer"
)


async def collect(broker: BrokerContext) -> dict[str, str]:
    """Every key of Apache's broker, and further figures. Disk usage is read in a worker thread. Cancellation
    leaves nothing behind."""
    stats, store, now_ms = broker.stats, broker.store, broker.clock.now_ms()
    stats.advance(now_ms)
    earliest_ms = await earliest_store_time_ms(store)
    unflushed_bytes = store.end_offset - store.settled_offset(Level.FLUSHED)
    table: dict[str, object] = dict.fromkeys(_ZERO.split(), 0) | {
        "brokerVersionDesc": VERSION_NAME,
        "brokerVersion": VERSION,
        "brokerActive": "true",
        "compiledPart": speedups.description(),
        "bootTimestamp": stats.boot_timestamp_ms,
        "currentTimestamp": now_ms,
        "runtime": _run_time(now_ms - stats.boot_timestamp_ms),
        **_counts(stats),
        "commitLogMinOffset": store.start_offset,
        "commitLogMaxOffset": store.end_offset,
        "remainHowManyDataToFlush": readable_bytes(unflushed_bytes),
        "dispatchBehindBytes": dispatch_behind_bytes(broker),
        **_dispatch(broker.dispatching.progress()),
        "heldPulls": len(broker.held),
        "heldPullsRefused": broker.held.refused,
        "heldPullsEvicted": broker.held.evicted,
        "clientRegistrationsRefused": broker.clients.refused,
        "queueLocksRefused": broker.locks.refused,
        "cachedFilters": len(broker.filters.cache),
        "cachedFiltersEvicted": broker.filters.cache.evicted,
        "disabledFilters": "; ".join(
            f"{name}: {reason}"
            for server in broker.registry.filter_servers.values()
            for name, reason in server.disabled().items()
        ),
        "earliestMessageTimeStamp": -1 if earliest_ms is None else earliest_ms,
        "timerEnqueueTps": 0.0,
        "timerDequeueTps": 0.0,
        "EndTransactionThreadPoolQueueCapacity": rocketmq_settings.number(
            broker.config.unknown, "endTransactionPoolQueueCapacity", 100_000
        ),
        **_commit_buffer(broker),
        **await trio.to_thread.run_sync(_disks, broker.config, store.disk_paths),
    }
    for service in broker.registry.services.values():
        table |= service.figures()
    table |= _waiting(broker)
    return {key: str(value) for key, value in sorted(table.items())}


def _waiting(broker: BrokerContext) -> dict[str, int]:
    """What waits instead of being in the queues of Java's thread pools."""
    waiting = broker.waiting.by(request_kinds.kind_of, trio.current_time())
    table: dict[str, int] = {}
    for pool, (kind, default) in _POOLS.items():
        found = waiting.get(kind, Waiting(0, 0.0))
        capacity = f"{pool}ThreadPoolQueueCapacity"
        table[f"{pool}ThreadPoolQueueSize"] = found.count
        table[capacity] = rocketmq_settings.number(broker.config.unknown, capacity, default)
        table[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = round(found.longest_s * 1000)
    table["EndTransactionQueueSize"] = waiting.get(request_kinds.TRANSACTION, Waiting(0, 0.0)).count
    return table


def _counts(stats: BrokerStats) -> dict[str, object]:
    """Java: StoreStatsService.getRuntimeInfo, BrokerStats."""
    put_now, got_now = stats.users_totals
    rates = list(stats.rates())
    times = stats.put_times
    return {
        "putTps": _three(put for put, _, _, _ in rates),
        "getFoundTps": _three(found for _, found, _, _ in rates),
        "getMissTps": _three(missed for _, _, missed, _ in rates),
        "getTotalTps": _three(found + missed for _, found, missed, _ in rates),
        "getTransferredTps": _three(got for _, _, _, got in rates),
        "msgPutTotalTodayNow": put_now,
        "msgGetTotalTodayNow": got_now,
        "msgPutTotalTodayMorning": stats.this_morning[0],
        "msgGetTotalTodayMorning": stats.this_morning[1],
        "msgPutTotalYesterdayMorning": stats.yesterday_morning[0],
        "msgGetTotalYesterdayMorning": stats.yesterday_morning[1],
        "putMessageTimesTotal": stats.put_messages,
        "putMessageFailedTimes": stats.put_failures,
        "putMessageSizeTotal": stats.put_bytes,
        "putMessageAverageSize": stats.put_bytes / stats.put_messages if stats.put_messages else 0.0,
        "putMessageEntireTimeMax": times.max_ms,
        "getMessageEntireTimeMax": int(stats.longest_read_s * 1000),
        "putMessageDistributeTime": times.distribution(),
        "putLatency99": f"{times.percentile_ms(0.99):.2f}",
        "putLatency999": f"{times.percentile_ms(0.999):.2f}",
    }


def _three(rates: Iterable[float]) -> str:
    return " ".join(map(str, rates))


def _dispatch(progress: Sequence[DispatchProgress]) -> dict[str, int]:
    """Keys for each dispatcher; Java has one dispatcher and one key."""
    table: dict[str, int] = {}
    for each in progress:
        table[f"dispatchBehindBytes.{each.name}"] = each.behind_bytes
        table[f"dispatchFailures.{each.name}"] = each.failures
        if each.unsaved_bytes is not None:
            table[f"dispatchUnsavedBytes.{each.name}"] = each.unsaved_bytes
    return table


def _run_time(elapsed_ms: int) -> str:
    minutes, seconds = divmod(max(elapsed_ms, 0) // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def readable_bytes(size_bytes: int) -> str:
    """A size as printed by Java's tools: 12 B, 3.4 KiB (Java: MixAll.humanReadableByteCount)."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    size, units = float(size_bytes), iter("KMGTPE")
    unit = ""
    while size >= 1024 and (following := next(units, "")):
        size, unit = size / 1024, following
    return f"{size:.1f} {unit}iB"


def _commit_buffer(broker: BrokerContext) -> dict[str, object]:
    """Java: DefaultMessageStore.remainTransientStoreBufferNumbs and remainHowManyDataToCommit; the latter
    exists with transientStorePoolEnable alone."""
    config, store = broker.config, broker.store
    if not config.transient_store_pool_enable:
        return {"remainTransientStoreBufferNumbs": _NO_POOL}
    uncommitted_bytes = store.end_offset - store.settled_offset(Level.WRITTEN)
    used = -(-uncommitted_bytes // config.mapped_file_size_commit_log)
    return {
        "remainTransientStoreBufferNumbs": max(config.transient_store_pool_size - used, 0),
        "remainHowManyDataToCommit": readable_bytes(uncommitted_bytes),
    }


def _disks(config: Config, paths: Sequence[Path]) -> dict[str, object]:
    """The disks of the log and of the queues, each with its own usage, that of `storePathRootDir` for a store
    that names none; -1.0 for a path that is missing (Java: DefaultMessageStore.getRuntimeInfo)."""
    usages = [_usage(path) for path in paths or (config.root_path,)]
    log, queues = usages[0], usages[-1]
    total_bytes, free_bytes = (0, 0) if log is None else (log.total_bytes, log.available_bytes)
    ratio = _ratio(log)
    return {
        "commitLogDiskRatio": ratio,
        f"commitLogDiskRatio_{config.commit_log_path}": ratio,
        "consumeQueueDiskRatio": _ratio(queues),
        "commitLogDirCapacity": (
            f"Total : {readable_bytes(total_bytes)}, Free : {readable_bytes(free_bytes)}."
        ),
    }


def _usage(path: Path) -> DiskUsage | None:
    try:
        return disk_usage(path)
    except OSError:
        return None


def _ratio(usage: DiskUsage | None) -> float:
    return -1.0 if usage is None else usage.percent / 100
