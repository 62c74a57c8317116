"""The topics and queues requested by the options of a stream, and the start of a new query in each queue."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from pyspark_rocketmq.options.kinds import EARLIEST, EARLIEST_OFFSET, LATEST, LATEST_OFFSET
from pyspark_rocketmq.options.read import OptionError, ReadOptions
from pyspark_rocketmq.read.source import Bounds, QueueKey, Source, named
from pyspark_rocketmq.stream.stream_offsets import Positions


def topics_of(source: Source, options: ReadOptions) -> Sequence[str]:
    """The topics to read, sorted: those requested by name, whether they exist or not, or those that exist and
    match the pattern."""
    if options.topic_pattern is not None:
        pattern = re.compile(options.topic_pattern)
        return [topic for topic in source.topics() if pattern.fullmatch(topic)]
    return sorted({*options.topics, *(queue.topic for queue in options.assign)})


def chooser(options: ReadOptions) -> Callable[[QueueKey], bool]:
    """A test whether a queue is requested."""
    if options.assign:
        return set(options.assign).__contains__
    if options.topic_pattern is not None:
        pattern = re.compile(options.topic_pattern)
        return lambda queue: pattern.fullmatch(queue.topic) is not None
    topics = set(options.topics)
    return lambda queue: queue.topic in topics


def first_positions(source: Source, options: ReadOptions, bounds: Mapping[QueueKey, Bounds]) -> Positions:
    """The start of a new query for each existing queue. Raises OptionError when the options do not fit the
    queues."""
    if absent := set(options.assign) - bounds.keys():
        raise OptionError(f"option assign: there is no {named(min(absent))}")
    if options.starting_timestamp_ms is not None:
        return _at(source, options, bounds, dict.fromkeys(bounds, options.starting_timestamp_ms))
    if options.starting_offsets_by_timestamp is not None:
        return _at(
            source,
            options,
            bounds,
            _of_every_queue("startingOffsetsByTimestamp", options.starting_offsets_by_timestamp, bounds),
        )
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
        raise OptionError(
            f"option startingOffsets: {named(queue)} ends at offset {known.end}, but {offset} is requested;"
            " use -1 for the end"
        )
    return offset


def _at(
    source: Source, options: ReadOptions, bounds: Mapping[QueueKey, Bounds], times_ms: Mapping[QueueKey, int]
) -> Positions:
    found = source.offsets_at(times_ms)
    positions = {queue: found.get(queue, known.end) for queue, known in bounds.items()}
    if options.offsets_by_timestamp_strategy != LATEST:
        for queue, known in bounds.items():
            if positions[queue] >= known.end:
                raise OptionError(
                    f"{named(queue)} has no message that was stored at {times_ms[queue]} (ms since 1970) or"
                    " later; offsetsByTimestampStrategy=latest begins at the end instead"
                )
    return positions


def _of_every_queue(
    option: str, given: Mapping[QueueKey, int], bounds: Mapping[QueueKey, Bounds]
) -> Mapping[QueueKey, int]:
    if given.keys() == bounds.keys():
        return given
    fault = (
        "it does not list {}"
        if (missing := bounds.keys() - given.keys())
        else "there is no {}, or it is not among the topics to read"
    )
    odd = min(missing or given.keys() - bounds.keys())
    raise OptionError(f"option {option} must list every queue to read: {fault.format(named(odd))}")
