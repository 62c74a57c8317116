"""Delivers parked messages when they are due (store-format sheet, section 10.1; Java:
ScheduleMessageService)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import trio

from rmqkit.errors import RequestRefused
from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.buffer import Buffer
from rmqkit.model.run import MessageRun
from rmqkit.model.topic import DelayOffsetFile
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.role import Role
from rmqkit.plugin.service import Service
from rmqkit.plugin.store import QueueUnit
from rmqkit.protocol.record import unpack
from rmqkit.toolkit.internal_queue import InternalQueueFollower
from rmqkit.toolkit.json_file import JsonFile
from rmqkit.toolkit.restored import real_place, restored
from rmqkit.toolkit.set_aside import prepare
from rmqkit_delay.settings import DelaySettings

#: The longest time until the service notices that the clock was set, or the queues were truncated.
_PAUSE_S = 1.0


class DelayService(Service):
    """Follows one queue per level and delivers at least once: after a crash, messages delivered since the
    last write of delayOffset.json, at most `flushDelayOffsetInterval` before, are delivered again."""

    name = "delay"
    roles = frozenset({Role.MASTER})

    def __init__(self, levels_ms: Sequence[int]) -> None:
        self._levels_ms = levels_ms
        self._delivery: Delivery | None = None

    async def run(self, broker: Broker, task_status: trio.TaskStatus[None]) -> None:
        await broker.topics.ensure(names.SCHEDULE_TOPIC, len(self._levels_ms))
        await prepare(broker)
        self._delivery = delivery = Delivery(broker, self._levels_ms)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                delivery.persist_regularly,
                lambda: broker.config.owned(DelaySettings).flush_delay_offset_interval,
            )
            task_status.started()
            await delivery.run()
            nursery.cancel_scope.cancel()

    async def stop(self, broker: Broker) -> None:
        """Stop deliveries and write the progress of the levels, so that a restart repeats nothing."""
        if self._delivery is not None:
            await self._delivery.stop()

    def figures(self) -> Mapping[str, object]:
        """Java: ScheduleMessageService.buildRunningStats."""
        return {} if self._delivery is None else self._delivery.figures()


class Delivery(InternalQueueFollower):
    """Puts messages under their real topics. Queue ids are levels minus one; delayOffset.json contains
    levels."""

    service = DelayService.name
    is_woken = True

    def __init__(self, broker: Broker, levels_ms: Sequence[int]) -> None:
        """Read the progress of the levels. Raises ConfigError when delayOffset.json cannot be read."""
        super().__init__(broker, names.SCHEDULE_TOPIC)
        self._levels_ms = levels_ms
        # A new message is seen before it is due.
        self.pause_s = min(_PAUSE_S, min(levels_ms) / 1000)
        self._file = JsonFile(broker.config.config_path / "delayOffset.json", DelayOffsetFile)
        self._table = self._file.load() or DelayOffsetFile()
        saved = {level - 1: offset for level, offset in self._table.offset_table.items()}
        self.begin(saved, range(len(levels_ms)))

    async def save(self, offsets: Mapping[int, int]) -> None:
        self._table.offset_table |= {queue_id + 1: offset for queue_id, offset in offsets.items()}
        self._table.data_version.next(self.broker.clock.now_ms())
        await trio.to_thread.run_sync(self._file.write, [self._file.encode(self._table)])

    def figures(self) -> Mapping[str, object]:
        """The next and the end offset of each level that has had messages."""
        ends = {queue_id: self.broker.store.max_offset(self.topic, queue_id) for queue_id in self.offsets}
        return {
            f"scheduleMessageOffset_{queue_id + 1}": f"{self.offsets[queue_id]},{end}"
            for queue_id, end in ends.items()
            if end
        }

    def due(self, queue_id: int, units: Sequence[QueueUnit]) -> int:
        """The number of due messages at the head of the queue. A message behind an undue one waits, even if
        it is due first because the clock was set. A delivery time further away than the level's delay means
        that the clock was set back or the table changed: the message is due now."""
        now_ms = self.broker.clock.now_ms()
        for number, unit in enumerate(units):
            if 0 < unit.tags_code - now_ms <= self._levels_ms[queue_id]:
                return number
        return len(units)

    def due_in_s(self, queue_id: int, unit: QueueUnit) -> float:
        return (unit.tags_code - self.broker.clock.now_ms()) / 1000

    def take(self, queue_id: int, unit: QueueUnit, record: Buffer) -> RequestRefused | None:
        """Deliver a message. Raises DecodeError."""
        stored = unpack(record)
        # What is stored keeps DELAY, as in Java.
        message = restored(stored, *real_place(stored), unseen=frozenset({props.DELAY}), wait=False)
        (result,) = self.broker.appender.append(MessageRun([message]))
        if isinstance(result, RequestRefused):
            return result
        self.broker.stats.delivered(self.topic, message.topic, result)
        return None
