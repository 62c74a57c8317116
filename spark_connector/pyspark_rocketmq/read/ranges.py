"""The offset ranges of the queues that a batch read covers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from pyspark_rocketmq.options.kinds import EARLIEST, EARLIEST_OFFSET, LATEST, LATEST_OFFSET
from pyspark_rocketmq.options.read import OptionError, ReadOptions
from pyspark_rocketmq.read.attempts import Attempts, Patience
from pyspark_rocketmq.read.completeness import complete_bounds, queues_of
from pyspark_rocketmq.read.pushdown import TIME_PADDING_MS, Pushed
from pyspark_rocketmq.read.source import (
    Bounds,
    DataLoss,
    FinalError,
    QueueKey,
    QueueRange,
    Source,
    SourceError,
    Unanswered,
    named,
)
from pyspark_rocketmq.stream.starting_offsets import chooser, first_positions, topics_of

log = logging.getLogger(__name__)

T = TypeVar("T")


def again(ask: Callable[[], T], options: ReadOptions, sleep: Callable[[float], None] = time.sleep) -> T:
    """Call a source, with the retries given by fetchOffset.*. Raises the error of the last try, and permanent
    errors at once."""
    attempts = Attempts(
        Patience(retries=options.fetch_num_retries, interval_s=options.fetch_retry_interval_ms / 1000)
    )
    while True:
        try:
            return ask()
        except FinalError:
            raise
        except SourceError as error:
            pause = attempts.pause_s(outage=isinstance(error, Unanswered))
            if pause is None:
                raise
            log.warning("asking again in %d ms: %s", options.fetch_retry_interval_ms, error)
        sleep(pause)


def batch_ranges(
    source: Source, options: ReadOptions, pushed: Pushed
) -> tuple[list[QueueRange], Mapping[QueueKey, Bounds]]:
    """The ranges to read, by queue, and the readable bounds of these queues. Raises SourceError; OptionError
    for options that do not fit the queues; DataLoss when messages that the options request by offset are
    gone, unless the options ask for a warning."""
    if options.starting_offsets == LATEST and not options.start_is_timestamp:
        log.warning(
            "startingOffsets=latest is the end of the topic, so this batch reads nothing; by default a batch"
            " reads up to the end"
        )
    bounds = _bounds(source, options, pushed)
    starts = first_positions(source, options, bounds)
    stops = _last_positions(source, options, bounds)
    ranges = []
    for queue, known in bounds.items():
        lo, hi = starts[queue], stops[queue]
        if hi < lo:
            if not options.start_is_timestamp and not options.end_is_timestamp:
                raise OptionError(
                    f"{named(queue)}: the end {hi} is before the start {lo}; change startingOffsets or"
                    " endingOffsets"
                )
            hi = lo
        ranges.append(QueueRange(queue, *_clipped(queue, lo, hi, known, options)))
    return [
        each
        for each in _in_time(source, pushed, [pushed.cut(each) for each in ranges])
        if each.stop > each.start
    ], bounds


def _bounds(source: Source, options: ReadOptions, pushed: Pushed) -> Mapping[QueueKey, Bounds]:
    """Bounds of the requested queues. Filters restrict the queues only where the options need not fit the
    queues."""
    asked_for = chooser(options)
    queues = [
        queue
        for topic in topics_of(source, options)
        for queue in queues_of(source, topic, options.brokers)
        if asked_for(queue)
    ]
    by_queue = any(
        isinstance(each, dict)
        for each in (
            options.starting_offsets,
            options.ending_offsets,
            options.starting_offsets_by_timestamp,
            options.ending_offsets_by_timestamp,
        )
    )
    if not by_queue and not options.assign:
        queues = [queue for queue in queues if pushed.keeps(queue)]
    found = complete_bounds(source, queues)
    for queue in queues:
        if queue not in found:
            log.warning("%s is not read: it is in the route, but its broker does not have it", named(queue))
    return found


def _last_positions(
    source: Source, options: ReadOptions, bounds: Mapping[QueueKey, Bounds]
) -> Mapping[QueueKey, int]:
    times = options.ending_offsets_by_timestamp
    if options.ending_timestamp_ms is not None:
        times = dict.fromkeys(bounds, options.ending_timestamp_ms)
    if times is not None:
        _check_all("endingOffsetsByTimestamp", times, bounds)
        found = source.offsets_at(times)
        return {queue: min(found.get(queue, known.end), known.end) for queue, known in bounds.items()}
    if isinstance(options.ending_offsets, str):
        return {
            queue: known.end if options.ending_offsets == LATEST else known.first
            for queue, known in bounds.items()
        }
    _check_all("endingOffsets", options.ending_offsets, bounds)
    words = {EARLIEST_OFFSET: EARLIEST, LATEST_OFFSET: LATEST}
    return {
        queue: (
            (known.first if words[offset] == EARLIEST else known.end)
            if (offset := options.ending_offsets[queue]) in words
            else offset
        )
        for queue, known in bounds.items()
    }


def _check_all(option: str, given: Mapping[QueueKey, int], bounds: Mapping[QueueKey, Bounds]) -> None:
    if missing := bounds.keys() - given.keys():
        raise OptionError(
            f"option {option} must list every queue to read: it does not list {named(min(missing))}"
        )
    if odd := given.keys() - bounds.keys():
        raise OptionError(
            f"option {option} must list every queue to read: there is no {named(min(odd))}, or it is not"
            " among the topics to read"
        )


def _clipped(queue: QueueKey, lo: int, hi: int, known: Bounds, options: ReadOptions) -> tuple[int, int]:
    """The readable part of [lo, hi). A start given as a timestamp does not require expired messages."""
    if lo < known.first and not options.start_is_timestamp and lo < hi:
        _lose(
            DataLoss(
                f"{named(queue)}: messages [{lo}, {min(hi, known.first)}) no longer exist, the first existing"
                f" one has offset {known.first}. Brokers delete messages older than fileReservedTime (72"
                " hours"
                " unless set), or earlier when the disk is full. Begin at startingOffsets=earliest, or set"
                " failOnDataLoss=false to read the remaining messages",
                queue,
                known.first,
            ),
            options,
        )
    if hi > known.end:
        _lose(
            DataLoss(
                f"{named(queue)}: messages [{max(lo, known.end)}, {hi}) do not exist, the queue ends at"
                f" {known.end}: they were not sent yet, or the topic was deleted and created again. Choose"
                " other endingOffsets, or set failOnDataLoss=false to read the existing messages",
                queue,
                known.end,
            ),
            options,
        )
    lo = max(lo, known.first)
    return lo, max(lo, min(hi, known.end))


def _lose(loss: DataLoss, options: ReadOptions) -> None:
    if options.fail_on_data_loss:
        raise loss
    log.warning("data loss, continuing without (failOnDataLoss=false): %s", loss)


def _in_time(source: Source, pushed: Pushed, ranges: list[QueueRange]) -> list[QueueRange]:
    """The ranges restricted by the filters on store times, with a margin on both sides."""
    ranges = [each for each in ranges if each.stop > each.start and pushed.keeps(each.queue)]
    if pushed.start_ms is not None and ranges:
        found = source.offsets_at(
            dict.fromkeys([each.queue for each in ranges], max(0, pushed.start_ms - TIME_PADDING_MS))
        )
        ranges = [each._replace(start=max(each.start, found.get(each.queue, each.start))) for each in ranges]
    if pushed.stop_ms is not None and ranges:
        found = source.offsets_at(
            dict.fromkeys([each.queue for each in ranges], max(0, pushed.stop_ms + TIME_PADDING_MS))
        )
        ranges = [each._replace(stop=min(each.stop, found.get(each.queue, each.stop))) for each in ranges]
    return ranges
