"""Writes events off the loop, in order. On a stop, what waits is written before the broker's store closes."""

from __future__ import annotations

import logging

import trio

from rmqkit.abc import Service
from rmqkit.broker.context import BrokerContext
from rmqkit.errors import ConfigError, RequestRefused
from rmqkit_hook_audit.creations import Creations
from rmqkit_hook_audit.events import Dropped, Event, now
from rmqkit_hook_audit.recorder import NOWHERE, Queue, Recorder
from rmqkit_hook_audit.settings import AuditSettings
from rmqkit_hook_audit.targets import CannotWrite, FileTarget, Target, TopicTarget
from rmqkit_hook_audit.watching import Watching

_log = logging.getLogger(__name__)
#: Encoding holds the interpreter: so many events take well under a millisecond.
BATCH_EVENTS = 256
#: A target that takes nothing is asked again after this.
RETRY_MS = 1_000
#: What waits when the broker stops gets this long.
LAST_WRITE_S = 5.0


class AuditService(Service):
    """Begins before the broker says it is ready and ends behind its last answer."""

    name = "audit"

    def __init__(self, settings: AuditSettings) -> None:
        self._settings = settings
        self._writers: list[Writer] = []
        self._watching: list[Watching] = []

    def begin(self, broker: BrokerContext) -> None:
        """Let events be kept from now on, before the first connection is served; `run` writes them."""
        settings, registry = self._settings, broker.registry
        self._writers = [
            Writer(target, Queue(settings.queue_size), broker.config.broker_name, settings.linger_ms)
            for target in _targets(settings, broker)
        ]
        hooks = [*registry.send_message_hooks, *registry.consume_message_hooks, *registry.rpc_hooks]
        self._watching = [hook for hook in hooks if isinstance(hook, Watching)]
        if "create" in settings.events:
            self._watching.append(Creations(broker))
        recorder = Recorder(broker.config.broker_name, [writer.queue for writer in self._writers])
        for each in self._watching:
            each.begin(recorder)

    async def run(self, broker: BrokerContext, task_status: trio.TaskStatus[None]) -> None:
        try:
            for writer in self._writers:
                await writer.open()
            async with trio.open_nursery() as nursery:
                for writer in self._writers:
                    nursery.start_soon(writer.run)
                task_status.started()
        finally:
            for each in self._watching:
                each.begin(NOWHERE)
            with trio.CancelScope(shield=True):
                for writer in self._writers:
                    await writer.finish()


def _targets(settings: AuditSettings, broker: BrokerContext) -> list[Target]:
    targets: list[Target] = []
    if settings.file:
        targets.append(FileTarget(broker.config.root_path / settings.file, settings.max_bytes, settings.keep_files, settings.sync))
    if settings.topic:
        targets.append(TopicTarget(broker, settings.topic))
    return targets


class Writer:
    """From a queue to its target. A target that fails is asked again; what the queue cannot hold meanwhile is lost, and the target is told how much."""

    def __init__(self, target: Target, queue: Queue, broker: str, linger_ms: int = 0) -> None:
        self.queue = queue
        self._target = target
        self._broker = broker
        self._linger_ms = linger_ms
        self._fault = ""
        self._reported = 0

    async def open(self) -> None:
        """Raises ConfigError."""
        try:
            await self._target.open()
        except (OSError, RequestRefused) as error:
            raise ConfigError(f"the audit cannot be written: {error}; see [plugins.audit]") from error

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if not self._unreported:
                await self.queue.wait(self._linger_ms)
            if not await self._write_some():
                await trio.sleep(RETRY_MS / 1000)

    async def finish(self) -> None:
        """Write what waits, for a few seconds at most, and close."""
        with trio.move_on_after(LAST_WRITE_S):
            while (len(self.queue) or self._unreported) and await self._write_some():
                pass
        self.queue.drop_all()
        if self._unreported:
            _log.error("the broker stops and %s events of the audit could not be written: %s", self._unreported, self._fault)
        await self._target.close()

    @property
    def _unreported(self) -> int:
        """Events that were dropped and the target was not told of."""
        return self.queue.dropped - self._reported

    async def _write_some(self) -> bool:
        """One batch; False when the target does not take it all."""
        events = self.queue.look(BATCH_EVENTS)
        dropped = self._unreported
        report: list[Event] = []
        if dropped:
            report.append(Dropped(time=now(), broker=self._broker, remark=self._fault or "the queue was full", count=dropped))
        try:
            await self._target.write(report + events)
        except CannotWrite as fault:
            self._took(fault.written, len(report), dropped)
            if str(fault) != self._fault:
                _log.error("the audit cannot be written, %s events wait: %s", len(self.queue), fault)
                self._fault = str(fault)
            return False
        except Exception:  # noqa: BLE001 - a mistake in writing down must not end the broker, nor be made with the same events for ever
            _log.exception("events of the audit cannot be written and are dropped")
            self.queue.drop(len(events))
            return True
        self._took(len(report) + len(events), len(report), dropped)
        if self._fault or dropped:
            _log.warning("the audit is written again; %s events were dropped: %s", dropped, self._fault or "the queue was full")
            self._fault = ""
        return True

    def _took(self, written: int, reports: int, dropped: int) -> None:
        """The target has the first so many of the reports and events it was given."""
        if written >= reports:
            self._reported += dropped
            self.queue.done(written - reports)
