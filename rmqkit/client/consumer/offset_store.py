"""Where the offsets of a group are kept (Java: RemoteBrokerOffsetStore, LocalFileOffsetStore; behaviour
sheet, B10)."""

from __future__ import annotations

import errno
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from rmqkit.client.consumer.lasting import is_lasting
from rmqkit.client.consumer.queue_offsets import QueueOffsets
from rmqkit.errors import ConfigError, DecodeError, RmqError
from rmqkit.model.queue import MessageQueue
from rmqkit.protocol import loose_json
from rmqkit.toolkit.json_file import JsonFile

log = logging.getLogger(__name__)

#: Failures of writing a file that stay until somebody changes something; a full disk is none of them.
_LASTING_ERRNOS = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG}
)


class OffsetStore(ABC):
    """Keeps the offset where the group continues in each queue."""

    @abstractmethod
    async def read(self, queue: MessageQueue, *, young_is_zero: bool) -> int | None:
        """The offset of a queue; None when there is none. With `young_is_zero`, a broker may answer 0 for a
        queue that still has its first messages. Raises RmqError."""

    @abstractmethod
    async def commit(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Keep the offsets, and return those that were kept. Failures are logged; those that time does not
        cure are raised. When cancelled, some are kept."""


class BrokerOffsets(OffsetStore):
    """Offsets at the brokers of the queues, shared by the group."""

    def __init__(self, offsets: QueueOffsets, group: str) -> None:
        self._offsets = offsets
        self._group = group

    async def read(self, queue: MessageQueue, *, young_is_zero: bool) -> int | None:
        return await self._offsets.committed(self._group, queue, young_is_zero=young_is_zero)

    async def commit(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        by_broker: dict[str, dict[MessageQueue, int]] = {}
        for queue, offset in offsets.items():
            by_broker.setdefault(queue.broker_name, {})[queue] = offset
        done: dict[MessageQueue, int] = {}
        async with anyio.create_task_group() as group:
            for part in by_broker.values():
                group.start_soon(self._commit_at_broker, part, done)
        return done

    async def _commit_at_broker(
        self, offsets: Mapping[MessageQueue, int], done: dict[MessageQueue, int]
    ) -> None:
        for queue, offset in offsets.items():
            try:
                await self._offsets.commit(self._group, queue, offset)
            except RmqError as error:
                if is_lasting(error):
                    raise
                log.warning("offset %d of %s is not committed yet: %s", offset, queue, error)
                return
            done[queue] = offset


class _OffsetTable(msgspec.Struct, rename="camel"):
    """The file (Java: OffsetSerializeWrapper); the keys are queues as JSON text."""

    offset_table: dict[str, int] = {}


class FileOffsets(OffsetStore):
    """Offsets in a local file in Java's form, for broadcasting: `FOLDER/CLIENT/GROUP/offsets.json`, with the
    previous version as `.bak`. The file is read once, and written by one task at a time: a lost queue and the
    consumer itself may commit at once."""

    def __init__(self, folder: Path, client_id: str, group: str) -> None:
        self._file = JsonFile(folder / client_id / group / "offsets.json", _OffsetTable)
        self._known: dict[MessageQueue, int] | None = None
        self._lock = anyio.Lock()

    async def read(self, queue: MessageQueue, *, young_is_zero: bool) -> int | None:
        """The offset of a queue in the file. Raises ConfigError when neither the file nor its backup can be
        read."""
        async with self._lock:
            return (await self._table()).get(queue)

    async def commit(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        try:
            async with self._lock:
                table = await self._table()
                table.update(offsets)
                text = loose_json.dumps({"offsetTable": table}, raw_keys=True)
                await anyio.to_thread.run_sync(self._file.write, [text])
        except OSError as error:
            if error.errno in _LASTING_ERRNOS:
                raise ConfigError(
                    f"offsets cannot be saved in {self._file.path}: {error.strerror}; name a folder that may"
                    " be written with offsets_folder"
                ) from error
            log.warning("offsets are not saved in %s yet: %s", self._file.path, error)
            return {}
        return dict(offsets)

    async def _table(self) -> dict[MessageQueue, int]:
        if self._known is None:
            self._known = await anyio.to_thread.run_sync(self._load)
        return self._known

    def _load(self) -> dict[MessageQueue, int]:
        found = self._file.load() or _OffsetTable()
        table = {}
        for key, offset in found.offset_table.items():
            try:
                table[loose_json.decode(key, MessageQueue)] = offset
            except DecodeError as error:
                log.warning("%s: %r is not a queue and is ignored: %s", self._file.path, key, error)
        return table
