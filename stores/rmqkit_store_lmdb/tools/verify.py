"""Verification of a store: every record, every unit of a queue against its record, every key against its
record."""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, field

from rmqkit.errors import DecodeError
from rmqkit.model.properties import KEYS, UNIQ_KEY
from rmqkit.protocol.damage import is_damage
from rmqkit.protocol.record import peek_store_timestamp, unpack
from rmqkit.protocol.tags import index_hash
from rmqkit_store_lmdb.read.readonly import EnvironmentReader

Progress = Callable[[int, int], None]


@define
class Outcome:
    """What was checked, and the first error, if any."""

    records: int = 0
    log_bytes: int = 0
    units: int = 0
    keys: int = 0
    damage: str | None = None
    notes: list[str] = field(factory=list)


def verify(store: EnvironmentReader, progress: Progress) -> Outcome:
    """Check everything, up to the first error; memory use does not grow with the store."""
    outcome = Outcome()
    if store.is_behind():
        outcome.notes.append("what is in the journal and not in LMDB yet was not checked")
    outcome.damage = (
        _check_log(store, outcome, progress) or _check_queues(store, outcome) or _check_keys(store, outcome)
    )
    return outcome


def _check_log(store: EnvironmentReader, outcome: Outcome, progress: Progress) -> str | None:
    start, end = store.state.start, store.state.end
    at = start
    for offset, record in store.records():
        where = f"log offset {offset}"
        if offset < at:
            return f"{where}: it lies in the record before it, which ends at {at}"
        try:
            found = unpack(record)
        except DecodeError as error:
            return f"{where}: {error}"
        if found.physical_offset != offset or found.size_bytes != len(record):
            return (
                f"{where}: the record says it has {found.size_bytes} bytes at {found.physical_offset}, and"
                f" takes {len(record)}"
            )
        at = offset + len(record)
        if at > end:
            return f"{where}: the record ends at {at}, the log at {end}"
        outcome.records += 1
        if is_damage(found.flag, found.sys_flag):
            outcome.notes.append(
                f"appends are lost at log offset {offset}: readers are led past their places"
            )
        outcome.log_bytes += len(record)
        progress(at - start, end - start)
    return None


def _check_queues(store: EnvironmentReader, outcome: Outcome) -> str | None:
    for (topic, queue_id), (number, first, stop) in store.queues().items():
        expected = first
        for offset, (physical_offset, size, _, time_ms) in store.units(number, first, stop):
            where = f"queue {queue_id} of {topic}, offset {expected}"
            if offset != expected:
                return f"{where}: there is no unit, the next one is of offset {offset}"
            record = store.record(physical_offset)
            if record is None:
                return f"{where}: its record at log offset {physical_offset} is missing"
            found = unpack(record, check_crc=False)
            if is_damage(found.flag, found.sys_flag):
                expected += 1
                continue
            if (found.topic, found.queue_id, found.queue_offset, found.size_bytes) != (
                topic,
                queue_id,
                offset,
                size,
            ):
                return (
                    f"{where}: the record at log offset {physical_offset} is {found.topic} {found.queue_id}"
                    f" {found.queue_offset}"
                )
            if peek_store_timestamp(record) != time_ms:
                return (
                    f"{where}: it was stored at {time_ms}, the record at log offset {physical_offset} says"
                    f" {found.store_timestamp_ms}"
                )
            expected += 1
            outcome.units += 1
        if expected != stop:
            return (
                f"queue {queue_id} of {topic}, offset {expected}: there is no unit, and none behind it up to"
                f" {stop}"
            )
    return None


def _check_keys(store: EnvironmentReader, outcome: Outcome) -> str | None:
    freed = 0
    for code, offset, earliest_ms, latest_ms in store.key_entries():
        record = store.record(offset)
        if record is None or offset < store.state.start:
            freed += 1
            continue
        found = unpack(record, check_crc=False)
        words = [found.properties.get(UNIQ_KEY, ""), *found.properties.get(KEYS, "").split(" ")]
        in_time = earliest_ms <= found.store_timestamp_ms <= latest_ms
        if not in_time or code not in {index_hash(found.topic, word) for word in words if word}:
            return (
                f"key hash {code}: the record at log offset {offset} has no such key, or is not of its run's"
                " time"
            )
        outcome.keys += 1
    if freed:
        outcome.notes.append(
            f"{freed} keys are of records that were freed; they go with their part of the log"
        )
    return None
