"""When a repeating message is delivered: an interval or a cron expression, from a first time on.

`RMQKIT_REPEAT` is an interval (`30s`, `5m`, `1h`, `1d`, `1500ms`), or a cron expression of five fields, or of
six with seconds in front. Cron counts in UTC, or in a time zone that stands before it:
`Europe/Paris 0 9 * * *`.

A schedule is evaluated anew from any time on, without what was before: the broker that delivers, the one that
takes a recall, and their successors compute the same times.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

from attrs import frozen

from rmqkit.errors import DecodeError, how_to_install
from rmqkit.model.spans import span_ms

#: The shortest and the longest interval, and how far ahead the first time may be.
LEAST_MS: Final = 1_000
MOST_MS: Final = 366 * 86_400_000
#: How often a message may be delivered at most, where a number is given.
MOST_TIMES: Final = 1_000_000
#: A message waits at most this long in one place. It is then put again, so that it is never older than the
#: log.
HOP_MS: Final = 3_600_000
_CRON_FIELDS: Final = (5, 6)
_MOST_CRON_CHARACTERS: Final = 256
_NUMBER: Final = re.compile(r"[0-9]{1,15}")
#: The latest first time, centuries before Python's last year.
_LATEST_MS: Final = 200_000_000_000_000


@frozen
class Interval:
    """Every so many ms."""

    every_ms: int

    def after(self, time_ms: int, first_ms: int) -> int | None:
        """The first time behind `time_ms`; the times begin at `first_ms`."""
        if time_ms < first_ms:
            return first_ms
        return first_ms + ((time_ms - first_ms) // self.every_ms + 1) * self.every_ms


@frozen
class Cron:
    """A cron expression in a time zone."""

    expression: str
    zone: tzinfo

    def after(self, time_ms: int, first_ms: int) -> int | None:
        """The first time behind `time_ms` that is not before `first_ms`; None when there is none in the next
        fifty years."""
        from cronsim import CronSim

        start_ms = max(time_ms, first_ms - 1)
        # A time within a second is behind the start of that second.
        start = datetime.fromtimestamp(start_ms // 1000, self.zone)
        found = next(iter(CronSim(self.expression, start)), None)
        return None if found is None else int(found.timestamp()) * 1000


@frozen
class Schedule:
    """The times of one message; they begin at `first_ms`."""

    rule: Interval | Cron
    first_ms: int

    def after(self, time_ms: int) -> int | None:
        """The first time of delivery behind `time_ms`; None when there is none."""
        return self.rule.after(time_ms, self.first_ms)

    def has_between(self, start_ms: int, end_ms: int) -> bool:
        """Whether the message is delivered at one of these moments, or between them."""
        found = self.after(start_ms - 1)
        return found is not None and found <= end_ms

    def stop_after(self, time_ms: int) -> int | None:
        """Where the message waits next behind `time_ms`: until its next delivery, or until the end of a hop.
        None when there is no further delivery."""
        found = self.after(time_ms)
        return None if found is None else min(found, (time_ms // HOP_MS + 1) * HOP_MS)


def parse(text: str) -> Interval | Cron:
    """The rule that a text means. Raises DecodeError, which says what is wrong."""
    every_ms = span_ms(text)
    if every_ms is not None:
        if not LEAST_MS <= every_ms <= MOST_MS:
            raise DecodeError(f"the interval {text!r} is not between 1 s and 366 days")
        return Interval(every_ms)
    words = text.split(" ")
    if len(text) > _MOST_CRON_CHARACTERS or not all(words) or not text.isascii():
        raise _unreadable(text)
    zone: tzinfo = UTC
    if len(words) > 1 and words[0][0].isalpha():
        # No field of minutes or seconds begins with a letter.
        zone, words = _zone(words[0]), words[1:]
    if len(words) not in _CRON_FIELDS:
        raise _unreadable(text)
    return _cron(" ".join(words), zone)


def _unreadable(text: str) -> DecodeError:
    return DecodeError(
        f"{text[:_MOST_CRON_CHARACTERS]!r} is neither an interval (30s, 5m, 1h) nor a cron expression of five"
        " fields (0 9 * * 1-5), or six with seconds, with or without a time zone before it (Europe/Paris)"
    )


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError) as error:
        raise DecodeError(f"there is no time zone {name!r}") from error


def _cron(expression: str, zone: tzinfo) -> Cron:
    try:
        from cronsim import CronSim, CronSimError
    except ModuleNotFoundError:
        raise DecodeError(
            f"this broker has no cron expressions, only intervals such as 30s: {how_to_install('cron')}"
        ) from None
    try:
        CronSim(expression, datetime.fromtimestamp(0, zone))
    except CronSimError as error:
        raise DecodeError(f"the cron expression {expression!r} is wrong: {error}") from error
    return Cron(expression, zone)


def schedule(rule: str, first: str) -> Schedule:
    """The schedule of a rule, with the text of its first time in ms. Raises DecodeError."""
    return Schedule(parse(rule), _first_ms(first))


def _first_ms(text: str) -> int:
    if not _NUMBER.fullmatch(text) or int(text) > _LATEST_MS:
        raise DecodeError(f"a repeating message has the first time {text!r}")
    return int(text)


__all__ = ["HOP_MS", "LEAST_MS", "MOST_MS", "MOST_TIMES", "Cron", "Interval", "Schedule", "parse", "schedule"]
