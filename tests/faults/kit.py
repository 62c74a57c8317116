"""`rmqkit serve` as a process that may be killed, and reading everything a broker holds."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from attrs import define

from rmqkit.client import Client
from rmqkit.client.pull_consumer import PullConsumer
from rmqkit.client.pulling import PullStatus
from rmqkit.client.received import ReceivedMessage
from rmqkit.model.queue import MessageQueue
from tests.cli.conftest import PROGRAM, clean_environment

#: Longer than anything here takes; what hangs fails by it.
PATIENCE_S = 60
#: Files small enough that a few seconds of load roll all of them over; large pulls, so that a whole store is read quickly.
SMALL_FILES = {
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
    """One run of `rmqkit serve`. What it writes to standard error is appended to `log`."""

    process: subprocess.Popen[bytes]
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
        """Wait for the ready line; False when it has not come in time. Raises AssertionError when the process ends instead."""
        assert self.process.stdout is not None
        end = time.monotonic() + within_s
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while not self.line.endswith("\n"):
                if not selector.select(max(0.0, end - time.monotonic())):
                    return False
                data = os.read(self.process.stdout.fileno(), 4096)
                assert data, f"the server ended with exit code {self.process.wait(PATIENCE_S)}: {self.log.read_text()[-3000:]}"
                self.line += data.decode()
        assert self.line.startswith("rmqkit ready"), self.line
        return True

    def kill(self) -> None:
        """SIGKILL, and wait until it is dead."""
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self._close()

    def stop(self, within_s: float = PATIENCE_S) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(within_s)
        self._close()
        return code

    def _close(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.close()

    def memory_bytes(self) -> int:
        """Resident memory, mapped files included."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the server is dead")


def spawn(directory: Path, settings: dict[str, str], *, data: str = "data", files: str = "") -> Server:
    """Start `rmqkit serve` on free ports; it works in `directory`. `files` are words for `ulimit`, its limit of open files."""
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = [PROGRAM, "serve", "--data", data, "--namesrv", "127.0.0.1:0", "--broker", "127.0.0.1:0", *words]
    if files:
        command = ["sh", "-c", f'ulimit {files}; exec "$@"', "sh", *command]
    log = directory / "stderr.txt"
    with log.open("ab") as stderr:
        process = subprocess.Popen(command, cwd=directory, env=clean_environment(), stdout=subprocess.PIPE, stderr=stderr)
    return Server(process, log)


@contextmanager
def serving(directory: Path, settings: dict[str, str], *, data: str = "data", files: str = "") -> Iterator[Server]:
    """A server that is ready; killed at the end when it still runs."""
    server = spawn(directory, settings, data=data, files=files)
    try:
        server.await_ready()
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()
        server._close()


async def read_queue(consumer: PullConsumer, queue: MessageQueue, start: int, stop: int) -> list[ReceivedMessage]:
    """The messages at the offsets [start, stop), each of which must be there."""
    found: list[ReceivedMessage] = []
    while start + len(found) < stop:
        at = start + len(found)
        result = await consumer.pull(queue, at, max_messages=PULL_MESSAGES)
        assert result.status is PullStatus.FOUND, f"{queue} at {at}: {result.status}, offsets {result.min_offset} to {result.max_offset}"
        assert result.messages, f"{queue} at {at}: a pull that found nothing"
        for message in result.messages:
            assert message.queue_offset == start + len(found), f"{queue}: offset {message.queue_offset} stands at {start + len(found)}"
            found.append(message)
    return found[: stop - start]


async def read_all(client: Client, topic: str, group: str = "checker") -> dict[MessageQueue, list[ReceivedMessage]]:
    """Everything in a topic that was never trimmed."""
    found = {}
    async with client.pull_consumer(group) as consumer:
        for queue in await consumer.queues(topic):
            assert await consumer.min_offset(queue) == 0
            found[queue] = await read_queue(consumer, queue, 0, await consumer.max_offset(queue))
    return found


@contextmanager
def mounted(path: Path, size_bytes: int) -> Iterator[Path]:
    """A tmpfs at `path`; skips the test where that is not permitted."""
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
