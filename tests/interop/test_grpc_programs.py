"""The programs of docs/grpc.md and docs/testing_programs.md in other languages, with RocketMQ's own clients
of version 5."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop import builds, peers

DOCS = Path(__file__).parent.parent.parent / "docs"
ADDRESS = "127.0.0.1:8081"


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[peers.Server]:
    """A server with a port for gRPC."""
    arguments = ["--grpc", "127.0.0.1:0", "--set", "tls.test.mode.enable=true"]
    with peers.rmqkit_serve(tmp_path_factory.mktemp("grpc"), arguments=arguments) as server:
        yield server


def program(language: str, document: str = "grpc.md") -> str:
    """The program of a document in a language."""
    text = (DOCS / document).read_text()
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert isinstance(found, str)
    return found


def output(command: list[str], server: peers.Server | None = None, **environment: str) -> list[str]:
    """The lines that a program prints, which must succeed."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env=os.environ | environment
    )
    log = "" if server is None else server.tail()
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{log}"
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


@pytest.mark.skipif(
    os.environ.get("RMQKIT_INTEROP_RUST") != "1",
    reason="it takes minutes to compile Rust's client: RMQKIT_INTEROP_RUST=1 runs this",
)
def test_rust(door: peers.Server) -> None:
    """It sends a message and receives it."""
    binary = built("grpc_rust", program("rust").replace(ADDRESS, door.grpc))
    assert "one coffee" in output([binary], door)


#: Where `rmqkit` is.
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def test_a_test_in_java(tmp_path: Path) -> None:
    """It starts the server itself, and sees within a second what is due in an hour."""
    (tmp_path / "Reminders.java").write_text(program("java", "testing_programs.md"))
    command = [builds.tool("java"), "-cp", built("grpc_java"), str(tmp_path / "Reminders.java")]
    assert [line for line in output(command, PATH=PATH) if line in ("0", "call back")] == ["0", "call back"]


def test_a_test_in_go() -> None:
    """The same."""
    binary = built("grpc_go", program("go", "testing_programs.md"))
    assert "call back" in output([binary], PATH=PATH)
