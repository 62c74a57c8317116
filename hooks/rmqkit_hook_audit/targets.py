"""Destinations of events: a rotating file of JSON lines, a topic of the broker."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import trio

from rmqkit.errors import RequestRefused
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.model.run import MessageRun
from rmqkit.model.sysflag import BORN_HOST_V6, STORE_HOST_V6
from rmqkit.plugin.broker import Broker
from rmqkit.protocol.message_id import UniqueKeys
from rmqkit_hook_audit.events import kind_of

#: Readable by the owner only, because the file shows who communicates with whom.
_FILE_MODE = 0o600


class CannotWrite(Exception):
    """The target accepts nothing now; the text contains the reason. The first `written` of the given events
    were accepted."""

    def __init__(self, why: str, written: int = 0) -> None:
        super().__init__(why)
        self.written = written


class Target(ABC):
    """Accepts events in order, each as a line that ends with a line feed."""

    @abstractmethod
    async def open(self) -> None:
        """Prepare for writing. Raises OSError, RequestRefused when writing will never be possible."""

    @abstractmethod
    async def write(self, lines: Sequence[bytes]) -> None:
        """Write events, one to a line. Raises CannotWrite. When cancelled, they may have been written."""

    async def close(self) -> None:
        return


class FileTarget(Target):
    """JSON lines. A file that another program has moved or removed is created again; a file that reaches
    `max_bytes` is rotated.

    A partial write is undone, so that every line is complete.
    """

    def __init__(self, path: Path, max_bytes: int, keep_files: int, sync: bool) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._keep_files = keep_files
        self._sync = sync
        self._file = -1
        self._size = 0

    async def open(self) -> None:
        await trio.to_thread.run_sync(self._begin)

    async def write(self, lines: Sequence[bytes]) -> None:
        try:
            await trio.to_thread.run_sync(self._write, lines)
        except OSError as error:
            raise CannotWrite(f"{self._path}: {error.strerror or error}") from error

    async def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _begin(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        self._size = os.fstat(self._file).st_size
        self._end_torn_line()

    def _end_torn_line(self) -> None:
        """If the machine failed in the middle of a line, the next line must not be appended to it."""
        if self._size:
            with self._path.open("rb") as file:
                file.seek(-1, os.SEEK_END)
                torn = file.read(1) != b"\n"
            if torn:
                self._size += os.write(self._file, b"\n")

    def _write(self, lines: Sequence[bytes]) -> None:
        if not self._is_ours():
            self._begin()
        data = b"".join(lines)
        if self._size and self._size + len(data) > self._max_bytes:
            self._rotate()
        at = 0
        try:
            while at < len(data):
                at += os.write(self._file, memoryview(data)[at:])
            if self._sync:
                os.fdatasync(self._file)
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(data)

    def _is_ours(self) -> bool:
        """Whether the open file is still the one with that name, unchanged."""
        try:
            named, opened = os.stat(self._path), os.fstat(self._file)
        except OSError:
            return False
        return (named.st_dev, named.st_ino, named.st_size) == (opened.st_dev, opened.st_ino, self._size)

    def _rotate(self) -> None:
        """FILE becomes FILE.1, FILE.1 becomes FILE.2 and so on; the oldest is deleted."""
        for number in range(self._keep_files, 0, -1):
            with suppress(FileNotFoundError):
                self._numbered(number - 1).replace(self._numbered(number))
        if not self._keep_files:
            self._path.unlink(missing_ok=True)
        self._begin()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path


class TopicTarget(Target):
    """One message for each event, with the kind as tag, in a topic with a single queue that keeps their
    order.

    The born host is the broker itself, which no client can claim, so messages from other addresses are
    recognisable as forged.
    """

    def __init__(self, broker: Broker, topic: str) -> None:
        self._broker = broker
        self._topic = topic
        host = broker.store_host
        self._keys = UniqueKeys(host[:-4])
        self._host_bits = STORE_HOST_V6 | BORN_HOST_V6 if len(host) > 8 else 0

    async def open(self) -> None:
        await self._broker.topics.ensure(self._topic, 1)

    async def write(self, lines: Sequence[bytes]) -> None:
        run = MessageRun([self._message(line) for line in lines])
        for at, result in enumerate(self._broker.appender.append(run)):
            if isinstance(result, RequestRefused):
                raise CannotWrite(f"topic {self._topic}: {result.remark}", at)
        await trio.lowlevel.checkpoint()

    def _message(self, line: bytes) -> PutMessage:
        now_ms = self._broker.clock.now_ms()
        message = PutMessage(
            topic=self._topic,
            queue_id=0,
            body=line.rstrip(b"\n"),
            properties={},
            properties_bytes=b"",
            sys_flag=self._host_bits,
            born_timestamp_ms=now_ms,
            born_host=self._broker.store_host,
        )
        message.set_properties({props.UNIQ_KEY: self._keys.make(now_ms), props.TAGS: kind_of(line)})
        return message
