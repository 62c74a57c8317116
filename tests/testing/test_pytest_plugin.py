"""The options --store and --transport, as users of the plugin see them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Runs = Callable[..., subprocess.CompletedProcess[str]]
DEADLINE_S = 300
TESTS = """
import pytest
from rmqkit.client import Client, Message
from rmqkit.testing.broker import dialer, running_broker, running_cluster, running_namesrv


def parts(running):
    return type(running.context.store).__name__, running.address.scheme


async def test_any(tmp_path):
    async with (
        running_cluster(tmp_path) as cluster,
        Client(cluster.namesrv_text, connect=cluster.connect) as client,
    ):
        await client.admin.create_topic("T", queues=1)
        async with client.producer("p") as producer:
            assert (await producer.send("T", b"x")).is_ok
        print("any", *parts(cluster.broker))


@pytest.mark.durable_store
async def test_twice(tmp_path):
    for _ in range(2):
        async with running_broker(tmp_path) as running:
            print("twice", *parts(running))


@pytest.mark.only_store("mmap", why="is about files")
@pytest.mark.only_transport("tcp", why="is about sockets")
async def test_named(tmp_path):
    async with running_broker(tmp_path, store="mmap", scheme="tcp") as running:
        print("named", *parts(running))


async def test_two_brokers(tmp_path):
    async with (
        running_namesrv(tmp_path) as namesrv,
        running_broker(tmp_path / "a", brokerName="a", namesrvAddr=str(namesrv)),
        running_broker(tmp_path / "b", brokerName="b", namesrvAddr=str(namesrv)),
        Client(str(namesrv), connect=dialer()) as client,
        client.producer("p") as producer,
    ):
        assert await client.admin.create_topic("T", queues=1) == ["a", "b"]
        assert {(await producer.send("T", b"x")).queue.broker_name for _ in range(2)} == {"a", "b"}


def test_none():
    pass
"""


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    """Run pytest over TESTS in another process with the given arguments."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["rmqkit.testing.pytest_plugin"]\n')
    (tmp_path / "pytest.ini").write_text("[pytest]\ntrio_mode = true\naddopts = -rA --strict-markers\n")
    (tmp_path / "test_it.py").write_text(TESTS)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        # Only the plugin that these tests need is loaded, which halves the start.
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "pytest_trio.plugin", *words],
            cwd=tmp_path,
            env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            text=True,
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
        )

    return run


def printed(output: str) -> dict[str, tuple[str, ...]]:
    """The lines that the tests above print about their brokers."""
    lines = [line.split() for line in output.splitlines()]
    return {words[0]: tuple(words[1:]) for words in lines if words and words[0] in ("any", "twice", "named")}


def test_what_a_test_gets_that_says_nothing(runs: Runs) -> None:
    """The defaults are memory and TCP, and a durable store where the test needs one."""
    result = runs()
    assert result.returncode == 0, result.stdout
    assert printed(result.stdout) == {
        "any": ("MemoryStore", "tcp"),
        "twice": ("MmapStore", "tcp"),
        "named": ("MmapStore", "tcp"),
    }
    assert "left out" not in result.stdout


@pytest.mark.parametrize(
    ("words", "found", "said"),
    [
        (
            ("--store", "lmdb"),
            {"any": ("LmdbStore", "tcp"), "twice": ("LmdbStore", "tcp")},
            ("used by 3 of 4", "1 test: is about files"),
        ),
        (
            ("--store", "memory"),
            {"any": ("MemoryStore", "tcp")},
            ("used by 2 of 3", "1 test: needs a restart"),
        ),
        (
            ("--transport", "unix"),
            {"any": ("MemoryStore", "unix"), "twice": ("MmapStore", "unix")},
            ("used by 3 of 4", "about sockets"),
        ),
        (
            ("--transport", "tls"),
            {"any": ("MemoryStore", "tls"), "twice": ("MmapStore", "tls")},
            ("used by 3 of 4", "about sockets"),
        ),
        (
            ("--transport", "quic"),
            {"any": ("MemoryStore", "quic"), "twice": ("MmapStore", "quic")},
            ("used by 3 of 4", "about sockets"),
        ),
        (
            ("--store", "mmap", "--transport", "memory"),
            {"any": ("MmapStore", "memory"), "twice": ("MmapStore", "memory")},
            ("about sockets",),
        ),
    ],
)
def test_what_was_chosen_is_used(
    runs: Runs, words: tuple[str, ...], found: dict[str, tuple[str, ...]], said: tuple[str, ...]
) -> None:
    """The choice is used by every test that leaves it open; other tests are deselected, and the summary has
    the reason and the counts."""
    result = runs(*words)
    assert result.returncode == 0, result.stdout
    assert printed(result.stdout) == found
    for text in said:
        assert text in result.stdout


def test_a_run_that_tests_nothing_does_not_pass(runs: Runs) -> None:
    """The run fails although all tests pass, because none used the choice."""
    result = runs("--store", "lmdb", "-k", "test_none")
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "store lmdb: used by 0 of 1 tests" in result.stdout


@pytest.mark.parametrize(("option", "name"), [("--store", "mnap"), ("--transport", "tpc")])
def test_names_that_nobody_brings(runs: Runs, option: str, name: str) -> None:
    """An unknown name is reported once for the run, not by each test."""
    result = runs(option, name)
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"no plugin brings '{name}'" in result.stderr
    assert "did you mean" in result.stderr
