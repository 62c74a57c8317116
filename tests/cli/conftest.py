"""`rmqkit` as a user runs it: another process, another working directory, no settings from the outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attrs import define

PROGRAM = str(Path(sys.executable).with_name("rmqkit"))
_DEADLINE_S = 60


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("RMQKIT_", "NAMESRV_"))}


@define
class Ready:
    """A server that printed its ready line; `where` holds the words of that line, by name."""

    process: subprocess.Popen[str]
    line: str

    @property
    def where(self) -> dict[str, str]:
        return dict(word.split("=", 1) for word in self.line.split() if "=" in word)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_DEADLINE_S)


Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., Ready]


@pytest.fixture
def rmqkit(tmp_path: Path) -> Run:
    """Runs a verb to its end."""

    def run(*words: str, stdin: str = "", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PROGRAM, *words],
            cwd=tmp_path,
            env=clean_environment() | (env or {}),
            input=stdin,
            text=True,
            capture_output=True,
            timeout=_DEADLINE_S,
            check=False,
        )

    return run


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts servers and kills those that a test left."""
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str) -> Ready:
        process = subprocess.Popen(
            [PROGRAM, *words], cwd=tmp_path, env=clean_environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("rmqkit ready"), f"{words}: exit {process.poll()}, {line!r}"
        return Ready(process, line)

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(_DEADLINE_S)
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def server(start: Start) -> Ready:
    """`rmqkit serve` on free ports, with the memory store."""
    return start("serve", "--data", "data", "--namesrv", "127.0.0.1:0", "--broker", "127.0.0.1:0", "--set", "store=memory")
