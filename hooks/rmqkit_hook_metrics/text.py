"""Prometheus' text format, version 0.0.4: HELP and TYPE of a family, then its samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

from rmqkit.plugin.metrics import Family, Labels
from rmqkit_hook_metrics.counting import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


T_co = TypeVar("T_co", covariant=True)


class Form(Protocol[T_co]):
    """A form of figures."""

    def lines(self, family: Family, samples: Iterable[tuple[Labels, float | Histogram]]) -> Iterator[T_co]:
        """The parts of a family with its samples; none without samples."""


class Writer:
    """Formats families as lines. `common` are labels of every sample."""

    def __init__(self, common: Mapping[str, str], unit_suffix: bool) -> None:
        self._common = ",".join(f'{name}="{_escaped(value)}"' for name, value in common.items())
        self._unit_suffix = unit_suffix

    def head(self, family: Family) -> str:
        name = self._name(family)
        return f"# HELP {name} {family.help}\n# TYPE {name} {family.kind}\n"

    def sample(self, family: Family, values: Labels, value: float) -> str:
        return f"{self._name(family)}{self._labels(family, values)} {_number(value)}\n"

    def histogram(self, family: Family, values: Labels, histogram: Histogram) -> str:
        """All lines of one histogram: cumulative buckets, sum and count."""
        name, total, lines = self._name(family), 0, []
        for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
            total += count
            upper = "+Inf" if bound == float("inf") else _number(bound)
            labels = self._labels(family, values, f'le="{upper}"')
            lines.append(f"{name}_bucket{labels} {total}\n")
        labels = self._labels(family, values)
        return "".join(
            [*lines, f"{name}_sum{labels} {_number(histogram.sum)}\n", f"{name}_count{labels} {total}\n"]
        )

    def lines(self, family: Family, samples: Iterable[tuple[Labels, float | Histogram]]) -> Iterator[str]:
        """Head and samples; nothing without samples."""
        first = True
        for values, value in samples:
            if first:
                yield self.head(family)
                first = False
            yield (
                self.histogram(family, values, value)
                if isinstance(value, Histogram)
                else self.sample(family, values, value)
            )

    def _name(self, family: Family) -> str:
        if not self._unit_suffix or not family.unit or family.name.endswith(family.unit):
            return family.name
        return f"{family.name}_{family.unit}"

    def _labels(self, family: Family, values: Labels, last: str = "") -> str:
        parts = [
            self._common,
            *(f'{name}="{_escaped(value)}"' for name, value in zip(family.labels, values, strict=True)),
            last,
        ]
        text = ",".join(filter(None, parts))
        return f"{{{text}}}" if text else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
