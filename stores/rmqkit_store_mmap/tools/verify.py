"""Verification of a store directory: reads the log once and compares it with queues and index. Memory use
does not depend on the amount of stored data.

Beside a running broker, the content of the directory at the start of the verification must be complete; data
appended later is checked as far as it has been written.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from attrs import define, field

from rmqkit.errors import DecodeError, StoreError
from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.sysflag import INNER_BATCH, TRANSACTION_MASK, TRANSACTION_ROLLBACK, UNQUEUED
from rmqkit.plugin.queue_code import QueueCode, QueueCodes, tag_code
from rmqkit.protocol import loose_json
from rmqkit.protocol.damage import FILLER_TOPIC, is_damage
from rmqkit.protocol.key_hash import KeyHasher
from rmqkit.protocol.tags import absolute_hash, extend_hash
from rmqkit.toolkit.directory_lock import lock_holder
from rmqkit_store_mmap.open.abort_file import AbortMark
from rmqkit_store_mmap.open.checkpoint import Checkpoint
from rmqkit_store_mmap.queue import extension
from rmqkit_store_mmap.queue.queue_numbers import FILE_NAME
from rmqkit_store_mmap.readonly.readonly import StoreReader
from rmqkit_store_mmap.tools.damage import Damage, check_row
from rmqkit_store_mmap.tools.index_check import IndexCheck, index_headers
from rmqkit_store_mmap.tools.log_check import LogCheck, Outcome, Progress
from rmqkit_store_mmap.tools.log_records import Record
from rmqkit_store_mmap.tools.queue_check import QueueCheck

#: Queues whose units may point to records of other topics (INNER_MULTI_DISPATCH). Those of lite topics are
#: checked if they have records of their own.
_LIGHT_PREFIX = "%LMQ%"
#: Maximum number of damaged places that are listed; the rest are counted.
_MAX_NOTES = 100


@define
class _Topic:
    key_code: int
    queue_code: QueueCode
    is_indexed: bool
    queues: dict[int, QueueCheck | None] = field(factory=dict)
    #: The first record of each queue that has no directory.
    lost: dict[int, Record] = field(factory=dict)


class Verifier:
    """One verification of a store directory. The index need not contain keys of the topics `unindexed`."""

    def __init__(
        self,
        store: StoreReader,
        queue_codes: QueueCodes,
        index_slots: int,
        progress: Progress | None = None,
        unindexed: Collection[str] = (),
    ) -> None:
        self._store = store
        self._queue_codes = queue_codes
        self._index_slots = index_slots
        self._unindexed = unindexed
        self._progress = progress
        self._topics: dict[bytes, _Topic] = {}
        self._hasher = KeyHasher()
        #: Log offsets of records that replace damage.
        self._damaged: set[int] = set()
        holder = lock_holder(store.root)
        self._outcome = Outcome(holder is not None, holder, AbortMark(store.root).present())

    def run(self) -> Outcome:
        """Check everything, up to the first bad place. Raises ConfigError when the settings do not fit the
        index files; OSError."""
        outcome = self._outcome
        try:
            self._look_up()
            end = LogCheck(
                self._store.log, outcome, self._known_end, self._still_known, self._check, self._progress
            ).run()
            self._finish(end)
        except Damage as damage:
            outcome.damage = damage
        checks = [
            check for topic in self._topics.values() for check in topic.queues.values() if check is not None
        ]
        outcome.units = sum(check.matched for check in checks)
        outcome.superseded += sum(check.superseded for check in checks)
        return outcome

    def _look_up(self) -> None:
        """Determine the files of queues and index before the log is read: the log must contain all records
        that they refer to now."""
        store = self._store
        check_row(store.log.row, store.log.segment_bytes)
        self._known_end = 0
        extended = (store.root / extension.DIRECTORY).is_dir()
        for name, queue_ids in store.topics().items():
            topic = self._topic(name.encode())
            for queue_id in queue_ids:
                queue = store.queue(name, queue_id)
                check_row(queue.row, store.queue_file_bytes)
                if not name.startswith(_LIGHT_PREFIX) or names.lite_parts(name) is not None:
                    look_up = extension.reader(store.root, name, queue_id) if extended else None
                    topic.queues[queue_id] = QueueCheck(queue, look_up, self._damaged)
                    self._known_end = max(self._known_end, queue.known_end)
        mark = Checkpoint.load(store.root / "checkpoint").mark
        self._index_mark = mark.index if mark is not None else None
        headers = index_headers(store.root / "index")
        self._index_files = len(headers)
        store.log.refresh()
        check_row(store.log.row, store.log.segment_bytes)
        self._index = IndexCheck(headers, self._index_slots, store.log.min_offset, self._outcome.is_open)
        self._known_end = max(self._known_end, self._index.known_end + 1)

    def _still_known(self) -> int:
        """The end log offset of the records that have units now: a broker removes units after a failed
        write."""
        checks = (
            check for topic in self._topics.values() for check in topic.queues.values() if check is not None
        )
        return max(
            (self._store.queue(check.queue.topic, check.queue.queue_id).known_end for check in checks),
            default=0,
        )

    def _topic(self, name: bytes) -> _Topic:
        topic = self._topics.get(name)
        if topic is None:
            text = name.decode(errors="replace")
            code = self._queue_codes.get(text, tag_code)
            topic = self._topics[name] = _Topic(extend_hash(0, f"{text}#"), code, text not in self._unindexed)
        return topic

    # --- one record -----------------------------------------------------------------------------------------

    def _check(self, record: Record) -> None:
        if is_damage(record.flag, record.sys_flag):
            self._take_damage(record)
            return
        topic = self._topics.get(record.topic) or self._topic(record.topic)
        kind = record.sys_flag & TRANSACTION_MASK
        found = props.decode(record.properties)
        if not record.sys_flag & UNQUEUED and not record.sys_flag & INNER_BATCH:
            try:
                check = topic.queues[record.queue_id]
            except KeyError:
                check = topic.queues[record.queue_id] = None
            if check is not None:
                code = topic.queue_code(found, record.store_timestamp_ms)
                check.take(record, code, self._store.log.min_offset)
            else:
                topic.lost.setdefault(record.queue_id, record)
        if kind == TRANSACTION_ROLLBACK:
            return
        offset = record.physical_offset
        unique, keys = found.get(props.UNIQ_KEY), found.get(props.KEYS)
        has_keys = unique is not None or (keys is not None and bool(keys.strip(" ")))
        wanted = topic.is_indexed and has_keys and self._index.wants(offset)
        if wanted or offset >= self._index.next_offset:
            texts = [] if unique is None else [(self._hasher.unique(topic.key_code, unique), unique)]
            if keys is not None:
                texts += [
                    (absolute_hash(extend_hash(topic.key_code, key)), key) for key in keys.split(" ") if key
                ]
            tags = found.get(props.TAGS)
            tags_hash = absolute_hash(extend_hash(topic.key_code, f"T#{tags}")) if tags else None
            self._index.take(offset, record.store_timestamp_ms, texts, wanted, tags_hash)

    def _take_damage(self, record: Record) -> None:
        """Process a record by which a start replaced damage: units and keys may refer to it."""
        self._damaged.add(record.physical_offset)
        self._index.pass_over(record.physical_offset)
        if len(self._damaged) <= _MAX_NOTES:
            whose = ""
            if record.topic != FILLER_TOPIC.encode():
                whose = (
                    f", once queue offset {record.queue_offset} of {record.topic.decode(errors='replace')}"
                    f" queue {record.queue_id}"
                )
            self._outcome.notes.append(
                f"damage at log offset {record.physical_offset}, {record.size_bytes} bytes{whose}: readers"
                " are led past it"
            )

    # --- after the walk -------------------------------------------------------------------------------------

    def _finish(self, log_end: int) -> None:
        log_min = self._store.log.min_offset
        missing: list[tuple[int, Damage]] = []
        deleted: list[str] = []
        behind = 0
        left_out = (self._store.root / FILE_NAME).exists()
        for name, topic in self._topics.items():
            was_created_again = any(check is not None and check.superseded for check in topic.queues.values())
            is_light = name.startswith(_LIGHT_PREFIX.encode())
            for check in topic.queues.values():
                if check is not None and (check.matched or not is_light):
                    behind += check.finish(log_min, log_end, self._outcome.is_open)
                    if check.missing is not None and not self._not_yet(check.missing):
                        place = check.queue.place(check.missing.queue_offset)
                        missing.append((check.missing.physical_offset, _missing(place, check.missing)))
            for queue_id, record in topic.lost.items():
                text = name.decode(errors="replace")
                if left_out or self._not_yet(record) or was_created_again or text.startswith(_LIGHT_PREFIX):
                    continue
                if not self._is_known(text):
                    deleted.append(text)
                    break
                missing.append(
                    (
                        record.physical_offset,
                        _missing((self._store.queue_directory / text / str(queue_id), 0), record),
                    )
                )
        self._index.finish()
        if len(self._damaged) > _MAX_NOTES:
            self._outcome.notes.append(
                f"damage at {len(self._damaged) - _MAX_NOTES} more places of the log: readers are led past it"
            )
        self._outcome.index_entries = self._index.checked
        self._check_index_row()
        if missing:
            raise min(missing, key=lambda found: found[0])[1]
        if behind:
            self._outcome.notes.append(f"{behind} queue units are of records that have not got into the log")
        if left_out:
            self._outcome.notes.append(
                f"consume queues are left out, {FILE_NAME} has the numbers of the queues"
            )
        if deleted:
            self._outcome.notes.append(
                "topics that have records but no queues, as after they were deleted:"
                f" {', '.join(sorted(deleted))}"
            )

    def _check_index_row(self) -> None:
        """Compare the number of index files with the mark. Without a mark, a lost file cannot be
        distinguished from keys that Java leaves out of the index after a crash. Raises Damage."""
        mark = self._index_mark
        for path, (offset, count) in self._index.unindexed.items():
            if mark is not None and self._index_files < mark.files:
                raise Damage(
                    path,
                    0,
                    f"an index file before this one is missing, with the keys of {count} records from log"
                    f" offset {offset} on",
                )
            self._outcome.notes.append(
                f"{count} messages from log offset {offset} on, before those of {path.name}, cannot be found"
                " by their keys"
            )

    def _not_yet(self, record: Record) -> bool:
        """Whether a record may have lacked its unit: no later record had one, or the unit was written after
        the queue was looked up."""
        if not self._outcome.is_open:
            return False
        if record.physical_offset >= self._known_end:
            return True
        try:
            queue = self._store.queue(record.topic.decode(errors="replace"), record.queue_id)
        except StoreError:
            return False
        units = queue.units(record.queue_offset, record.queue_offset + 1)
        return any(unit.physical_offset == record.physical_offset for unit in units)

    def _is_known(self, topic: str) -> bool:
        """Whether a topic should have queues: it has a directory, or the broker's topic table contains it, or
        there is no directory of consume queues."""
        directory = self._store.queue_directory
        if not directory.is_dir() or "/" in topic or (directory / topic).is_dir():
            return True
        try:
            table = loose_json.loads((self._store.root / "config" / "topics.json").read_bytes())
            return topic in table["topicConfigTable"]
        except (OSError, DecodeError, TypeError, KeyError):
            return False


def _missing(place: tuple[Path, int], record: Record) -> Damage:
    whose = f"the record at log offset {record.physical_offset}, queue offset {record.queue_offset}"
    return Damage(
        *place, f"{whose} of {record.topic.decode(errors='replace')} queue {record.queue_id}, has no unit"
    )
