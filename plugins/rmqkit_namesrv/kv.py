"""The key-value configuration: namespace -> key -> value, and its file kvConfig.json (Java: KVConfigManager;
behaviour sheet, D6).

The file has Java's shape, `{"configTable":{namespace:{key:value}}}`, and is replaced as a whole by a rename.
Without a path the table is kept in memory only.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import trio

from rmqkit.errors import ConfigError, DecodeError, RequestRefused, RmqError
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import ResponseCode
from rmqkit_namesrv.limits import MAX_KV_BYTES, MAX_KV_ENTRIES

#: Namespace of topic orders: topic -> `broker:queues;broker:queues` (Java:
#: NamesrvUtil.NAMESPACE_ORDER_TOPIC_CONFIG).
ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"

Table = dict[str, dict[str, str]]


class KvFile(msgspec.Struct, rename="camel"):
    """Java: KVConfigSerializeWrapper."""

    config_table: Table = {}


class KvConfig:
    """Changes are made one at a time; a change is visible once it is in the file. `refused` counts changes
    that exceeded the limits."""

    def __init__(self, path: Path | None = None) -> None:
        """Reads the file when it exists. Raises ConfigError when it cannot be read, because the next change
        would overwrite it."""
        self._path = path
        self._table: Table = {}
        self._entries = 0
        self._bytes = 0
        self.refused = 0
        self._changing = trio.Lock()
        if path is not None and path.exists():
            try:
                self._table = loose_json.decode(path.read_bytes(), KvFile).config_table
            except (OSError, DecodeError) as error:
                raise ConfigError(
                    f"cannot read the key-value configuration {path}: {error}; repair or remove the file"
                ) from error
        for namespace, entries in self._table.items():
            self._entries += len(entries)
            self._bytes += sum(_size(namespace, key, value) for key, value in entries.items())

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """All entries of a namespace; None when there are none."""
        found = self._table.get(namespace)
        return dict(found) if found else None

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. Raises RequestRefused when the table is full and RmqError when the file cannot be
        written; nothing is changed then. When cancelled, the change is made completely or not at all."""
        async with self._changing:
            entries = self._table.get(namespace, {})
            known = entries.get(key)
            more = _size(namespace, key, value) - (0 if known is None else _size(namespace, key, known))
            if (known is None and self._entries >= MAX_KV_ENTRIES) or (
                more > 0 and self._bytes + more > MAX_KV_BYTES
            ):
                self.refused += 1
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"the key-value configuration is full: {self._entries} entries of {self._bytes} bytes, "
                    f"at most {MAX_KV_ENTRIES} of {MAX_KV_BYTES} are kept; delete some first",
                )
            await self._replace(self._table | {namespace: entries | {key: value}})
            self._entries += known is None
            self._bytes += more

    async def delete(self, namespace: str, key: str) -> None:
        """Delete an entry; unknown entries are ignored. Errors and cancellation as for `put`."""
        async with self._changing:
            gone = self.get(namespace, key)
            if gone is None:
                return
            rest = {known: value for known, value in self._table[namespace].items() if known != key}
            table = {known: entries for known, entries in self._table.items() if known != namespace}
            await self._replace(table | {namespace: rest} if rest else table)
            self._entries -= 1
            self._bytes -= _size(namespace, key, gone)

    async def _replace(self, table: Table) -> None:
        if self._path is not None:
            try:
                await trio.to_thread.run_sync(_write, self._path, table)
            except OSError as error:
                raise RmqError(f"cannot write the key-value configuration {self._path}: {error}") from error
        self._table = table


def _size(namespace: str, key: str, value: str) -> int:
    """Characters of an entry in the file, without the quotes."""
    return len(namespace) + len(key) + len(value)


def _write(path: Path, table: Table) -> None:
    """Replace a file: write a temporary file, flush it to the device, rename it, flush the directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(loose_json.dumps(KvFile(table)))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
