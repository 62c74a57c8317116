"""Delivers parked messages when they are due (store-format sheet, section 10.1; Java: ScheduleMessageService)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import trio

from rmqkit.abc import Buffer, NotInMemory, QueueUnit, Service
from rmqkit.broker.json_file import JsonFile
from rmqkit.broker.warming import again_when_warm, all_of
from rmqkit.errors import DecodeError, RequestRefused, StoreError
from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.model.topic import DelayOffsetFile
from rmqkit.protocol import record
from rmqkit.protocol.tags import tags_code

if TYPE_CHECKING:
    from rmqkit.broker.context import BrokerContext

_log = logging.getLogger(__name__)
_POLL_MS = 100
_BATCH = 64
_AFTER_ERROR_MS = 10_000


class DelayService(Service):
    """Walks one queue a level from the offset it has reached. At least once: a crash delivers again what was delivered since the last write of
    delayOffset.json, at most `flushDelayOffsetInterval`."""

    name = "delay"

    def __init__(self, levels: Sequence[int]) -> None:
        self._levels = levels
        self._table = DelayOffsetFile()
        self._file: JsonFile[DelayOffsetFile] | None = None
        self._not_before_ms: dict[int, int] = {}
        self._cold: set[int] = set()
        self._dirty = False
        self._stopped = False
        self._writing = trio.Lock()

    async def run(self, broker: BrokerContext, task_status: trio.TaskStatus[None]) -> None:
        self._stopped = False
        broker.topics.ensure(names.SCHEDULE_TOPIC, len(self._levels))
        self._load(broker)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._persist_regularly, broker)
            task_status.started()
            while not self._stopped:
                await trio.sleep(_POLL_MS / 1000)
                for level in range(1, len(self._levels) + 1):
                    if level in self._cold:
                        continue
                    try:
                        if self._deliver_due(broker, level, wait=False):
                            await trio.lowlevel.checkpoint()
                    except NotInMemory as missed:
                        self._cold.add(level)
                        nursery.start_soon(self._deliver_when_warm, broker, level, missed)

    async def _deliver_when_warm(self, broker: BrokerContext, level: int, missed: NotInMemory) -> None:
        """Messages of the long levels may have left the memory while they waited. Other levels go on meanwhile."""
        try:
            await again_when_warm(broker.store, partial(self._deliver_due, broker, level), missed)
        finally:
            self._cold.discard(level)

    async def stop(self, broker: BrokerContext) -> None:
        """Deliver no more and write how far the levels have come, so that a restart repeats nothing."""
        self._stopped = True
        await self._persist(broker)

    def _load(self, broker: BrokerContext) -> None:
        """Offsets that point outside their queue are moved to its nearest end, as after a lost or older file."""
        self._file = JsonFile(broker.config.config_path / "delayOffset.json", DelayOffsetFile)
        self._table = self._file.load() or DelayOffsetFile()
        self._not_before_ms.clear()
        self._cold.clear()
        for level in range(1, len(self._levels) + 1):
            first = broker.store.min_offset(names.SCHEDULE_TOPIC, level - 1)
            end = broker.store.max_offset(names.SCHEDULE_TOPIC, level - 1)
            self._table.offset_table[level] = max(first, min(self._table.offset_table.get(level, 0), end))

    def _deliver_due(self, broker: BrokerContext, level: int, wait: bool) -> bool:
        """Deliver up to `_BATCH` due messages of a level; True when some work was done. Raises NotInMemory unless `wait`, before anything is delivered."""
        offset, now_ms = self._table.offset_table[level], broker.clock.now_ms()
        if (
            self._stopped
            or self._not_before_ms.get(level, 0) > now_ms
            or offset >= broker.store.max_offset(names.SCHEDULE_TOPIC, level - 1)
        ):
            return False
        units = broker.store.read_units(names.SCHEDULE_TOPIC, level - 1, offset, _BATCH, wait)
        due = [unit for unit in units if self._is_due(unit, level, now_ms)]
        # Only the head of the queue counts: a later one may be due first when the clock was set.
        due = [unit for unit, head in zip(due, units, strict=False) if unit is head]
        if not due:
            if not units:
                self._table.offset_table[level] = max(offset, broker.store.min_offset(names.SCHEDULE_TOPIC, level - 1))
            return False
        parked = all_of(partial(broker.store.read_record, unit.physical_offset, wait) for unit in due)
        done = self._deliver(broker, due, parked, level, now_ms)
        if done:
            self._table.offset_table[level] = due[done - 1].queue_offset + 1
            self._dirty = True
        return True

    def _is_due(self, unit: QueueUnit, level: int, now_ms: int) -> bool:
        """A time further away than the level allows means that the clock went back or the table changed: then it is due now."""
        left_ms = unit.tags_code - now_ms
        return left_ms <= 0 or left_ms > self._levels[level - 1]

    def _deliver(self, broker: BrokerContext, units: Sequence[QueueUnit], parked: Sequence[Buffer | None], level: int, now_ms: int) -> int:
        """How many units are done with. A refused message stops the level for a while; one that cannot be read is dropped with a log line."""
        for number, (unit, found) in enumerate(zip(units, parked, strict=True)):
            message = self._restore(unit, found)
            if message is None:
                continue
            try:
                at = broker.put.put_one(message)
            except RequestRefused as refusal:
                _log.error("delayed message at %s not delivered, trying again: %s", unit.physical_offset, refusal)
                self._not_before_ms[level] = now_ms + _AFTER_ERROR_MS
                return number
            broker.stats.put(message.topic, at.size_bytes)
        return len(units)

    def _restore(self, unit: QueueUnit, found: Buffer | None) -> PutMessage | None:
        """The message under its real topic. Its stored properties keep DELAY, REAL_TOPIC and REAL_QID, as Java leaves them."""
        if found is None:
            _log.error("delayed message at %s is gone from the log, dropped", unit.physical_offset)
            return None
        try:
            stored = record.unpack(found)
            topic, queue_id = stored.properties[props.REAL_TOPIC], int(stored.properties[props.REAL_QUEUE_ID])
        except (DecodeError, KeyError, ValueError) as error:
            _log.error("delayed message at %s cannot be read, dropped: %s", unit.physical_offset, error)
            return None
        if topic == names.HALF_TOPIC or names.topic_fault(topic):
            _log.error("delayed message at %s has the real topic %r, dropped", unit.physical_offset, topic)
            return None
        properties = {name: value for name, value in stored.properties.items() if name != props.DELAY}
        return PutMessage(
            topic=topic,
            queue_id=queue_id,
            body=stored.body,
            properties=properties,
            properties_bytes=props.encode(stored.properties).encode(),
            flag=stored.flag,
            sys_flag=stored.sys_flag,
            born_timestamp_ms=stored.born_timestamp_ms,
            born_host=stored.born_host,
            reconsume_times=stored.reconsume_times,
            tags_code=tags_code(properties.get(props.TAGS)),
            wait=False,
        )

    async def _persist_regularly(self, broker: BrokerContext) -> None:
        while True:
            await trio.sleep(broker.config.flush_delay_offset_interval / 1000)
            try:
                await self._persist(broker)
            except (OSError, StoreError) as error:
                _log.error("delayOffset.json cannot be written, trying again: %s", error)

    async def _persist(self, broker: BrokerContext) -> None:
        async with self._writing:
            if self._file is None or not self._dirty:
                return
            self._dirty = False
            self._table.data_version.next(broker.clock.now_ms())
            content = self._file.encode(self._table)
            try:
                await broker.put.settle_everything()  # what was delivered must not be lost once the file says that it was
                await trio.to_thread.run_sync(self._file.write, content)
            except BaseException:
                self._dirty = True
                raise
