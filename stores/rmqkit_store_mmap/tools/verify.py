"""Whether a store directory is sound: one walk through the log, with queues and index beside it. Memory does not grow with what is stored.

Beside a running broker everything is held to what the directory said when the walk began; what is appended meanwhile is looked at as far as it is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attrs import define, field

from rmqkit.directory_lock import lock_holder
from rmqkit.errors import DecodeError, StoreError
from rmqkit.model import properties as props
from rmqkit.model.delay import deliver_time_ms
from rmqkit.model.names import SCHEDULE_TOPIC
from rmqkit.model.sysflag import INNER_BATCH, TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rmqkit.protocol import loose_json
from rmqkit.protocol.tags import absolute_hash, extend_hash
from rmqkit.protocol.tags import tags_code as hash_tags
from rmqkit_store_mmap.checkpoint import Checkpoint
from rmqkit_store_mmap.guard import AbortMark
from rmqkit_store_mmap.key_hash import KeyHasher
from rmqkit_store_mmap.queue_numbers import FILE_NAME
from rmqkit_store_mmap.readonly import StoreReader
from rmqkit_store_mmap.tools.damage import Damage, check_row
from rmqkit_store_mmap.tools.index_check import IndexCheck, index_headers
from rmqkit_store_mmap.tools.log_check import LogCheck, Outcome, Progress
from rmqkit_store_mmap.tools.log_records import Record
from rmqkit_store_mmap.tools.queue_check import QueueCheck

_UNQUEUED = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
#: Queues whose units point to records of other topics (INNER_MULTI_DISPATCH); their units are not checked.
_LIGHT_PREFIX = "%LMQ%"
_SCHEDULE = SCHEDULE_TOPIC.encode()


@define
class _Topic:
    code: int
    queues: dict[int, QueueCheck | None] = field(factory=dict)
    #: The first record of each queue that has no directory.
    lost: dict[int, Record] = field(factory=dict)


class Verifier:
    """One verification; `run` does it."""

    def __init__(self, store: StoreReader, levels_ms: Sequence[int], index_slots: int, progress: Progress | None = None) -> None:
        self._store = store
        self._levels_ms = levels_ms
        self._index_slots = index_slots
        self._progress = progress
        self._topics: dict[bytes, _Topic] = {}
        self._hasher = KeyHasher()
        holder = lock_holder(store.root)
        self._outcome = Outcome(holder is not None, holder, AbortMark(store.root).present())

    def run(self) -> Outcome:
        """Check everything, up to the first bad place. Raises ConfigError when the settings do not fit the index files; OSError."""
        outcome = self._outcome
        try:
            self._look_up()
            end = LogCheck(self._store.log, outcome, self._known_end, self._still_known, self._check, self._progress).run()
            self._finish(end)
        except Damage as damage:
            outcome.damage = damage
        checks = [check for topic in self._topics.values() for check in topic.queues.values() if check is not None]
        outcome.units = sum(check.matched for check in checks)
        outcome.superseded += sum(check.superseded for check in checks)
        return outcome

    def _look_up(self) -> None:
        """The files of queues and index, before the walk begins: what they hold now must be in the log then."""
        store = self._store
        check_row(store.log.row, store.log.segment_bytes)
        self._known_end = 0
        extension = (store.root / "consumequeue_ext").is_dir()
        for name, queue_ids in store.topics().items():
            topic = self._topic(name.encode())
            for queue_id in queue_ids:
                queue = store.queue(name, queue_id)
                check_row(queue.row, store.queue_file_bytes)
                if not name.startswith(_LIGHT_PREFIX):
                    topic.queues[queue_id] = QueueCheck(queue, extension)
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
        """What the queues know now: a broker whose write failed takes units back."""
        checks = (check for topic in self._topics.values() for check in topic.queues.values() if check is not None)
        return max((self._store.queue(check.queue.topic, check.queue.queue_id).known_end for check in checks), default=0)

    def _topic(self, name: bytes) -> _Topic:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = _Topic(extend_hash(0, f"{name.decode(errors='replace')}#"))
        return topic

    # --- one record --------------------------------------------------------------------------------------------------

    def _check(self, record: Record) -> None:
        topic = self._topics.get(record.topic) or self._topic(record.topic)
        kind = record.sys_flag & TRANSACTION_MASK
        found = props.decode(record.properties)
        if kind not in _UNQUEUED and not record.sys_flag & INNER_BATCH:
            try:
                check = topic.queues[record.queue_id]
            except KeyError:
                check = topic.queues[record.queue_id] = None
            if check is not None:
                check.take(record, self._tags_code(record, found), self._store.log.min_offset)
            else:
                topic.lost.setdefault(record.queue_id, record)
        if kind == TRANSACTION_ROLLBACK:
            return
        offset = record.physical_offset
        unique, keys = found.get(props.UNIQ_KEY), found.get(props.KEYS)
        wanted = (unique is not None or (keys is not None and bool(keys.strip(" ")))) and self._index.wants(offset)
        if wanted or offset >= self._index.next_offset:
            texts = [] if unique is None else [(self._hasher.unique(topic.code, unique), unique)]
            if keys is not None:
                texts += [(absolute_hash(extend_hash(topic.code, key)), key) for key in keys.split(" ") if key]
            self._index.take(offset, record.store_timestamp_ms, texts, wanted)

    def _tags_code(self, record: Record, found: dict[str, str]) -> int:
        if record.topic == _SCHEDULE:
            due_ms = deliver_time_ms(found, record.store_timestamp_ms, self._levels_ms)
            if due_ms is not None:
                return due_ms
        return hash_tags(found.get(props.TAGS))

    # --- after the walk ----------------------------------------------------------------------------------------------

    def _finish(self, log_end: int) -> None:
        log_min = self._store.log.min_offset
        missing: list[tuple[int, Damage]] = []
        deleted: list[str] = []
        behind = 0
        left_out = (self._store.root / FILE_NAME).exists()
        for name, topic in self._topics.items():
            begins_anew = any(check is not None and check.superseded for check in topic.queues.values())
            for check in topic.queues.values():
                if check is not None:
                    behind += check.finish(log_min, log_end, self._outcome.is_open)
                    if check.missing is not None and not self._not_yet(check.missing):
                        place = check.queue.place(check.missing.queue_offset)
                        missing.append((check.missing.physical_offset, _missing(place, check.missing)))
            for queue_id, record in topic.lost.items():
                text = name.decode(errors="replace")
                if left_out or self._not_yet(record) or begins_anew or text.startswith(_LIGHT_PREFIX):
                    continue
                if not self._is_known(text):
                    deleted.append(text)
                    break
                missing.append((record.physical_offset, _missing((self._store.queue_directory / text / str(queue_id), 0), record)))
        self._index.finish()
        self._outcome.index_entries = self._index.checked
        self._check_index_row()
        if missing:
            raise min(missing, key=lambda found: found[0])[1]
        if behind:
            self._outcome.notes.append(f"{behind} queue units are of records that have not got into the log")
        if left_out:
            self._outcome.notes.append(f"consume queues are left out, {FILE_NAME} has the numbers of the queues")
        if deleted:
            self._outcome.notes.append(f"topics that have records but no queues, as after they were deleted: {', '.join(sorted(deleted))}")

    def _check_index_row(self) -> None:
        """Java leaves out of the index what it had not brought to the device before a crash; only the mark tells that from a lost file. Raises Damage."""
        mark = self._index_mark
        for path, (offset, count) in self._index.unindexed.items():
            if mark is not None and self._index_files < mark.files:
                raise Damage(
                    path, 0, f"an index file before this one is missing, with the keys of {count} records from log offset {offset} on"
                )
            self._outcome.notes.append(
                f"{count} messages from log offset {offset} on, before those of {path.name}, cannot be found by their keys"
            )

    def _not_yet(self, record: Record) -> bool:
        """Whether a record may lack its unit: nothing behind it had one, or it has got one since its queue was looked up."""
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
        """Whether there ought to be queues of a topic: it has a directory, or its broker's table has it, or no topic has a directory."""
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
    return Damage(*place, f"{whose} of {record.topic.decode(errors='replace')} queue {record.queue_id}, has no unit")
