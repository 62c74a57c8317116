"""Damages to the files of a store, each with the place and the words by which it is reported."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from rmqkit.model.message import StoredMessage
from rmqkit.model.names import SCHEDULE_TOPIC
from rmqkit_store_mmap.queue.units import FILLER
from tests.stores.tools.kit import (
    ENTRIES_AT,
    INDEX_BYTES,
    LONG_TOPIC,
    QUEUE_BYTES,
    SEGMENT_BYTES,
    change,
    cut,
    flip,
    index_files,
    log_place,
    unit_place,
)

Queues = dict[tuple[str, int], list[StoredMessage]]


#: Damages a store and returns the place: file, byte, and words of the description.
Harm = Callable[[Path, Queues], tuple[tuple[str, int], str]]


def _in_body(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
    found = queues["Orders", 1][3]
    name, byte = log_place(found.physical_offset)
    flip(root / name, byte + 90)
    return (name, byte), "body CRC does not match"


def _in_body_of_the_last(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
    found = queues["Bills", 0][-1]
    name, byte = log_place(found.physical_offset)
    flip(root / name, byte + 88)
    return (name, byte), "body CRC does not match"


def _in_own_offset(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
    name, byte = log_place(queues["Six", 1][7].physical_offset)
    flip(root / name, byte + 35)
    return (name, byte), "the record says that it is at log offset"


def _in_length(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
    name, byte = log_place(queues["Orders", 2][4].physical_offset)
    flip(root / name, byte + 3)
    return (name, byte), "parts do not add up"


def _in_magic(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
    name, byte = log_place(queues[LONG_TOPIC, 0][4].physical_offset)
    change(root / name, byte + 4, b"\xda\xa3\x20\xa8")
    return (name, byte), "magic 0xdaa320a8"


def _in_topic_length(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
    found = queues["Bills", 0][5]
    name, byte = log_place(found.physical_offset)
    change(root / name, byte + 88, b"\x04")
    return (name, byte), "do not add up"


def _zeroed_record(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
    found = queues["Orders", 0][9]
    name, byte = log_place(found.physical_offset)
    change(root / name, byte, bytes(found.size_bytes))
    return (name, byte), "magic 0x0"


def _zeroed_tail_of_a_segment(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
    found = max(
        (found for found in queues["Orders", 0] if found.physical_offset < SEGMENT_BYTES),
        key=lambda one: one.physical_offset,
    )
    name, byte = log_place(found.physical_offset)
    change(root / name, byte, bytes(SEGMENT_BYTES - byte))
    return (name, byte), "zeros where the log should go on to 00000000000000066560"


def _wrong_blank(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
    path = root / "commitlog" / f"{0:020d}"
    byte = path.read_bytes().rindex(bytes.fromhex("cbd43194")) - 4
    flip(path, byte + 3)
    return (f"commitlog/{0:020d}", byte), "the blank record says that"


def _cut_segment(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
    cut(root / "commitlog" / f"{SEGMENT_BYTES:020d}", 5_000)
    return (f"commitlog/{SEGMENT_BYTES:020d}", 5_000), "the file has 5000 bytes, 66560 are right"


def _cut_first_segment(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
    cut(root / "commitlog" / f"{0:020d}", 66_000)
    return (f"commitlog/{0:020d}", 66_000), "the file has 66000 bytes, 66560 are right"


def _hole_in_the_log(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
    (root / "commitlog" / f"{SEGMENT_BYTES:020d}").unlink()
    return (f"commitlog/{SEGMENT_BYTES:020d}", 0), "the file is missing"


def _last_segment_missing(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
    last = max(path.name for path in (root / "commitlog").iterdir())
    (root / "commitlog" / last).unlink()
    return (f"commitlog/{last}", 0), "the file is missing"


def _stranger_in_the_log(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
    (root / "commitlog" / "note.txt").write_text("hello")
    return ("commitlog/note.txt", 0), "does not belong"


def _in_unit(byte_of_unit: int, words: str) -> Harm:
    def harm(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
        name, byte = unit_place("Orders", 1, 14)
        flip(root / name, byte + byte_of_unit)
        return (name, byte), words

    return harm


def _in_delivery_time(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
    name, byte = unit_place(SCHEDULE_TOPIC, 2, 3)
    data = (root / name).read_bytes()[byte + 12 : byte + 20]
    change(root / name, byte + 12, (int.from_bytes(data, "big") + 60_000).to_bytes(8, "big"))
    return (name, byte), "the unit has the tags code"


def _unit_of_another_record(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
    name, byte = unit_place("Orders", 3, 2)
    other = queues["Orders", 2][2]
    change(root / name, byte, other.physical_offset.to_bytes(8, "big"))
    return (name, byte), "the unit says log offset"


def _unit_of_a_later_record(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
    name, byte = unit_place("Orders", 3, 2)
    other = queues["Orders", 3][9]
    change(root / name, byte, other.physical_offset.to_bytes(8, "big"))
    return (name, byte), "no record of queue offset 2 is there"


def _empty_unit(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
    name, byte = unit_place("Orders", 1, 14)
    change(root / name, byte, bytes(20))
    return (name, byte), "the unit is empty"


def _filler_unit(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
    name, byte = unit_place("Orders", 1, 14)
    change(root / name, byte, FILLER)
    return (name, byte), "the unit is filler"


def _last_unit_missing(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
    last = len(queues["Six", 1]) - 1
    name, byte = unit_place("Six", 1, last)
    change(root / name, byte, bytes(20))
    return (name, byte), f"queue offset {last} of Six queue 1, has no unit"


def _unit_too_many(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
    name, byte = unit_place("Six", 1, len(queues["Six", 1]))
    target = root / name
    if not target.exists():
        target.write_bytes(bytes(QUEUE_BYTES))
    change(target, byte, (99_999_999).to_bytes(8, "big") + b"\0\0\0\x64")
    return (name, byte), "the log ends at"


def _cut_queue_file(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
    cut(root / "consumequeue" / "Bills" / "0" / f"{200:020d}", 100)
    return (f"consumequeue/Bills/0/{200:020d}", 100), "the file has 100 bytes, 200 are right"


def _queue_file_missing(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
    (root / "consumequeue" / "Bills" / "0" / f"{200:020d}").unlink()
    return (f"consumequeue/Bills/0/{200:020d}", 0), "the file is missing"


def _first_queue_file_missing(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
    (root / "consumequeue" / "Bills" / "0" / f"{0:020d}").unlink()
    return (f"consumequeue/Bills/0/{0:020d}", 0), "queue offset 0 of Bills queue 0, has no unit"


def _queue_missing(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
    shutil.rmtree(root / "consumequeue" / "Orders" / "3")
    return ("consumequeue/Orders/3", 0), "queue offset 0 of Orders queue 3, has no unit"


def _all_queues_missing(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
    shutil.rmtree(root / "consumequeue")
    return ("consumequeue/Orders/0", 0), "queue offset 0 of Orders queue 0, has no unit"


def _in_entry(byte_of_entry: int, words: str) -> Harm:
    def harm(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
        path = index_files(root)[1]
        byte = ENTRIES_AT + 20 * 40
        flip(path, byte + byte_of_entry)
        return (f"index/{path.name}", byte), words

    return harm


def _in_slot(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
    path = index_files(root)[2]
    change(path, 40 + 4 * 5, b"\0\0\0\x01")
    return (f"index/{path.name}", 40 + 4 * 5), "slot 5 names entry 1"


def _entry_too_few(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
    """The header says one entry less than it should and the slot agrees: one key of the last record is not
    indexed."""
    path = index_files(root)[-1]
    data = path.read_bytes()
    count = int.from_bytes(data[36:40], "big") - 1
    byte = ENTRIES_AT + 20 * count
    slot = int.from_bytes(data[byte : byte + 4], "big") % 11
    change(path, 36, count.to_bytes(4, "big"))
    change(path, 40 + 4 * slot, data[byte + 16 : byte + 20])
    return (f"index/{path.name}", byte), "there is no entry for the key 'x'"


def _cut_index_file(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
    path = index_files(root)[1]
    cut(path, 1_000)
    return (f"index/{path.name}", 1_000), f"the file has 1000 bytes, others have {INDEX_BYTES}"


def _index_header_gone(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
    path = index_files(root)[1]
    cut(path, 10)
    return (f"index/{path.name}", 10), "its header alone takes 40"


def _too_many_entries(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
    path = index_files(root)[1]
    change(path, 36, (121).to_bytes(4, "big"))
    return (f"index/{path.name}", 36), "the header says 120 entries, at most 119 fit"


def _index_file_missing(number: int) -> Harm:
    def harm(root: Path, queues: Queues) -> tuple[tuple[str, int], str]:
        files = index_files(root)
        files[number].unlink()
        return (
            f"index/{files[number + 1].name}",
            0,
        ), "an index file before this one is missing, with the keys of "

    return harm


HARMS = {
    "body": _in_body,
    "last body": _in_body_of_the_last,
    "own offset": _in_own_offset,
    "length": _in_length,
    "magic": _in_magic,
    "topic length": _in_topic_length,
    "zeroed record": _zeroed_record,
    "zeroed tail": _zeroed_tail_of_a_segment,
    "wrong blank": _wrong_blank,
    "cut segment": _cut_segment,
    "cut first segment": _cut_first_segment,
    "hole in the log": _hole_in_the_log,
    "last segment missing": _last_segment_missing,
    "stranger": _stranger_in_the_log,
    "unit offset, low byte": _in_unit(7, "log offset"),
    "unit offset, high byte": _in_unit(0, "the unit says log offset -"),
    "unit size": _in_unit(11, "bytes, the record at log offset"),
    "unit tag": _in_unit(19, "the unit has the tags code"),
    "delivery time": _in_delivery_time,
    "unit of another": _unit_of_another_record,
    "unit of a later": _unit_of_a_later_record,
    "empty unit": _empty_unit,
    "filler unit": _filler_unit,
    "last unit missing": _last_unit_missing,
    "unit too many": _unit_too_many,
    "cut queue file": _cut_queue_file,
    "queue file missing": _queue_file_missing,
    "first queue file missing": _first_queue_file_missing,
    "queue missing": _queue_missing,
    "all queues missing": _all_queues_missing,
    "entry hash": _in_entry(3, "entry"),
    "entry offset": _in_entry(11, "entry"),
    "entry time": _in_entry(15, "s behind the file's first"),
    "entry chain": _in_entry(19, "is linked to entry"),
    "slot": _in_slot,
    "entry too few": _entry_too_few,
    "cut index file": _cut_index_file,
    "index header": _index_header_gone,
    "too many entries": _too_many_entries,
    "index file missing": _index_file_missing(4),
    "first index file missing": _index_file_missing(0),
}
