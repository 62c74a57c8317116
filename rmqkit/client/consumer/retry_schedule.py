"""When and where a failed message is delivered again (behaviour sheet, B11). Plain values without I/O."""

from __future__ import annotations

from attrs import frozen

#: The delays of levels 1 to 18 in seconds, unless the broker is configured differently (messageDelayLevel).
LEVEL_DELAYS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
#: The broker chooses the level by the number of attempts.
BROKER_CHOOSES = 0
DEAD_LETTER = -1
#: Level of the first retry; each further one uses the next level.
FIRST_RETRY_LEVEL = 3


@frozen
class RetrySchedule:
    """The retries of a group; `max_attempts` is the number of deliveries of a message, the first one
    included, None for no limit."""

    max_attempts: int | None

    @property
    def max_reconsume_times(self) -> int:
        """The number of retries, as sent to brokers."""
        return 0x7FFFFFFF if self.max_attempts is None else self.max_attempts - 1

    def is_last(self, reconsume_times: int) -> bool:
        """Whether a message with so many earlier deliveries is delivered for the last time."""
        return reconsume_times >= self.max_reconsume_times

    def level(self, reconsume_times: int, after_s: float | None = None) -> int:
        """The delay level for a failed message: DEAD_LETTER after the last attempt, BROKER_CHOOSES without a
        requested delay, else the shortest one that is not below it, or the longest."""
        if self.is_last(reconsume_times):
            return DEAD_LETTER
        if after_s is None:
            return BROKER_CHOOSES
        levels = (number for number, delay_s in enumerate(LEVEL_DELAYS_S, 1) if delay_s >= after_s)
        return next(levels, len(LEVEL_DELAYS_S))

    def own_level(self, reconsume_times: int, level: int) -> int:
        """The level that a client writes into a retry message itself, where the broker does not choose."""
        if level != BROKER_CHOOSES:
            return level
        return min(FIRST_RETRY_LEVEL + reconsume_times, len(LEVEL_DELAYS_S))
