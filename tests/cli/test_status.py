"""`rmqkit status`."""

from __future__ import annotations

import json
from typing import Any

from rmqkit import speedups
from rmqkit.cli.status import dispatchers
from tests.cli.conftest import Ready, Run, Start


def test_brokers_and_their_dispatchers(rmqkit: Run, start: Start) -> None:
    """Every broker is listed with its log and every dispatcher with its backlog in bytes; --json contains all
    figures of the broker."""
    server = start(
        "serve",
        "--data",
        "data",
        "--namesrv",
        "127.0.0.1:0",
        "--broker",
        "127.0.0.1:0",
        "--set",
        "store=mmap",
    )
    namesrv = ("--namesrv", server.where["namesrv"])
    assert rmqkit("send", "TopicTest", "x", *namesrv).returncode == 0
    later = ("--property", "TIMER_DELAY_SEC=3600")
    assert rmqkit("send", "TopicTest", "later", *later, *namesrv).returncode == 0
    waiting = "0"
    while waiting == "0":
        (found,) = json.loads(rmqkit("status", *namesrv, "--json").stdout)
        waiting = found["runtime"]["timerCongestNum"]
    assert waiting == "1"
    (found,) = json.loads(rmqkit("status", *namesrv, "--json").stdout)
    assert (found["broker"], found["address"]) == ("broker-a", server.where["broker"])
    assert [it["name"] for it in found["dispatchers"]] == ["consume-queue", "index"]
    assert found["dispatchers"][0] == {"name": "consume-queue", "behindBytes": 0, "failures": 0}
    assert int(found["runtime"]["commitLogMaxOffset"]) > 100
    shown = rmqkit("status", *namesrv, "--broker", "broker-a").stdout.splitlines()
    assert shown[0].split() == [
        "BROKER",
        "ADDRESS",
        "VERSION",
        "LOG",
        "FROM",
        "LOG",
        "TO",
        "TO",
        "FLUSH",
        "BEHIND",
        "TIMERS",
        "CODE",
    ]
    assert found["code"] == found["runtime"]["compiledPart"] == speedups.description()
    assert shown[1].endswith("  compiled" if speedups.IN_USE else "  pure Python")
    assert shown[1].split()[-2 if speedups.IN_USE else -3] == "1"
    assert shown[1].split()[:2] == ["broker-a", server.where["broker"]]
    assert [line.split()[:2] for line in shown[3:]] == [
        ["BROKER", "DISPATCHER"],
        ["broker-a", "consume-queue"],
        ["broker-a", "index"],
    ]


def test_an_unknown_broker(rmqkit: Run, server: Ready) -> None:
    """The error lists the known brokers."""
    result = rmqkit("status", "--broker", "nobody", "--namesrv", server.where["namesrv"])
    assert result.returncode == 1
    assert "broker-a" in result.stderr


def test_dispatchers_from_runtime_keys() -> None:
    """A Java broker has no dispatchers; names may contain dots."""
    java: dict[str, Any] = {"dispatchBehindBytes": "5", "runtime": "[ 3 seconds ]"}
    assert dispatchers(java) == []
    ours = {
        "dispatchBehindBytes.a.b": "7",
        "dispatchUnsavedBytes.a.b": "9",
        "dispatchFailures.a.b": "1",
        "dispatchBehindBytes.a": "0",
        "x.y": "1",
    }
    assert dispatchers(java | ours) == [
        {"name": "a", "behindBytes": 0},
        {"name": "a.b", "behindBytes": 7, "unsavedBytes": 9, "failures": 1},
    ]
