"""`rmqkit` as a user runs it: in another process and working directory, without outside settings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest
from attrs import define

from rmqkit.client import BlockingClient
from tests.programs import Program, run, spawn


@define
class Ready:
    """A server that has printed its ready line; `where` contains the values of that line by name."""

    process: Program
    line: str

    @property
    def where(self) -> dict[str, str]:
        return dict(word.split("=", 1) for word in self.line.split() if "=" in word)

    def stop(self) -> int:
        """Send SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait()


Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., Ready]


@pytest.fixture
def rmqkit(tmp_path: Path) -> Run:
    """Run a verb to its end."""

    def run_verb(
        *words: str, stdin: str = "", env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        ended = run(words, tmp_path, stdin=stdin.encode(), env=env)
        return subprocess.CompletedProcess(
            ended.args, ended.returncode, ended.stdout.decode(), ended.stderr.decode()
        )

    return run_verb


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start servers, and kill those that are left at the end of the test."""
    started: list[tuple[Program, TextIO]] = []

    def begin(*words: str, env: dict[str, str] | None = None) -> Ready:
        reading, writing = os.pipe()
        with open(os.devnull, "r+b") as null, open(writing, "wb") as output:
            process = spawn(
                words, tmp_path, stdin=null.fileno(), stdout=output.fileno(), stderr=null.fileno(), env=env
            )
        stdout = open(reading)  # noqa: SIM115 - closed at the end of the test
        started.append((process, stdout))
        line = stdout.readline()
        assert line.startswith("rmqkit ready"), f"{words}: exit {process.poll()}, {line!r}"
        return Ready(process, line)

    yield begin
    for process, stdout in started:
        process.kill()
        process.wait()
        stdout.close()


@pytest.fixture
def server(start: Start) -> Ready:
    """`rmqkit serve` on free ports, with the memory store."""
    return start(
        "serve",
        "--data",
        "data",
        "--namesrv",
        "127.0.0.1:0",
        "--broker",
        "127.0.0.1:0",
        "--set",
        "store=memory",
    )


#: How long a condition of another process may take.
PATIENCE_S = 120


def until(condition: Callable[[], object]) -> None:
    """Wait for a condition of another process."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def client(server: Ready) -> Iterator[BlockingClient]:
    """A client of the server. Topics that a test reads at once are created with it: a broker registers those
    that a send creates a moment later."""
    with BlockingClient(server.where["namesrv"]) as client:
        yield client


class Verbs:
    """Verbs against one server; `first` are the words before all others."""

    def __init__(self, run: Run, server: Ready, *first: str) -> None:
        self._run, self._first, self._where = run, first, ("--namesrv", server.where["namesrv"])

    def ended(self, *words: str, code: int | None = 0, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """A verb that has ended with that exit code, with None any."""
        ended = self._run(*self._first, *words, *self._where, stdin=stdin)
        assert code in (None, ended.returncode), ended.stderr
        assert "Traceback" not in ended.stderr
        return ended

    def text(self, *words: str, code: int = 0, stdin: str = "") -> str:
        """What a verb prints; its errors when it must fail."""
        ended = self.ended(*words, code=code, stdin=stdin)
        return ended.stdout if code == 0 else ended.stderr

    def json(self, *words: str, code: int = 0, stdin: str = "") -> Any:
        """The document that a verb prints."""
        return json.loads(self.ended(*words, "--json", code=code, stdin=stdin).stdout)

    def lines(self, *words: str, stdin: str = "") -> list[Any]:
        """The documents that a verb prints, one a line."""
        return [json.loads(line) for line in self.text(*words, "--json", stdin=stdin).splitlines()]


@pytest.fixture
def verbs(rmqkit: Run, server: Ready) -> Verbs:
    return Verbs(rmqkit, server)
