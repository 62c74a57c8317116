"""The table acl.json: users and policies that administration has made."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from rmqkit.errors import ConfigError, RequestRefused
from rmqkit.model.access import AclTable
from rmqkit.toolkit.json_file import JsonFile
from rmqkit_hook_acl.model import Policies, User
from rmqkit_hook_acl.wire import of_table, table_of

Stamp = tuple[int, int, int] | None


class AclFile:
    """The table as it was read last. Nobody else reads it on the disk; a broken one is never replaced by an
    older one, which may have users that were deleted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.users: dict[str, User] = {}
        self.policies: dict[str, Policies] = {}
        self._file = JsonFile(path, AclTable, is_private=True)
        self._stamp: Stamp = None

    def read(self) -> None:
        """Read the table; without a file it is empty. Raises ConfigError."""
        stamp = stamp_of(self.path)
        if stamp is None:
            self.users, self.policies, self._stamp = {}, {}, None
            return
        try:
            table = msgspec.json.decode(self.path.read_bytes(), type=AclTable)
            self.users, self.policies = of_table(table)
        except (OSError, msgspec.MsgspecError, UnicodeError, RequestRefused) as error:
            raise ConfigError(
                f"{self.path} cannot be read: {_reason(error)}; mend it, or delete it and make users and"
                f" policies"
                " again"
            ) from None
        finally:
            self._stamp = stamp

    def read_changed(self) -> bool:
        """Read the table if the file has changed; whether it was read. Raises ConfigError."""
        if stamp_of(self.path) == self._stamp:
            return False
        self.read()
        return True

    def write(self, users: Mapping[str, User], policies: Mapping[str, Policies]) -> None:
        """Write a table through to the device; may run in a worker thread. Raises OSError."""
        self._file.save(table_of(users, policies))
        self._stamp = stamp_of(self.path)


def stamp_of(path: Path) -> Stamp:
    """What changes with a file; None for one that is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return str(error)
