"""Consumer groups of a broker and `config/subscriptionGroup.json` (Java: SubscriptionGroupManager; behaviour sheet, C6)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from rmqkit.abc import Clock
from rmqkit.broker.json_file import JsonFile
from rmqkit.config import Config
from rmqkit.errors import RequestRefused
from rmqkit.limits import MAX_AUTO_CREATED_GROUPS
from rmqkit.model import names
from rmqkit.model.topic import DataVersion, SubscriptionGroupConfig, SubscriptionGroupTable
from rmqkit.protocol.codes import ResponseCode


class GroupTable:
    """Group settings. Every change moves the data version, is written at once and told to `on_change`."""

    def __init__(self, config: Config, clock: Clock, directory: Path) -> None:
        self._config = config
        self._clock = clock
        self._file = JsonFile(directory / "subscriptionGroup.json", SubscriptionGroupTable)
        self._table = SubscriptionGroupTable()
        self.on_change: list[Callable[[], None]] = []
        self._auto_created = 0
        #: The file is older than the table: a write failed.
        self._unsaved = False

    def load(self) -> None:
        """Raises ConfigError when the file and its `.bak` are broken."""
        self._table = self._file.load() or SubscriptionGroupTable()
        for name in names.PRESET_GROUPS:
            self._table.subscription_group_table.setdefault(name, SubscriptionGroupConfig(group_name=name))

    @property
    def configs(self) -> dict[str, SubscriptionGroupConfig]:
        return self._table.subscription_group_table

    @property
    def data_version(self) -> DataVersion:
        return self._table.data_version

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """The group's settings, created when `autoCreateSubscriptionGroup` is on and the name is legal; else None."""
        found = self.configs.get(group)
        if found is not None or not self._config.auto_create_subscription_group or names.group_fault(group):
            return found
        if self._auto_created >= MAX_AUTO_CREATED_GROUPS:
            return None
        self._auto_created += 1
        created = SubscriptionGroupConfig(group_name=group)
        self.put(created)
        return created

    def put(self, group: SubscriptionGroupConfig) -> bool:
        """Create or replace; False when it stood so already. Raises RequestRefused for an illegal name."""
        fault = names.group_fault(group.group_name)
        if fault:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, fault)
        if self.configs.get(group.group_name) == group and not self._unsaved:
            return False
        self.configs[group.group_name] = group
        self._changed()
        return True

    def delete(self, group: str) -> bool:
        if self.configs.pop(group, None) is None and not self._unsaved:
            return False
        self._changed()
        return True

    def table(self) -> SubscriptionGroupTable:
        return msgspec.structs.replace(self._table)

    def _changed(self) -> None:
        self._table.data_version.next(self._clock.now_ms())
        self._unsaved = True
        self._file.save(self._table)
        self._unsaved = False
        for listener in self.on_change:
            listener()
