"""The key-value configuration: namespace -> key -> value, and its file kvConfig.json (Java: KVConfigManager; behaviour sheet, D6).

The file has Java's shape, `{"configTable":{namespace:{key:value}}}`, and is replaced as a whole by a rename. Without a path the table
lives in memory only.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import trio

from rmqkit.errors import ConfigError, DecodeError, RequestRefused, RmqError
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import ResponseCode

#: Where the order of topics is kept: topic -> `broker:queues;broker:queues` (Java: NamesrvUtil.NAMESPACE_ORDER_TOPIC_CONFIG).
ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"
#: Entries in all namespaces together. The whole file is written at every change, and any client may write.
MAX_ENTRIES = 65_536

Table = dict[str, dict[str, str]]


class KvFile(msgspec.Struct, rename="camel"):
    """Java: KVConfigSerializeWrapper."""

    config_table: Table = {}


class KvConfig:
    """One change at a time; what can be read is what has reached the file."""

    def __init__(self, path: Path | None = None) -> None:
        """Reads the file when there is one. Raises ConfigError when it cannot be read: going on would wipe it at the next change."""
        self._path = path
        self._table: Table = {}
        self._changing = trio.Lock()
        if path is not None and path.exists():
            try:
                self._table = loose_json.decode(path.read_bytes(), KvFile).config_table
            except (OSError, DecodeError) as error:
                raise ConfigError(f"cannot read the key-value configuration {path}: {error}; repair or remove the file") from error

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """All entries of a namespace, None when it has none."""
        found = self._table.get(namespace)
        return dict(found) if found else None

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Raises RequestRefused when the table is full and RmqError when the file cannot be written; nothing is changed then.
        Cancelled: the change is made or not made as a whole."""
        async with self._changing:
            entries = self._table.get(namespace, {})
            if key not in entries and sum(map(len, self._table.values())) >= MAX_ENTRIES:
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the key-value configuration is full ({MAX_ENTRIES} entries)")
            await self._replace(self._table | {namespace: entries | {key: value}})

    async def delete(self, namespace: str, key: str) -> None:
        """Unknown entries are ignored. Raises and is cancelled like `put`."""
        async with self._changing:
            if self.get(namespace, key) is None:
                return
            rest = {known: value for known, value in self._table[namespace].items() if known != key}
            table = {known: entries for known, entries in self._table.items() if known != namespace}
            await self._replace(table | {namespace: rest} if rest else table)

    async def _replace(self, table: Table) -> None:
        if self._path is not None:
            data = loose_json.dumps(KvFile(table))
            try:
                await trio.to_thread.run_sync(_write, self._path, data)
            except OSError as error:
                raise RmqError(f"cannot write the key-value configuration {self._path}: {error}") from error
        self._table = table


def _write(path: Path, data: bytes) -> None:
    """Replace a file: write beside it, bring that to the device, rename, bring the directory to the device."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
