"""What plugins implement. Every interface here has a contract test in `rmqkit.testing` that an implementation must pass.

Interfaces that touch the hot path are plain functions over plain values; those that wait are coroutines and run under trio.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import Enum, IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import anyio.abc
import trio
from attrs import define, frozen

from rmqkit.errors import ConfigError
from rmqkit.model.message import PutMessage
from rmqkit.model.queue import MessageQueue
from rmqkit.model.subscription import SubscriptionData
from rmqkit.protocol.command import Command

if TYPE_CHECKING:
    from rmqkit.broker.context import BrokerContext
    from rmqkit.config import Config
    from rmqkit.dispatch import KeyLookup, QueueLookup
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
    With `wait` false a read touches nothing that is not in memory: see `NotInMemory`.
    """

    max_messages: int = 32
    max_bytes: int = 262_144
    max_scanned_units: int = 800
    max_disk_messages: int = 8
    max_disk_bytes: int = 65_536
    memory_bytes: int = 1 << 62
    wait: bool = True


class NotInMemory(Exception):
    """A read that was told not to wait would have to wait for the device: `await store.warm(error)`, then read again, from the beginning.

    `cold` names what is missing, as far as the read has come; what it holds is between the store's `read` and its `warm`.
    """

    def __init__(self, *cold: object) -> None:
        super().__init__(*cold)
        self.cold = cold


@define(slots=True)
class ReadResult:
    """Answer of `MessageStore.read`. `slices` hold `message_count` whole records, `total_bytes` together; neighbours in the log share a slice.
    They stay valid as long as somebody holds them, also when their part of the log is removed."""

    status: ReadStatus
    next_offset: int
    min_offset: int
    max_offset: int
    slices: list[Buffer]
    message_count: int = 0
    total_bytes: int = 0


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
    """Keeps the log, its queues and its key index. All calls come from one trio task at a time; what is no coroutine never waits for anybody.

    The record bytes are the kernel's (`rmqkit.protocol.record`), the arrangement is the store's.

    Old data is on the device alone, and reading it there takes as long as the device takes. A read with `wait` true is for tools; in a broker
    it would hold up everybody. With `wait` false it raises NotInMemory instead, before it has touched anything cold; what it returns can be used without
    waiting. `rmqkit.broker.warming` has the usual way to go on. A store that cannot tell what is in memory may ignore `wait`.

    What was appended is found by reads once it is WRITTEN. Where `append` itself writes, that is at once; a store that writes later sets
    `written_by_append` to False and calls `on_written`.
    """

    #: Whether WRITTEN is reached when `append` returns.
    written_by_append: bool = True
    #: Set by the owner of a store that writes later: called in the loop with the physical offset up to which the log is WRITTEN now, each time that
    #: has moved, when everything before it can be read; `close` does not. Must not block or raise.
    on_written: Callable[[int], None] | None = None

    def read_queues_from(self, lookup: QueueLookup) -> None:
        """Before `open`: keep no units of queues, and ask `lookup` whatever would be read from them. Queue offsets are assigned, and recovered, as ever.

        Raises ConfigError when the store cannot do without its queues.
        """
        raise ConfigError(f"{type(self).__name__} cannot leave out its consume queues: name consume-queue in dispatchers")

    def look_keys_up_in(self, lookup: KeyLookup) -> None:
        """Before `open`: keep no key index, and pass key queries to `lookup`. Raises ConfigError when the store cannot do without."""
        raise ConfigError(f"{type(self).__name__} cannot leave out its key index: name index in dispatchers")

    def dispatch_behind(self) -> Mapping[str, int]:
        """What the store builds of the log, in the order it does so, and how many bytes of the log are not in it yet: consume-queue, index."""
        return {}

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
        """Append in order, all or none; assigns queue and physical offsets and one store time. The offsets stay, whatever becomes of the write.

        Raises MessageIllegal (a record breaks a limit), StoreNotWritable (disk full, closed) and StoreBusy (too much waits to be written); nothing was
        appended then.
        """

    @abstractmethod
    def is_settled(self, offset: int, level: Level) -> bool:
        """Whether everything before `offset` has reached `level` already."""

    @abstractmethod
    async def settled(self, offset: int, level: Level) -> None:
        """Wait until everything before physical `offset` has reached `level`; all that wait share one write or flush. Raises StoreNotWritable when
        that failed: then nothing may be acknowledged, though it may be stored all the same. Cancelled: the data stays as it is."""

    @abstractmethod
    def read(
        self, topic: str, queue_id: int, offset: int, limits: ReadLimits, unit_filter: UnitFilter | None, record_filter: RecordFilter | None
    ) -> ReadResult:
        """Records of a queue from queue `offset` on (store-format sheet, section 8.1 for statuses and next offsets). Raises NotInMemory."""

    async def warm(self, missed: NotInMemory) -> None:
        """Bring what a read did not find in memory there, off the loop; few at a time, so that readers of old data do not keep flushes waiting.

        What is gone, or cannot be read, is left as it is: the next read says so. Stores without files have nothing to do. Cancelled: the device
        is not stopped, nobody waits for it.
        """
        await trio.lowlevel.checkpoint()

    @abstractmethod
    def read_units(self, topic: str, queue_id: int, offset: int, count: int, wait: bool = True) -> list[QueueUnit]:
        """Up to `count` consume-queue entries from queue `offset` on; empty when there are none. Does not touch the records. Raises NotInMemory."""

    @abstractmethod
    def read_record(self, physical_offset: int, wait: bool = True) -> Buffer | None:
        """The whole record that begins at `physical_offset`, None when none begins there. Raises NotInMemory."""

    @abstractmethod
    def query_by_key(self, topic: str, key: str, begin_ms: int, end_ms: int, max_results: int, wait: bool = True) -> KeyMatches:
        """Records whose key hash matches, stored within [begin, end] (to the second). Hash collisions are the caller's to sort out. Writes nothing.
        Raises NotInMemory."""

    @abstractmethod
    def min_offset(self, topic: str, queue_id: int) -> int:
        """First queue offset that can be read; 0 for an unknown queue."""

    @abstractmethod
    def max_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset behind the last message that can be read, which the next one gets unless some wait to be written; 0 for an unknown queue."""

    @abstractmethod
    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary, wait: bool = True) -> int:
        """Queue offset at a store time. Before the first message the minimum; behind the last one the maximum (LOWER) or the last (UPPER).
        Raises NotInMemory, perhaps many times one after the other: a search learns with each look where the next one goes."""

    @abstractmethod
    def store_time(self, topic: str, queue_id: int, offset: int, wait: bool = True) -> int:
        """Store timestamp in ms of the message at a queue offset, -1 when there is none. Raises NotInMemory."""

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
        move the queues' minimum offsets. Works in a thread; slices that were read stay valid. Parts stay, too, while the device does not take what would
        be known from them alone, such as the next offsets of queues.

        Raises StoreError when a file cannot be deleted; it is tried again at the next call. Cancelled: the thread finishes what it began.
        """

    @abstractmethod
    def read_log(self, offset: int, max_bytes: int, wait: bool = True) -> Buffer:
        """Raw log bytes from physical `offset` on, ending at a record boundary; empty at the end. For replicas and tools. Raises NotInMemory."""

    @property
    @abstractmethod
    def start_offset(self) -> int:
        """Physical offset at which the log begins, 0 unless it was trimmed; costs nothing."""

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
    """The part of a store a flush policy drives. Offsets are physical, in bytes: how far the log is appended, WRITTEN and FLUSHED."""

    @property
    def appended_offset(self) -> int: ...
    @property
    def written_offset(self) -> int: ...
    @property
    def flushed_offset(self) -> int: ...
    async def commit(self) -> int:
        """Write everything appended so far (in a worker thread); returns the new written offset. Does nothing where `append` writes.

        Raises StoreNotWritable when that failed; the store takes no message then until a later commit succeeds.
        """
        ...

    async def flush(self) -> int:
        """Bring everything written so far to the device (in a worker thread); returns the new flushed offset. Raises StoreNotWritable, for good."""
        ...


class FlushPolicy(ABC):
    """When the log goes to the device (Java: FlushCommitLogService and its subclasses)."""

    #: What a message that wants to wait is acknowledged after.
    acknowledge_at: Level = Level.WRITTEN
    #: 0: an append writes at once. Else appended messages wait in memory, about so many bytes at most, until the policy commits. For stores that can.
    commit_buffer_bytes: int = 0

    @abstractmethod
    async def run(self, log: Flushable, wanted: Callable[[], Awaitable[None]], task_status: trio.TaskStatus[None]) -> None:
        """Commit and flush until cancelled. `await wanted()` returns when somebody waits for WRITTEN or FLUSHED: a policy with a commit buffer commits
        then, one for group commit flushes."""


FlushPolicyFactory = Callable[["Config"], FlushPolicy]

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


_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
#: Schemes whose addresses have a port. A plugin's own scheme may have one, or be followed by a name or path.
_PORT_SCHEMES = frozenset({"tcp", "tls", "quic"})


@frozen
class Address:
    """Where something listens: `127.0.0.1:10911` (tcp), `tls://broker-a:10911`, `unix:///run/rmqkit.sock`, `memory://name`.

    Either `host` and `port` are set, or `name` is: a path, or what else a scheme without ports calls its listeners. As text an IPv6 host stands in
    brackets, and the scheme tcp is left out.
    """

    scheme: str
    host: str = ""
    port: int = 0
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> Address:
        """Raises ValueError that says what is wrong and shows the form."""
        scheme, separator, rest = text.strip().rpartition("://")
        scheme = scheme if separator else "tcp"
        if not _SCHEME.fullmatch(scheme):
            raise ValueError(f"address {text!r}: {scheme!r} is no scheme; an address is like 127.0.0.1:10911 or unix:///run/rmqkit.sock")
        host, colon, port = rest.rpartition(":")
        if scheme not in _PORT_SCHEMES and rest and (rest.startswith("/") or not (host and port.isascii() and port.isdigit())):
            return cls(scheme, name=rest)
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError(f"address {text!r}: an IPv6 host stands in brackets, as in [::1]:10911")
        if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
            raise ValueError(f"address {text!r} is not of the form HOST:PORT, as in 127.0.0.1:10911")
        return cls(scheme, host, int(port))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        where = self.name or f"{host}:{self.port}"
        return where if self.scheme == "tcp" else f"{self.scheme}://{where}"


class ServerStream(trio.abc.Stream):
    """One accepted connection. `remote` is the peer as `(ip, port)`, `local` this end; `("127.0.0.1", 0)` where there is none."""

    remote: tuple[str, int]
    local: tuple[str, int]

    async def opened(self) -> ServerStream:
        """What to read and write, once the peer has said enough to know: a handshake is made here. Called once, before all else, in the connection's
        own task.

        Raises BrokenResourceError. Cancelled or failed: the stream is still to be closed.
        """
        return self

    @abstractmethod
    async def send_parts(self, parts: Sequence[Buffer]) -> None:
        """Send all parts in order, without joining them where the transport can (scatter-gather). Raises like `send_all`."""

    def send_now(self, data: Buffer) -> int:
        """Send as much as goes without waiting, and return how many bytes that were: 0 of a transport that cannot tell. Nobody else may be sending.
        Raises like `send_all`."""
        return 0


class LanedStream(anyio.abc.ByteStream):
    """A client's stream over a connection that carries several side by side: lanes, which do not wait for each other."""

    @abstractmethod
    async def open_lane(self) -> LanedStream:
        """One more lane to the same server, which sees a connection of its own once bytes come. Raises anyio.BrokenResourceError."""


class WorkingListener(trio.abc.Listener[ServerStream]):
    """A listener with work to do besides accepting: moving datagrams, watching certificate files."""

    @abstractmethod
    async def run(self) -> None:
        """That work; a server runs it for as long as it serves the listener or one of its connections, then cancels it. An exception ends the server."""


class Transport(ABC):
    """Brings byte streams (Java: NettyRemotingServer, NettyRemotingClient). Contract tests: `rmqkit.testing.transport`."""

    scheme: str

    @abstractmethod
    async def listen(self, address: Address) -> Sequence[trio.abc.Listener[ServerStream]]:
        """Bound listeners; port 0 takes a free one. Raises OSError (address in use, not local), ConfigError (the settings of the transport)."""

    @abstractmethod
    async def connect(self, address: Address, timeout_ms: int) -> anyio.abc.ByteStream:
        """A connected stream; runs under trio and asyncio. Raises OSError, TimeoutError, ConfigError. Cancelled: nothing stays open.

        `receive` and `send` may be under way at the same time, one each. The stream raises anyio's errors.
        """

    @abstractmethod
    def bound_address(self, listener: trio.abc.Listener[ServerStream]) -> Address:
        """Where a listener really listens."""


# --- requests and connections ----------------------------------------------------------------------------------------


class Reply(NamedTuple):
    """An answer whose body is sent as slices without joining them."""

    head: Command
    slices: Sequence[Buffer]
    total_bytes: int


#: What goes back to the peer: a command, a head with slices, or a whole frame already encoded: a success, and only where
#: no RpcHook wants to see it that is no ManyRequestsHook.
Answer = Command | Reply | bytes
#: A processor answers at once, or with an awaitable when it must wait, or with None: no answer (one-way), or one given later by `Peer.respond`.
Outcome = Answer | Awaitable[Answer | None] | None
#: Takes the answers to requests that were postponed.
Postponed = Callable[[Sequence[tuple[Command, Answer]]], None]


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
    def postpone(self, requests: int) -> Postponed:
        """Promise to answer so many requests later, from wherever it may be: by calling what this returns, once, with the requests and their answers.
        Until then they count as in flight. That call never blocks, and may come when the connection is gone."""

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
