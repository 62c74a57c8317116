"""Which topics and queues the options of a stream ask for, and where a new query begins in each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from pyspark_rocketmq.option_kinds import EARLIEST, EARLIEST_OFFSET, LATEST, LATEST_OFFSET
from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.source import Bounds, QueueKey, Source, SourceError
from pyspark_rocketmq.stream_offsets import Positions


def topics_of(source: Source, options: ReadOptions) -> Sequence[str]:
    """The topics to read, sorted: those that are named, whether they are there or not, or those that are there and match."""
    if options.topic_pattern is not None:
        pattern = re.compile(options.topic_pattern)
        return [topic for topic in source.topics() if pattern.fullmatch(topic)]
    return sorted({*options.topics, *(queue.topic for queue in options.assign)})


def chooser(options: ReadOptions) -> Callable[[QueueKey], bool]:
    """Whether a queue is asked for."""
    if options.assign:
        return set(options.assign).__contains__
    if options.topic_pattern is not None:
        pattern = re.compile(options.topic_pattern)
        return lambda queue: pattern.fullmatch(queue.topic) is not None
    topics = set(options.topics)
    return lambda queue: queue.topic in topics


def first_positions(source: Source, options: ReadOptions, bounds: Mapping[QueueKey, Bounds]) -> Positions:
    """Where a new query begins, for each queue that is there. Raises SourceError when the options and the queues do not fit together."""
    if absent := set(options.assign) - bounds.keys():
        raise SourceError(f"option assign: there is no {_named(min(absent))}")
    if options.starting_timestamp_ms is not None:
        return _at(source, options, bounds, dict.fromkeys(bounds, options.starting_timestamp_ms))
    if options.starting_offsets_by_timestamp is not None:
        return _at(source, options, bounds, _of_every_queue("startingOffsetsByTimestamp", options.starting_offsets_by_timestamp, bounds))
    if options.starting_offsets == EARLIEST:
        return {queue: known.first for queue, known in bounds.items()}
    if options.starting_offsets == LATEST:
        return {queue: known.end for queue, known in bounds.items()}
    assert isinstance(options.starting_offsets, dict)
    wanted = _of_every_queue("startingOffsets", options.starting_offsets, bounds)
    return {queue: _position(queue, wanted[queue], known) for queue, known in bounds.items()}


def _position(queue: QueueKey, offset: int, known: Bounds) -> int:
    if offset == EARLIEST_OFFSET:
        return known.first
    if offset == LATEST_OFFSET:
        return known.end
    if offset > known.end:
        raise SourceError(
            f"option startingOffsets: {_named(queue)} ends at offset {known.end}, and {offset} is asked for; -1 stands for the end"
        )
    return offset


def _at(source: Source, options: ReadOptions, bounds: Mapping[QueueKey, Bounds], times_ms: Mapping[QueueKey, int]) -> Positions:
    found = source.offsets_at(times_ms)
    positions = {queue: found.get(queue, known.end) for queue, known in bounds.items()}
    if options.offsets_by_timestamp_strategy != LATEST:
        for queue, known in bounds.items():
            if positions[queue] >= known.end:
                raise SourceError(
                    f"{_named(queue)} has no message that was stored at {times_ms[queue]} (ms since 1970) or later; "
                    "offsetsByTimestampStrategy=latest begins at the end instead"
                )
    return positions


def _of_every_queue(option: str, given: Mapping[QueueKey, int], bounds: Mapping[QueueKey, Bounds]) -> Mapping[QueueKey, int]:
    if given.keys() == bounds.keys():
        return given
    fault = "it names no {}" if (missing := bounds.keys() - given.keys()) else "there is no {}, or it is not among the topics to read"
    odd = min(missing or given.keys() - bounds.keys())
    raise SourceError(f"option {option} must name each queue that is read: {fault.format(_named(odd))}")


def _named(queue: QueueKey) -> str:
    return f"queue {queue.queue_id} of topic {queue.topic} on broker {queue.broker}"
