"""Writes events in order, outside the message path. On a stop, queued events are written before the broker's
store closes."""

from __future__ import annotations

import logging
from pathlib import Path

import trio

from rmqkit.errors import ConfigError, RequestRefused
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.service import Service
from rmqkit_hook_audit.creations import Creations
from rmqkit_hook_audit.events import Dropped, line, now
from rmqkit_hook_audit.hooks import Watching
from rmqkit_hook_audit.recorder import NOWHERE, Queue, Recorder
from rmqkit_hook_audit.settings import AuditSettings
from rmqkit_hook_audit.targets import CannotWrite, FileTarget, Target, TopicTarget

_log = logging.getLogger(__name__)
#: Events of one write: some hundred KiB.
BATCH_EVENTS = 1024
#: Pause before retrying a failed target.
RETRY_MS = 1_000
#: Time limit for queued events when the broker stops.
LAST_WRITE_S = 5.0


class AuditService(Service):
    """Starts before the broker reports that it is ready, and ends after its last answer."""

    name = "audit"

    def __init__(self, settings: AuditSettings) -> None:
        self._settings = settings
        self._writers: list[Writer] = []
        self._watching: list[Watching] = []
        #: Where events are written; None without a file, and before `begin`.
        self.file: Path | None = None

    def begin(self, broker: Broker) -> None:
        """Start keeping events, before the first connection is served; `run` writes them."""
        settings, registry = self._settings, broker.registry
        self.file = _file(settings, broker)
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

    async def run(self, broker: Broker, task_status: trio.TaskStatus[None]) -> None:
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


def _file(settings: AuditSettings, broker: Broker) -> Path | None:
    return broker.config.root_path / settings.file if settings.file else None


def _targets(settings: AuditSettings, broker: Broker) -> list[Target]:
    targets: list[Target] = []
    file = _file(settings, broker)
    if file is not None:
        targets.append(FileTarget(file, settings.max_bytes, settings.keep_files, settings.sync))
    if settings.topic:
        targets.append(TopicTarget(broker, settings.topic))
    return targets


class Writer:
    """Writes from a queue to its target. A failed target is retried; events that exceed the queue's capacity
    meanwhile are lost, and the target receives their number."""

    def __init__(self, target: Target, queue: Queue, broker: str, linger_ms: int = 0) -> None:
        self.queue = queue
        self._target = target
        self._broker = broker
        self._linger_ms = linger_ms
        self._fault = ""
        self._reported = 0

    async def open(self) -> None:
        """Open the target. Raises ConfigError."""
        try:
            await self._target.open()
        except (OSError, RequestRefused) as error:
            raise ConfigError(f"the audit cannot be written: {error}; see [plugins.audit]") from error

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            if not self._unreported:
                await self.queue.wait(self._linger_ms)
            if not await self._write_some():
                await trio.sleep(RETRY_MS / 1000)

    async def finish(self) -> None:
        """Write the queued events, for a few seconds at most, and close."""
        with trio.move_on_after(LAST_WRITE_S):
            while (len(self.queue) or self._unreported) and await self._write_some():
                pass
        self.queue.drop_all()
        if self._unreported:
            _log.error(
                "the broker stops and %s events of the audit could not be written: %s",
                self._unreported,
                self._fault,
            )
        await self._target.close()

    @property
    def _unreported(self) -> int:
        """The number of dropped events that the target has not been told of."""
        return self.queue.dropped - self._reported

    async def _write_some(self) -> bool:
        """Write one batch. Returns False when the target does not accept all of it."""
        events = self.queue.look(BATCH_EVENTS)
        dropped = self._unreported
        report: list[bytes] = []
        if dropped:
            remark = self._fault or "the queue was full"
            report.append(line(Dropped(time=now(), broker=self._broker, remark=remark, count=dropped)))
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
            _log.warning(
                "the audit is written again; %s events were dropped: %s",
                dropped,
                self._fault or "the queue was full",
            )
            self._fault = ""
        return True

    def _took(self, written: int, reports: int, dropped: int) -> None:
        """The target has accepted this many of the reports and events."""
        if written >= reports:
            self._reported += dropped
            self.queue.done(written - reports)
