"""The decisions of a cleaning round (store-format sheet, sections 9.1 and 9.2), without access to clock or
disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from attrs import frozen

from rmqkit.config import Config
from rmqkit.errors import ConfigError
from rmqkit.plugin.store import LogPart
from rmqkit_retention.settings import RetentionSettings

_HOUR_MS = 3_600_000


@frozen
class Settings:
    """Ratios in percent, already limited to Java's ranges; `hours` are local hours of the day."""

    reserved_ms: int = 72 * _HOUR_MS
    hours: frozenset[int] = frozenset({4})
    expired_above: int = 75
    force_above: int = 85
    refuse_above: int = 90
    may_force: bool = True
    max_files: int = 10

    @classmethod
    def from_config(cls, config: Config) -> Settings:
        """The values of a configuration in their units. Raises ConfigError when `deleteWhen` is not a list of
        hours."""
        given = config.owned(RetentionSettings)
        return cls(
            given.file_reserved_time * _HOUR_MS,
            _hours(given.delete_when),
            _clamped(given.disk_max_used_space_ratio, 10, 95),
            _clamped(given.disk_space_clean_forcibly_ratio, 30, 85),
            _clamped(given.disk_space_warning_level_ratio, 35, 90),
            given.clean_file_forcibly_enable,
            max(given.delete_file_batch_max, 1),
        )


@frozen
class Decision:
    """`parts` of the log are to be deleted, in this order, for `reason`; with `ends_pins` also those that
    readers hold. `refusal` is the reason why writes are refused, None when they are permitted."""

    refusal: str | None = None
    reason: str = ""
    parts: Sequence[LogPart] = ()
    ends_pins: bool = False


def decide(
    now: datetime,
    usage: Mapping[Path, int],
    settings: Settings,
    parts: Sequence[LogPart],
    manual: bool = False,
) -> Decision:
    """Decide one round at the local time `now`. `usage` is percent by path, the log's path first; `parts` are
    sorted by age, oldest first, without the newest."""
    fullest = max(usage, key=usage.__getitem__, default=None)
    percent = 0 if fullest is None else usage[fullest]
    reason = ""
    if manual:
        reason = "asked for"
    elif percent > settings.expired_above:
        reason = f"{fullest} is {percent} % full, above {settings.expired_above}"
    elif now.hour in settings.hours:
        reason = f"it is {now.hour} o'clock"
    force = percent > min(settings.force_above, settings.refuse_above)
    if force:
        reason = f"{fullest} is {percent} % full, above {min(settings.force_above, settings.refuse_above)}"
    chosen: list[LogPart] = []
    limit_ms = int(now.timestamp() * 1000) - settings.reserved_ms
    for part in parts[: settings.max_files] if reason else ():
        if part.modified_ms > limit_ms and not (force and settings.may_force):
            break
        chosen.append(part)
    return Decision(
        refusal(usage, settings), reason, chosen, settings.may_force and percent > settings.refuse_above
    )


def refusal(usage: Mapping[Path, int], settings: Settings) -> str | None:
    """The reason to refuse writes at this usage; None to permit them."""
    for path, percent in usage.items():
        if percent > settings.refuse_above:
            return (
                f"the disk of {path} is {percent} % full, no messages are taken above {settings.refuse_above}"
                " % (diskSpaceWarningLevelRatio)"
            )
    return None


def _clamped(percent: int, low: int, high: int) -> int:
    return max(low, min(percent, high))


def _hours(text: str) -> frozenset[int]:
    hours = [hour.strip() for hour in text.split(";") if hour.strip()]
    if not all(hour.isascii() and hour.isdigit() and int(hour) < 24 for hour in hours):
        raise ConfigError(f"setting deleteWhen = {text!r}: hours from 00 to 23, joined by ';', as in 04;16")
    return frozenset(map(int, hours))
