"""The programs of docs/grpc.md in other languages, with RocketMQ's own clients of version 5."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop import builds, peers

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "grpc.md"
ADDRESS = "127.0.0.1:8081"


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[peers.Server]:
    """A server with a port for gRPC."""
    arguments = ["--grpc", "127.0.0.1:0", "--set", "tls.test.mode.enable=true"]
    with peers.rmqkit_serve(tmp_path_factory.mktemp("grpc"), arguments=arguments) as server:
        yield server


def program(language: str) -> str:
    """The program of the document in a language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert isinstance(found, str)
    assert ADDRESS in found
    return found


def output(command: list[str], server: peers.Server, **environment: str) -> list[str]:
    """The lines that a program prints, which must succeed."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env=os.environ | environment
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{server.tail()}"
    return done.stdout.splitlines()


def built(make: str, *given: str) -> str:
    try:
        return str(getattr(builds, make)(*given))
    except builds.BuildError as problem:
        pytest.fail(str(problem), pytrace=False)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_java(door: peers.Server, tmp_path: Path, tls: bool) -> None:
    """It sends a message and receives it; with TLS as the client does by default, too."""
    text = program("java").replace(ADDRESS, door.grpc)
    if tls:
        text = text.replace(".enableSsl(false)", "")
    (tmp_path / "Orders.java").write_text(text)
    classpath = built("grpc_java")
    command = [builds.tool("java"), "-cp", classpath, str(tmp_path / "Orders.java")]
    assert "one coffee" in output(command, door)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_go(door: peers.Server, tls: bool) -> None:
    """It sends a message and receives it; with TLS as the client does by default, too."""
    text = program("go").replace(f'"{ADDRESS}"', "os.Args[1]").replace('\t"fmt"\n', '\t"fmt"\n\t"os"\n')
    text = text.replace("\trocketmq.EnableSsl = false\n", '\trocketmq.EnableSsl = os.Args[2] == "tls"\n')
    binary = built("grpc_go", text)
    assert "one coffee" in output([binary, door.grpc, "tls" if tls else "plain"], door)


def test_node(door: peers.Server, tmp_path: Path) -> None:
    """It sends a message and receives it."""
    (tmp_path / "orders.js").write_text(program("javascript").replace(ADDRESS, door.grpc))
    modules = built("grpc_node")
    command = [builds.tool("node"), str(tmp_path / "orders.js")]
    assert "one coffee" in output(command, door, NODE_PATH=modules, HOME=str(tmp_path))
