"""A table of settings by name, changed in the event loop and written by a worker thread.

A change is visible, and its request is answered, once it is in the table's journal on the device. All changes
during a write share the next one, so the cost of creating a topic does not depend on the number of topics.
Periodically, and at the stop, the whole table is written to its file in Java's format and the journal is
removed ("folded").
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import trio

from rmqkit.broker.tables.journal import TableJournal
from rmqkit.errors import RequestRefused
from rmqkit.limits import MAX_REMEMBERED_DELETIONS
from rmqkit.model.table_parts import table_parts
from rmqkit.model.topic import DataVersion
from rmqkit.plugin.clock import Clock
from rmqkit.protocol.codes import ResponseCode
from rmqkit.toolkit.json_file import JsonFile, sync_directory
from rmqkit.toolkit.unsaved import Change, Unsaved

_log = logging.getLogger(__name__)
C = TypeVar("C", bound=msgspec.Struct)

#: Maximum number of changes per write.
_MAX_BATCH = 256
#: Minimum time between two folds, and its ratio to the duration of the last one.
_FOLD_GAP_S = 1.0
_FOLD_GAP_FACTOR = 20
_REPAIR_S = 1.0
#: Maximum number of entries in a log line.
_MOST_NAMED = 20

#: A file and its text, which is encoded while it is being written.
Encoded = tuple[JsonFile[Any], Iterator[bytes]]


class SavedTable(Generic[C]):
    """Entries of type `config_kind` by name.

    configs     entries on the device, not to be changed by others
    deletions   deleted entries that were not created again, the last ones, with the end of the log at their
                deletion: by them a replica knows that an entry which its master lacks was deleted
    log_end     returns the end of the log
    pending     by name, the newest change that is being written
    on_change   called after each change
    on_turn     called with the name when an entry is about to be deleted, and after each change: data derived
                from it is no longer valid
    """

    def __init__(
        self, clock: Clock, path: Path, kind: type[msgspec.Struct], config_kind: type[C], table_field: str
    ) -> None:
        self.configs: dict[str, C] = {}
        self.deletions: dict[str, int] = {}
        self.log_end: Callable[[], int] = lambda: 0
        self.data_version = DataVersion()
        self.pending: dict[str, Change[C]] = {}
        self.on_change: list[Callable[[], None]] = []
        self.on_turn: list[Callable[[str], object]] = []
        self._clock = clock
        self._file = JsonFile(path, kind)
        self._journal = TableJournal(path.with_suffix(".journal"))
        self._table_field = table_field
        self._json_field = next(
            each.encode_name for each in msgspec.structs.fields(kind) if each.name == table_field
        )
        self._decode = msgspec.json.Decoder(_line_kind(config_kind)).decode
        self._encode = msgspec.json.Encoder().encode
        self._queue: deque[Change[C]] = deque()
        self._queued = trio.Event()
        self._changed = trio.Event()
        #: Set when a write to the journal fails, which may leave remains.
        self._torn = trio.Event()
        self._writing = trio.Lock()
        self._folding = trio.Lock()
        #: A separate limit, so that threads waiting for cold reads do not delay changes.
        self._threads = trio.CapacityLimiter(2)
        #: Whether the table differs from its file.
        self._unfolded = False
        self._complained = False
        #: Entries that the table of another broker lacked, and that were kept.
        self._kept = frozenset[str]()

    # --- start and stop -------------------------------------------------------------------------------------

    def _load(self) -> msgspec.Struct | None:
        """The file's other fields; entries and version are set, with the journal's changes applied. Raises
        ConfigError."""
        stored = self._file.load()
        if stored is not None:
            self.configs = dict(getattr(stored, self._table_field))
            self.data_version = stored.data_version  # type: ignore[attr-defined]
            self.deletions = dict(stored.deletions or {})  # type: ignore[attr-defined]
        for line in self._journal.load():
            self._replay(line)
        return stored

    def _replay(self, line: bytes) -> None:
        try:
            change = self._decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            _log.error("%s: a change cannot be read and is left out: %s", self._journal.path, error)
            return
        self._apply(change.name, change.config, change.log_end)
        self.data_version.next(change.at)

    def _apply(self, name: str, config: C | None, log_end: int) -> None:
        self._unfolded = True
        if config is None:
            self.configs.pop(name, None)
            self._note_deletion(name, log_end)
        else:
            self.configs[name] = config
            self.deletions.pop(name, None)

    def _note_deletion(self, name: str, log_end: int) -> None:
        log_end = max(log_end, self.deletions.pop(name, 0))
        while len(self.deletions) >= MAX_REMEMBERED_DELETIONS:
            del self.deletions[next(iter(self.deletions))]
        self.deletions[name] = log_end

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write changes until cancelled; unwritten ones are then refused."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._fold_regularly)
                nursery.start_soon(self._repair_when_ragged)
                task_status.started()
                while True:
                    while not self._queue:
                        self._queued = trio.Event()
                        await self._queued.wait()
                    with trio.CancelScope(shield=True):
                        await self._write_queued()
        finally:
            refusal = RequestRefused(ResponseCode.SYSTEM_ERROR, "the broker is stopping, nothing was changed")
            with trio.CancelScope(shield=True):
                await self._settle([self._queue.popleft() for _ in range(len(self._queue))], refusal)

    async def close(self) -> None:
        """Write the table to its file and remove the journal. If that fails, the changes stay in the journal
        and an error is logged, which names those that are in neither."""
        with trio.CancelScope(shield=True):
            try:
                while self._unfolded or self._journal.exists:
                    await self.fold()
            except OSError as error:
                kept = (
                    "its changes are kept in the journal beside it"
                    if self._journal.exists
                    else "its last changes are lost"
                )
                _log.error("%s cannot be written, %s: %s", self._file.path, kept, error)
            finally:
                self._journal.close()

    # --- changes --------------------------------------------------------------------------------------------

    def submit(
        self, name: str, config: C | None, *, optional: bool = False, log_end: int | None = None
    ) -> Change[C] | None:
        """Begin to create, replace or delete (None) an entry; None when nothing changes. An equal pending
        change is joined. `log_end` is that of a deletion, by default the present one."""
        under_way = self.pending.get(name)
        if (self.configs.get(name) if under_way is None else under_way.config) == config:
            if under_way is not None:
                under_way.optional &= optional
            return under_way
        change = Change(
            name, config, self._clock.now_ms(), self.log_end() if log_end is None else log_end, optional
        )
        self.pending[name] = change
        self._queue.append(change)
        self._queued.set()
        if config is None:
            self._turn(name)
        return change

    def settled(self, name: str) -> C | None:
        """The entry on which requests may rely. Raises Unsaved while it is being created or deleted."""
        found = self.configs.get(name)
        change = self.pending.get(name)
        if change is not None and (found is None or change.config is None):
            raise Unsaved(change)
        return found

    async def _change(self, name: str, config: C | None, *, log_end: int | None = None) -> bool:
        before = self.pending.get(name)
        change = self.submit(name, config, log_end=log_end)
        if change is None:
            await trio.lowlevel.checkpoint()
            return False
        await change.done()
        return change is not before

    async def _change_all(self, entries: Iterable[tuple[str, C]]) -> None:
        """Create or replace several entries with few writes, and wait for the device. Raises RequestRefused
        when one was not written; others may have been."""
        await trio.lowlevel.checkpoint()
        changes = [self.submit(name, config) for name, config in entries]
        for change in changes:
            if change is not None:
                await change.done()

    async def _replace(
        self, entries: Mapping[str, C], version: DataVersion, deletions: Mapping[str, int]
    ) -> None:
        """Take over the entries of another broker, its deletions, and its version. Only what it says to have
        deleted is deleted, and only if nothing belongs to it from that log offset on; other entries that it
        lacks are kept, and named in a log line. Raises RequestRefused when one was not written; others may
        have been."""
        await self._change_all(entries.items())
        for name, log_end in deletions.items():
            if name in entries:
                continue
            if name not in self.configs:
                self._note_deletion(name, log_end)
            elif self._last_record(name) < log_end:
                await self._change(name, None, log_end=log_end)
                _log.info("%s: %s is deleted, as at the master", self._file.path.name, name)
        self._say_kept(frozenset(self.configs.keys() - entries.keys() - self._own_names()))
        self.data_version = msgspec.structs.replace(version)
        self._unfolded = True
        self._changed.set()

    def _say_kept(self, kept: frozenset[str]) -> None:
        if kept - self._kept:
            _log.warning(
                "%s: the table of the master lacks %d entries of this one and does not say that they were"
                " deleted; they are kept: %s. If they were, delete them again when this broker is the master,"
                " or empty its directory to let it start over",
                self._file.path.name,
                len(kept),
                some_names(kept),
            )
        self._kept = kept

    def _last_record(self, name: str) -> int:
        """The log offset of the last record that belongs to an entry; -1 without one."""
        return -1

    def _own_names(self) -> Set[str]:
        """The entries that every broker has."""
        raise NotImplementedError

    async def _write_queued(self) -> None:
        failure: RequestRefused | None = None
        async with self._writing:
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), _MAX_BATCH))]
            try:
                await self._in_thread(partial(self._journal.append, [self._line(change) for change in batch]))
            except OSError as error:
                self._torn.set()
                _log.error("%s cannot be written, the changes are refused: %s", self._journal.path, error)
                failure = RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"nothing was changed, {self._file.path.name} cannot be written:"
                    f" {error.strerror or error}",
                )
            made = [change for change in batch if failure is None or change.optional]
            refused = [change for change in batch if failure is not None and not change.optional]
            for change in made:
                self._apply(change.name, change.config, change.log_end)
                self.data_version.next(change.at_ms)
                if change.config is None:
                    self._remove(change.name)
            if made:
                self._changed.set()
        await self._settle(made, None)
        await self._settle(refused, failure)

    def _line(self, change: Change[C]) -> bytes:
        line = {"name": change.name, "config": change.config, "at": change.at_ms}
        if change.config is None:
            line["log_end"] = change.log_end
        return self._encode(line)

    async def _settle(self, batch: Iterable[Change[C]], failure: RequestRefused | None) -> None:
        """Call the waiting functions of these changes, each in a turn of its own, because the first message
        to a topic creates the files of its queue."""
        for change in batch:
            if self.pending.get(change.name) is change:
                del self.pending[change.name]
            if failure is None:
                self._turn(change.name)
                for listener in self.on_change:
                    listener()
            change.is_settled, change.failure = True, failure
            for then in change.waiting:
                try:
                    then(failure)
                except Exception:  # noqa: BLE001 - an error of one request must not delay other requests
                    _log.exception("a request that had waited for %s failed", self._file.path.name)
                await trio.lowlevel.cancel_shielded_checkpoint()

    def _turn(self, name: str) -> None:
        for listener in self.on_turn:
            listener(name)

    async def _repair_when_ragged(self) -> None:
        while True:
            if not self._journal.is_ragged:
                self._torn = trio.Event()
                await self._torn.wait()
            await trio.sleep(_REPAIR_S)
            if self._journal.is_ragged:
                async with self._writing:
                    with suppress(OSError):
                        await self._in_thread(self._journal.repair)

    # --- the file -------------------------------------------------------------------------------------------

    async def _fold_regularly(self) -> None:
        while True:
            if not (self._unfolded or self._journal.exists):
                self._changed = trio.Event()
                await self._changed.wait()
            began_s = trio.current_time()
            try:
                await self.fold()
                self._complained = False
            except OSError as error:
                if not self._complained:
                    self._complained = True
                    _log.error(
                        "%s cannot be written, trying again; its changes are safe in the journal: %s",
                        self._file.path,
                        error,
                    )
            took_s = trio.current_time() - began_s
            await trio.sleep(max(_FOLD_GAP_S, _FOLD_GAP_FACTOR * took_s))

    async def fold(self) -> None:
        """Write the table to its file and remove the journal's present content. Raises OSError; nothing is
        lost then."""
        async with self._folding:
            async with self._writing:
                await self._in_thread(self._journal.rotate)
                files = self._files()
                self._unfolded = False
            try:
                await self._before_drop()
                await self._in_thread(partial(self._write, files))
            except BaseException:
                self._unfolded = True
                raise

    def _write(self, files: Sequence[Encoded]) -> None:
        for file, parts in files:
            file.write(parts)
        self._journal.drop_old()
        sync_directory(self._file.path.parent)

    def _remove(self, name: str) -> None:
        """Delete what belongs to an entry that was deleted. Not called when the journal is replayed."""

    async def _before_drop(self) -> None:
        """Wait until the journal's changes are not needed for anything besides the table. Raises OSError."""

    def _files(self) -> list[Encoded]:
        """The files to write now, in this order."""
        return [(self._file, table_parts(self._other_fields(), self._json_field, dict(self.configs).items()))]

    def _other_fields(self) -> msgspec.Struct:
        """A table of the file's type without entries."""
        raise NotImplementedError

    async def _in_thread(self, work: Callable[[], None]) -> None:
        await trio.to_thread.run_sync(work, limiter=self._threads)


def some_names(found: Collection[str]) -> str:
    """The first names that fit into a log line."""
    return ", ".join(sorted(found)[:_MOST_NAMED]) + (", ..." if len(found) > _MOST_NAMED else "")


def _line_kind(config_kind: type[C]) -> Any:
    """The type of a journal's line."""
    return msgspec.defstruct(
        "Line", [("name", str), ("config", config_kind | None, None), ("at", int, 0), ("log_end", int, 0)]
    )


__all__ = ["SavedTable", "some_names"]
