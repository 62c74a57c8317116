"""Filters pushed down by Spark, and their effect on reading.

Spark pushes filters only with spark.sql.python.filterPushdown.enabled, and without that setting it fails
every query of a reader that has `pushFilters`. So a reader with that method is created only where Spark plans
with filters, which is recognised by a module that is loaded only there.

The option filterPushdown is required as well. Spark keeps one plan for each load(), in the table shared by
all uses of the frame (JVM: PythonDataSourceV2.readInfo), and replaces it whenever it pushes filters. A frame
that is used twice in a query, or without a condition after a use with one, would then be read with the
filters of another use.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from attrs import evolve, frozen
from pyspark.sql import datasource as spark

from pyspark_rocketmq.read.source import QueueKey, QueueRange

#: Loaded only in the process in which Spark plans with filters.
FILTERING_MODULE = "pyspark.sql.worker.data_source_pushdown_filters"
#: Store times of a queue may decrease when clocks are set back, so a search by time starts this much earlier
#: and ends this much later.
TIME_PADDING_MS = 10_000
#: Maximum length of the tag expression, which is part of every pull request's header.
MAX_EXPRESSION_CHARS = 4096
_MAX = (1 << 63) - 1


def filters_are_pushed() -> bool:
    """Whether Spark is about to call `pushFilters`; False if unknown."""
    return FILTERING_MODULE in sys.modules


@frozen(kw_only=True)
class Pushed:
    """Restrictions from the filters; None means no restriction.

    first, stop         queue offsets [first, stop)
    start_ms, stop_ms   store times, both inclusive and approximate: Spark compares again
    tags                values of the column tags that a broker's expression can contain; Spark compares again
    key                 a value of the column keys, without spaces; Spark compares again
    """

    topics: frozenset[str] | None = None
    brokers: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    tags: frozenset[str] | None = None
    first: int = 0
    stop: int = _MAX
    start_ms: int | None = None
    stop_ms: int | None = None
    key: str | None = None

    def keeps(self, queue: QueueKey) -> bool:
        """Whether anything remains of a queue."""
        return (
            (self.topics is None or queue.topic in self.topics)
            and (self.brokers is None or queue.broker in self.brokers)
            and (self.queue_ids is None or queue.queue_id in self.queue_ids)
        )

    def cut(self, each: QueueRange) -> QueueRange:
        """Apply the filters on offsets to a range; empty when stop is not after start."""
        return each._replace(start=max(each.start, self.first), stop=min(each.stop, self.stop))


def push(filters: Sequence[spark.Filter]) -> tuple[Pushed, list[spark.Filter]]:
    """The restrictions for reading, and the filters that Spark must evaluate itself."""
    pushed = Pushed()
    left: list[spark.Filter] = []
    for each in filters:
        column = _column(each)
        if isinstance(each, spark.IsNotNull) and column in _NEVER_NULL:
            continue
        changed = (
            _SETS[column](pushed, each)
            if column in _SETS
            else _RANGES[column](pushed, each)
            if column in _RANGES
            else None
        )
        if changed is not None:
            pushed = changed
        if changed is None or column in _ASKED_AGAIN:
            left.append(each)
    return pushed, left


def _column(each: spark.Filter) -> str:
    attribute: tuple[str, ...] = getattr(each, "attribute", ())
    return attribute[0] if len(attribute) == 1 else ""


def _values(each: spark.Filter) -> frozenset[Any] | None:
    """The values that an equality allows; None for another filter."""
    if isinstance(each, (spark.EqualTo, spark.EqualNullSafe)):
        return None if each.value is None else frozenset([each.value])
    if isinstance(each, spark.In):
        # A null in the list matches nothing.
        return frozenset(value for value in each.value if value is not None)
    return None


def _among(field: str) -> Any:
    def apply(pushed: Pushed, each: spark.Filter) -> Pushed | None:
        values = _values(each)
        if values is None:
            return None
        known = getattr(pushed, field)
        change: dict[str, Any] = {field: values if known is None else known & values}
        return evolve(pushed, **change)

    return apply


def _tags(pushed: Pushed, each: spark.Filter) -> Pushed | None:
    """Tags for which brokers and Spark agree: brokers split expressions at bars, strip spaces around a tag,
    and drop blank tags."""
    values = _values(each)
    if (
        not values
        or not all(_is_plain(tag) for tag in values)
        or sum(len(tag) + 2 for tag in values) > MAX_EXPRESSION_CHARS
    ):
        return None
    return _among("tags")(pushed, each)  # type: ignore[no-any-return]


def _is_plain(tag: str) -> bool:
    return (
        tag not in ("", "*")
        and "|" not in tag
        and tag == tag.strip()
        and all(" " < sign < "\x7f" for sign in (tag[0], tag[-1]))
    )


def _offsets(pushed: Pushed, each: spark.Filter) -> Pushed | None:
    values = _values(each)
    if values is not None:
        if len(values) != 1:
            return None
        (offset,) = values
        return evolve(pushed, first=max(pushed.first, offset), stop=min(pushed.stop, offset + 1))
    value = getattr(each, "value", None)
    if not isinstance(value, int):
        return None
    if isinstance(each, spark.GreaterThan):
        return evolve(pushed, first=max(pushed.first, value + 1))
    if isinstance(each, spark.GreaterThanOrEqual):
        return evolve(pushed, first=max(pushed.first, value))
    if isinstance(each, spark.LessThan):
        return evolve(pushed, stop=min(pushed.stop, value))
    if isinstance(each, spark.LessThanOrEqual):
        return evolve(pushed, stop=min(pushed.stop, value + 1))
    return None


def _times(pushed: Pushed, each: spark.Filter) -> Pushed | None:
    values = _values(each)
    if values is not None:
        if not all(isinstance(value, datetime) for value in values) or not values:
            return None
        return _span(pushed, _ms(min(values), math.floor), _ms(max(values), math.ceil))
    value = getattr(each, "value", None)
    if not isinstance(value, datetime):
        return None
    if isinstance(each, (spark.GreaterThan, spark.GreaterThanOrEqual)):
        return _span(pushed, _ms(value, math.floor), None)
    if isinstance(each, (spark.LessThan, spark.LessThanOrEqual)):
        return _span(pushed, None, _ms(value, math.ceil))
    return None


def _ms(moment: datetime, rounded: Any) -> int:
    return int(rounded(moment.timestamp() * 1000))


def _span(pushed: Pushed, start_ms: int | None, stop_ms: int | None) -> Pushed:
    starts = [each for each in (pushed.start_ms, start_ms) if each is not None]
    stops = [each for each in (pushed.stop_ms, stop_ms) if each is not None]
    return evolve(pushed, start_ms=max(starts, default=None), stop_ms=min(stops, default=None))


def _key(pushed: Pushed, each: spark.Filter) -> Pushed | None:
    """Only a single key is looked up. A text of several keys is rarely requested and would match by any of
    them."""
    values = _values(each)
    if values is None or len(values) != 1:
        return None
    (key,) = values
    return evolve(pushed, key=key) if key and not any(sign.isspace() for sign in key) else None


_SETS: dict[str, Any] = {
    "topic": _among("topics"),
    "brokerName": _among("brokers"),
    "queueId": _among("queue_ids"),
    "tags": _tags,
    "keys": _key,
}
_RANGES: dict[str, Any] = {"queueOffset": _offsets, "storeTimestamp": _times}
#: Every comparison is accompanied by an IsNotNull of its column.
_NEVER_NULL = frozenset({"topic", "brokerName", "queueId", "queueOffset"})
#: Columns that restrict reading only approximately.
_ASKED_AGAIN = frozenset({"storeTimestamp", "tags", "keys"})


class PushingMixin:
    """`pushFilters` for a reader that has `pushed`."""

    pushed: Pushed

    def pushFilters(self, filters: list[spark.Filter]) -> Iterable[spark.Filter]:
        self.pushed, left = push(filters)
        return left
