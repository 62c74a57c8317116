"""How fast a member pulls and consumes each topic (Java: ConsumerStatsManager, ConsumeStatus). Plain values
without I/O and timers: the caller says what time it is."""

from __future__ import annotations

from collections import deque

from attrs import Factory, define

MINUTE_S = 60.0
HOUR_S = 3600.0
#: A window moves in this many steps.
_SLOTS = 6


class SlidingWindow:
    """Sum and number of values in the last `length_s` seconds. It moves in steps of a sixth."""

    def __init__(self, length_s: float) -> None:
        self._slot_s = length_s / _SLOTS
        self._began_s: float | None = None
        #: Number of the slot, sum and number of its values.
        self._slots: deque[list[float]] = deque(maxlen=_SLOTS)

    def add(self, value: float, count: int, now_s: float) -> None:
        """Add `count` values with the sum `value`."""
        number = now_s // self._slot_s
        if self._began_s is None:
            self._began_s = now_s
        if self._slots and self._slots[-1][0] == number:
            self._slots[-1][1] += value
            self._slots[-1][2] += count
        else:
            self._slots.append([number, value, count])

    def total(self, now_s: float) -> float:
        """The sum of the values."""
        return sum(slot[1] for slot in self._current(now_s))

    def mean(self, now_s: float) -> float:
        """The mean of the values; 0 if there is none."""
        slots = self._current(now_s)
        count = sum(slot[2] for slot in slots)
        return sum(slot[1] for slot in slots) / count if count else 0.0

    def per_second(self, now_s: float) -> float:
        """The sum by the length of the window, or by the time since the first value if that is shorter; one
        step at least."""
        if self._began_s is None:
            return 0.0
        length_s = min(max(now_s - self._began_s, self._slot_s), self._slot_s * _SLOTS)
        return self.total(now_s) / length_s

    def _current(self, now_s: float) -> list[list[float]]:
        oldest = now_s // self._slot_s - _SLOTS
        return [slot for slot in self._slots if slot[0] > oldest]


@define
class TopicStatistics:
    """The figures of one topic; round-trip times in ms."""

    pull_ms: SlidingWindow = Factory(lambda: SlidingWindow(MINUTE_S))
    pulled: SlidingWindow = Factory(lambda: SlidingWindow(MINUTE_S))
    consume_ms: SlidingWindow = Factory(lambda: SlidingWindow(MINUTE_S))
    finished: SlidingWindow = Factory(lambda: SlidingWindow(MINUTE_S))
    failed: SlidingWindow = Factory(lambda: SlidingWindow(MINUTE_S))
    failed_in_hour: SlidingWindow = Factory(lambda: SlidingWindow(HOUR_S))

    def described(self, now_s: float) -> dict[str, float | int]:
        """The means and rates by the names that administrators get (Java: ConsumeStatus)."""
        return {
            "pullRT": self.pull_ms.mean(now_s),
            "pullTPS": self.pulled.per_second(now_s),
            "consumeRT": self.consume_ms.mean(now_s),
            "consumeOKTPS": self.finished.per_second(now_s),
            "consumeFailedTPS": self.failed.per_second(now_s),
            "consumeFailedMsgs": int(self.failed_in_hour.total(now_s)),
        }


class ConsumeStatistics:
    """The figures of one member by topic; the retry topic has its own."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicStatistics] = {}

    def pulled(self, topic: str, messages: int, took_s: float, now_s: float) -> None:
        """Count one pull; `messages` is the number it returned."""
        of_topic = self._of(topic)
        of_topic.pull_ms.add(took_s * 1000, 1, now_s)
        of_topic.pulled.add(messages, messages, now_s)

    def consumed(self, topic: str, messages: int, took_s: float, now_s: float, *, ok: bool) -> None:
        """Count one call of a handler."""
        of_topic = self._of(topic)
        of_topic.consume_ms.add(took_s * 1000, 1, now_s)
        if ok:
            of_topic.finished.add(messages, messages, now_s)
        else:
            of_topic.failed.add(messages, messages, now_s)
            of_topic.failed_in_hour.add(messages, messages, now_s)

    def described(self, now_s: float) -> dict[str, dict[str, float | int]]:
        """The figures by topic."""
        return {topic: figures.described(now_s) for topic, figures in sorted(self._topics.items())}

    def _of(self, topic: str) -> TopicStatistics:
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = TopicStatistics()
        return found
