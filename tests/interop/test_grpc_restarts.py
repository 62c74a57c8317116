"""RocketMQ's Java client of version 5 when its server starts again, and when it is killed itself."""

from __future__ import annotations

import queue
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from rmqkit.client import BlockingClient
from tests.interop import builds, peers
from tests.ports import LOOPBACK, free_port

PATIENCE_S = 180


class Talking:
    """A program, and the lines that it prints."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.strip())

    def says(self, start: str) -> str:
        """The next line that begins so. Fails when it does not come in time."""
        while True:
            try:
                line = self._lines.get(timeout=PATIENCE_S)
            except queue.Empty:
                pytest.fail(f"the program does not say {start!r}")
            if line.startswith(start):
                return line


@contextmanager
def client(endpoint: str, topic: str, what: str, home: Path) -> Iterator[Talking]:
    try:
        program = builds.HERE / "grpc-java" / "Restarts.java"
        words = [builds.tool("java"), f"-Duser.home={home}", "-cp", builds.grpc_java(), str(program)]
    except builds.BuildError as problem:
        pytest.fail(str(problem), pytrace=False)
    with subprocess.Popen(
        [*words, endpoint, topic, what], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield Talking(process)
        finally:
            process.kill()


def test_the_server_starts_again(tmp_path: Path) -> None:
    """All messages that were sent before, meanwhile and after it arrive."""
    arguments = ["--grpc", f"{LOOPBACK}:{free_port()}"]
    with ExitStack() as stack:
        with peers.rmqkit_serve(tmp_path, arguments=arguments) as server:
            with BlockingClient(server.namesrv) as admin:
                admin.admin.create_topic("Restarted", queues=4)
            program = stack.enter_context(client(server.grpc, "Restarted", "all", tmp_path))
            program.says("half")
        with peers.rmqkit_serve(tmp_path, arguments=arguments):
            program.says("all")


def test_a_client_is_killed_with_its_messages(tmp_path: Path) -> None:
    """Another one of its group gets what it had not finished."""
    with peers.rmqkit_serve(tmp_path, arguments=["--grpc", f"{LOOPBACK}:0"]) as server:
        with BlockingClient(server.namesrv) as admin:
            admin.admin.create_topic("Held", queues=1)
            with client(server.grpc, "Held", "hold", tmp_path) as holder:
                with admin.producer("p") as producer:
                    # A new group begins at the end, so the message must come after it.
                    while not admin.groups.connections("Held-group"):
                        assert holder.process.poll() is None
                    producer.send("Held", b"kept")
                assert holder.says("held") == "held kept"
                holder.process.kill()
                holder.process.wait()
        with client(server.grpc, "Held", "take", tmp_path) as taker:
            assert taker.says("took") == "took kept"
