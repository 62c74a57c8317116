"""The load generator's command line with a broker in this process: every counted message exists."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from benchmarks.load.__main__ import main
from rmqkit.testing.broker import running_cluster

Load = Callable[..., Any]
CONTENTS = {
    "window": ["--connections", "3", "--in-flight", "5", "--messages", "200"],
    "one by one": ["--connections", "1", "--in-flight", "1", "--messages", "20"],
    "batches": ["--connections", "2", "--in-flight", "2", "--batch", "8", "--messages", "200"],
    "one in flight on many connections": ["--connections", "64", "--in-flight", "1", "--messages", "200"],
}


async def load(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The report of a run that must succeed."""
    status = await trio.to_thread.run_sync(main, arguments)
    said = capsys.readouterr()
    assert status == 0, said.err + said.out
    report: dict[str, Any] = json.loads(said.out)
    assert (report["errors"], report["first_errors"]) == (0, [])
    return report


@pytest.mark.parametrize("shape", CONTENTS.values(), ids=CONTENTS.keys())
async def test_what_is_counted_as_sent_is_read_again(
    shape: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All counted messages and the request that creates the topic are stored; the report has rate, latency
    and the generator's own cost."""
    async with running_cluster(tmp_path) as cluster:
        call = partial(load, capsys)
        report = await call(
            "send", "--namesrv", cluster.namesrv_text, "--topic", "T", "--size", "100", *shape
        )
        batch = report["messages"] // report["requests"]
        assert report["messages"] == int(shape[-1])
        assert report["messages_per_s"] > 0
        assert 0 < report["latency_ms"]["p50"] <= report["latency_ms"]["p99"]
        assert report["generator_cpu_us_per_message"] > 0
        read = await call("pull", "--namesrv", cluster.namesrv_text, "--topic", "T", "--passes", "2")
        assert read["messages"] == 2 * (report["messages"] + batch)
        assert read["whole"]


async def test_connections_go_to_the_brokers_in_turn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every broker gets its share, and the queues of all brokers are read."""
    async with running_cluster(tmp_path / "a") as one, running_cluster(tmp_path / "b") as other:
        call, both = partial(load, capsys), f"{one.broker.address},{other.broker.address}"
        sent = await call(
            "send",
            "--broker",
            both,
            "--topic",
            "T",
            "--connections",
            "4",
            "--in-flight",
            "2",
            "--messages",
            "200",
        )
        parts = [
            (await call("pull", "--broker", broker, "--topic", "T"))["messages"] for broker in both.split(",")
        ]
        assert min(parts) > 1
        assert sum(parts) == sent["messages"] + 2
        assert (await call("pull", "--broker", both, "--topic", "T"))["messages"] == sum(parts)


async def test_sends_wait_for_the_device_under_synchronous_flush(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """64 connections with one request in flight each, over files, all succeed."""
    async with running_cluster(tmp_path, store="mmap", flushDiskType="SYNC_FLUSH") as cluster:
        shape = ["--connections", "64", "--in-flight", "1", "--messages", "300"]
        report = await load(capsys, "send", "--namesrv", cluster.namesrv_text, "--topic", "T", *shape)
        assert (report["messages"], report["requests"]) == (300, 300)


async def test_a_backlog_is_read_while_messages_are_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sends run alone first, then beside a reader of everything; both are in the report. They may wait long
    on a busy machine, and none is refused for it."""
    async with running_cluster(tmp_path, store="mmap", brokerFastFailureEnable="false") as cluster:
        call = partial(load, capsys)
        await call(
            "send", "--namesrv", cluster.namesrv_text, "--topic", "Old", "--messages", "3000", "--size", "100"
        )
        pace = ["--rate", "2000", "--quiet-seconds", "0.05", "--connections", "2", "--size", "100"]
        report = await call(
            "backlog", "--namesrv", cluster.namesrv_text, "--topic", "New", "--read", "Old", *pace
        )
        assert report["reader"]["messages"] == 3001
        assert report["reader"]["whole"]
        assert report["quiet"]["messages"] == 100
        assert report["messages"] > 0
        assert report["p99_growth"] == pytest.approx(
            report["latency_ms"]["p99"] / report["quiet"]["latency_ms"]["p99"], abs=0.01
        )
        kept = await call("pull", "--namesrv", cluster.namesrv_text, "--topic", "New")
        assert kept["messages"] == report["quiet"]["messages"] + report["messages"] + 1


async def test_reading_ends_with_its_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Reading ends after its time, and `whole` shows that there was more."""
    async with running_cluster(tmp_path) as cluster:
        await load(
            capsys,
            "send",
            "--namesrv",
            cluster.namesrv_text,
            "--topic",
            "T",
            "--messages",
            "500",
            "--size",
            "10",
        )
        report = await load(
            capsys,
            "pull",
            "--namesrv",
            cluster.namesrv_text,
            "--topic",
            "T",
            "--max-messages",
            "1",
            "--seconds",
            "0.000001",
        )
        assert not report["whole"]
        assert 0 < report["messages"] < 500


async def test_what_fails_is_said_on_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unreachable server, a refused topic and a body that is too large each give exit status 1, an error
    line and no report."""
    async with running_cluster(tmp_path, autoCreateTopicEnable="false", maxMessageSize=1000) as cluster:
        address = cluster.namesrv_text
        attempts = {
            "refused": ["send", "--broker", "127.0.0.1:1"],
            "knows neither": ["send", "--namesrv", address, "--topic", "T"],
            "with code": ["send", "--broker", str(cluster.broker.address), "--topic", "T"],
        }
        for words, arguments in attempts.items():
            assert await trio.to_thread.run_sync(main, arguments) == 1
            said = capsys.readouterr()
            assert said.out == ""
            assert words in said.err


@pytest.mark.parametrize(
    "arguments",
    [["send", "--topic", "T"], ["pull", "--broker", "a:1", "--passes", "0"], ["backlog", "--broker", "a:1"]],
)
def test_a_command_line_that_makes_no_sense_is_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing broker, a count of 0 and a missing topic are refused."""
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2
    assert "usage" in capsys.readouterr().err
