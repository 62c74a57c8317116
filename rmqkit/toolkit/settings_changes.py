"""Changes of the settings of a running server by requests: checked, written to its file, then applied (Java:
Configuration)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import trio

from rmqkit import config_file
from rmqkit.config import Config, SettingsType, setting_fields, with_texts
from rmqkit.errors import ConfigError, RequestRefused
from rmqkit.protocol.codes import ResponseCode

_log = logging.getLogger(__name__)
_SOURCE = "request of an administrator, before: "


class SettingsChanges:
    """Changes the settings of one server.

    config     returns the present settings
    kinds      the structs of plugins that own settings
    live       keys that may be changed while the server runs
    forbidden  returns keys that no request may change
    apply      makes new settings effective; gets them with the keys that have changed
    """

    def __init__(
        self,
        config: Callable[[], Config],
        kinds: Iterable[SettingsType],
        live: Iterable[str],
        forbidden: Callable[[], Collection[str]],
        apply: Callable[[Config, list[str]], None],
    ) -> None:
        self._config = config
        self._kinds = tuple(kinds)
        self._live = frozenset(live)
        self._owned = frozenset(setting_fields(self._kinds))
        self._forbidden = forbidden
        self._apply = apply
        self._lock = trio.Lock()

    async def update(self, texts: Mapping[str, str]) -> str | None:
        """Change settings, all or none: first in their file, then here. Returns a remark if they are lost at
        the next start.

        Raises RequestRefused. When cancelled while the file is written, the file may be changed and the
        server not.
        """
        async with self._lock:
            before = self._config()
            fresh = self._checked(before, texts)
            changed = [key for key in texts if self._differs(fresh, before, key)]
            lost = [key for key in changed if not _kept_in_file(before, key)]
            kept = {key: fresh.setting(key, self._kinds) for key in changed if key not in lost}
            await _write(before, kept)
            self._apply(fresh, changed)
            if changed:
                _log.info(
                    "settings were changed: %s",
                    ", ".join(f"{key} = {fresh.setting(key, self._kinds)!r}" for key in changed),
                )
        if not lost:
            return None
        return f"until the next start only, since no configuration file sets them: {', '.join(lost)}"

    def _differs(self, fresh: Config, before: Config, key: str) -> bool:
        return bool(fresh.setting(key, self._kinds) != before.setting(key, self._kinds))

    def _checked(self, before: Config, texts: Mapping[str, str]) -> Config:
        if not texts.keys().isdisjoint(self._forbidden()):
            raise RequestRefused(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        unknown = [key for key in texts if not (Config.has_setting(key) or key in self._owned)]
        if unknown:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"no settings of this server, nothing was changed: {', '.join(unknown)}",
            )
        try:
            fresh = with_texts(
                before, texts, {key: _SOURCE + _origin(before, key) for key in texts}, self._kinds
            )
        except ConfigError as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"nothing was changed: {error}") from error
        fixed = [key for key in texts if key not in self._live and self._differs(fresh, before, key)]
        if fixed:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"nothing was changed: these settings take effect at the start only: {', '.join(fixed)}",
            )
        return fresh


async def _write(before: Config, values: Mapping[str, config_file.Value]) -> None:
    if not values:
        return
    try:
        await trio.to_thread.run_sync(config_file.change, Path(before.file), values)
    except (OSError, ValueError, ConfigError) as error:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"nothing was changed: {before.file} cannot be written: {error}"
        ) from error


def _kept_in_file(config: Config, key: str) -> bool:
    """Whether the next start reads the setting from the file: there is one, and neither the environment nor
    the command line overrides it."""
    return bool(config.file) and _origin(config, key).startswith(("default", "file"))


def _origin(config: Config, key: str) -> str:
    """The source from which the start read the setting."""
    return config.sources.get(key, "default").removeprefix(_SOURCE)


__all__ = ["SettingsChanges"]
