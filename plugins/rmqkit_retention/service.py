"""The rounds of cleaning (Java: CleanCommitLogService.run; store-format sheet, section 9)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from rmqkit.config import Config
from rmqkit.errors import StoreError
from rmqkit.plugin.service import Service
from rmqkit.plugin.store import MessageStore
from rmqkit.toolkit.disk import usage_percent
from rmqkit_retention.decide import Decision, Settings, decide, refusal
from rmqkit_retention.settings import RetentionSettings

if TYPE_CHECKING:
    from rmqkit.plugin.broker import Broker

_log = logging.getLogger(__name__)
_FIRST_DELAY_MS = 60_000
#: Number of rounds that delete expired messages at any hour after a request (Java:
#: MANUAL_DELETE_FILE_MAX_TIMES).
_MANUAL_ROUNDS = 20


class RetentionService(Service):
    """Runs every `cleanResourceInterval`, first after a minute. `usage` returns the usage of a path's file
    system; tests replace it."""

    name = "retention"

    def __init__(self, config: Config, usage: Callable[[Path], int] = usage_percent) -> None:
        """Check the settings of retention, and take them. Raises ConfigError."""
        Settings.from_config(config)
        given = config.owned(RetentionSettings)
        self._interval_s = given.clean_resource_interval / 1000
        self._pause_s = given.delete_commit_log_files_interval / 1000
        self._usage = usage
        self._manual_rounds = 0
        self._asked = trio.Event()
        self._refusal: str | None = None

    def ask(self) -> None:
        """Delete expired messages now and in the next rounds, at any hour."""
        self._manual_rounds = _MANUAL_ROUNDS
        self._asked.set()

    async def run(self, broker: Broker, task_status: trio.TaskStatus[None]) -> None:
        self._manual_rounds, self._asked, self._refusal = 0, trio.Event(), None
        task_status.started()
        delay_s = _FIRST_DELAY_MS / 1000
        while True:
            with trio.move_on_after(delay_s):
                await self._asked.wait()
            self._asked = trio.Event()
            delay_s = self._interval_s
            try:
                await self.round(broker)
            except (OSError, StoreError) as error:
                _log.error("the store cannot be cleaned, trying again: %s", error)

    async def round(self, broker: Broker) -> None:
        """Inspect, decide and act once. Raises OSError, StoreError; the next round continues the work."""
        store, settings = broker.store, Settings.from_config(broker.config)
        manual = self._manual_rounds > 0
        self._manual_rounds = max(0, self._manual_rounds - 1)
        usage = await self._usages(store)
        parts = await store.log_parts()
        decision = decide(
            datetime.fromtimestamp(broker.clock.now_ms() / 1000), usage, settings, parts, manual
        )
        self._refuse(store, decision.refusal)
        await self._delete(broker, decision)
        if decision.refusal is not None and decision.parts:
            self._refuse(store, refusal(await self._usages(store), settings))

    async def _usages(self, store: MessageStore) -> dict[Path, int]:
        return await trio.to_thread.run_sync(_measure, self._usage, store.disk_paths)

    def _refuse(self, store: MessageStore, why: str | None) -> None:
        if why is not None and self._refusal is None:
            _log.error("%s", why)
        elif why is None and self._refusal is not None:
            _log.warning("there is room on the disk again, messages are taken")
        self._refusal = why
        store.refuse_writes(why)

    async def _delete(self, broker: Broker, decision: Decision) -> None:
        for number, part in enumerate(decision.parts):
            if number:
                await trio.sleep(self._pause_s)
            store = broker.store
            if decision.ends_pins:
                store.end_pins(part.end)
            trimmed = await store.trim(part.end)
            broker.dispatching.trimmed(trimmed.log_start)
            if trimmed.log_start < part.end and (pins := store.pins.before(part.end)):
                _log.warning(
                    "%s holds the log from %s on (%s)", pins[0].reader, pins[0].offset, decision.reason
                )
                return
            removed = f"{trimmed.removed_files} files and {trimmed.removed_bytes} bytes"
            _log.info("the log up to %s was removed, %s: %s", trimmed.log_start, removed, decision.reason)


def _measure(usage: Callable[[Path], int], paths: Sequence[Path]) -> dict[Path, int]:
    return {path: usage(path) for path in paths}
