"""How much cold data groups have read in the present round, and how much they may (Java:
ColdDataCgCtrService, SimpleColdCtrStrategy, PIDAdaptiveColdCtrStrategy; behaviour sheet, C12).

A group has the threshold that an administrator has set for it; else, with `coldCtrStrategyEnable`, one that
grows while the broker reads less than it may, and shrinks while it reads more; else that of all groups.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from attrs import define, field

from rmqkit_protection.cold_settings import ColdReadSettings

#: A group that has read no cold data for so long is forgotten.
_RESIDE_MS = 60_000
#: Groups beyond this number get no threshold of their own.
MAX_GROUPS = 10_000
_MORE, _LESS = 1.5, 0.8
#: How many thresholds shrink in a round at most, the highest first.
_SHRINKING = 3
#: The part of the global threshold that the controller aims at, the rounds that it looks back, and the
#: weights of the present error, of the errors of these rounds, and of the last change.
_AIM = 0.8
_ROUNDS = 10
_PRESENT, _PAST, _CHANGE = 0.5, 0.3, 0.2


@define
class ColdRead:
    """What a group has read in this round, in bytes. Times are in ms since 1970."""

    created_ms: int
    last_ms: int
    size_bytes: int = 0


@define
class ColdBudget:
    """`thresholds` are those that an administrator has set, `adapted` those that the strategy has."""

    settings: ColdReadSettings = field(factory=ColdReadSettings)
    groups: dict[str, ColdRead] = field(factory=dict)
    thresholds: dict[str, int] = field(factory=dict)
    adapted: dict[str, int] = field(factory=dict)
    total_bytes: int = 0
    _errors: deque[int] = field(factory=lambda: deque(maxlen=_ROUNDS))

    def threshold(self, group: str) -> int:
        """The bytes of cold data that a group may read in a round."""
        found = self.thresholds.get(group)
        if found is None and self.settings.cold_ctr_strategy_enable:
            found = self.adapted.get(group)
        return self.settings.cg_cold_read_threshold if found is None else found

    def is_used_up(self, group: str) -> bool:
        """Whether the group may read no further cold data in this round. One that has read none may."""
        read = self.groups.get(group)
        if read is None:
            return False
        return (
            read.size_bytes >= self.threshold(group)
            or self.total_bytes >= self.settings.global_cold_read_threshold
        )

    def add(self, group: str, size_bytes: int, now_ms: int) -> None:
        """Count cold data that a group has read."""
        self.total_bytes += size_bytes
        read = self.groups.get(group)
        if read is None:
            read = self.groups[group] = ColdRead(now_ms, now_ms)
        read.size_bytes += size_bytes
        read.last_ms = now_ms

    def next_round(self, now_ms: int) -> None:
        """Begin a round: adapt thresholds to what was read in the last one, and count from 0."""
        adapts = self.settings.cold_ctr_strategy_enable
        if adapts:
            self._errors.append(round(self.settings.global_cold_read_threshold * _AIM) - self.total_bytes)
        else:
            self.adapted.clear()
        may_grow = adapts and not self._is_over() and self._may_grow()
        for group, read in list(self.groups.items()):
            if now_ms >= read.last_ms + _RESIDE_MS:
                self.adapted.pop(group, None)
                del self.groups[group]
            elif may_grow and group not in self.thresholds and read.size_bytes >= self.threshold(group):
                self.adapted[group] = int(self.threshold(group) * _MORE)
            read.size_bytes = 0
        if adapts and self._must_shrink():
            self._shrink(sorted(self.adapted, key=self.adapted.__getitem__, reverse=True)[:_SHRINKING])
        self.total_bytes = 0

    def _shrink(self, groups: Iterable[str]) -> None:
        for group in groups:
            less = int(self.adapted[group] * _LESS)
            self.adapted[group] = max(less, self.settings.cg_cold_read_threshold)

    def _is_over(self) -> bool:
        return self.total_bytes > self.settings.global_cold_read_threshold

    def _may_grow(self) -> bool:
        return not self.settings.use_pid_cold_ctr_strategy or self._control() > 0

    def _must_shrink(self) -> bool:
        return self._control() < 0 if self.settings.use_pid_cold_ctr_strategy else self._is_over()

    def _control(self) -> float:
        """The output of the PID controller: above 0, more may be read; 0 until it has seen enough rounds."""
        errors = self._errors
        if len(errors) < _ROUNDS:
            return 0.0
        return _PRESENT * errors[-1] + _PAST * sum(errors) + _CHANGE * (errors[-1] - errors[-2])


__all__ = ["MAX_GROUPS", "ColdBudget", "ColdRead"]
