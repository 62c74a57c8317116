"""Counters of a broker since its start (Java: BrokerStats, BrokerStatsManager, StoreStatsService; behaviour
sheet, C11)."""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from operator import attrgetter

from rmqkit.broker.stats_items import StatsItem, StatsSet, Ticks
from rmqkit.limits import MAX_STATS_ITEMS
from rmqkit.model import names
from rmqkit.model.message import PutMessage
from rmqkit.model.run import looks
from rmqkit.plugin.store import Appended

_log = logging.getLogger(__name__)
SAMPLE_MS = 1_000
#: Windows in seconds of the rates in run-time information.
RATE_WINDOWS_S = (10, 60, 600)
_MINUTE_MS = 60_000
#: Upper bounds in ms of the put latency intervals (Java: StoreStatsService, PUT_MESSAGE_ENTIRE_TIME_BUCKETS).
_LATENCY_BOUNDS_MS = (
    *range(1, 21),
    *range(22, 51, 2),
    *range(55, 101, 5),
    *range(110, 201, 10),
    *range(250, 501, 50),
    *range(600, 1_001, 100),
    *range(2_000, 10_001, 1_000),
)
_SHOWN_BOUNDS_MS = (1, 10, 50, 100, 200, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 10_000)
_SHOWN_NAMES = (
    *("[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]"),
    *("[1~2s]", "[2~3s]", "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]"),
)


class PutTimes:
    """Times of appends until they could be acknowledged, in whole milliseconds, per minute."""

    def __init__(self) -> None:
        self._max_ms = 0
        #: Milliseconds -> number of appends.
        self._now: defaultdict[int, int] = defaultdict(int)
        self._last: Mapping[int, int] | None = None

    def add(self, seconds: float) -> None:
        """Count one append."""
        self._now[int(seconds * 1000)] += 1

    def next_minute(self) -> None:
        """End the minute: results refer to it until the next one ends."""
        self._max_ms = self.max_ms
        self._last, self._now = self._now, defaultdict(int)

    @property
    def max_ms(self) -> int:
        """The longest time since the start."""
        return max((self._max_ms, *self._now))

    def _counts(self, place: Callable[[Sequence[int], int], int], bounds: Sequence[int]) -> list[int]:
        """The counts of the last complete minute, or of the current one if there is none, between bounds."""
        counts = [0] * (len(bounds) + 1)
        for took_ms, count in (self._now if self._last is None else self._last).items():
            counts[place(bounds, took_ms)] += count
        return counts

    def percentile_ms(self, share: float) -> float:
        """The time that this share (0 to 1) of the appends did not exceed, in the last complete minute, or in
        the current one if there is none."""
        fine = self._counts(bisect_left, _LATENCY_BOUNDS_MS)
        wanted, passed, lower = int(sum(fine) * share), 0, 0
        for upper, count in zip((*_LATENCY_BOUNDS_MS, _LATENCY_BOUNDS_MS[-1]), fine, strict=True):
            if wanted <= passed + count:
                return lower + ((upper - lower) * (wanted - passed) / count if count else 0.0)
            passed, lower = passed + count, upper
        return float(lower)

    def distribution(self) -> str:
        """Counts by interval, in Java's form."""
        shown = self._counts(bisect_right, _SHOWN_BOUNDS_MS)
        return "".join(f"{name}:{count} " for name, count in zip(_SHOWN_NAMES, shown, strict=True))


class BrokerStats:
    """Counters of one broker; `advance` must be called about every second.

    Counting takes a few additions for messages stored or delivered together, whatever their number.

    topics         messages stored, by topic
    groups         messages delivered to consumers, by (group, topic)
    sent_back      messages sent back by consumers, by (group, topic)
    dead_lettered  messages moved to a dead-letter topic, by (group, topic)
    """

    def __init__(self, boot_timestamp_ms: int) -> None:
        self.boot_timestamp_ms = boot_timestamp_ms
        self.put_failures = 0
        self.found_pulls = 0
        self.missed_pulls = 0
        #: The longest read of the store for a pull, in seconds.
        self.longest_read_s = 0.0
        self.put_times = PutTimes()
        self._ticks = Ticks(boot_timestamp_ms)
        self.topics: StatsSet[str] = StatsSet(self._ticks, MAX_STATS_ITEMS, names.is_system_topic)
        self.groups = self._pairs()
        self.sent_back = self._pairs()
        self.dead_lettered = self._pairs()
        #: (service, whether it was kept) -> number of records that were set aside.
        self.aside: Counter[tuple[str, bool]] = Counter()
        #: Called with the internal topic, the topic and the place of a message that was delivered from one to
        #: the other.
        self.on_delivery: list[Callable[[str, str, Appended], None]] = []
        #: Called with group, topic, number and bytes of messages that were delivered together to a consumer.
        self.on_got: list[Callable[[str, str, int, int], None]] = []
        self.put_messages = 0
        self.put_bytes = 0
        self.got_messages = 0
        self.got_bytes = 0
        self._system_put = 0
        self._system_got = 0
        #: The totals as items, updated every second.
        self._puts = StatsItem(self._ticks)
        self._gets = StatsItem(self._ticks)
        self._users_puts = StatsItem(self._ticks)
        self._users_gets = StatsItem(self._ticks)
        self._samples: deque[tuple[int, int, int, int, int]] = deque(maxlen=max(RATE_WINDOWS_S) + 1)
        self._samples.append((boot_timestamp_ms, 0, 0, 0, 0))
        self._minute = boot_timestamp_ms // _MINUTE_MS
        self._day = _local_day(boot_timestamp_ms)
        #: (put, got) of users' topics at the last midnight and at the one before it; 0 when the broker was
        #: not running.
        self.this_morning = (0, 0)
        self.yesterday_morning = (0, 0)

    # Counting.

    def delivered(self, source: str, topic: str, at: Appended) -> None:
        """One message of an internal topic was stored under its own."""
        for tell in self.on_delivery:
            tell(source, topic, at)

    def put_many(self, messages: Sequence[PutMessage], results: Sequence[Appended]) -> None:
        """Messages were stored together."""
        topics = looks.topics_of(messages)
        if len(topics) != 1:
            self._put_topics(messages, results)
            return
        topic = topics[0]
        if topic.startswith(names.LITE_PREFIX):
            topic = names.owning_topic(topic)
        item = self.topics[topic]
        count, size_bytes = len(messages), looks.total_bytes_of(results)
        item.add(count, size_bytes)
        self.put_messages += count
        self.put_bytes += size_bytes
        if item.of_system:
            self._system_put += count

    def _put_topics(self, messages: Sequence[PutMessage], results: Sequence[Appended]) -> None:
        """Count messages of several topics: neighbours of one topic count as stored together."""
        start = 0
        for _, group in groupby(messages, key=attrgetter("topic")):
            size = len([*group])
            self.put_many(messages[start : start + size], results[start : start + size])
            start += size

    def got(self, group: str, topic: str, messages: int, size_bytes: int) -> None:
        """Count messages delivered together to a consumer."""
        item = self.groups[group, topic]
        item.add(messages, size_bytes)
        self.got_messages += messages
        self.got_bytes += size_bytes
        if item.of_system:
            self._system_got += messages
        for tell in self.on_got:
            tell(group, topic, messages, size_bytes)

    def put_failed(self) -> None:
        """A send was not stored."""
        self.put_failures += 1

    def read_took(self, seconds: float) -> None:
        """The store was read for a pull."""
        if seconds > self.longest_read_s:
            self.longest_read_s = seconds

    def set_aside(self, service: str, *, kept: bool) -> None:
        """A service could not pass on a record; it was kept aside, or is gone."""
        self.aside[service, kept] += 1

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted."""
        self.topics.forget(lambda key: key == topic)
        for pairs in (self.groups, self.sent_back, self.dead_lettered):
            pairs.forget(lambda key: key[1] == topic)

    def forget_group(self, group: str) -> None:
        """A group was deleted."""
        for pairs in (self.groups, self.sent_back, self.dead_lettered):
            pairs.forget(lambda key: key[0] == group)

    # Time.

    def advance(self, now_ms: int) -> None:
        """Sample the totals once per second, and record them at local midnight."""
        self._sum_up()
        self._ticks.advance(now_ms)
        if now_ms - self._samples[-1][0] < SAMPLE_MS:
            return
        self._samples.append(
            (now_ms, self.put_messages, self.found_pulls, self.missed_pulls, self.got_messages)
        )
        if now_ms // _MINUTE_MS > self._minute:
            self._minute = now_ms // _MINUTE_MS
            self.put_times.next_minute()
        day = _local_day(now_ms)
        if day > self._day:
            self._day = day
            self._morning()

    def _sum_up(self) -> None:
        put, got = self.users_totals
        for item, count, size_bytes in (
            (self._puts, self.put_messages, self.put_bytes),
            (self._gets, self.got_messages, self.got_bytes),
            (self._users_puts, put, 0),
            (self._users_gets, got, 0),
        ):
            if count != item.count:
                item.add(count - item.count, size_bytes - item.size_bytes)

    def _pairs(self) -> StatsSet[tuple[str, str]]:
        return StatsSet(self._ticks, MAX_STATS_ITEMS, lambda pair: names.is_system_topic(pair[1]))

    def _morning(self) -> None:
        """Java: BrokerStats.record."""
        self.yesterday_morning, self.this_morning = self.this_morning, self.users_totals
        put, got = (
            now - before for now, before in zip(self.this_morning, self.yesterday_morning, strict=True)
        )
        _log.info("yesterday %d messages were stored and %d were given to consumers", put, got)

    # Queries.

    @property
    def users_totals(self) -> tuple[int, int]:
        """Messages put to and got from users' topics."""
        return self.put_messages - self._system_put, self.got_messages - self._system_got

    def rates(self) -> Iterator[tuple[float, float, float, float]]:
        """Per second over each of RATE_WINDOWS_S or since the start: messages put, successful pulls, empty
        pulls, and messages got."""
        last = self._samples[-1]
        for window_s in RATE_WINDOWS_S:
            first = self._samples[max(len(self._samples) - 1 - window_s, 0)]
            elapsed_s = (last[0] - first[0]) / 1000
            put, found, missed, got = (
                (new - old) / elapsed_s if elapsed_s else 0.0
                for new, old in zip(last[1:], first[1:], strict=True)
            )
            yield put, found, missed, got

    def view(self, name: str, key: str, cluster: str) -> StatsItem | None:
        """The item for a name and key of VIEW_BROKER_STATS_DATA; None if it was never counted."""
        if key == cluster and name in (totals := self._totals()):
            return totals[name]
        topic, _, group = key.partition("@")
        kind = name.removesuffix("_NUMS").removesuffix("_SIZE")
        if kind == "TOPIC_PUT":
            return self.topics.get(key)
        pairs = {"GROUP_GET": self.groups, "SNDBCK_PUT": self.sent_back, "DLQ_PUT": self.dead_lettered}.get(
            kind
        )
        return None if pairs is None else pairs.get((group, topic))

    def _totals(self) -> dict[str, StatsItem]:
        self._sum_up()
        return {
            "BROKER_PUT_NUMS": self._puts,
            "BROKER_GET_NUMS": self._gets,
            "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC": self._users_puts,
            "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC": self._users_gets,
        }


def _local_day(now_ms: int) -> int:
    return datetime.fromtimestamp(now_ms / 1000).toordinal()
