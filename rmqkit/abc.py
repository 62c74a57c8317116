"""What plugins implement. Every interface here has a contract test in `rmqkit.testing` that an implementation must pass.

Interfaces that touch the hot path are plain functions over plain values; those that wait are coroutines and run under trio.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import Enum, IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import anyio.abc
import trio
from attrs import define, frozen

from rmqkit.model.message import PutMessage
from rmqkit.model.queue import MessageQueue
from rmqkit.model.subscription import SubscriptionData
from rmqkit.protocol.command import Command

if TYPE_CHECKING:
    from rmqkit.broker.context import BrokerContext
    from rmqkit.config import Config
    from rmqkit.plugins import Registry

Buffer = bytes | memoryview

# --- time ------------------------------------------------------------------------------------------------------------


class Clock(Protocol):
    """Wall-clock time, passed in wherever a decision depends on it."""

    def now_ms(self) -> int: ...


# --- message store ---------------------------------------------------------------------------------------------------


class Level(IntEnum):
    """What `MessageStore.settled` waits for."""

    WRITTEN = 0
    """The bytes survive the death of this process."""
    FLUSHED = 1
    """The bytes survive the death of the machine."""


class ReadStatus(Enum):
    """Outcome of a queue read and the code a pull answers with (store-format sheet, section 8.1; Java: GetMessageStatus)."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


class Appended(NamedTuple):
    """Where one message landed."""

    queue_offset: int
    physical_offset: int
    size_bytes: int
    store_timestamp_ms: int


class QueueUnit(NamedTuple):
    """One entry of a consume queue."""

    queue_offset: int
    physical_offset: int
    size_bytes: int
    tags_code: int


class ReadLimits(NamedTuple):
    """Caps of one read. The first message is always accepted whatever its size (store-format sheet, section 8.2).

    Records further than `memory_bytes` from the end of the log count as being on disk: for them the `disk` caps hold besides the others.
    With `wait` false a read touches nothing that is not in memory: see `ReadResult.cold`.
    """

    max_messages: int = 32
    max_bytes: int = 262_144
    max_scanned_units: int = 800
    max_disk_messages: int = 8
    max_disk_bytes: int = 65_536
    memory_bytes: int = 1 << 62
    wait: bool = True


class FileRange(NamedTuple):
    """Bytes [start, stop) of a file of a store."""

    path: Path
    start: int
    stop: int


@define(slots=True)
class ReadResult:
    """Answer of `MessageStore.read`. `slices` hold `message_count` whole records, `total_bytes` together; neighbours in the log share a slice.
    They stay valid as long as somebody holds them, also when their part of the log is removed.

    `cold` names what is not in memory, when the read was told not to wait for the device. To use the slices would wait, and the read may have
    stopped early: `await store.warm(result)`, then read again.
    """

    status: ReadStatus
    next_offset: int
    min_offset: int
    max_offset: int
    slices: list[Buffer]
    message_count: int = 0
    total_bytes: int = 0
    cold: Sequence[FileRange] = ()


class LogPart(NamedTuple):
    """A stretch [start, end) of the log that can be removed by itself (a file), last written at `modified_ms`. Offsets are physical."""

    start: int
    end: int
    modified_ms: int


class Trimmed(NamedTuple):
    """What `MessageStore.trim` did: where the log begins now (physical offset), and what was given back to the disk."""

    log_start: int
    removed_bytes: int = 0
    removed_files: int = 0


class KeyMatches(NamedTuple):
    """Answer of `MessageStore.query_by_key`: physical offsets, newest first, and how far the index has come."""

    physical_offsets: list[int]
    last_update_timestamp_ms: int
    last_update_physical_offset: int


@frozen
class StoreStatistics:
    """What a store says of itself. Sizes in bytes; `file_count` counts the files on disk."""

    min_physical_offset: int
    max_physical_offset: int
    flushed_physical_offset: int
    queue_count: int
    disk_bytes: int
    file_count: int


class Boundary(Enum):
    """Which message a time look-up wants: LOWER = the first with time >= t, UPPER = the last with time <= t."""

    LOWER = "LOWER"
    UPPER = "UPPER"


#: Says from a consume-queue unit's tags code alone whether a message may match; None lets all pass.
UnitFilter = Callable[[int], bool]
#: Says from a whole record whether it matches; used by filters that need properties.
RecordFilter = Callable[[Buffer], bool]


class MessageStore(ABC):
    """Keeps the log, its queues and its key index. All calls come from one trio task at a time; only `settled`, `open` and `close` wait.

    The record bytes are the kernel's (`rmqkit.protocol.record`), the arrangement is the store's.
    """

    @abstractmethod
    async def open(self) -> None:
        """Recover and take the directory. Raises StoreInUse, StoreCorrupt, StoreError. Cancelled: nothing is held afterwards."""

    @abstractmethod
    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Background work (flushing, allocating) until cancelled. Calls `task_status.started()` when appends may begin."""

    @abstractmethod
    async def close(self) -> None:
        """Flush everything and give the directory back. Runs shielded from cancellation; a second call does nothing."""

    @abstractmethod
    def append(self, messages: Sequence[PutMessage]) -> list[Appended]:
        """Append in order, all or none; assigns queue and physical offsets and one store time. What it appended can be read at once.

        Raises MessageIllegal (a record breaks a limit; nothing was appended) and StoreNotWritable (disk full, closed; nothing was appended).
        """

    @abstractmethod
    def is_settled(self, offset: int, level: Level) -> bool:
        """Whether everything before `offset` has reached `level` already."""

    @abstractmethod
    async def settled(self, offset: int, level: Level) -> None:
        """Wait until everything before physical `offset` has reached `level`; all that wait share one flush. Raises StoreNotWritable when
        the device failed: then nothing may be acknowledged. Cancelled: the data stays as it is."""

    @abstractmethod
    def read(
        self, topic: str, queue_id: int, offset: int, limits: ReadLimits, unit_filter: UnitFilter | None, record_filter: RecordFilter | None
    ) -> ReadResult:
        """Records of a queue from queue `offset` on (store-format sheet, section 8.1 for statuses and next offsets)."""

    async def warm(self, result: ReadResult) -> None:
        """Bring what a read found cold into memory, off the loop; few at a time, so that readers of old data do not keep flushes waiting.

        What is gone, or cannot be read, is left as it is: the next read says so. Stores without files have nothing to do.
        """
        await trio.lowlevel.checkpoint()

    @abstractmethod
    def read_units(self, topic: str, queue_id: int, offset: int, count: int) -> list[QueueUnit]:
        """Up to `count` consume-queue entries from queue `offset` on; empty when there are none. Does not touch the records."""

    @abstractmethod
    def read_record(self, physical_offset: int) -> Buffer | None:
        """The whole record that begins at `physical_offset`, None when none begins there."""

    @abstractmethod
    def query_by_key(self, topic: str, key: str, begin_ms: int, end_ms: int, max_results: int) -> KeyMatches:
        """Records whose key hash matches, stored within [begin, end] (to the second). Hash collisions are the caller's to sort out."""

    @abstractmethod
    def min_offset(self, topic: str, queue_id: int) -> int:
        """First queue offset that can be read; 0 for an unknown queue."""

    @abstractmethod
    def max_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset the next message gets; 0 for an unknown queue."""

    @abstractmethod
    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary) -> int:
        """Queue offset at a store time. Before the first message the minimum; behind the last one the maximum (LOWER) or the last (UPPER)."""

    @abstractmethod
    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Store timestamp in ms of the message at a queue offset, -1 when there is none."""

    @abstractmethod
    def queues(self) -> Mapping[str, Sequence[int]]:
        """Topic -> queue ids the store knows."""

    @abstractmethod
    def delete_topic(self, topic: str) -> None:
        """Forget the queues of a topic; its records go when the log is trimmed. Unknown topics are ignored."""

    @abstractmethod
    def delete_queue(self, topic: str, queue_id: int) -> None:
        """Forget one queue, likewise. The next message for it gets queue offset 0."""

    # Clean-up.

    @property
    def disk_paths(self) -> Sequence[Path]:
        """Directories whose file systems the store fills, the log's first; empty for a store without files."""
        return ()

    @abstractmethod
    def refuse_writes(self, reason: str | None) -> None:
        """From now on refuse appends with this reason (StoreNotWritable), or take them again. Reads go on."""

    @abstractmethod
    async def log_parts(self) -> list[LogPart]:
        """The parts of the log that `trim` can remove, oldest first; not the one being written, nor what is not on the device yet."""

    @abstractmethod
    async def trim(self, before_offset: int) -> Trimmed:
        """Remove the parts of the log that end at or before a physical offset; then the parts of queues and index that are about them alone, and
        move the queues' minimum offsets. Works in a thread; slices that were read stay valid.

        Raises StoreError when a file cannot be deleted; it is tried again at the next call. Cancelled: the thread finishes what it began.
        """

    @abstractmethod
    def read_log(self, offset: int, max_bytes: int) -> Buffer:
        """Raw log bytes from physical `offset` on, ending at a record boundary; empty at the end. For replicas and tools."""

    @property
    @abstractmethod
    def end_offset(self) -> int:
        """Physical offset that the next record gets; costs nothing."""

    @abstractmethod
    def statistics(self) -> StoreStatistics:
        """May look at every file: for people and tools, not for the request path."""


StoreFactory = Callable[["Config", Clock, "FlushPolicy"], MessageStore]

# --- flush policy ----------------------------------------------------------------------------------------------------


class Flushable(Protocol):
    """The part of a store a flush policy drives. Offsets are physical, in bytes."""

    @property
    def written_offset(self) -> int: ...
    @property
    def flushed_offset(self) -> int: ...
    async def flush(self) -> int:
        """Bring everything written so far to the device (in a worker thread); returns the new flushed offset. Raises StoreNotWritable."""
        ...


class FlushPolicy(ABC):
    """When the log goes to the device (Java: FlushCommitLogService and its subclasses)."""

    #: What a message that wants to wait is acknowledged after.
    acknowledge_at: Level = Level.WRITTEN

    @abstractmethod
    async def run(self, log: Flushable, wanted: Callable[[], Awaitable[None]], task_status: trio.TaskStatus[None]) -> None:
        """Flush until cancelled. `await wanted()` returns when somebody waits for FLUSHED; a policy for group commit flushes then."""


FlushPolicyFactory = Callable[["Config"], FlushPolicy]

# --- dispatch --------------------------------------------------------------------------------------------------------


class DispatchEntry(NamedTuple):
    """A message together with where it landed."""

    message: PutMessage
    at: Appended


class Dispatcher(ABC):
    """Sees every appended message, in log order, right behind the append (Java: CommitLogDispatcher). Must not block; must take the same entry
    twice after a restart."""

    name: str

    @abstractmethod
    def dispatch(self, entries: Sequence[DispatchEntry]) -> None: ...


# --- allocation ------------------------------------------------------------------------------------------------------


class AllocationStrategy(ABC):
    """Shares the queues of a topic among the clients of a group; every client computes it alone from equal inputs (Java:
    AllocateMessageQueueStrategy)."""

    name: str

    @abstractmethod
    def allocate(self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        """The queues of `client_id`; both sequences come sorted. Empty when it is not among `client_ids`. Raises ValueError for empty inputs."""


# --- filter ----------------------------------------------------------------------------------------------------------


@frozen
class CompiledFilter:
    """A filter in the two stages a store applies."""

    unit: UnitFilter | None = None
    record: RecordFilter | None = None


class FilterServer(ABC):
    """Turns a subscription of one expression type into a filter (Java: MessageFilter, FilterFactory)."""

    expression_type: str

    @abstractmethod
    def compile(self, subscription: SubscriptionData) -> CompiledFilter:
        """Raises ValueError with the reason when the expression does not parse."""

    @abstractmethod
    def subscription(self, topic: str, expression: str, version: int) -> SubscriptionData:
        """A pull request's expression text as a subscription. Raises ValueError like `compile`."""


# --- transport -------------------------------------------------------------------------------------------------------


@frozen
class Address:
    """`tcp://127.0.0.1:10911`; without a scheme it is tcp. An IPv6 host stands in brackets in text."""

    scheme: str
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Raises ValueError that says what is wrong and shows the form."""
        scheme, separator, rest = text.strip().rpartition("://")
        host, colon, port = rest.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError(f"address {text!r}: an IPv6 host stands in brackets, as in [::1]:10911")
        if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
            raise ValueError(f"address {text!r} is not of the form HOST:PORT, as in 127.0.0.1:10911")
        return cls(scheme if separator else "tcp", host, int(port))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.scheme == "tcp" else f"{self.scheme}://{host}:{self.port}"


class ServerStream(trio.abc.Stream):
    """One accepted connection. `remote` is the peer as `(ip, port)`."""

    remote: tuple[str, int]
    local: tuple[str, int]

    @abstractmethod
    async def send_parts(self, parts: Sequence[Buffer]) -> None:
        """Send all parts in order, without joining them where the transport can (scatter-gather). Raises like `send_all`."""


class Transport(ABC):
    """Brings byte streams (Java: NettyRemotingServer, NettyRemotingClient)."""

    scheme: str

    @abstractmethod
    async def listen(self, address: Address) -> Sequence[trio.abc.Listener[ServerStream]]:
        """Bound listeners; port 0 takes a free one. Raises OSError (address in use, not local)."""

    @abstractmethod
    async def connect(self, address: Address, timeout_ms: int) -> anyio.abc.ByteStream:
        """A connected stream; runs under trio and asyncio. Raises OSError, TimeoutError. Cancelled: nothing stays open."""

    @abstractmethod
    def bound_address(self, listener: trio.abc.Listener[ServerStream]) -> Address:
        """Where a listener really listens."""


# --- requests and connections ----------------------------------------------------------------------------------------


class Reply(NamedTuple):
    """An answer whose body is sent as slices without joining them."""

    head: Command
    slices: Sequence[Buffer]
    total_bytes: int


#: What goes back to the peer: a command, a head with slices, or a whole frame already encoded (only where no RpcHook wants to see it).
Answer = Command | Reply | bytes
#: A processor answers at once, or with an awaitable when it must wait, or with None: no answer (one-way), or one given later by `Peer.respond`.
Outcome = Answer | Awaitable[Answer | None] | None


class Peer(ABC):
    """The other end of an accepted connection, as processors and services see it (Java: Channel)."""

    remote_host: bytes
    """Packed address and port, 8 or 20 bytes."""
    remote_text: str
    closed: bool

    @abstractmethod
    def respond(self, request: Command, answer: Answer) -> None:
        """Queue the answer to an earlier request; dropped when the request was one-way or the connection is gone. Never blocks."""

    @abstractmethod
    def defer(self, work: Callable[[], Awaitable[None]], requests: int) -> None:
        """Run `work` in a task of the connection; it answers that many requests by `respond`. They count as in flight until it ends."""

    @abstractmethod
    def push(self, command: Command) -> bool:
        """Queue a one-way command to the peer; False when the connection is gone or its queue is full."""

    @abstractmethod
    async def call(self, command: Command, timeout_ms: int) -> Command:
        """Send a request to the peer and wait for its answer. Raises RequestTimeout, ConnectionLost."""

    @abstractmethod
    def close(self) -> None:
        """End the connection soon; safe to call twice."""


class RequestProcessor(ABC):
    """Answers requests of some codes. `process` must not block; what waits goes into the awaitable it returns."""

    @abstractmethod
    def process(self, request: Command, peer: Peer) -> Outcome:
        """Raise RequestRefused (or any RmqError) to answer with its code and text. Anything else is logged and answered with SYSTEM_ERROR."""


class BatchProcessor(RequestProcessor):
    """A processor that does better on several requests of one connection that arrived together."""

    @abstractmethod
    def process_many(self, requests: Sequence[Command], peer: Peer) -> list[Outcome]:
        """One outcome for each request, in order. Never raises for one of them: its outcome is the error answer."""


# --- services and servers --------------------------------------------------------------------------------------------


class Service(ABC):
    """Something that runs beside the request path of a broker for as long as it is up."""

    name: str

    @abstractmethod
    async def run(self, broker: BrokerContext, task_status: trio.TaskStatus[None]) -> None:
        """Run until cancelled; call `task_status.started()` when the broker may go on. An exception stops the broker."""

    async def stop(self, broker: BrokerContext) -> None:
        """Last words before the store closes (persist, unregister). At most a few seconds are given."""
        return


@frozen
class ServerHandle:
    """A server that is up: where it listens."""

    addresses: Sequence[Address]


class Server(ABC):
    """A process role besides the broker: the name server."""

    name: str

    @abstractmethod
    async def run(
        self, config: Config, registry: Registry, listeners: Iterable[Address], task_status: trio.TaskStatus[ServerHandle]
    ) -> None:
        """Serve until cancelled; then stop accepting, finish what is in flight, and return."""


# --- per-message hooks -----------------------------------------------------------------------------------------------


@define(slots=True, kw_only=True)
class SendContext:
    """What a SendMessageHook sees (behaviour sheet, C14). The fields from `code` on are set for `after` only."""

    producer_group: str
    topic: str
    queue_id: int
    body_bytes: int
    properties: Mapping[str, str]
    born_host: str
    born_timestamp_ms: int
    request_timestamp_ms: int
    broker_address: str
    unique_key: str | None
    code: int = -1
    remark: str | None = None
    message_id: str | None = None
    queue_offset: int = -1


class SendMessageHook:
    """Around every send a broker handles. `before` may raise RequestRefused; what `after` raises is logged and changes nothing."""

    def before(self, context: SendContext) -> None:
        return

    def after(self, context: SendContext) -> None:
        return


@define(slots=True, kw_only=True)
class ConsumeContext:
    """What a ConsumeMessageHook sees: `before` in a pull once the store was read, `after` in a send-back."""

    group: str
    topic: str
    queue_id: int
    client_address: str
    code: int
    message_count: int
    body_bytes: int


class ConsumeMessageHook:
    """Around consumption (behaviour sheet, C14). Exceptions are logged and change nothing."""

    def before(self, context: ConsumeContext) -> None:
        return

    def after(self, context: ConsumeContext) -> None:
        return


class PutMessageHook(ABC):
    """Last word before the append, also for messages the broker writes by itself: may rewrite the destination, or refuse by RequestRefused.

    `wants` names properties: a message with none of them is not shown to the hook, which then costs the others next to nothing.
    """

    wants: frozenset[str] | None = None

    @abstractmethod
    def before_put(self, message: PutMessage) -> None: ...


class RpcHook:
    """Around every request a server handles. `before` may raise RequestRefused; what `after` raises is logged and changes nothing."""

    def before(self, request: Command, peer: Peer) -> None:
        return

    def after(self, request: Command, response: Command, peer: Peer) -> None:
        return
