"""Consumer groups of a broker and `config/subscriptionGroup.json` (Java: SubscriptionGroupManager;
behaviour sheet, C6)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence, Set
from pathlib import Path

import msgspec
import trio

from rmqkit.broker.tables.saved_table import SavedTable, some_names
from rmqkit.config import Config
from rmqkit.errors import RequestRefused
from rmqkit.limits import MAX_AUTO_CREATED_GROUPS
from rmqkit.model import names
from rmqkit.model.topic import SubscriptionGroupConfig, SubscriptionGroupTable
from rmqkit.plugin.clock import Clock
from rmqkit.protocol.codes import ResponseCode
from rmqkit.toolkit.unsaved import Unsaved, again_when_saved

_log = logging.getLogger(__name__)


class GroupTable(SavedTable[SubscriptionGroupConfig]):
    """Settings by group. Every change increments the data version."""

    def __init__(self, config: Config, clock: Clock, directory: Path) -> None:
        super().__init__(
            clock,
            directory / "subscriptionGroup.json",
            SubscriptionGroupTable,
            SubscriptionGroupConfig,
            "subscription_group_table",
        )
        self._config = config
        #: Whether nothing may be created for clients: another broker may be the master.
        self.is_fenced: Callable[[], bool] = lambda: False
        self._forbidden: dict[str, dict[str, int]] = {}
        self._auto_created = 0

    def load(self) -> None:
        """Read the groups from their file. Raises ConfigError when the file and its `.bak`, or the journal,
        cannot be read."""
        stored = self._load()
        if isinstance(stored, SubscriptionGroupTable):
            self._forbidden = stored.forbidden_table
        for name in names.PRESET_GROUPS:
            self.configs.setdefault(name, SubscriptionGroupConfig(group_name=name))

    def configure(self, config: Config) -> None:
        """Apply changed settings."""
        self._config = config

    def warn_of_unknown(self, consuming: Iterable[str]) -> None:
        """Log groups that have offsets but no settings, if their first use does not create them. They are not
        created here: a deleted group may leave its offsets, and lost settings differ from the default ones.
        """
        if self._config.auto_create_subscription_group:
            return
        unknown = sorted({group for group in consuming if group not in self.configs})
        if unknown:
            _log.warning(
                "%d groups have offsets and are not in subscriptionGroup.json, so they cannot consume: %s."
                " Create them again, or delete them with their offsets",
                len(unknown),
                some_names(unknown),
            )

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """The group's settings; None for an unknown group that may not be created. Raises Unsaved while it is
        being created by its first use, if `autoCreateSubscriptionGroup` is set and the name is legal. As in
        Java, such a group can consume although it cannot be written: it has default settings only."""
        found = self.settled(group)
        if found is not None or not self._config.auto_create_subscription_group or names.group_fault(group):
            return found
        if self._auto_created >= MAX_AUTO_CREATED_GROUPS or self.is_fenced():
            return None
        change = self.submit(group, SubscriptionGroupConfig(group_name=group), optional=True)
        assert change is not None, "an unknown group is not what it is to become"
        self._auto_created += 1
        change.when_settled(self._count)
        raise Unsaved(change)

    def _count(self, failure: RequestRefused | None) -> None:
        if failure is not None:
            self._auto_created -= 1

    async def ensure(self, group: str) -> SubscriptionGroupConfig | None:
        """The settings of a group, created if that is allowed; waits until it is written. Raises
        RequestRefused when it cannot be written."""
        await trio.lowlevel.checkpoint()
        return await again_when_saved(lambda: self.get(group))

    async def put(self, config: SubscriptionGroupConfig) -> bool:
        """Create or replace, and wait for the device. Returns False when nothing changed. Raises
        RequestRefused for an illegal name, or when it cannot be written, without effect."""
        return await self._change(config.group_name, _checked(config))

    async def put_all(self, configs: Sequence[SubscriptionGroupConfig]) -> None:
        """Write the settings of several groups, which are all checked first. Raises RequestRefused; when one
        cannot be written, others may have been."""
        await self._change_all([(config.group_name, _checked(config)) for config in configs])

    async def replace(self, table: SubscriptionGroupTable) -> None:
        """Take over the groups of another broker with its deletions and its version (Java: SlaveSynchronize,
        which also deletes what the table lacks). Raises RequestRefused when one is illegal, without effect,
        or cannot be written; others may have been."""
        entries = {group.group_name: _checked(group) for group in table.subscription_group_table.values()}
        self._forbidden = table.forbidden_table
        await self._replace(entries, table.data_version, table.deletions or {})

    def _own_names(self) -> Set[str]:
        return frozenset(names.PRESET_GROUPS)

    async def delete(self, group: str) -> bool:
        """Delete the group. Returns False when there was none. Raises RequestRefused when it cannot be
        written; the group then still exists."""
        return await self._change(group, None)

    def table(self) -> SubscriptionGroupTable:
        return msgspec.structs.replace(self._other_fields(), subscription_group_table=self.configs)

    def _other_fields(self) -> SubscriptionGroupTable:
        return SubscriptionGroupTable(
            data_version=msgspec.structs.replace(self.data_version),
            forbidden_table=self._forbidden,
            deletions=dict(self.deletions) or msgspec.UNSET,
        )


def _checked(config: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
    """Validate the group. Raises RequestRefused for an illegal name."""
    fault = names.group_fault(config.group_name)
    if fault:
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, fault)
    return config
