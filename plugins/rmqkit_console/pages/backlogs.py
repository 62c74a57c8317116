"""What waits inside the brokers: timers, held requests, prepared transactions, and popped messages of
groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rmqkit.client import NoRoute, RmqError, broker_views
from rmqkit.model.names import HALF_TOPIC, SCHEDULE_TOPIC
from rmqkit_console.console import Asked, Console
from rmqkit_console.side_by_side import side_by_side

#: Run-time key -> member.
_FIGURES = {
    "timerCongestNum": "timersWaiting",
    "timerReadBehindMs": "timersLateMs",
    "timerOffsetBehind": "timersNotEntered",
    "transactionsOpen": "transactionsOpen",
    "heldPulls": "heldPulls",
    "dispatchBehindBytes": "dispatchBehindBytes",
}
_TIMER_DISTANCE, _DELAY_LEVEL = "timerWaiting.", "scheduleMessageOffset_"


async def backlogs(console: Console, asked: Asked) -> dict[str, Any]:
    """Figures of each master; `leased` are the popped messages of each group that are not finished; `stored`
    the messages in the internal topics of delay levels and transactions, those that are done included."""
    client = console.client
    found = await broker_views.broker_states(client.admin)
    groups = await client.groups.configs()
    progress = await side_by_side(client.groups.progress, groups)
    leased = {
        group: number
        for group, queues in progress.items()
        if not isinstance(queues, RmqError) and (number := sum(each.leased for each in queues.values()))
    }
    return {
        "brokers": [{"broker": each.broker, **_figures(each.runtime)} for each in found.states],
        "faults": [str(error) for error in found.errors],
        "leased": leased,
        "stored": {
            "delayLevels": await _stored(console, SCHEDULE_TOPIC),
            "transactions": await _stored(console, HALF_TOPIC),
        },
    }


def _figures(runtime: Mapping[str, str]) -> dict[str, Any]:
    """None for what a broker does not tell."""
    within = {
        int(key.removeprefix(_TIMER_DISTANCE)): int(value)
        for key, value in runtime.items()
        if key.startswith(_TIMER_DISTANCE) and value.isdigit()
    }
    levels = {
        int(level): waiting
        for key, value in runtime.items()
        if (level := key.removeprefix(_DELAY_LEVEL)) != key
        and level.isdigit()
        and (waiting := _between(value)) is not None
    }
    figures = {
        member: int(runtime[key]) if runtime.get(key, "").isdigit() else None
        for key, member in _FIGURES.items()
    }
    return figures | {
        "delayed": sum(levels.values()),
        "delayedByLevel": {str(level): levels[level] for level in sorted(levels) if levels[level]},
        "timersWithin": {f"{seconds} s": within[seconds] for seconds in sorted(within)},
    }


def _between(text: str) -> int | None:
    """The number of messages between the next offset of a delay level and its end."""
    begin, _, end = text.partition(",")
    return max(int(end) - int(begin), 0) if begin.isdigit() and end.isdigit() else None


async def _stored(console: Console, topic: str) -> int | None:
    """Number of messages in an internal topic; None when no broker has it."""
    try:
        stats = await console.client.admin.topic_stats(topic)
    except NoRoute:
        return None
    return sum(each.max_offset - each.min_offset for each in stats.values())


__all__ = ["backlogs"]
