"""Compares the end of a slave's log with the master's, before the slave follows it.

The replication protocol lets a slave ask for any offset. So a slave asks for its last record, not for its
end, and what the master sends up to that end must be what the slave has. A record contains its physical
offset, the times of its birth and storage and its hosts: logs that have parted differ in their last records.
"""

from __future__ import annotations

from functools import partial

from rmqkit.errors import ProtocolError, StoreError
from rmqkit.plugin.store import MessageStore
from rmqkit.protocol.record import MAGIC_BLANK, peek_size_and_magic
from rmqkit.toolkit import log_state
from rmqkit.toolkit.cold_reads import read_when_cached

#: What an operator can do about two logs that differ.
REMEDY = (
    "This log is kept and nothing is copied. Empty this broker's directory to let it start over, or make it"
    " the master if it has the messages that you need"
)
#: Heartbeats at the same offset, after which a master has nothing more to send.
_IDLE_HEARTBEATS = 2


async def last_record(store: MessageStore) -> int:
    """The physical offset of the last record that a queue names; the beginning of the log without one.
    Offset 0 is given only for that: Apache's master takes it for the request of an empty slave."""
    return await read_when_cached(store, partial(_last_record, store))


def _last_record(store: MessageStore) -> int:
    found = store.start_offset
    for topic, queue_ids in store.queues().items():
        found = max(found, log_state.last_record(store, topic, queue_ids))
    return found


class Comparison:
    """Compares what a master sends with what is in the log already.

    is_complete  whether everything up to the end of the log was compared and is equal
    """

    def __init__(self, store: MessageStore, begin: int) -> None:
        self._store = store
        self._at = begin
        self._idle_at = -1
        self._idle = 0

    @property
    def is_complete(self) -> bool:
        return self._at >= self._store.end_offset

    async def rest(self, offset: int, data: bytes) -> tuple[int, bytes]:
        """What follows the end of the log in whole records of the master, with its offset. Raises
        ProtocolError when the records differ from those of the log."""
        end = self._store.end_offset
        while self._at < end and self._at < offset + len(data):
            theirs = memoryview(data)[self._at - offset :]
            self._at += await self._equal_bytes(theirs)
        taken = min(max(0, end - offset), len(data))
        return offset + taken, data[taken:]

    async def _equal_bytes(self, theirs: memoryview) -> int:
        """The number of equal bytes, at least one record's."""
        read = partial(self._store.read_log, self._at, len(theirs))
        try:
            own = memoryview(await read_when_cached(self._store, read))
        except StoreError:
            own = memoryview(b"")
        if not own or not _equal(own, theirs):
            raise ProtocolError(
                f"its log differs from this one at {self._at}, and this one ends at"
                f" {self._store.end_offset}. {REMEDY}"
            )
        return len(own)

    def idle(self, offset: int) -> None:
        """The master's heartbeat says that its log was sent up to an offset. Raises ProtocolError when its
        log ends before this one."""
        self._idle = self._idle + 1 if offset == self._idle_at else 1
        self._idle_at = offset
        if self._idle >= _IDLE_HEARTBEATS and not self.is_complete:
            raise ProtocolError(
                f"its log ends at {offset}, before this one, which ends at {self._store.end_offset}. {REMEDY}"
            )


def _equal(own: memoryview, theirs: memoryview) -> bool:
    """Whether whole records of the slave begin what a master has there. Of a blank record only the head
    counts: the bytes after it mean nothing."""
    if len(own) > len(theirs):
        return False
    if own == theirs[: len(own)]:
        return True
    at = 0
    while at < len(own):
        size, magic = peek_size_and_magic(own, at)
        if magic == MAGIC_BLANK:
            if peek_size_and_magic(theirs, at) != (size, magic):
                return False
        elif own[at : at + size] != theirs[at : at + size]:
            return False
        at += size
    return True
