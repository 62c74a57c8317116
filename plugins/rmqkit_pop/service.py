"""The service "pop": reads the leases at the start, and moves the messages of leases that have ended."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import trio

from rmqkit.errors import DecodeError, MessageIllegal, RequestRefused, StoreError
from rmqkit.log_limit import limited_logger
from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.buffer import Buffer
from rmqkit.model.message import PutMessage, StoredMessage
from rmqkit.model.retries import retries_of
from rmqkit.model.topic import SubscriptionGroupConfig
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.positions import wait_moved
from rmqkit.plugin.role import Role
from rmqkit.plugin.service import Service
from rmqkit.plugin.store import NotInMemory, QueueUnit
from rmqkit.protocol import record as records_of
from rmqkit.protocol.codes import is_temporary
from rmqkit.toolkit.cold_reads import all_of, read_when_cached
from rmqkit.toolkit.set_aside import Origin, prepare, set_aside
from rmqkit_pop.engine import REVIVE_GROUP, SEEN_GROUP, Engine
from rmqkit_pop.leases import Lease
from rmqkit_pop.limits import MAX_QUEUES_KEPT, REWRITE_MS, REWRITE_RECORDS
from rmqkit_pop.records import ack_of, from_message
from rmqkit_pop.retry import Next, Step, copy_for_dead_letters, copy_for_retry, next_step, origin_topic

_log: logging.Logger = limited_logger(__name__)
#: The longest time until a clock that was set is noticed, and between two looks for records of others.
_PAUSE_S = 1.0
#: A message that could not be moved is tried again after this time.
_AGAIN_MS = 1_000
_RUN = 64
#: Progress is saved as it was this many looks ago: the table of offsets is written meanwhile.
_LAG = 10


class _TopicMissing(Exception):
    """A topic has to be created first."""


class PopService(Service):
    """Runs the engine of a broker while it is the master."""

    name = "pop"
    roles = frozenset({Role.MASTER})

    def __init__(self) -> None:
        #: Set when the processors of the broker are made.
        self.engine: Engine | None = None
        self._marks: deque[dict[int, tuple[int, int]]] = deque(maxlen=_LAG)

    async def run(self, broker: Broker, task_status: trio.TaskStatus[None]) -> None:
        engine = self.engine
        assert engine is not None, "the processors are made before the services run"
        self._marks.clear()
        topic = await broker.topics.ensure(engine.topic, engine.settings.revive_queue_num)
        await prepare(broker)
        engine.begin(topic.write_queue_nums)
        elected = broker.replication.group is not None
        if elected:
            # The end of the log may have leases that this broker confirms only as the master.
            task_status.started()
            await wait_moved(broker.store.positions.confirmed, broker.store.end_offset - 1)
        for queue_id in range(engine.queues):
            await self._replay(engine, queue_id)
        engine.opened()
        if not elected:
            task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep, engine)
            await Ends(engine, nursery).run()

    async def stop(self, broker: Broker) -> None:
        """Save the progress, so that a restart reads no more than it must."""
        engine = self.engine
        if engine is None or not engine.ready:
            return
        engine.ready = False
        unsaved = self._unsaved(engine, engine.marks())
        try:
            if unsaved:
                await broker.appender.settle_everything()
                self._save(engine, unsaved)
        finally:
            engine.close()

    def figures(self) -> Mapping[str, object]:
        """The number of leased messages."""
        return {} if self.engine is None else {"popLeasedMessages": self.engine.leases.count}

    async def _replay(self, engine: Engine, queue_id: int) -> None:
        """Apply the records of a revive queue, from the first that counts. Raises StoreError, OSError."""
        broker, topic = engine.broker, engine.topic
        saved = broker.offsets.get(REVIVE_GROUP, topic, queue_id)
        seen = broker.offsets.get(SEEN_GROUP, topic, queue_id) or 0
        first = 0 if saved is None else saved + 1
        engine.applied[queue_id] = max(broker.store.min_offset(topic, queue_id), first)
        while await follow(engine, queue_id, seen):
            await trio.lowlevel.checkpoint()

    async def _keep(self, engine: Engine) -> None:
        """Save the progress, apply records that others have stored, and store old records again."""
        while engine.ready:
            await trio.sleep(_PAUSE_S)
            if not engine.ready:
                return
            self._marks.append(engine.marks())
            if len(self._marks) == _LAG:
                self._save(engine, self._unsaved(engine, self._marks[0]))
            now_ms = engine.broker.clock.now_ms()
            for queue_id in range(engine.queues):
                try:
                    while await follow(engine, queue_id, 0):
                        await trio.lowlevel.checkpoint()
                    end = engine.applied[queue_id]
                    for _ in range(_RUN):
                        if not engine.rewrite(queue_id, end - REWRITE_RECORDS, now_ms - REWRITE_MS):
                            break
                except (RequestRefused, OSError, StoreError) as error:
                    _log.error("records of %s cannot be kept, trying again: %s", engine.topic, error)
            engine.forget_idle(MAX_QUEUES_KEPT)

    def _save(self, engine: Engine, unsaved: Iterable[tuple[str, int, int]]) -> None:
        for group, queue_id, offset in unsaved:
            engine.broker.offsets.commit(group, engine.topic, queue_id, offset)

    def _unsaved(self, engine: Engine, marks: Mapping[int, tuple[int, int]]) -> list[tuple[str, int, int]]:
        """Group, queue and offset of what is not in the table of offsets yet; nothing of a queue without
        records."""
        get = engine.broker.offsets.get
        return [
            (group, queue_id, offset)
            for queue_id, (low, seen) in marks.items()
            for group, offset, none in ((REVIVE_GROUP, low - 1, -1), (SEEN_GROUP, seen, 0))
            if offset != none and get(group, engine.topic, queue_id) != offset
        ]


async def follow(engine: Engine, queue_id: int, seen: int) -> bool:
    """Apply the next records of a revive queue that were not applied yet; False at its end. Positions of
    records before `seen` are in the committed offsets. Raises StoreError, OSError."""
    store, topic, at = engine.broker.store, engine.topic, engine.applied[queue_id]
    if at >= store.max_offset(topic, queue_id):
        return False

    def read() -> list[tuple[QueueUnit, Buffer | None]]:
        units = store.read_units(topic, queue_id, at, _RUN)
        found = all_of(partial(store.read_record, unit.physical_offset) for unit in units)
        return list(zip(units, found, strict=True))

    found = await read_when_cached(store, read)
    if engine.applied.get(queue_id) != at:
        return True
    if not found:
        engine.applied[queue_id] = max(at + 1, store.min_offset(topic, queue_id))
    for unit, data in found:
        engine.applied[queue_id] = unit.queue_offset + 1
        if (queue_id, unit.queue_offset) in engine.ahead:
            engine.ahead.discard((queue_id, unit.queue_offset))
            continue
        try:
            stored = None if data is None else records_of.unpack(data)
            change = None if stored is None else from_message(stored)
        except DecodeError as error:
            _log.error("record %d of %s is passed over: %s", unit.queue_offset, topic, error)
            continue
        if stored is not None and change is not None:
            # At work this broker knows better where its groups are.
            moves = not engine.ready and unit.queue_offset >= seen
            engine.leases.apply(change, queue_id, unit.queue_offset, stored.store_timestamp_ms, moves=moves)
            engine.sooner.set()
    return True


class Ends:
    """Moves the messages of leases that have ended. One whose data is not in memory, or whose topic has to be
    created, holds up no other one."""

    def __init__(self, engine: Engine, nursery: trio.Nursery) -> None:
        self._engine = engine
        self._nursery = nursery

    async def run(self) -> None:
        """Move messages until cancelled, or until the engine is closed."""
        engine = self._engine
        while engine.ready:
            engine.sooner = trio.Event()
            for number, lease in enumerate(engine.leases.due(engine.broker.clock.now_ms())):
                if not engine.ready:
                    return
                self.end(lease)
                if number % _RUN == _RUN - 1:
                    await trio.lowlevel.checkpoint()
            due_ms = engine.leases.next_due_ms()
            now_ms, wait_s = engine.broker.clock.now_ms(), _PAUSE_S
            if due_ms is not None:
                wait_s = min(wait_s, max(0.001, (due_ms - now_ms) / 1000))
            engine.look_ms = now_ms + wait_s * 1000
            with trio.move_on_after(wait_s):
                await engine.sooner.wait()

    def end(self, lease: Lease) -> None:
        """Move all messages of a lease, or let it be looked at again."""
        engine = self._engine
        again_ms = engine.broker.clock.now_ms() + _AGAIN_MS
        try:
            self._move(lease)
        except NotInMemory as missed:
            self._nursery.start_soon(self._fetch, lease, missed)
        except _TopicMissing as missing:
            self._nursery.start_soon(self._create, lease, str(missing))
        except (RequestRefused, OSError, StoreError) as error:
            _log.error(
                "messages of %s cannot be delivered again now, trying again: %s", lease.queue.key, error
            )
            engine.leases.look_again(lease, again_ms)
        except Exception:  # noqa: BLE001 - one lease stops neither the others nor the broker
            _log.error("messages of %s cannot be delivered again", lease.queue.key, exc_info=True)
            engine.leases.look_again(lease, again_ms)

    async def _fetch(self, lease: Lease, missed: NotInMemory) -> None:
        engine = self._engine
        await engine.broker.store.fetch(missed)
        engine.leases.look_again(lease, 0)
        engine.sooner.set()

    async def _create(self, lease: Lease, topic: str) -> None:
        engine, again_ms = self._engine, 0
        try:
            await engine.broker.topics.ensure(topic, 1)
        except RequestRefused as refused:
            _log.error("topic %s cannot be created, trying again: %s", topic, refused)
            again_ms = engine.broker.clock.now_ms() + _AGAIN_MS
        engine.leases.look_again(lease, again_ms)
        engine.sooner.set()

    def _move(self, lease: Lease) -> None:
        """Move the messages of a lease. Raises NotInMemory, _TopicMissing, RequestRefused, StoreError,
        OSError, before the message that it concerns is changed."""
        engine, key = self._engine, lease.queue.key
        group = engine.broker.groups.configs.get(key.group)
        if group is None or engine.broker.topics.get(names.owning_topic(key.topic)) is None:
            _log.warning("leases of %s end, for the group or the topic is gone", key)
            engine.change([ack_of(lease.record, lease.open_offsets())])
            return
        moved: list[tuple[int, PutMessage | None]] = []
        waiting: list[tuple[int, int]] = []
        freed: list[int] = []
        now_ms = engine.broker.clock.now_ms()
        for offset in lease.open_offsets():
            unit, data, stored = self._read(lease, offset)
            if stored is None:
                self._set_aside(lease, offset, unit, data)
                moved.append((offset, None))
                continue
            step = self._step(lease, group, stored, offset, now_ms)
            if step.next is Next.WAIT:
                waiting.append((offset, step.wait_ms))
            elif step.next is Next.AGAIN and lease.stays(offset):
                freed.append(offset)
            else:
                try:
                    moved.append((offset, self._copy(lease, stored, step)))
                except MessageIllegal as error:
                    self._set_aside(lease, offset, unit, data, str(error))
                    moved.append((offset, None))
        if moved:
            self._store(lease, moved)
        for offset, wait_ms in waiting:
            engine.change(engine.leases.extend(lease, offset, now_ms, wait_ms, suspended=False, hide=True))
        for offset in freed:
            engine.leases.free(lease, offset)
        if lease.record.ordered:
            engine.commit(lease.queue)
            engine.wake(lease.queue)

    def _store(self, lease: Lease, moved: Sequence[tuple[int, PutMessage | None]]) -> None:
        """Store copies of messages, with the acknowledgement of the messages themselves. What the log never
        takes is set aside. Raises RequestRefused, StoreError; some of the messages are moved then."""
        engine = self._engine
        try:
            engine.change(
                [ack_of(lease.record, [offset for offset, _ in moved])],
                [copy for _, copy in moved if copy is not None],
            )
        except RequestRefused as refused:
            if is_temporary(refused.code):
                raise
            if len(moved) > 1:
                for each in moved:
                    self._store(lease, [each])
                return
            offset = moved[0][0]
            unit, data, _ = self._read(lease, offset)
            self._set_aside(lease, offset, unit, data, str(refused))
            engine.change([ack_of(lease.record, [offset])])
            return
        for _, copy in moved:
            if copy is not None and copy.topic.startswith(names.DLQ_PREFIX):
                group = lease.queue.key.group
                engine.broker.stats.dead_lettered[group, copy.properties[props.DLQ_ORIGIN_TOPIC]].add(1)

    def _step(
        self, lease: Lease, group: SubscriptionGroupConfig, stored: StoredMessage, offset: int, now_ms: int
    ) -> Step:
        record = lease.record
        if record.suspended:
            return Step(Next.AGAIN)
        failed = lease.queue.attempts.get(offset, 0) if record.ordered else stored.reconsume_times
        most, policy = retries_of(group, stored.properties)
        return next_step(failed, most, policy, lease.first_pop_ms, now_ms, waited=record.hidden)

    def _read(
        self, lease: Lease, offset: int
    ) -> tuple[QueueUnit | None, Buffer | None, StoredMessage | None]:
        """The message at a queue offset, and what there is of it when it cannot be read."""
        key, store = lease.queue.key, self._engine.broker.store
        units = store.read_units(key.topic, key.queue_id, offset, 1)
        if not units or units[0].queue_offset != offset:
            return None, None, None
        data = store.read_record(units[0].physical_offset)
        if data is None:
            return units[0], None, None
        try:
            return units[0], data, records_of.unpack(data)
        except DecodeError:
            return units[0], data, None

    def _set_aside(
        self,
        lease: Lease,
        offset: int,
        unit: QueueUnit | None,
        data: Buffer | None,
        reason: str | None = None,
    ) -> None:
        """Set a message aside that cannot be delivered again. Raises StoreError when that is not possible
        now."""
        key, broker = lease.queue.key, self._engine.broker
        physical = -1 if unit is None else unit.physical_offset
        origin = Origin(PopService.name, key.topic, key.queue_id, offset, physical)
        reason = reason or ("it was removed" if data is None else "it cannot be read")
        if not set_aside(broker, origin, data, f"popped by group {key.group}: {reason}"):
            raise StoreError(f"message {offset} cannot be set aside now")

    def _copy(self, lease: Lease, stored: StoredMessage, step: Step) -> PutMessage:
        """The message that is stored in its place. Raises _TopicMissing, MessageIllegal."""
        engine, key = self._engine, lease.queue.key
        if step.next is Next.DEAD:
            self._require(names.dlq_topic(key.group))
            return copy_for_dead_letters(
                stored, key.group, origin_topic(names.owning_topic(key.topic), key.group)
            )
        topic = key.topic
        if not topic.startswith(names.RETRY_PREFIX):
            v2 = engine.settings.enable_retry_topic_v2
            topic = names.pop_retry_topic(topic, key.group, v2=v2)
        self._require(topic)
        suspended = lease.record.suspended
        return copy_for_retry(stored, topic, key.group, lease.first_pop_ms, suspended=suspended)

    def _require(self, topic: str) -> None:
        if self._engine.broker.topics.get(topic) is None:
            raise _TopicMissing(topic)


__all__ = ["Ends", "PopService", "follow"]
