"""Message stores: the log, its queues and its key index (store-format sheet, sections 7 and 8).

A store is one object with several facets; code that needs one of them takes that as its type:

    Log        records in the order of their physical offsets: append, replicate, read
    Queues     the consume queues of topics: units, reads for consumers, offsets by time
    Keys       records by key
    Retention  removing old data, and holding it back
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import trio
from attrs import define, frozen

from rmqkit.config import Config
from rmqkit.errors import ConfigError
from rmqkit.model.buffer import Buffer
from rmqkit.model.message import Appended as Appended
from rmqkit.model.message import PutMessage
from rmqkit.plugin.clock import Clock
from rmqkit.plugin.flush import FlushPolicy, Level
from rmqkit.plugin.positions import LogPositions
from rmqkit.plugin.queue_code import NO_QUEUE_CODES, QueueCodes
from rmqkit.protocol.record import peek_queue_offsets

_log = logging.getLogger(__name__)


class ReadStatus(Enum):
    """Outcome of a queue read and the code a pull answers with (store-format sheet, section 8.1; Java:
    GetMessageStatus)."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_RESET = "OFFSET_RESET"
    """Given by a broker alone, never by a store: the group's offset was reset and is the next offset."""


class QueueUnit(NamedTuple):
    """One entry of a consume queue."""

    queue_offset: int
    physical_offset: int
    size_bytes: int
    tags_code: int


class ReadLimits(NamedTuple):
    """Caps of one read. The first message is always accepted whatever its size (store-format sheet, section
    8.2).

    Records further than `memory_bytes` from the end of the log count as being on disk: the `disk` caps apply
    to them in addition to the others.
    """

    max_messages: int = 32
    max_bytes: int = 262_144
    max_scanned_units: int = 800
    max_disk_messages: int = 8
    max_disk_bytes: int = 65_536
    memory_bytes: int = 1 << 62


class NotInMemory(Exception):
    """A read needs data that is on the device alone. `await store.fetch(error)` brings it into memory; then
    the read begins again (`rmqkit.toolkit.cold_reads`).

    `cold` names the missing data, as far as the read came; its items are private to the store.
    """

    def __init__(self, *cold: object) -> None:
        super().__init__(*cold)
        self.cold = cold


@define(slots=True)
class ReadResult:
    """Answer of `Queues.read`. `slices` hold `message_count` whole records, `total_bytes` together; records
    that are neighbours in the log share a slice. A slice stays valid for as long as it is referenced, also
    when its part of the log is removed."""

    status: ReadStatus
    next_offset: int
    min_offset: int
    max_offset: int
    slices: Sequence[Buffer]
    message_count: int = 0
    total_bytes: int = 0

    @property
    def queue_offsets(self) -> list[int]:
        """The queue offset of each message, in order, as its record says; a filter leaves gaps. Costs a look
        at the head of each record, and nothing for who does not ask. Raises DecodeError for a damaged
        head."""
        return [offset for each in self.slices for offset in peek_queue_offsets(each)]


class LogPart(NamedTuple):
    """A stretch [start, end) of the log that can be removed by itself (a file), last written at
    `modified_ms`. Offsets are physical."""

    start: int
    end: int
    modified_ms: int


class Trimmed(NamedTuple):
    """Result of `Retention.trim`: where the log begins now (physical offset), and what the disk got back."""

    log_start: int
    removed_bytes: int = 0
    removed_files: int = 0


class KeyMatches(NamedTuple):
    """Answer of `Keys.query_by_key`: physical offsets, newest first, and the last record in the index."""

    physical_offsets: list[int]
    last_update_timestamp_ms: int
    last_update_physical_offset: int


@frozen
class StoreStatistics:
    """Sizes are in bytes; `file_count` counts files on disk, `read_faults` is `MessageStore.read_faults`."""

    min_physical_offset: int
    max_physical_offset: int
    flushed_physical_offset: int
    queue_count: int
    disk_bytes: int
    file_count: int
    read_faults: int = 0


class Boundary(Enum):
    """Result of a search by time: LOWER = the first message with time >= t, UPPER = the last one with time
    <= t."""

    LOWER = "LOWER"
    UPPER = "UPPER"


#: Whether a message may match, from its queue unit's tags code alone; None lets all pass.
UnitFilter = Callable[[int], bool]


class UnitExtension(NamedTuple):
    """What a store with `enableConsumeQueueExt` keeps beside a unit (store-format sheet, section 3.6).
    `bit_map` has the bits of the groups whose filters match the message; it may be empty."""

    tags_code: int
    store_time_ms: int
    bit_map: bytes


#: Whole records -> the bit map of each. Must not raise.
RecordsBitMaps = Callable[[Sequence[Buffer]], Sequence[bytes]]


class ExtensionFilter(ABC):
    """A UnitFilter that a store gives the extension of a unit, if there is one, in place of the tags code."""

    @abstractmethod
    def __call__(self, tags_code: int) -> bool:
        """Whether a message without an extension may match."""

    @abstractmethod
    def extended(self, extension: UnitExtension) -> bool:
        """Whether a message may match."""


class Pin:
    """Keeps the log from `offset` on from being trimmed until it is released, or ended because the disk is
    full. A follower of the log moves its pin forward. A context manager that releases it."""

    def __init__(self, pins: set[Pin], offset: int, reader: str) -> None:
        self.offset = offset
        self.reader = reader
        self._pins = pins
        pins.add(self)

    @property
    def holds(self) -> bool:
        """False once it is released or ended."""
        return self in self._pins

    def release(self) -> None:
        """Release the log; a second call does nothing."""
        self._pins.discard(self)

    def __enter__(self) -> Pin:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


class Pins:
    """The pins of one store. They belong to its process: a reader of the files in another process has none,
    and must expect that the front of the log goes."""

    def __init__(self) -> None:
        self._pins: set[Pin] = set()

    def add(self, offset: int, reader: str) -> Pin:
        return Pin(self._pins, offset, reader)

    def limit(self, before_offset: int) -> int:
        """The offset up to which the log may be trimmed if trimming up to `before_offset` is requested."""
        return min([before_offset, *(pin.offset for pin in self._pins)])

    def before(self, offset: int) -> list[Pin]:
        """The pins that keep a part of the log before an offset, the lowest first."""
        return sorted((pin for pin in self._pins if pin.offset < offset), key=lambda pin: pin.offset)


class Reads:
    """Reads that do not block the loop. Old data is on the device only, and reading it takes as long as the
    device takes. A read of any facet raises NotInMemory before it touches such data; `fetch` brings the data
    into memory. The result of a read can be used without waiting. A store that cannot determine what is in
    memory, or has everything in memory, never raises NotInMemory."""

    async def fetch(self, missed: NotInMemory) -> None:
        """Bring the data that a read missed into memory, in a worker thread; few at a time, so that backlog
        readers do not delay flushes.

        Data that is gone or cannot be read is skipped: the next read reports it. Cancelled: the thread
        finishes by itself.
        """
        await trio.lowlevel.checkpoint()

    def blocking_reads(self) -> AbstractContextManager[None]:
        """Within this context reads wait for the device instead of raising NotInMemory. For tools and tests;
        a broker reads by `rmqkit.toolkit.cold_reads`."""
        return nullcontext()


class Log(Reads, ABC):
    """Records in the order of their physical offsets. The bytes of a record are defined by
    `rmqkit.protocol.record`, their arrangement by the store.

    Reads find a record once it is WRITTEN. With a store whose `append` writes, that is immediately; a store
    that writes later sets `written_by_append` to False.
    """

    #: Set by the owner before `open`: topics whose units carry a code other than the hash of the tags.
    #: Recovery computes the codes again from the records.
    queue_codes: QueueCodes = NO_QUEUE_CODES
    #: Whether WRITTEN is reached when `append` returns.
    written_by_append: bool = True
    #: Whether new units of queues get an extension, which the setting enableConsumeQueueExt asks for.
    has_extensions: bool = False
    #: Set by the owner: topic -> what makes the bit maps of its new messages, from their records in order;
    #: None for a topic without. Used by `append` of a store that has extensions.
    bit_maps: Callable[[str], RecordsBitMaps | None] | None = None

    @cached_property
    def positions(self) -> LogPositions:
        """The appended, written and flushed positions of the log. The store calls `positions.moved()` in the
        loop after each change of a position, once the data before it can be read. After `append` the caller
        of `append` does so instead; after `open` and `close` no call is needed."""
        return LogPositions(
            lambda: self.end_offset,
            lambda: self.settled_offset(Level.WRITTEN),
            lambda: self.settled_offset(Level.FLUSHED),
        )

    @abstractmethod
    def append(self, messages: Sequence[PutMessage]) -> Sequence[Appended]:
        """Append in order, all or none; assigns queue and physical offsets and one store time. The offsets
        remain assigned even if the write fails. A unit carries the message's `tags_code`; for a topic of
        `queue_codes` the store first sets it to that function's code for the store time.

        Raises MessageIllegal (a record breaks a limit), StoreNotWritable (disk full, closed) and StoreBusy
        (too much data waits to be written); nothing was appended then.
        """

    @abstractmethod
    def append_log(self, offset: int, data: Buffer) -> Sequence[tuple[str, int]]:
        """Append raw log bytes, all or none, as returned by `read_log` of another broker's store: whole
        records, including blank ones, exactly at the end of the log. An empty log begins at `offset` instead;
        a store of files may fill the front of its first file. After a restart the log may end before a
        blank record at its end, which then has to be copied again. Consume queues and index are updated as by
        a recovery. A record whose queue offset is below the end of its queue means that the queue was deleted
        and created again. Returns (topic, queue id) of the queues that the store did not have before.

        Raises StoreError (bytes that are not whole records at this offset, or do not fit into the log's
        files), StoreNotWritable and StoreBusy as `append`; nothing was appended then.
        """

    @abstractmethod
    async def truncate(self, offset: int) -> None:
        """Cut the log back to `offset`, where a record begins, and remove the entries of queues and index for
        the removed records; durable on return. Slices of the removed part lose their content. Appends are
        refused meanwhile, and a wait for an offset beyond the new end fails. At the end, with appends still
        refused, the store awaits `positions.truncated`.

        Raises StoreError (no record begins at `offset`, files cannot be changed, or a follower cannot go
        back; in the latter two cases all further appends are refused), StoreNotWritable. Cancelled: the log
        is either unchanged, or cut with all followers told.
        """

    @abstractmethod
    def settled_offset(self, level: Level) -> int:
        """The physical offset before which everything has reached `level`. A cheap call."""

    def is_settled(self, offset: int, level: Level) -> bool:
        """Whether everything before `offset` has reached `level` already."""
        return offset <= self.settled_offset(level)

    @abstractmethod
    async def settled(self, offset: int, level: Level) -> None:
        """Wait until everything before physical `offset` has reached `level`; all waiting tasks share one
        write or flush. Raises StoreNotWritable when that failed: then nothing may be acknowledged, although
        it may be stored. Cancelled: the data is unchanged."""

    async def flush(self) -> None:
        """Flush everything appended so far to the device, now, whatever the flush policy waits for. Raises
        StoreNotWritable. Cancelled: a part may be flushed."""
        await self.settled(self.end_offset, Level.FLUSHED)

    @abstractmethod
    def read_record(self, physical_offset: int) -> Buffer | None:
        """The whole record that begins at `physical_offset`, None when none begins there. A damaged body is
        returned as it is, so that the record can be set aside. Raises NotInMemory."""

    @abstractmethod
    def read_log(self, offset: int, max_bytes: int) -> Buffer:
        """Raw log bytes from physical `offset` on: whole records, at least one, and blank records where the
        log has gaps; empty at the end. Raises NotInMemory."""

    @property
    @abstractmethod
    def start_offset(self) -> int:
        """Physical offset at which the log begins, 0 unless it was trimmed. A cheap call."""

    @property
    @abstractmethod
    def end_offset(self) -> int:
        """Physical offset of the next record. A cheap call."""


class Queues(Reads, ABC):
    """The consume queues: for each queue of a topic, units that name its records in the order of their queue
    offsets."""

    @abstractmethod
    def read(
        self, topic: str, queue_id: int, offset: int, limits: ReadLimits, unit_filter: UnitFilter | None
    ) -> ReadResult:
        """Records of a queue from queue `offset` on (store-format sheet, section 8.1 for statuses and next
        offsets). Raises NotInMemory."""

    @abstractmethod
    def read_units(self, topic: str, queue_id: int, offset: int, count: int) -> list[QueueUnit]:
        """Up to `count` consume-queue entries from queue `offset` on; empty when there are none. Does not
        touch the records. Raises NotInMemory."""

    @abstractmethod
    def min_offset(self, topic: str, queue_id: int) -> int:
        """First queue offset that can be read; 0 for an unknown queue."""

    @abstractmethod
    def max_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset after the last message that can be read: the offset of the next message, unless
        messages wait to be written. 0 for an unknown queue."""

    @abstractmethod
    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary) -> int:
        """Queue offset at a store time. Before the first message the minimum; after the last one the maximum
        (LOWER) or the last (UPPER). Raises NotInMemory, possibly many times in succession: each step of the
        search determines the next place to read."""

    @abstractmethod
    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Store timestamp in ms of the message at a queue offset, -1 when there is none. Raises
        NotInMemory."""

    @abstractmethod
    def queues(self) -> Mapping[str, Sequence[int]]:
        """Topic -> queue ids, for all queues of the store."""

    @abstractmethod
    def delete_topic(self, topic: str) -> None:
        """Delete a topic's queues; its records go when the log is trimmed. Unknown topics are ignored. The
        deletion is on the device when the call returns, and queues made anew from the log do not bring the
        records back. Raises StoreNotWritable, OSError."""

    @abstractmethod
    def delete_queue(self, topic: str, queue_id: int) -> None:
        """Delete one queue, with the same effects. Its next message gets queue offset 0."""


class Keys(Reads, ABC):
    """The key index."""

    @abstractmethod
    def query_by_key(self, topic: str, key: str, begin_ms: int, end_ms: int, max_results: int) -> KeyMatches:
        """Records whose key hash matches, stored within [begin, end] (to the second). The caller removes hash
        collisions. Writes nothing. Raises NotInMemory."""


class Retention(ABC):
    """Removing old data from the front of the log."""

    @property
    def disk_paths(self) -> Sequence[Path]:
        """Directories whose file systems the store fills, the log's first; empty for a store without
        files."""
        return ()

    @abstractmethod
    def refuse_writes(self, reason: str | None) -> None:
        """Refuse all further appends for this reason (StoreNotWritable); None accepts them again. Reads are
        not affected."""

    @abstractmethod
    async def log_parts(self) -> list[LogPart]:
        """The parts of the log that `trim` can remove, oldest first; without the part being written, and
        without data that is not on the device yet."""

    @cached_property
    def pins(self) -> Pins:
        return Pins()

    def pin(self, offset: int, reader: str = "a reader") -> Pin:
        """Keep the log from physical `offset` on until the pin is released, even if `trim` is called with a
        higher offset: for replicas and dispatchers. `reader` names its owner in log lines. A pin cannot fill
        the disk: above the highest ratio of the disk its owner loses the pin (`end_pins`)."""
        return self.pins.add(offset, reader)

    def end_pins(self, before_offset: int) -> None:
        """Release the pins that keep a part of the log before an offset, with a log line for each."""
        for pin in self.pins.before(before_offset):
            pin.release()
            _log.error(
                "%s loses the log from %s to %s: the disk is full", pin.reader, pin.offset, before_offset
            )

    @abstractmethod
    async def trim(self, before_offset: int) -> Trimmed:
        """Remove the parts of the log that end at or before a physical offset and that no pin holds; then the
        parts of queues and index that refer only to them, and move the queues' minimum offsets. Works in a
        thread; slices that were read stay valid. A part stays as long as it is the only source of information
        that the device does not have elsewhere, such as the next offsets of queues.

        Raises StoreError when a file cannot be deleted; the next call tries again. Cancelled: the thread
        finishes by itself.
        """


class MessageStore(Log, Queues, Keys, Retention):
    """A store for a broker: all facets, and its life from `open` to `close`. All calls come from one trio
    task at a time. Only coroutine methods may block."""

    #: Whether another `open` finds what was stored.
    is_durable: bool = True

    def use_external_consume_queue(self, lookup: QueueLookup) -> None:
        """Before `open`: keep no units of queues, and pass reads of queues to `lookup`. The store still
        assigns queue offsets, and recovers them.

        Raises ConfigError when the store requires its own queues.
        """
        raise ConfigError(
            f"{type(self).__name__} cannot leave out its consume queues: name consume-queue in dispatchers"
        )

    def use_external_index(self, lookup: KeyLookup) -> None:
        """Before `open`: keep no key index, and pass key queries to `lookup`. Raises ConfigError when the
        store requires its own index."""
        raise ConfigError(f"{type(self).__name__} cannot leave out its key index: name index in dispatchers")

    @property
    def damaged_from(self) -> int | None:
        """The physical offset of the first record that takes the place of damage, of those that the last
        `open` has found or made: other replicas may have what was there. None without one."""
        return None

    def dispatch_behind(self) -> Mapping[str, int]:
        """The parts that the store builds from the log (consume-queue, index), in the order of their
        dispatch, and how many bytes of the log each of them lacks."""
        return {}

    @abstractmethod
    async def open(self) -> None:
        """Recover, and lock the directory. Raises StoreInUse, StoreCorrupt, StoreError. Cancelled: the
        directory is released."""

    @abstractmethod
    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Background work (flushing, allocating) until cancelled. Calls `task_status.started()` when
        appends may begin."""

    @abstractmethod
    async def close(self) -> None:
        """Flush everything and release the directory. Runs shielded from cancellation; a second call does
        nothing."""

    @property
    def read_faults(self) -> int:
        """Number of damaged places that reads have met since the store was created: entries of a queue or the
        index without a record, and bodies that do not match their checksums. A cheap call."""
        return 0

    @abstractmethod
    def statistics(self) -> StoreStatistics:
        """Figures for people and tools. May access every file, so it is not for the request path."""


StoreFactory = Callable[["Config", Clock, "FlushPolicy"], MessageStore]


class QueueLookup(ABC):
    """Serves reads of queues in place of the store's consume queues. Implemented by a `Dispatcher` that is
    not queued: appended messages can be read at once. Used when `dispatchers` names it and not
    `consume-queue`.

    The store still assigns the queue offsets. An entry whose queue offset is lower than an earlier one
    belongs to a queue that was deleted and created again. Prepared and rolled-back messages (`sys_flag`) have
    no place in a queue.
    """

    @abstractmethod
    def units(self, topic: str, queue_id: int, offset: int, count: int) -> Sequence[QueueUnit]:
        """Up to `count` consecutive units, the first with queue offset `offset`; empty when that is outside
        [min_offset, max_offset)."""

    @abstractmethod
    def min_offset(self, topic: str, queue_id: int) -> int:
        """First queue offset whose record is in the log; `max_offset` without such a record, 0 for an unknown
        queue."""

    @abstractmethod
    def max_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset after the last unit; 0 for an unknown queue."""

    @abstractmethod
    def delete_queue(self, topic: str, queue_id: int) -> None:
        """Delete a queue; unknown ones are ignored."""


class KeyLookup(ABC):
    """Answers key queries in place of the store's index; used when `dispatchers` names it and not `index`."""

    @abstractmethod
    def query_by_key(self, topic: str, key: str, begin_ms: int, end_ms: int, max_results: int) -> KeyMatches:
        """The offsets of messages with a key (`Keys.query_by_key`); those of records that are no longer in
        the log are allowed."""


class NoQueues(QueueLookup):
    """For a store without consume queues and without a replacement: every queue is empty."""

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> Sequence[QueueUnit]:
        return ()

    def min_offset(self, topic: str, queue_id: int) -> int:
        return 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        return 0

    def delete_queue(self, topic: str, queue_id: int) -> None:
        return


class NoKeys(KeyLookup):
    """For a store without an index and without a replacement: no key is found."""

    def query_by_key(self, topic: str, key: str, begin_ms: int, end_ms: int, max_results: int) -> KeyMatches:
        return KeyMatches([], 0, 0)
