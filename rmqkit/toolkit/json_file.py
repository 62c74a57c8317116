"""RocketMQ's JSON tables on disk: atomic replacement, with the previous version as `.bak` (store-format
sheet, section 1.6; Java: ConfigManager)."""

from __future__ import annotations

import logging
import os
from codecs import BOM_UTF8
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

import msgspec

from rmqkit.errors import ConfigError, DecodeError
from rmqkit.protocol import loose_json

_log = logging.getLogger(__name__)
T = TypeVar("T", bound=msgspec.Struct)
# By path: a plugin's table may also be written by the copy from a master, in another thread.
_writing: WeakValueDictionary[Path, Lock] = WeakValueDictionary()


class JsonFile(Generic[T]):
    """One table file of type `kind`; a private one is for its owner alone, whatever the umask."""

    def __init__(self, path: Path, kind: type[T], *, is_private: bool = False) -> None:
        self.path = path
        self._mode = 0o600 if is_private else 0o666
        self._backup = path.with_name(path.name + ".bak")
        self._kind = kind
        self._broken = False
        self._writing = _writing.setdefault(path.absolute(), Lock())

    def load(self) -> T | None:
        """The table; None when neither the file nor its `.bak` exists. If the file is empty or broken, the
        `.bak` is read instead, with a warning. Raises ConfigError when there is no valid file."""
        self._broken = False
        try:
            found = self._read(self.path)
        except DecodeError as error:
            _log.warning("%s cannot be read (%s), its backup is used", self.path, error)
            self._broken, found = True, None
        if found is not None:
            return found
        try:
            found = self._read(self._backup)
        except DecodeError as error:
            raise ConfigError(
                f"{self.path} and its backup cannot be read: {error}; restore one of them or delete both"
            ) from error
        if found is None and self._broken:
            raise ConfigError(
                f"{self.path} cannot be read and has no backup; restore it, or delete it to start with an"
                " empty table"
            )
        return found

    def _read(self, path: Path) -> T | None:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except IsADirectoryError as error:
            raise DecodeError(f"{path.name} is a directory") from error
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
        # Editors on Windows write a byte order mark, and fastjson passes over it.
        data = data.removeprefix(BOM_UTF8)
        if not data.strip():
            raise DecodeError(f"{path.name} is empty")
        return loose_json.decode(data, self._kind)

    def save(self, value: T) -> None:
        """Write through to the device; readers see either the old or the new table. Raises OSError."""
        self.write([self.encode(value)])

    def encode(self, value: T) -> bytes:
        """A small table as text; large ones are encoded piece by piece by their owners."""
        return msgspec.json.format(msgspec.json.encode(value), indent=2)

    def write(self, parts: Iterable[bytes]) -> None:
        """The blocking half of `save`; may run in a worker thread. Who writes the same file waits."""
        with self._writing:
            self._write(parts)

    def _write(self, parts: Iterable[bytes]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_name(self.path.name + ".tmp")
        # An older one may have other permissions.
        fresh.unlink(missing_ok=True)
        with open(fresh, "wb", opener=partial(os.open, mode=self._mode)) as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        if self.path.exists() and not self._broken:
            os.replace(self.path, self._backup)
        os.replace(fresh, self.path)
        self._broken = False
        sync_directory(self.path.parent)


def sync_directory(path: Path) -> None:
    """Make names in a directory durable. Raises OSError."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
