"""Run-time information in the form that Apache's exporter and dashboards read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import RequestCode
from tests.broker.desk import BrokerHarness, open_desk

#: The figures of Apache's broker 5.5.0; tests/interop/test_runtime_info.py asks a running one.
APACHE_KEYS = """
    EndTransactionQueueSize EndTransactionThreadPoolQueueCapacity ackThreadPoolQueueCapacity
    ackThreadPoolQueueHeadWaitTimeMills ackThreadPoolQueueSize bootTimestamp brokerActive
    brokerVersionDesc commitLogDirCapacity commitLogDiskRatio commitLogMaxOffset commitLogMinOffset
    consumeQueueDiskRatio dispatchBehindBytes dispatchMaxBuffer earliestMessageTimeStamp getFoundTps
    getMessageEntireTimeMax getMissTps getTotalTps getTransferredTps litePullThreadPoolQueueCapacity
    litePullThreadPoolQueueHeadWaitTimeMills litePullThreadPoolQueueSize msgGetTotalTodayMorning
    msgGetTotalTodayNow msgGetTotalYesterdayMorning msgPutTotalTodayMorning msgPutTotalTodayNow
    msgPutTotalYesterdayMorning pageCacheLockTimeMills pullThreadPoolQueueCapacity
    pullThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueSize putLatency99 putLatency999
    putMessageAverageSize putMessageDistributeTime putMessageEntireTimeMax putMessageFailedTimes
    putMessageSizeTotal putMessageTimesTotal putTps queryThreadPoolQueueCapacity
    queryThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueSize remainHowManyDataToFlush
    remainTransientStoreBufferNumbs runtime sendThreadPoolQueueCapacity
    sendThreadPoolQueueHeadWaitTimeMills sendThreadPoolQueueSize startAcceptSendRequestTimeStamp
    timerCongestNum timerDequeueTps timerEnqueueTps timerOffsetBehind timerReadBehind
"""


async def figures(desk: BrokerHarness) -> dict[str, str]:
    table: dict[str, str] = loose_json.loads((await desk.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)[
        "table"
    ]
    return table


async def test_every_figure_of_apaches_broker_is_there(desk: BrokerHarness) -> None:
    """No program that reads Apache's figures finds one missing."""
    table = await figures(desk)
    assert set(APACHE_KEYS.split()) - set(table) == set()
    assert f"commitLogDiskRatio_{desk.broker.config.commit_log_path}" in table


async def test_capacities_are_those_of_the_settings_or_apaches(tmp_path: Path) -> None:
    """Dashboards divide by them; a value that is not a number counts as not given."""
    given: dict[str, Any] = {"sendThreadPoolQueueCapacity": "77", "pull-thread-pool-queue-capacity": "many"}
    async with open_desk(tmp_path, **given) as desk:
        table = await figures(desk)
    assert table["sendThreadPoolQueueCapacity"] == "77"
    assert table["pullThreadPoolQueueCapacity"] == "100000"
    assert table["EndTransactionThreadPoolQueueCapacity"] == "100000"


async def test_the_longest_read_is_told(desk: BrokerHarness) -> None:
    """In whole milliseconds, like the longest append."""
    desk.broker.stats.read_took(0.0421)
    desk.broker.stats.read_took(0.001)
    assert (await figures(desk))["getMessageEntireTimeMax"] == "42"


async def test_reads_are_timed(desk: BrokerHarness) -> None:
    """A pull reads the store."""
    await desk.sent()
    await desk.pull()
    assert desk.broker.stats.longest_read_s > 0


async def test_the_present_time_is_told(desk: BrokerHarness) -> None:
    """It is that of the clock, wherever the clock was at the start."""
    desk.clock.advance(-3_600_000)
    assert (await figures(desk))["currentTimestamp"] == str(desk.clock.now_ms())


@pytest.mark.only_store("mmap", why="is about files in two directories")
async def test_each_directory_has_the_usage_of_its_own_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log's ratio is that of `storePathCommitLog`, the queues' that of `storePathRootDir`."""
    shares = {"log": 90, "root": 10}

    def statvfs(path: Path) -> Any:
        used = shares["log" if "elsewhere" in str(path) else "root"]

        class Status:
            f_blocks, f_bfree, f_bavail, f_frsize = 200, 200 - used, 100 - used, 1 << 20

        return Status

    log = tmp_path / "elsewhere"
    async with open_desk(tmp_path / "data", store="mmap", storePathCommitLog=str(log)) as desk:
        with monkeypatch.context() as patched:
            patched.setattr("os.statvfs", statvfs)
            table = await figures(desk)
    assert (table["commitLogDiskRatio"], table["consumeQueueDiskRatio"]) == ("0.9", "0.1")
    assert table[f"commitLogDiskRatio_{log}"] == "0.9"
    assert table["commitLogDirCapacity"] == "Total : 200.0 MiB, Free : 10.0 MiB."


@pytest.mark.only_store("mmap", why="has a commit buffer")
async def test_a_commit_buffer_is_described(tmp_path: Path) -> None:
    """The free buffers and the bytes that wait are told; without a commit buffer there is no limit."""
    on: dict[str, Any] = {"store": "mmap", "transientStorePoolEnable": "true", "transientStorePoolSize": "4"}
    async with open_desk(tmp_path / "on", **on) as desk:
        table = await figures(desk)
        assert table["remainTransientStoreBufferNumbs"] == "4"
        assert table["remainHowManyDataToCommit"] == "0 B"
    async with open_desk(tmp_path / "off", store="mmap") as desk:
        table = await figures(desk)
        assert table["remainTransientStoreBufferNumbs"] == str(2**31 - 1)
        assert "remainHowManyDataToCommit" not in table


async def test_figures_of_services_are_among_them(
    desk: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service adds keys of its own."""
    service = desk.broker.registry.services["retention"]
    monkeypatch.setattr(service, "figures", lambda: {"answer": 42})
    assert (await figures(desk))["answer"] == "42"
