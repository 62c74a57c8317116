"""Decisions of a cleaning round as a table, and the settings they depend on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from rmqkit import config
from rmqkit.errors import ConfigError
from rmqkit.plugin.store import LogPart
from rmqkit_retention.decide import Settings, decide, refusal

LOG, QUEUES = Path("/log"), Path("/queues")
FOUR = datetime(2024, 5, 6, 4, 59, 59)
NOON = datetime(2024, 5, 6, 12, 0, 0)


def parts(now: datetime, *ages_h: float) -> list[LogPart]:
    """Parts of 100 bytes, last written this many hours ago."""
    return [
        LogPart(100 * number, 100 * number + 100, int((now - timedelta(hours=age)).timestamp() * 1000))
        for number, age in enumerate(ages_h)
    ]


@pytest.mark.row("S338", "S339", "S340", "S341")
@pytest.mark.parametrize(
    ("now", "log_percent", "ages_h", "options", "deleted", "refused"),
    [
        # By the clock: in the hour of deleteWhen, parts older than 72 hours, to the millisecond.
        (FOUR, 10, [100, 72, 71.999, 1], {}, 2, False),
        (FOUR, 10, [71], {}, 0, False),
        (NOON, 10, [100, 100], {}, 0, False),
        (FOUR.replace(hour=5, minute=0), 10, [100], {}, 0, False),
        (FOUR.replace(hour=3), 10, [100], {}, 0, False),
        (NOON, 10, [100], {"hours": frozenset({4, 12})}, 1, False),
        # Oldest first; the first part that has not expired ends the round, whatever follows.
        (FOUR, 10, [100, 1, 100], {}, 1, False),
        # At most ten per round.
        (FOUR, 10, [100] * 25, {}, 10, False),
        (FOUR, 10, [100] * 25, {"max_files": 3}, 3, False),
        # By the disk: above 75 %, expired parts at any hour.
        (NOON, 75, [100, 1], {}, 0, False),
        (NOON, 76, [100, 1], {}, 1, False),
        (NOON, 85, [1], {}, 0, False),
        # Above 85 %, parts of any age, if permitted.
        (NOON, 86, [100, 1, 0], {}, 3, False),
        (NOON, 86, [1] * 25, {}, 10, False),
        (NOON, 86, [100, 1], {"may_force": False}, 1, False),
        (FOUR, 86, [1, 1], {}, 2, False),
        # Above 90 %, writes are refused as well.
        (NOON, 90, [1], {}, 1, False),
        (NOON, 91, [1], {}, 1, True),
        (NOON, 91, [], {}, 0, True),
        (NOON, 91, [100, 1], {"may_force": False}, 1, True),
        (NOON, 100, [1], {}, 1, True),
        # A lower limit for refusing also lowers the limit for forced deletion.
        (NOON, 80, [1], {"refuse_above": 79}, 1, True),
        # On request: expired parts, now.
        (NOON, 10, [100, 1], {"manual": True}, 1, False),
        (NOON, 91, [1], {"manual": True}, 1, True),
    ],
)
def test_the_table(
    now: datetime,
    log_percent: int,
    ages_h: Sequence[float],
    options: dict[str, Any],
    deleted: int,
    refused: bool,
) -> None:
    """The table covers triggers, ages, order and limits of a round (store-format sheet, 9.1 and 9.2)."""
    settings = evolve(Settings(), **{name: value for name, value in options.items() if name != "manual"})
    found = parts(now, *ages_h)
    decision = decide(now, {LOG: log_percent, QUEUES: 10}, settings, found, "manual" in options)
    assert list(decision.parts) == found[:deleted]
    assert (decision.refusal is not None) == refused
    if deleted:
        assert decision.reason


def test_the_fuller_of_two_disks_counts() -> None:
    """Log and queues may be on different disks; the reason names the fuller one."""
    for percents in ({LOG: 10, QUEUES: 91}, {LOG: 91, QUEUES: 10}):
        decision = decide(NOON, percents, Settings(), parts(NOON, 1))
        full = QUEUES if percents[QUEUES] == 91 else LOG
        assert len(decision.parts) == 1
        assert f"{full} is 91 % full" in decision.reason
        assert decision.refusal == refusal(percents, Settings())
        assert f"{full} is 91 % full" in (decision.refusal or "")


def test_a_store_without_a_disk() -> None:
    """Only age counts for a store without a disk."""
    assert len(decide(FOUR, {}, Settings(), parts(FOUR, 100, 1)).parts) == 1
    assert list(decide(NOON, {}, Settings(), parts(NOON, 100)).parts) == []
    assert refusal({}, Settings()) is None


# --- settings -----------------------------------------------------------------------------------------------


def settings(**keys: Any) -> Settings:
    return Settings.from_config(config.load(environ={}, flags=keys))


@pytest.mark.row("S338", "S339", "S340", "S341")
def test_defaults() -> None:
    """The defaults are 72 hours, deletion at four, 75, 85 and 90 percent, and ten files."""
    assert settings() == Settings() == Settings(72 * 3_600_000, frozenset({4}), 75, 85, 90, True, 10)


@pytest.mark.parametrize(
    ("key", "attribute", "low", "high"),
    [
        ("diskMaxUsedSpaceRatio", "expired_above", 10, 95),
        ("diskSpaceCleanForciblyRatio", "force_above", 30, 85),
        ("diskSpaceWarningLevelRatio", "refuse_above", 35, 90),
    ],
)
def test_ratios_are_clamped(key: str, attribute: str, low: int, high: int) -> None:
    """Ratios are limited as in Java, so that a broker cannot be configured to delete never or always."""
    for given, taken in (
        (-5, low),
        (low - 1, low),
        (low, low),
        (50, 50),
        (high, high),
        (high + 1, high),
        (1_000, high),
    ):
        assert getattr(settings(**{key: given}), attribute) == taken


@pytest.mark.parametrize(
    ("text", "hours"),
    [("04", {4}), ("4", {4}), ("00;23", {0, 23}), (" 4 ; 16 ;", {4, 16}), ("", set()), ("04;04", {4})],
)
def test_hours(text: str, hours: set[int]) -> None:
    """`deleteWhen` is a list; with an empty one, files are deleted only because of disk usage or on
    request."""
    assert settings(deleteWhen=text).hours == hours


@pytest.mark.parametrize("text", ["24", "-1", "4,5", "x", "4;x", "0x4", "४"])
def test_hours_that_are_none(text: str) -> None:
    """Invalid hours stop the start with the name of the setting."""
    with pytest.raises(ConfigError, match="deleteWhen"):
        settings(deleteWhen=text)


@pytest.mark.parametrize(("key", "value"), [("fileReservedTime", -1), ("cleanResourceInterval", 0)])
def test_times_that_are_none(key: str, value: int) -> None:
    """Negative times and a loop without pauses are refused."""
    with pytest.raises(ConfigError, match=key):
        settings(**{key: value})
