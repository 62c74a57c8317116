"""Figures of services in the form of metrics, which a plugin exports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

#: Values of the labels of a sample, in the order of their names.
Labels = tuple[str, ...]


class Family(NamedTuple):
    """Samples with one name. `kind` is "gauge" or "counter", or a kind that the exporter knows; `labels` are
    the names of the labels that differ between samples; `unit` may become part of the name."""

    name: str
    kind: str
    help: str
    labels: Sequence[str] = ()
    unit: str = ""


#: The labels by which figures of what is stored name the medium, and their values, as Apache's brokers.
STORAGE = ("storage_type", "storage_medium")
LOCAL: Labels = ("local", "disk")


class Metric(NamedTuple):
    """A family with its samples at this moment: values by labels."""

    family: Family
    samples: Iterable[tuple[Labels, float]]
