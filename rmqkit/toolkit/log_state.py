"""Facts about a broker's log that are part of both run-time information and metrics."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from rmqkit.plugin.broker import Broker
from rmqkit.plugin.store import Log, MessageStore
from rmqkit.protocol.record import peek_store_timestamp
from rmqkit.toolkit.cold_reads import read_when_cached


def dispatch_behind_bytes(broker: Broker) -> int:
    """Bytes of the log that the slowest dispatcher, of the store or of a plugin, has not processed."""
    return max((progress.behind_bytes for progress in broker.dispatching.progress()), default=0)


def last_record(store: MessageStore, topic: str, queue_ids: Iterable[int]) -> int:
    """The physical offset of the last record in the log that these queues of a topic name; -1 without one.
    Raises NotInMemory."""
    found = -1
    for queue_id in queue_ids:
        for unit in store.read_units(topic, queue_id, store.max_offset(topic, queue_id) - 1, 1):
            if store.start_offset <= unit.physical_offset < store.end_offset:
                found = max(found, unit.physical_offset)
    return found


async def earliest_store_time_ms(store: Log) -> int | None:
    """Store time of the first message in the log; None without messages. Cancellation leaves nothing
    behind."""
    found = await read_when_cached(store, partial(store.read_record, store.start_offset))
    return None if found is None else peek_store_timestamp(found)
