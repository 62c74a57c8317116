"""UPDATE_BROKER_CONFIG: change settings of a running broker (Java: AdminBrokerProcessor.updateBrokerConfig,
Configuration)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio

from rmqkit import config_file
from rmqkit.broker.run.context import BrokerContext
from rmqkit.config import Config, live_keys, setting_fields, with_texts
from rmqkit.errors import ConfigError, RequestRefused
from rmqkit.protocol.codes import ResponseCode

_log = logging.getLogger(__name__)
#: Never changed by a request, regardless of `configBlackList`: another path would let a peer write files
#: anywhere.
_FORBIDDEN = frozenset({"brokerConfigPath", "rocketmqHome", "configBlackList"})
_SOURCE = "request of an administrator, before: "


class LiveSettings:
    """Changes the settings of one broker."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._lock = trio.Lock()
        #: Structs of the settings owned by plugins.
        self._kinds = tuple(broker.registry.settings.values())
        self._live = frozenset(live_keys([Config, *self._kinds]))
        self._owned = frozenset(setting_fields(self._kinds))

    async def update(self, texts: Mapping[str, str]) -> str | None:
        """Change settings, all or none: first in their file, then here. Returns a remark if they are lost at
        the next start.

        Raises RequestRefused. When cancelled while the file is written, the file may be changed and the
        broker not.
        """
        async with self._lock:
            before = self._broker.config
            fresh = self._checked(before, texts)
            changed = [
                key for key in texts if fresh.setting(key, self._kinds) != before.setting(key, self._kinds)
            ]
            lost = [key for key in changed if not _kept_in_file(before, key)]
            await self._write(before, {key: self._value(fresh, key) for key in changed if key not in lost})
            self._apply(fresh, changed)
        if not lost:
            return None
        return f"until the next start only, since no configuration file sets them: {', '.join(lost)}"

    def _value(self, config: Config, key: str) -> Any:
        return config.setting(key, self._kinds)

    def _checked(self, before: Config, texts: Mapping[str, str]) -> Config:
        forbidden = _FORBIDDEN | {key.strip() for key in before.config_black_list.split(";")}
        if not forbidden.isdisjoint(texts):
            raise RequestRefused(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        unknown = [key for key in texts if not (Config.has_setting(key) or key in self._owned)]
        if unknown:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"no settings of this broker, nothing was changed: {', '.join(unknown)}",
            )
        try:
            fresh = with_texts(
                before, texts, {key: _SOURCE + _origin(before, key) for key in texts}, self._kinds
            )
        except ConfigError as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"nothing was changed: {error}") from error
        fixed = [
            key
            for key in texts
            if key not in self._live and fresh.setting(key, self._kinds) != before.setting(key, self._kinds)
        ]
        if fixed:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"nothing was changed: these settings take effect at the start only: {', '.join(fixed)}",
            )
        return fresh

    async def _write(self, before: Config, values: Mapping[str, config_file.Value]) -> None:
        if not values:
            return
        try:
            await trio.to_thread.run_sync(config_file.change, Path(before.file), values)
        except (OSError, ValueError, ConfigError) as error:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"nothing was changed: {before.file} cannot be written: {error}"
            ) from error

    def _apply(self, fresh: Config, changed: list[str]) -> None:
        broker = self._broker
        broker.config = fresh
        broker.topics.configure(fresh)
        broker.groups.configure(fresh)
        broker.filters.configure(fresh)
        if changed:
            _log.info(
                "settings were changed: %s",
                ", ".join(f"{key} = {fresh.setting(key, self._kinds)!r}" for key in changed),
            )
        if "brokerPermission" in changed:
            broker.topics.registration_changed()
        for listener in list(broker.on_config_change):
            listener()


def _kept_in_file(config: Config, key: str) -> bool:
    """Whether the next start reads the setting from the file: there is one, and neither the environment nor
    the command line overrides it."""
    return bool(config.file) and _origin(config, key).startswith(("default", "file"))


def _origin(config: Config, key: str) -> str:
    """The source from which the start read the setting."""
    return config.sources.get(key, "default").removeprefix(_SOURCE)
