"""RocketMQ's Java, Go and Node clients of version 5: with a broker, with a proxy before two brokers and
before Apache's broker, and with Apache's proxy."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from rmqkit.client import BlockingClient
from rmqkit.model.topic import CustomizedRetryPolicy, GroupRetryPolicy, SubscriptionGroupConfig
from tests.interop import builds, peers

#: Scenario -> type of its topic, and what it prints.
SCENARIOS: Mapping[str, tuple[str, str]] = {
    "push": ("NORMAL", "[0a[k0]{p=v}, 1b[k1]{p=v}, 3a[k3]{p=v}, 4b[k4]{p=v}]"),
    "fifo": ("FIFO", "[a0a1a2a3, b0b1b2b3, c0c1c2c3] failed 2 in all 12"),
    "timed": ("DELAY", "not early"),
    "transaction": ("TRANSACTION", "[asked, committed] asked [asked]"),
    "simple": ("NORMAL", "[3/1, 3/2, 4/1]"),
    "dead": ("NORMAL", "[1, 2]"),
    "recall": ("DELAY", "[kept] recalled true"),
    "priority": ("PRIORITY", "[3, 2, 1, 0]"),
    "lite": ("LITE", "[one0, one1, one2, one3, one4, two0, two1, two2]"),
}
#: The Go client goes on with later messages of a group while one of them waits for its next attempt.
FIFO_OF_GO = r"\[a0a1a2a3, (b[0-3]){4}, c0c1c2c3\] failed 2 in all 12"
#: Language -> the scenarios of its program.
PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "java": tuple(SCENARIOS),
    "go": ("push", "fifo", "timed", "transaction", "simple", "dead", "lite"),
    "node": ("push", "timed", "transaction", "simple", "dead", "recall"),
}
CASES = [(language, name) for language, names in PROGRAMS.items() for name in names]
#: Apache's broker asks about what was ended within its last three seconds.
SETTINGS = {
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "transactionCheckInterval": 1_000,
    "transactionTimeOut": 10_000,
    "maxLmqConsumeQueueNum": 1_000,
}
#: Without them Apache's broker has no lite topics; here they need no setting.
APACHE_SETTINGS = {**SETTINGS, "enableLmq": "true", "enableMultiDispatch": "true"}
TWO_BROKERS = "two brokers"
WITHOUT_LITE = {"java": ["lite"], "go": ["lite"]}
#: Language -> what each of its scenarios printed, and the errors.
Played = Mapping[str, tuple[Mapping[str, str], str]]


@contextmanager
def serving(kind: str, home: Path) -> Iterator[peers.Server]:
    if kind == "apache":
        with peers.apache_proxy(home, settings=APACHE_SETTINGS) as server:
            yield server
        return
    if kind == "proxy before apache":
        with (
            peers.apache_namesrv(home) as namesrv,
            peers.apache_broker(
                home, namesrv.namesrv, settings=APACHE_SETTINGS, is_read_later=False
            ) as broker,
            peers.rmqkit_proxy(home, broker) as server,
        ):
            yield server
        return
    settings = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    several = ["--brokers", "2"] if kind == TWO_BROKERS else []
    with peers.rmqkit_serve(home, arguments=["--grpc", "127.0.0.1:0", *several, *settings]) as server:
        yield server


def command_of(language: str, home: Path) -> list[str]:
    """The words that start the program of a language."""
    try:
        if language == "java":
            program = builds.HERE / "grpc-java" / "Scenarios.java"
            return [builds.tool("java"), f"-Duser.home={home}", "-cp", builds.grpc_java(), str(program)]
        if language == "node":
            return [builds.tool("node"), str(builds.HERE / "grpc-node" / "scenarios.js")]
        return [str(builds.grpc_go((builds.HERE / "grpc-go" / "scenarios.go").read_text()))]
    except builds.BuildError as problem:
        pytest.fail(str(problem), pytrace=False)


def prepare(namesrv: str, language: str) -> None:
    """Make the topics, and groups that fail quickly."""
    policy = GroupRetryPolicy(type="CUSTOMIZED", customized_retry_policy=CustomizedRetryPolicy(next=(1_000,)))
    with BlockingClient(namesrv) as client:
        for name in PROGRAMS[language]:
            client.admin.create_topic(f"{language}_{name}", queues=4, message_type=SCENARIOS[name][0])
            group = f"{language}_{name}-group"
            settings = SubscriptionGroupConfig(
                group_name=group,
                consume_message_orderly=name == "fifo",
                retry_max_times=1 if name == "dead" else 16,
                group_retry_policy=policy,
                attributes={"+lite.bind.topic": f"{language}_{name}"} if name == "lite" else {},
            )
            client.groups.put(group, settings)


@pytest.fixture(scope="module", params=["rmqkit", TWO_BROKERS, "apache", "proxy before apache"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[peers.Server]:
    with serving(request.param, tmp_path_factory.mktemp(f"grpc-{request.param}")) as server:
        yield server


@pytest.fixture(scope="module")
def played(server: peers.Server, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """All programs, side by side; before Apache's proxy, which needs seconds for its first answers on a busy
    machine, Java's is played first: the Go client gives its start no longer than five seconds."""
    found: dict[str, tuple[dict[str, str], str]] = {}
    running: dict[str, subprocess.Popen[str]] = {}
    for language in PROGRAMS:
        prepare(server.namesrv, language)
        home = tmp_path_factory.mktemp(language)
        words = [*command_of(language, home), server.grpc, f"{language}_"]
        if server.kind.startswith("apache"):
            # The Go client ends the whole program when the server does not know the call.
            words += WITHOUT_LITE.get(language, [])
        running[language] = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"HOME": str(home), "PATH": "/usr/bin:/bin", "NODE_PATH": str(builds.grpc_node())},
        )
        if server.kind.startswith("apache"):
            found[language] = _ended(running.pop(language), server)
    return found | {language: _ended(process, server) for language, process in running.items()}


def _ended(process: subprocess.Popen[str], server: peers.Server) -> tuple[dict[str, str], str]:
    """What a program has found out, and what it and the server have said."""
    try:
        out, errors = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        process.kill()
        out, errors = process.communicate()
    lines = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
    return lines, f"{errors[-3_000:]}\n{server.tail()}"


@pytest.mark.parametrize(("language", "scenario"), CASES)
def test_what_a_client_does(
    request: pytest.FixtureRequest, played: Played, language: str, scenario: str
) -> None:
    """Push consumers with tags, in order, with failures; timed messages and recalls; transactions that are
    committed, rolled back, asked for; simple consumers with SQL, leases and priorities."""
    lines, errors = played[language]
    if scenario == "lite" and "[apache-" in request.node.name:
        pytest.skip("Apache's proxy has no lite topics when it runs with its broker")
    if (language, scenario) == ("go", "fifo"):
        assert re.fullmatch(FIFO_OF_GO, lines.get(scenario, "")), errors
    elif scenario == "priority" and TWO_BROKERS in request.node.name:
        # Each broker has an order of its own.
        assert sorted(lines.get(scenario, "")) == sorted(SCENARIOS[scenario][1]), errors
    else:
        assert lines.get(scenario) == SCENARIOS[scenario][1], errors


@pytest.mark.parametrize("language", PROGRAMS)
def test_a_dead_letter(server: peers.Server, played: Played, language: str) -> None:
    """What fails more often than its group permits is in the dead letters of the group."""
    assert played[language]
    with BlockingClient(server.namesrv) as client, client.pull_consumer("looking") as consumer:
        (queue,) = consumer.queues(f"%DLQ%{language}_dead-group")
        (message,) = consumer.pull(queue, 0).messages
        assert message.body == b"bad"
