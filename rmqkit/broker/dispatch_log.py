"""The log read again for dispatchers (Java: CommitLog.checkMessageAndReturnSize for ReputMessageService; store-format sheet, section 7)."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from rmqkit.abc import Appended, MessageStore
from rmqkit.dispatch import DispatchEntry
from rmqkit.errors import DecodeError, StoreError
from rmqkit.model.delay import deliver_time_ms
from rmqkit.model.message import PutMessage
from rmqkit.model.names import SCHEDULE_TOPIC
from rmqkit.model.properties import TAGS
from rmqkit.protocol.record import MAGIC_BLANK, peek_size_and_magic, record_size, unpack
from rmqkit.protocol.tags import tags_code

_log = logging.getLogger(__name__)


def read_entries(
    store: MessageStore, offset: int, max_bytes: int, levels_ms: Sequence[int], wait: bool = True
) -> tuple[list[DispatchEntry], int]:
    """What was appended from physical `offset` on, at most `max_bytes` of it but at least one record, and the offset behind that.

    A record that cannot be decoded is passed over and logged. Raises StoreError when no record begins at `offset`, NotInMemory unless `wait`.
    """
    data = store.read_log(offset, max_bytes, wait)
    if not data:
        raise StoreError(f"the log cannot be read at {offset}, it ends at {store.end_offset}")
    entries: list[DispatchEntry] = []
    at = 0
    while at < len(data):
        size, magic = peek_size_and_magic(data, at)
        if magic != MAGIC_BLANK:
            try:
                entries.append(_entry(data, at, levels_ms))
            except DecodeError as error:
                _log.error("the record at %d is given to no dispatcher: %s", offset + at, error)
        at += size
    return entries, offset + at


def _entry(data: bytes | memoryview, at: int, levels_ms: Sequence[int]) -> DispatchEntry:
    found = unpack(data, at, check_crc=False)
    code = None
    if found.topic == SCHEDULE_TOPIC:
        code = deliver_time_ms(found.properties, found.store_timestamp_ms, levels_ms)
    properties_at = at + record_size(len(found.body), len(found.topic.encode()), 0, found.sys_flag)
    message = PutMessage(
        topic=found.topic,
        queue_id=found.queue_id,
        body=found.body,
        properties=found.properties,
        properties_bytes=bytes(data[properties_at : at + found.size_bytes]),
        flag=found.flag,
        sys_flag=found.sys_flag,
        born_timestamp_ms=found.born_timestamp_ms,
        born_host=found.born_host,
        reconsume_times=found.reconsume_times,
        prepared_offset=found.prepared_offset,
        tags_code=tags_code(found.properties.get(TAGS)) if code is None else code,
    )
    return DispatchEntry(message, Appended(found.queue_offset, found.physical_offset, found.size_bytes, found.store_timestamp_ms))
