"""RocketMQ's Java client of version 5 with the server, and with Apache's proxy."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from rmqkit.client import BlockingClient
from rmqkit.model.topic import CustomizedRetryPolicy, GroupRetryPolicy, SubscriptionGroupConfig
from tests.interop import builds, peers

PREFIX = "Java_"
#: Scenario -> type of its topic, and what it prints.
SCENARIOS: Mapping[str, tuple[str, str]] = {
    "push": ("NORMAL", "[0a[k0]{p=v}, 1b[k1]{p=v}, 3a[k3]{p=v}, 4b[k4]{p=v}]"),
    "fifo": ("FIFO", "[a0a1a2a3, b0b1b2b3, c0c1c2c3] failed 2 in all 12"),
    "timed": ("DELAY", "in time"),
    "recall": ("DELAY", "[kept] recalled true"),
    "transaction": ("TRANSACTION", "[asked, committed] asked [asked]"),
    "simple": ("NORMAL", "[3/1, 3/2, 4/1]"),
    "priority": ("PRIORITY", "[3, 2, 1, 0]"),
    "dead": ("NORMAL", "[1, 2]"),
}
#: Apache's broker asks about what was ended within its last three seconds.
SETTINGS = {
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "transactionCheckInterval": 1_000,
    "transactionTimeOut": 6_000,
}


@contextmanager
def serving(kind: str, tmp: pytest.TempPathFactory) -> Iterator[peers.Server]:
    home = tmp.mktemp(f"java5-{kind}")
    if kind == "apache":
        with peers.apache_proxy(home, settings=SETTINGS) as server:
            yield server
        return
    settings = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    with peers.rmqkit_serve(home, arguments=["--grpc", "127.0.0.1:0", *settings]) as server:
        yield server


@pytest.fixture(scope="module", params=["rmqkit", "apache"])
def played(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[peers.Server, Mapping[str, str], str]]:
    """The server, what each scenario printed, and the errors."""
    policy = GroupRetryPolicy(type="CUSTOMIZED", customized_retry_policy=CustomizedRetryPolicy(next=(1_000,)))
    with serving(request.param, tmp_path_factory) as server:
        with BlockingClient(server.namesrv) as client:
            for name, (kind, _) in SCENARIOS.items():
                client.admin.create_topic(PREFIX + name, queues=4, message_type=kind)
                group = SubscriptionGroupConfig(
                    group_name=f"{PREFIX}{name}-group",
                    consume_message_orderly=name == "fifo",
                    retry_max_times=1 if name == "dead" else 16,
                    group_retry_policy=policy,
                )
                client.groups.put(f"{PREFIX}{name}-group", group)
        home = tmp_path_factory.mktemp("java5")
        program = builds.HERE / "grpc-java" / "Scenarios.java"
        words = [f"-Duser.home={home}", "-cp", builds.grpc_java(), str(program), server.grpc, PREFIX]
        done = subprocess.run(
            [builds.tool("java"), *words], capture_output=True, text=True, check=False, timeout=400
        )
        lines = dict(line.split("=", 1) for line in done.stdout.splitlines())
        yield server, lines, f"{done.stderr[-3_000:]}\n{server.tail()}"


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_the_java_client_does(
    played: tuple[peers.Server, Mapping[str, str], str], scenario: str
) -> None:
    """Push consumers with tags, in order, with failures; timed messages and recalls; transactions that are
    committed, rolled back, asked for; simple consumers with SQL, leases and priorities."""
    _, lines, errors = played
    assert lines.get(scenario) == SCENARIOS[scenario][1], errors


def test_a_dead_letter(played: tuple[peers.Server, Mapping[str, str], str]) -> None:
    """What fails more often than its group permits is in the dead letters of the group."""
    server, _, _ = played
    with BlockingClient(server.namesrv) as client, client.pull_consumer("looking") as consumer:
        (queue,) = consumer.queues(f"%DLQ%{PREFIX}dead-group")
        (message,) = consumer.pull(queue, 0).messages
        assert message.body == b"bad"
