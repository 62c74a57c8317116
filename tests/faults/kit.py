"""`rmqkit serve` as a process that can be killed, and reading everything a broker has."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest
import trio
from attrs import define

from rmqkit.client import Client
from rmqkit.client.consumer.pull_consumer import PullConsumer
from rmqkit.client.consumer.pulling import PullStatus
from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.errors import NoRoute
from rmqkit.model.queue import MessageQueue
from tests import programs
from tests.programs import Program

#: Longer than any operation here takes; a hanging test fails after this time.
PATIENCE_S = 300
_POLL_S = 0.02
#: Time limit of a send: a busy machine must not turn a slow one into an error.
SEND_MS = PATIENCE_S * 1000
#: Files small enough that a few seconds of load fill several of each; large pulls, to read a whole store
#: quickly. No retention, which deletes them by force where this machine's disk is 85 % full.
SMALL_FILES = {
    "disabledServices": "retention",
    "maxMessageSize": "65536",
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "maxTransferCountOnMessageInMemory": "1024",
    "maxTransferBytesOnMessageInMemory": "4194304",
    "flushConsumerOffsetInterval": "50",
}
PULL_MESSAGES = 1024
#: The flush policies and the settings that choose them.
POLICIES = {
    "ASYNC_FLUSH": {"flushDiskType": "ASYNC_FLUSH"},
    "ASYNC_FLUSH_BUFFERED": {"flushDiskType": "ASYNC_FLUSH", "transientStorePoolEnable": "true"},
    "SYNC_FLUSH": {"flushDiskType": "SYNC_FLUSH"},
}


@define
class Server:
    """One run of `rmqkit serve`. Its standard error is appended to `log`."""

    process: Program
    output: BinaryIO
    log: Path
    line: str = ""

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def where(self) -> dict[str, str]:
        return dict(word.split("=", 1) for word in self.line.split() if "=" in word)

    @property
    def namesrv(self) -> str:
        return self.where["namesrv"]

    @property
    def broker(self) -> tuple[str, int]:
        host, port = self.where["broker"].rsplit(":", 1)
        return host, int(port)

    def await_ready(self, within_s: float = PATIENCE_S) -> bool:
        """Wait for the ready line; False when it does not come in time. Raises AssertionError when the
        process ends instead."""
        end = time.monotonic() + within_s
        with selectors.DefaultSelector() as selector:
            selector.register(self.output, selectors.EVENT_READ)
            while not self.line.endswith("\n"):
                if not selector.select(max(0.0, end - time.monotonic())):
                    return False
                data = os.read(self.output.fileno(), 4096)
                assert data, (
                    f"the server ended with exit code {self.process.wait(PATIENCE_S)}:"
                    f" {self.log.read_text()[-3000:]}"
                )
                self.line += data.decode()
        assert self.line.startswith("rmqkit ready"), self.line
        return True

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end of the process."""
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self.output.close()

    def stop(self, within_s: float = PATIENCE_S) -> int:
        """Send SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(within_s)
        self.output.close()
        return code

    def memory_bytes(self) -> int:
        """Resident memory, including mapped files."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the server is dead")


def spawn(
    directory: Path,
    settings: dict[str, str],
    *,
    data: str = "data",
    files: tuple[int, int] | None = None,
    ports: tuple[int, int] = (0, 0),
) -> Server:
    """Start `rmqkit serve` with the working directory `directory`. `files` are the soft and the hard limit of
    open files, `ports` those of the name server and the broker, free ones by default."""
    return started(serve_words(data, settings, ports), directory, files=files)


def started(
    words: list[str], directory: Path, *, files: tuple[int, int] | None = None, namespace: str = ""
) -> Server:
    """Start a server verb of `rmqkit` with the working directory `directory`, in a network namespace if
    one is given."""
    log = directory / "stderr.txt"
    reading, writing = os.pipe()
    with open(os.devnull, "rb") as null, open(writing, "wb") as output, log.open("ab") as stderr:
        process = programs.spawn(
            words,
            directory,
            stdin=null.fileno(),
            stdout=output.fileno(),
            stderr=stderr.fileno(),
            files=files,
            namespace=namespace,
        )
    return Server(process, open(reading, "rb", buffering=0), log)


def serve_words(data: str, settings: dict[str, str], ports: tuple[int, int] = (0, 0)) -> list[str]:
    """The arguments of a server on these ports of loopback."""
    namesrv, broker = (f"127.0.0.1:{port}" for port in ports)
    return ["serve", "--data", data, "--namesrv", namesrv, "--broker", broker, *set_words(settings)]


def set_words(settings: Mapping[str, str]) -> list[str]:
    """The arguments for settings."""
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


@contextmanager
def serving(
    directory: Path, settings: dict[str, str], *, data: str = "data", files: tuple[int, int] | None = None
) -> Iterator[Server]:
    """A server that is ready; killed at the end if it is still running."""
    server = spawn(directory, settings, data=data, files=files)
    try:
        server.await_ready()
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()
        server.output.close()


async def read_queue(
    consumer: PullConsumer, queue: MessageQueue, start: int, stop: int
) -> list[ReceivedMessage]:
    """The messages at the offsets [start, stop), each of which must exist."""
    found: list[ReceivedMessage] = []
    while start + len(found) < stop:
        at = start + len(found)
        result = await consumer.pull(queue, at, max_messages=PULL_MESSAGES)
        assert result.status is PullStatus.FOUND, (
            f"{queue} at {at}: {result.status}, offsets {result.min_offset} to {result.max_offset}"
        )
        assert result.messages, f"{queue} at {at}: a pull that found nothing"
        for message in result.messages:
            assert message.queue_offset == start + len(found), (
                f"{queue}: offset {message.queue_offset} stands at {start + len(found)}"
            )
            found.append(message)
    return found[: stop - start]


async def queues_of(consumer: PullConsumer, topic: str) -> list[MessageQueue]:
    """The queues of a topic. The name server learns of a new topic a moment after its first message."""
    with trio.fail_after(PATIENCE_S):
        while True:
            try:
                return await consumer.queues(topic)
            except NoRoute:
                await trio.sleep(0.01)


async def read_all(
    client: Client, topic: str, group: str = "checker"
) -> dict[MessageQueue, list[ReceivedMessage]]:
    """All messages of a topic that was never trimmed."""
    found = {}
    async with client.pull_consumer(group) as consumer:
        for queue in await queues_of(consumer, topic):
            assert await consumer.min_offset(queue) == 0
            found[queue] = await read_queue(consumer, queue, 0, await consumer.max_offset(queue))
    return found


@contextmanager
def mounted(path: Path, size_bytes: int) -> Iterator[Path]:
    """A tmpfs mounted at `path`; skips the test where that is not permitted."""
    path.mkdir()
    made = mount("-t", "tmpfs", "-o", f"size={size_bytes}", "rmqkit-test", path)
    if made.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {made.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


def mount(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["mount", *words], capture_output=True, text=True, check=False)


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Check a condition of other tasks or processes repeatedly until it holds."""
    with trio.fail_after(PATIENCE_S):
        while True:
            outcome = condition()
            if outcome if isinstance(outcome, bool) else await outcome:
                return
            await trio.sleep(_POLL_S)
