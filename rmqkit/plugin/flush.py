"""Flush policies: when the log is written and flushed to the device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import Protocol

import trio

from rmqkit.config import Config


class Level(IntEnum):
    """States of log bytes that `MessageStore.settled` can wait for."""

    WRITTEN = 0
    """The bytes survive the death of this process."""
    FLUSHED = 1
    """The bytes survive the death of the machine."""


class Flushable(Protocol):
    """The part of a store that a flush policy drives. Offsets are physical, in bytes: everything before them
    is appended, WRITTEN or FLUSHED."""

    @property
    def appended_offset(self) -> int: ...
    @property
    def written_offset(self) -> int: ...
    @property
    def flushed_offset(self) -> int: ...
    async def commit(self) -> int:
        """Write everything appended so far, in a worker thread; returns the new written offset. Does nothing
        where `append` writes.

        Raises StoreNotWritable when that fails; the store then refuses messages until a later commit
        succeeds.
        """
        ...

    async def flush(self) -> int:
        """Flush everything written so far to the device, in a worker thread; returns the new flushed offset.
        Raises StoreNotWritable, from then on at every call."""
        ...


class FlushPolicy(ABC):
    """Decides when the log is committed and flushed (Java: FlushCommitLogService and its subclasses)."""

    #: The state that a message must reach before a sender that waits (property WAIT) is answered with
    #: success.
    acknowledge_at: Level = Level.WRITTEN
    #: 0: an append writes at once. Otherwise appended messages are kept in memory, about this many bytes at
    #: most, until the policy commits. Stores that always write ignore it.
    commit_buffer_bytes: int = 0

    @abstractmethod
    async def run(
        self, log: Flushable, wanted: Callable[[], Awaitable[None]], task_status: trio.TaskStatus[None]
    ) -> None:
        """Commit and flush until cancelled. `await wanted()` returns when a task waits for WRITTEN or
        FLUSHED: a policy with a commit buffer commits then, one for group commit flushes."""


FlushPolicyFactory = Callable[["Config"], FlushPolicy]
