"""Reads dispatch entries from the log (Java: CommitLog.checkMessageAndReturnSize for ReputMessageService;
store-format sheet, section 7)."""

from __future__ import annotations

import logging

from rmqkit.errors import DecodeError, StoreError
from rmqkit.model.message import PutMessage
from rmqkit.model.sysflag import UNQUEUED
from rmqkit.plugin.dispatcher import DispatchEntry
from rmqkit.plugin.queue_code import QueueCodes, queue_code
from rmqkit.plugin.store import Appended, Log
from rmqkit.protocol.record import MAGIC_BLANK, peek_size_and_magic, unpack

_log = logging.getLogger(__name__)


def read_entries(store: Log, offset: int, max_bytes: int) -> tuple[list[DispatchEntry], int]:
    """The messages appended from physical `offset` on, at most `max_bytes` but at least one record, and the
    offset after them.

    A record that cannot be decoded is skipped and logged. Raises StoreError when no record begins at
    `offset`, NotInMemory.
    """
    data = store.read_log(offset, max_bytes)
    if not data:
        raise StoreError(f"the log cannot be read at {offset}, it ends at {store.end_offset}")
    entries: list[DispatchEntry] = []
    at = 0
    while at < len(data):
        size, magic = peek_size_and_magic(data, at)
        if magic != MAGIC_BLANK:
            try:
                entries.append(_entry(data, at, store.queue_codes))
            except DecodeError as error:
                _log.error("the record at %d is given to no dispatcher: %s", offset + at, error)
        at += size
    return entries, offset + at


def _entry(data: bytes | memoryview, at: int, codes: QueueCodes) -> DispatchEntry:
    found = unpack(data, at, check_crc=False)
    message = PutMessage(
        topic=found.topic,
        queue_id=found.queue_id,
        body=found.body,
        properties=found.properties,
        properties_bytes=found.properties_bytes,
        flag=found.flag,
        sys_flag=found.sys_flag,
        born_timestamp_ms=found.born_timestamp_ms,
        born_host=found.born_host,
        reconsume_times=found.reconsume_times,
        prepared_offset=found.prepared_offset,
        tags_code=queue_code(codes, found.topic, found.properties, found.store_timestamp_ms),
        unqueued_offset=found.queue_offset if found.sys_flag & UNQUEUED else 0,
    )
    return DispatchEntry(
        message,
        Appended(found.queue_offset, found.physical_offset, found.size_bytes, found.store_timestamp_ms),
    )
