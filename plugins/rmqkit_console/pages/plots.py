"""Plots of what the console remembers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import attrs

from rmqkit_console.plot import COLOURS, Unit, plot
from rmqkit_console.samples import Sample

T = TypeVar("T")
Kept = tuple[Sample, ...]


def broker_plots(kept: Kept, brokers: Collection[str]) -> list[dict[str, Any]]:
    """The rates and disks of these brokers, and how far their slaves are behind, if they have any."""

    def rates(sample: Sample) -> Mapping[str, Any]:
        return {name: each for name, each in sample.rates.items() if name in brokers}

    def replicas(sample: Sample) -> Mapping[str, int]:
        return {name: each for name, each in sample.replicas.items() if name.partition(" ")[0] in brokers}

    found = [
        _drawn("Messages stored per second", kept, rates, lambda each: each.stored),
        _drawn("Messages fetched per second", kept, rates, lambda each: each.fetched),
        _drawn("Disk used", kept, rates, lambda each: each.disk, "part"),
    ]
    if any(map(replicas, kept)):
        found.append(_drawn("Replicas behind", kept, replicas, float, "bytes"))
    return found


def group_plots(kept: Kept, groups: Collection[str]) -> list[dict[str, Any]]:
    """How far these groups are behind, in messages and in time; nothing without groups."""
    if not groups:
        return []

    def lags(sample: Sample) -> Mapping[str, Any]:
        return {name: each for name, each in sample.groups.items() if name in groups}

    return [
        _drawn("Messages not consumed", kept, lags, lambda each: each.messages, "number"),
        _drawn("Age of the first of them", kept, lags, lambda each: each.behind_ms, "span"),
    ]


def furthest_behind(kept: Kept) -> list[str]:
    """The groups with most messages in the last sample, as many as a plot tells apart."""
    last = kept[-1].groups if kept else {}
    return sorted(last, key=lambda name: (-last[name].messages, name))[:COLOURS]


def _drawn(
    title: str,
    kept: Kept,
    select: Callable[[Sample], Mapping[str, T]],
    value: Callable[[T], float | None],
    unit: Unit = "rate",
) -> dict[str, Any]:
    selected = [select(sample) for sample in kept]
    names = {name for each in selected for name in each}
    series = {name: [value(each[name]) if name in each else None for each in selected] for name in names}
    return attrs.asdict(plot(title, [sample.time_ms for sample in kept], series, unit))


__all__ = ["broker_plots", "furthest_behind", "group_plots"]
