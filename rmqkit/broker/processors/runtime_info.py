"""The run-time key/values of GET_BROKER_RUNTIME_INFO (wire-protocol sheet, section 4.4; Java: AdminBrokerProcessor.prepareRuntimeInfo)."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.dispatching import DispatchProgress
from rmqkit.protocol.codes import VERSION, VERSION_NAME


def collect(broker: BrokerContext) -> dict[str, str]:
    """Every key that `mqadmin clusterList` reads, and what else is known. Rates are not measured yet and stand as 0."""
    stats, store = broker.stats, broker.store.statistics()
    now_ms = broker.clock.now_ms()
    zero_rates = "0.0 0.0 0.0"
    table: dict[str, object] = {
        "brokerVersionDesc": VERSION_NAME,
        "brokerVersion": VERSION,
        "brokerActive": "true",
        "bootTimestamp": stats.boot_timestamp_ms,
        "runtime": f"[ {(now_ms - stats.boot_timestamp_ms) // 1000} seconds ]",
        "putTps": zero_rates,
        "getTransferredTps": zero_rates,
        "getFoundTps": zero_rates,
        "getMissTps": zero_rates,
        "getTotalTps": zero_rates,
        "msgPutTotalTodayNow": stats.put_messages,
        "msgGetTotalTodayNow": stats.got_messages,
        "msgPutTotalTodayMorning": 0,
        "msgGetTotalTodayMorning": 0,
        "msgPutTotalYesterdayMorning": 0,
        "msgGetTotalYesterdayMorning": 0,
        "putMessageTimesTotal": stats.put_messages,
        "putMessageFailedTimes": stats.put_failures,
        "putMessageSizeTotal": stats.put_bytes,
        "putMessageAverageSize": stats.put_bytes / stats.put_messages if stats.put_messages else 0.0,
        "commitLogMinOffset": store.min_physical_offset,
        "commitLogMaxOffset": store.max_physical_offset,
        "remainHowManyDataToFlush": f"{store.max_physical_offset - store.flushed_physical_offset} B",
        "dispatchBehindBytes": max(broker.store.dispatch_behind().values(), default=0),
        **_dispatch(broker.dispatching.progress()),
        "pageCacheLockTimeMills": 0,
        "earliestMessageTimeStamp": -1,
        "timerReadBehind": 0,
        "timerOffsetBehind": 0,
        "timerCongestNum": 0,
        "timerEnqueueTps": 0.0,
        "timerDequeueTps": 0.0,
        "commitLogDiskRatio": _disk_ratio(broker),
        "consumeQueueDiskRatio": _disk_ratio(broker),
    }
    for pool in ("send", "pull", "ack", "query", "endTransaction"):
        table[f"{pool}ThreadPoolQueueSize"] = 0
        table[f"{pool}ThreadPoolQueueCapacity"] = 0
        table[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = 0
    return {key: str(value) for key, value in sorted(table.items())}


def _dispatch(progress: Sequence[DispatchProgress]) -> dict[str, int]:
    """Keys for each dispatcher. Java has one dispatcher and one key."""
    table: dict[str, int] = {}
    for each in progress:
        table[f"dispatchBehindBytes.{each.name}"] = each.behind_bytes
        table[f"dispatchFailures.{each.name}"] = each.failures
        if each.unsaved_bytes is not None:
            table[f"dispatchUnsavedBytes.{each.name}"] = each.unsaved_bytes
    return table


def _disk_ratio(broker: BrokerContext) -> float:
    try:
        usage = shutil.disk_usage(broker.config.root_path)
    except OSError:
        return -1.0
    return round(usage.used / usage.total, 4)
