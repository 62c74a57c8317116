"""The service "dedup": reads what the log has within the windows, when this broker becomes the master and
when a topic asks for one."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import partial

import trio

from rmqkit.errors import DecodeError, StoreError
from rmqkit.log_limit import limited_logger
from rmqkit.model import properties as props
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.metrics import Family, Metric
from rmqkit.plugin.positions import wait_moved
from rmqkit.plugin.role import Role
from rmqkit.plugin.service import Service
from rmqkit.plugin.store import Appended, Boundary
from rmqkit.protocol import record
from rmqkit.toolkit.cold_reads import all_of, read_when_cached
from rmqkit_dedup.hook import DropRepeated
from rmqkit_dedup.windows import Seen, Window, seen_at

_log: logging.Logger = limited_logger(__name__)
_RUN = 256
#: A log that cannot be read is tried again after this time.
_AGAIN_S = 1.0
REPEATED = Family(
    "rmqkit_deduplicated_messages",
    "counter",
    "Messages that were not stored again, since the last change of their topic",
    ("topic",),
)
KEYS = Family("rmqkit_dedup_keys", "gauge", "Keys that the window of a topic remembers", ("topic",))


class DedupService(Service):
    """Completes the windows of the hook."""

    name = "dedup"
    roles = frozenset({Role.MASTER})

    def __init__(self) -> None:
        self._windows: Mapping[str, Window] = {}

    async def run(self, broker: Broker, task_status: trio.TaskStatus[None]) -> None:
        hook = hook_of(broker)
        self._windows = hook.windows
        hook.look_at_all()
        await self._complete(broker)
        task_status.started()
        while True:
            await hook.changed.wait()
            hook.changed = trio.Event()
            await self._complete(broker)

    def figures(self) -> Mapping[str, object]:
        """The keys of all windows."""
        windows = self._windows.values()
        return {"dedupKeys": sum(map(len, windows))} if windows else {}

    def metrics(self) -> Iterable[Metric]:
        windows = list(self._windows.values())
        if not windows:
            return
        yield Metric(REPEATED, [((each.topic,), each.repeated) for each in windows])
        yield Metric(KEYS, [((each.topic,), len(each)) for each in windows])

    async def _complete(self, broker: Broker) -> None:
        """Fill the windows that are not complete. What is sent to their topics meanwhile is refused."""
        windows = self._windows
        while (window := next((each for each in windows.values() if not each.is_complete), None)) is not None:
            try:
                stored = await _stored(broker, window)
            except (StoreError, OSError) as error:
                _log.error("the window of topic %s cannot be read, trying again: %s", window.topic, error)
                await trio.sleep(_AGAIN_S)
                continue
            if windows.get(window.topic) is window:
                window.fill(stored, broker.clock.now_ms())
                _log.info("%d keys of topic %s were read from the log", len(window), window.topic)


def hook_of(broker: Broker) -> DropRepeated:
    """The hook of a broker."""
    return next(hook for hook in broker.registry.put_message_hooks if isinstance(hook, DropRepeated))


async def _stored(broker: Broker, window: Window) -> list[Seen]:
    """What the log has of a topic within its window."""
    store, topic = broker.store, window.topic
    await wait_moved(store.positions.written, store.end_offset - 1)
    since_ms = broker.clock.now_ms() - window.window_ms
    found: list[Seen] = []
    for queue_id in store.queues().get(topic, ()):
        search = partial(store.offset_by_time, topic, queue_id, since_ms, Boundary.LOWER)
        at = await read_when_cached(store, search)
        while at < store.max_offset(topic, queue_id):
            part, at = await read_when_cached(store, partial(_part, broker, window, queue_id, at))
            found += part
            await trio.lowlevel.checkpoint()
    return found


def _part(broker: Broker, window: Window, queue_id: int, at: int) -> tuple[list[Seen], int]:
    """The next messages of a queue, and where to read on. Raises NotInMemory, StoreError."""
    store, topic, found = broker.store, window.topic, []
    units = store.read_units(topic, queue_id, at, _RUN)
    if not units:
        return [], max(at + 1, store.min_offset(topic, queue_id))
    records = all_of(partial(store.read_record, unit.physical_offset) for unit in units)
    for unit, data in zip(units, records, strict=True):
        try:
            key = None if data is None else window.key_of(props.decode_bytes(record.peek_properties(data)))
        except DecodeError as error:
            _log.error("message %d of topic %s is passed over: %s", unit.queue_offset, topic, error)
            continue
        if data is not None and key is not None:
            stored_ms = record.peek_store_timestamp(data)
            place = Appended(unit.queue_offset, unit.physical_offset, unit.size_bytes, stored_ms)
            found.append(seen_at(key, queue_id, place))
    return found, units[-1].queue_offset + 1


__all__ = ["DedupService", "hook_of"]
