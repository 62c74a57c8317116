"""Starting and watching filter servers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import msgspec
import pytest
import trio

from rmqkit.config import Config, live_keys
from rmqkit.errors import ConfigError
from rmqkit.plugin import loader
from rmqkit.protocol.codes import RequestCode
from rmqkit.testing.broker import test_config as settings_of
from rmqkit_filter_server.processes import FilterServerProcesses, command_line
from rmqkit_filter_server.processes import settings_of as passed_on
from rmqkit_filter_server.settings import FilterServerSettings, options
from tests.broker.desk import open_desk
from tests.plugins.filter_server.shop import until

#: A program that writes its first line of input into a file named by its argument, and ends with its input.
_PROGRAM = """
import sys
from pathlib import Path
line = sys.stdin.readline()
path = Path(sys.argv[1])
path.with_suffix(".part").write_text(line)
path.with_suffix(".part").rename(path)
sys.stdin.read()
"""


class Launcher:
    """Starts the program above; `started` has the processes."""

    def __init__(self, folder: Path) -> None:
        self.started: list[trio.Process] = []
        self._folder = folder
        self._numbers = count()

    def settings(self, number: int) -> Path:
        return self._folder / f"settings-{number}"

    async def __call__(self) -> trio.Process:
        words = [sys.executable, "-S", "-c", _PROGRAM, str(self.settings(next(self._numbers)))]
        process = await trio.lowlevel.open_process(words, stdin=subprocess.PIPE)
        self.started.append(process)
        return process


@asynccontextmanager
async def processes(folder: Path, number: int) -> AsyncIterator[Launcher]:
    """The service of a broker with so many filter servers."""
    launcher = Launcher(folder)
    async with open_desk(folder, filterServerNums=number) as desk, trio.open_nursery() as nursery:
        await nursery.start(FilterServerProcesses(launcher).run, desk.broker)
        yield launcher
        nursery.cancel_scope.cancel()


@pytest.mark.row("S038", "S062", "S092", "S347")
@pytest.mark.real_threads
async def test_the_broker_starts_its_filter_servers_and_stops_them(tmp_path: Path) -> None:
    """Each process gets the broker's settings through its standard input; its end stops it."""
    async with processes(tmp_path, 2) as launcher:
        await until(lambda: len(launcher.started) == 2)
        await until(lambda: launcher.settings(0).exists() and launcher.settings(1).exists())
        config = msgspec.json.decode(launcher.settings(1).read_bytes(), type=Config)
        assert options(config).broker == "127.0.0.1:10911"
        assert config.owned(FilterServerSettings).filter_server_nums == 2
        assert all(process.poll() is None for process in launcher.started)
    assert [process.returncode for process in launcher.started] == [0, 0]


@pytest.mark.real_threads
async def test_a_filter_server_that_ends_is_started_again(tmp_path: Path) -> None:
    """One that was killed has a successor with the same settings."""
    async with processes(tmp_path, 1) as launcher:
        await until(lambda: launcher.settings(0).exists())
        launcher.started[0].kill()
        await until(lambda: launcher.settings(1).exists())
        assert launcher.settings(1).read_bytes() == launcher.settings(0).read_bytes()


async def test_a_broker_starts_no_filter_server_unless_asked(tmp_path: Path) -> None:
    """The default of filterServerNums is 0, as Apache's."""
    assert settings_of(tmp_path).owned(FilterServerSettings).filter_server_nums == 0


@pytest.mark.parametrize("count", [-1, 65])
def test_the_number_of_filter_servers_is_limited(tmp_path: Path, count: int) -> None:
    """A broker with another number does not start."""
    with pytest.raises(ConfigError, match="filterServerNums"):
        settings_of(tmp_path, filterServerNums=count).owned(FilterServerSettings)


async def test_no_setting_from_the_network_is_on_the_command_line(tmp_path: Path) -> None:
    """UPDATE_BROKER_CONFIG changes neither what a filter server is started with nor how many there are.
    Apache's brokers ran a shell with rocketmqHome, configStorePath and namesrvAddr (CVE-2023-33246)."""
    evil = "-c $@|sh . echo touch /tmp/pwned;"
    async with open_desk(tmp_path, filterServerNums=1) as desk:
        before, words = passed_on(desk.broker), command_line()
        for key in (
            "rocketmqHome",
            "filterServerNums",
            "namesrvAddr",
            "brokerConfigPath",
            "configStorePath",
            "storePathRootDir",
            "plugins.filter-server.listen",
        ):
            value = "4" if key == "filterServerNums" else evil
            answer = await desk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=f"{key}={value}\n".encode())
            assert answer.code != 0, key
        assert passed_on(desk.broker) == before
        assert command_line() == words
    assert words[:5] == [sys.executable, "-P", "-m", "rmqkit.cli", "filter-server"]
    assert words[5:] == ["--supervised"]
    assert all(isinstance(word, str) and evil not in word for word in words)


def test_the_name_server_takes_no_path_from_the_network(tmp_path: Path) -> None:
    """The settings that name files are not among those that a request changes; Apache's name server wrote
    its configuration to any path (CVE-2023-37582)."""
    registry = loader.load(settings_of(tmp_path))
    live = live_keys([Config, *registry.settings.values()])
    assert "autoCreateTopicEnable" in live
    assert not [key for key in live if any(part in key.lower() for part in ("path", "dir", "home"))]
