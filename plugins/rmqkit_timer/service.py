"""The service of timers on a master."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

import trio

from rmqkit.errors import StoreError
from rmqkit.model import names
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.metrics import LOCAL, Metric
from rmqkit.plugin.role import Role
from rmqkit.plugin.service import Service
from rmqkit.toolkit.set_aside import prepare
from rmqkit_timer import metrics
from rmqkit_timer.checkpoint import Checkpoint
from rmqkit_timer.counts import Counts
from rmqkit_timer.delivering import Delivering
from rmqkit_timer.entering import Entering
from rmqkit_timer.figures import Figures
from rmqkit_timer.opening import InMemory, Kept, TimerFiles
from rmqkit_timer.rebuilding import Rebuilding
from rmqkit_timer.repeating import Repeating
from rmqkit_timer.repeats import Repeats
from rmqkit_timer.session import Session
from rmqkit_timer.settings import TimerSettings
from rmqkit_timer.timers import Timers

_log: Final = logging.getLogger(__name__)
_CLEAN_EVERY_S: Final = 30.0


class TimerService(Service):
    """Lets the messages of the timer topic wait and delivers them. Wheel and log are in the store's
    directory, with Apache's names; those of a store that keeps nothing are in memory."""

    name = "timer"
    roles = frozenset({Role.MASTER})

    def __init__(self) -> None:
        self._session: Session | None = None
        self._entering: Entering | None = None
        self._delivering: Delivering | None = None
        self._kept: Kept | None = None
        #: The repeating messages that this process has seen.
        self.repeating = Repeating()

    @property
    def timers(self) -> Timers | None:
        """What waits; None while the service does not run."""
        return None if self._entering is None else self._entering.timers

    def kept(self, broker: Broker) -> Kept:
        """Where the broker keeps its timers."""
        if self._kept is None:
            self._kept = kept_of(broker)
        return self._kept

    def checkpoint(self) -> Checkpoint | None:
        """How far the timers of this master have come; None while they do not run."""
        return None if self._entering is None else self._entering.checkpoint()

    def counts(self) -> Counts | None:
        """How many messages of each topic wait; None while the timers do not run."""
        return None if self.timers is None else self.timers.counts

    def slot_count(self, time_ms: int) -> int:
        """The number of messages that wait in the slot of a time."""
        slot = None if self.timers is None else self.timers.wheel.slot(time_ms)
        return 0 if slot is None else slot.number

    async def run(self, broker: Broker, task_status: trio.TaskStatus[None]) -> None:
        if not broker.config.owned(TimerSettings).timer_wheel_enable:
            task_status.started()
            await trio.sleep_forever()
        await broker.topics.ensure(names.TIMER_TOPIC, 1)
        await prepare(broker)
        await self._run(await self._opened(broker), task_status)

    async def _opened(self, broker: Broker) -> Session:
        """Recover what was kept, and find out what was delivered since."""
        kept = self.kept(broker)
        settings = broker.config.owned(TimerSettings)
        opened = await trio.to_thread.run_sync(kept.open, settings, broker.clock.now_ms())
        repeats, moment = Repeats(), opened.checkpoint.moment
        if moment is not None:
            # Timers that are made anew begin their slot again.
            anew = opened.queue_offset is None
            await repeats.load(broker.store, moment.slot_from if anew else moment.deliveries_from)
        elif opened.checkpoint == Checkpoint():
            await repeats.load_all(broker.store)
        return Session(broker, kept, opened, repeats, self.repeating, Figures(opened.timers))

    async def _run(self, session: Session, task_status: trio.TaskStatus[None]) -> None:
        broker, opened = session.broker, session.opened
        delivering = Delivering(session)
        entering = Entering(session, delivering.deliver_now)
        settings = session.settings
        rebuilding = Rebuilding.of(opened.checkpoint, settings.window_slots, settings.timer_precision_ms)
        await entering.start(opened, rebuilding)
        session.timers.follow_clock(broker.clock.now_ms())
        await delivering.look_ahead()
        delivering.on_progress, delivering.on_pause = entering.mark_changed, entering.refresh
        entering.on_entered = delivering.entered
        entering.look_ahead = partial(delivering.look_ahead, session.timers.step_ms)
        delivering.before_slot = entering.prepare
        self._session, self._entering, self._delivering = session, entering, delivering
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    entering.persist_regularly, lambda: session.settings.timer_flush_interval_ms
                )
                nursery.start_soon(_clean_regularly, broker, session.timers)
                nursery.start_soon(session.figures.run)
                nursery.start_soon(delivering.run)
                task_status.started()
                await entering.run()
                nursery.cancel_scope.cancel()
        finally:
            self._session = self._entering = self._delivering = None
            await entering.close()

    async def stop(self, broker: Broker) -> None:
        """Stop deliveries and write how far they have come, so that a restart repeats nothing."""
        if self._delivering is not None:
            self._delivering.stop()
        if self._entering is not None:
            await self._entering.stop()

    def figures(self) -> Mapping[str, object]:
        """Java: AdminBrokerProcessor.prepareRuntimeInfo; and how many messages are due within which
        distance."""
        session, entering = self._session, self._entering
        if session is None or entering is None:
            return {}
        timers = session.timers
        entered, delivered = session.figures.rates()
        late_ms = self._late_ms(session)
        return {
            "timerReadBehind": late_ms // 1_000,
            "timerReadBehindMs": late_ms,
            "timerOffsetBehind": entering.behind,
            "timerOffsetBehindMs": entering.behind_ms,
            "timerCongestNum": max(timers.waiting, 0),
            "timerEnqueueTps": entered,
            "timerDequeueTps": delivered,
            **{f"timerWaiting.{distance_s}": n for distance_s, n in session.figures.waiting().items()},
        }

    def metrics(self) -> Iterable[Metric]:
        session, entering = self._session, self._entering
        if session is None or entering is None:
            return
        yield Metric(metrics.ENTER, [(LOCAL, entering.behind)])
        yield Metric(metrics.ENTER_MS, [(LOCAL, entering.behind_ms)])
        yield Metric(metrics.WAITING, [(LOCAL, max(session.timers.waiting, 0))])
        yield Metric(metrics.LATE_MS, [(LOCAL, self._late_ms(session))])
        within = session.figures.waiting().items()
        yield Metric(metrics.SNAPSHOT, [((*LOCAL, str(distance_s)), n) for distance_s, n in within])

    @staticmethod
    def _late_ms(session: Session) -> int:
        """How old the time is whose messages are delivered; 0 while none waits."""
        timers = session.timers
        behind_ms = session.broker.clock.now_ms() - timers.read_time_ms if timers.waiting > 0 else 0
        return max(behind_ms, 0)


def kept_of(broker: Broker) -> Kept:
    """Where a broker keeps its timers: in its directory, if that has its messages."""
    if not broker.store.is_durable:
        return InMemory()
    return TimerFiles(broker.config.root_path, broker.config.config_path)


async def _clean_regularly(broker: Broker, timers: Timers) -> None:
    """Remove the part of the timer log whose messages were removed with the log."""
    while True:
        await trio.sleep(_CLEAN_EVERY_S)
        try:
            await timers.log.remove_before(broker.store.start_offset)
        except (OSError, StoreError) as error:
            _log.error("old files of the timer log cannot be removed, trying again: %s", error)
