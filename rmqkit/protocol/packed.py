"""What packing needs and gives: queues and topics as a packer sees them, and a run of packed messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from struct import Struct
from typing import Generic, NamedTuple, Protocol, TypeVar

from attrs import field, frozen

from rmqkit.errors import MessageIllegal
from rmqkit.limits import MAX_PROPERTIES_BYTES
from rmqkit.model.message import Appended, PutMessage
from rmqkit.model.names import queue_fault
from rmqkit.protocol.record import BLANK_BYTES, MAGIC_V1, MAGIC_V2, record_size
from rmqkit.protocol.tags import extend_hash

#: A unit of a consume queue: physical offset and size of a record, tags code (store-format sheet, 3).
UNIT = Struct(">qiq")

#: Lengths of properties whose field is kept ready in a TopicHead.
_KEPT_LENGTHS = 1024


@frozen
class TopicHead:
    """What records of a topic have in common: the magic, the topic with its length, the bytes besides body
    and properties (IPv4), and the hash of `topic#`, with which those of keys begin. `between` maps the length
    of properties to what a record has between body and properties."""

    magic: int
    topic_field: bytes
    fixed_bytes: int
    key_code: int
    between: dict[int, bytes] = field(factory=dict, eq=False)

    @classmethod
    def of(cls, topic: str) -> TopicHead:
        name = topic.encode()
        is_long = len(name) > 127
        length = len(name).to_bytes(2 if is_long else 1, "big")
        size = record_size(0, len(name), 0, 0)
        return cls(MAGIC_V2 if is_long else MAGIC_V1, length + name, size, extend_hash(0, f"{topic}#"))

    def field_between(self, properties_bytes: int) -> bytes:
        """`between` for one length. Raises OverflowError for one that does not fit."""
        found = self.topic_field + properties_bytes.to_bytes(2, "big")
        if len(self.between) < _KEPT_LENGTHS:
            self.between[properties_bytes] = found
        return found


class PackedQueue(Protocol):
    """A queue as the packer sees it. It is found by identity."""

    @property
    def head(self) -> TopicHead: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def reserved_until(self) -> int:
        """The first queue offset whose unit has no reserved place yet."""
        ...

    def reserve(self, stop: int) -> None:
        """Reserve places for all units before a queue offset. Raises StoreNotWritable."""
        ...


Q = TypeVar("Q", bound=PackedQueue)
QueueKey = tuple[str, int]
#: Gives the place of a record that does not fit before `reserved_until`: from the log position and its size,
#: the position to use and the new `reserved_until`.
NextPlace = Callable[[int, int], tuple[int, int]]


#: The keys of a record: hash of `topic#`, UNIQ_KEY, KEYS, physical offset, store time in ms.
KeyNote = tuple[int, str | None, str | None, int, int]
#: Parts of which a record consists that Python packs.
PARTS = 4


class PackedRun(NamedTuple, Generic[Q]):
    """One run of packed messages.

    end      the log position behind them
    parts    the records in pieces: `PARTS` for each, or one for all that lie together
    results  their places
    units    what each queue gets from its `next_offset` on, packed (`UNIT`)
    notes    what the index gets
    breaks   number of parts before each record that does not lie behind the one before it
    """

    end: int
    parts: list[bytes]
    results: Sequence[Appended]
    units: dict[Q, bytes]
    notes: Sequence[KeyNote]
    breaks: list[int]

    def records(self) -> list[bytes]:
        """Each record as one piece."""
        parts, join = self.parts, b"".join
        if len(parts) == PARTS * len(self.results):
            return [join(parts[at : at + PARTS]) for at in range(0, len(parts), PARTS)]
        data, at, records = join(parts), 0, []
        for _, _, size, _ in self.results:
            records.append(data[at : at + size])
            at += size
        return records

    def stretches(self) -> tuple[list[int], list[bytes]]:
        """The records that lie side by side, as one piece each; and the log offset of each piece."""
        parts, results = self.parts, self.results
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        if not self.breaks:
            return [results[0][1]], [data]
        offsets: list[int] = []
        ends: list[int] = []
        at = end = 0
        for _, offset, size, _ in results:
            if not offsets or offset != end:
                offsets.append(offset)
                ends.append(at)
            at += size
            end = offset + size
        return offsets, [data[start:stop] for start, stop in pairwise([*ends, at])]


class Packer(Protocol):
    """Packs runs of messages into records for one store. Messages of some topics give no notes."""

    def pack(
        self,
        messages: Sequence[PutMessage],
        now_ms: int,
        queues: Mapping[QueueKey, Q],
        new_queue: Callable[[str, int, int], Q],
        position: int,
        reserved_until: int,
        place_elsewhere: NextPlace,
        made: dict[QueueKey, Q],
        queue_codes: Mapping[str, Callable[[Mapping[str, str], int], int]],
    ) -> PackedRun[Q]:
        """Messages for the log from `position` on. `new_queue` makes a queue from topic, id and the number of
        new ones before it, for `made`. `queue_codes` sets the tags codes of its topics from properties and
        store time. Raises MessageIllegal, and what `place_elsewhere` and `reserve` raise: what was reserved
        stays, and the queues in `made` are the caller's to remove."""
        ...


class NewPacker(Protocol):
    def __call__(self, max_body_bytes: int, store_host: bytes, unindexed: Iterable[str] = ()) -> Packer:
        """A packer for bodies of so many bytes at most. `store_host` is this broker's address as records have
        it; messages of the topics `unindexed` give no notes."""
        ...


def added_queue(made: dict[QueueKey, Q], key: QueueKey, new_queue: Callable[[str, int, int], Q]) -> Q:
    """A new queue, which is not in the store yet, added to `made`. Raises MessageIllegal."""
    fault = queue_fault(*key)
    if fault is not None:
        raise MessageIllegal(fault)
    queue = made[key] = new_queue(*key, len(made))
    return queue


def next_place_in_files(file_bytes: int) -> NextPlace:
    """For a store without files whose records lie as they would in files of RocketMQ's log: no record crosses
    a multiple of `file_bytes`, and the gap before it is large enough for a blank record. So its log can
    become such files, and replicas of other kinds have equal offsets."""

    def place_elsewhere(position: int, size_bytes: int) -> tuple[int, int]:
        base = position - position % file_bytes
        if position + size_bytes + BLANK_BYTES > base + file_bytes:
            base += file_bytes
            position = base
        return position, base + file_bytes - BLANK_BYTES

    return place_elsewhere


def illegal(message: PutMessage, max_body_bytes: int) -> MessageIllegal:
    """The refusal of a message with a body or properties that are too long."""
    if len(message.body) > max_body_bytes:
        return MessageIllegal(f"a body of {len(message.body)} bytes, at most {max_body_bytes} are allowed")
    return MessageIllegal(
        f"properties of {len(message.properties_bytes)} bytes, at most {MAX_PROPERTIES_BYTES} are allowed"
    )
