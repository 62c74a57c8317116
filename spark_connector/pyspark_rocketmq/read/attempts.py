"""Retry rules shared by pulls, sends and queries of a source. The caller does the waiting."""

from __future__ import annotations

import time
from collections.abc import Callable

from attrs import define, field, frozen

#: Minimum pause between two tries during an outage, whatever the interval is.
_LEAST_PAUSE_S = 0.05


@frozen(kw_only=True)
class Patience:
    """Limits of retrying.

    retries     tries after the first one
    interval_s  seconds between two tries
    outage_s    seconds for which an outage is waited out from its first failure, whatever `retries` is; None
                limits the tries during an outage too
    """

    retries: int
    interval_s: float
    outage_s: float | None = None


@define
class Attempts:
    """State of the tries of one call. Not safe for several tasks or threads."""

    _patience: Patience
    _now: Callable[[], float] = time.monotonic
    _made: int = field(default=0, init=False)
    _since: float | None = field(default=None, init=False)

    def pause_s(self, *, outage: bool) -> float | None:
        """Seconds to wait before the next try after a failure; None to give up.

        outage  whether the failure is an outage: no answer, or an answer that the service is unavailable now
        """
        patience = self._patience
        if outage and patience.outage_s is not None:
            now = self._now()
            self._since = now if self._since is None else self._since
            left = patience.outage_s - (now - self._since)
            return min(max(patience.interval_s, _LEAST_PAUSE_S), left) if left > 0 else None
        if self._made >= patience.retries:
            return None
        self._made += 1
        return patience.interval_s

    @property
    def waited_s(self) -> float:
        """Seconds since the outage began; 0 without one."""
        return 0.0 if self._since is None else self._now() - self._since
