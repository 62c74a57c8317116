"""The run-time information of Apache's broker and of ours, side by side."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest

from tests.interop import peers

PATIENCE_S = 60
_SEND, _RUNTIME_INFO = 10, 28
_NUMBER = re.compile(r"-?\d+(\.\d+)?")


def figures(server: peers.Server) -> dict[str, str]:
    table: dict[str, str] = json.loads(peers.call(server.broker, _RUNTIME_INFO).body)["table"]
    return table


def told(server: peers.Server) -> dict[str, str]:
    """The figures after a message of a delay level was delivered. The key with the path of the log has PATH
    instead."""
    fields: dict[str, Any] = {
        "producerGroup": "g",
        "topic": "Told",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 1,
        "queueId": 0,
        "sysFlag": 0,
        "bornTimestamp": int(time.time() * 1000),
        "flag": 0,
        "properties": "DELAY\x011\x02",
        "reconsumeTimes": 0,
        "unitMode": "false",
        "batch": "false",
    }
    sent = peers.call(server.broker, _SEND, {name: str(value) for name, value in fields.items()}, b"x")
    assert sent.code == 0, sent.remark
    deadline = time.monotonic() + PATIENCE_S
    while figures(server).get("scheduleMessageOffset_1") != "1,1":
        assert time.monotonic() < deadline, figures(server)
        time.sleep(0.05)
    return {
        re.sub("(?<=commitLogDiskRatio_).*", "PATH", name): text for name, text in figures(server).items()
    }


@pytest.mark.row("S011")
def test_ours_has_every_figure_of_apaches(rmqkit_server: peers.Server, apache_cluster: peers.Server) -> None:
    """Each key of Apache's broker is there, and a figure that is a number is one. Only the start of the name
    differs where it has a path."""
    ours, apaches = told(rmqkit_server), told(apache_cluster)
    assert apaches.keys() - ours.keys() == set()
    numbers = {name for name, text in apaches.items() if _NUMBER.fullmatch(text)}
    assert {name: ours[name] for name in numbers if not _NUMBER.fullmatch(ours[name])} == {}
    capacities = {name: text for name, text in apaches.items() if name.endswith("QueueCapacity")}
    assert {name: ours[name] for name in capacities} == capacities
