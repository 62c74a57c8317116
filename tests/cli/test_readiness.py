"""What a server tells systemd, which a socket of this test stands for."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqkit.cli import readiness
from tests import programs


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Where systemd would listen."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        path = str(tmp_path / "notify")
        listening.bind(path)
        listening.settimeout(5)
        monkeypatch.setenv(readiness.NOTIFY_VARIABLE, path)
        yield listening


def test_a_server_says_that_it_is_ready_and_that_it_stops(
    listener: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line and the state of the unit have the same text."""
    readiness.announce("namesrv=127.0.0.1:9876")
    assert capsys.readouterr().out == "rmqkit ready namesrv=127.0.0.1:9876\n"
    assert listener.recv(1000) == b"READY=1\nSTATUS=namesrv=127.0.0.1:9876"
    readiness.stopping()
    assert listener.recv(1000) == b"STOPPING=1\nSTATUS=stopping"


def test_names_of_the_abstract_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that begins with @ is not a file."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("")  # the system chooses an abstract name
        listening.settimeout(5)
        name = listening.getsockname()
        assert name[:1] == b"\0"
        monkeypatch.setenv(readiness.NOTIFY_VARIABLE, "@" + name[1:].decode())
        readiness.stopping()
        assert listening.recv(1000).startswith(b"STOPPING=1")


@pytest.mark.parametrize("where", [None, "", "vsock:2:1234", "/nowhere/at/all"])
def test_without_systemd_nothing_happens(
    where: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No variable, one of another kind, and a place where nobody listens."""
    if where is None:
        monkeypatch.delenv(readiness.NOTIFY_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(readiness.NOTIFY_VARIABLE, where)
    readiness.announce("here")
    assert capsys.readouterr().out == "rmqkit ready here\n"


def test_a_server_tells_systemd_of_its_start_and_its_stop(listener: socket.socket, tmp_path: Path) -> None:
    """A name server in a process of its own: ready when it listens, stopping when it is told to."""
    where = os.environ[readiness.NOTIFY_VARIABLE]
    with open(os.devnull, "r+b") as nothing:
        server = programs.spawn(
            ["namesrv", "--listen", "127.0.0.1:0"],
            tmp_path,
            stdin=nothing.fileno(),
            stdout=nothing.fileno(),
            stderr=nothing.fileno(),
            env={readiness.NOTIFY_VARIABLE: where},
        )
    try:
        listener.settimeout(60)
        assert re.fullmatch(rb"READY=1\nSTATUS=namesrv=127\.0\.0\.1:\d+", listener.recv(1000))
        server.send_signal(signal.SIGTERM)
        assert listener.recv(1000) == b"STOPPING=1\nSTATUS=stopping"
        assert server.wait() == 0
    finally:
        server.kill()
