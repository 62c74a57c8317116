"""Whether a broker may append and acknowledge messages now."""

from __future__ import annotations

from math import inf

import trio


class Gate:
    """One broker's permission to append and to acknowledge.

    refusal     the reason why the broker's role permits neither; None if it permits both
    until_s     the end of the permission, as `trio.current_time`; infinite without an election
    is_limited  whether one of them has to be looked at; False for a master without an election
    closings    the number of times that the permission has ended
    """

    def __init__(self) -> None:
        self.refusal: str | None = None
        self.until_s = inf
        self.is_limited = False
        self.closings = 0

    def open(self, until_s: float) -> None:
        """Permit both until a deadline."""
        self.refusal, self.until_s, self.is_limited = None, until_s, until_s != inf

    def close(self, refusal: str) -> None:
        """Permit neither from now on."""
        self.refusal, self.until_s, self.is_limited = refusal, inf, True
        self.closings += 1

    def closed(self) -> str | None:
        """The reason why nothing may be appended or acknowledged now; None if it may. The clock is read only
        where there is a deadline."""
        if self.refusal is not None:
            return self.refusal
        if self.until_s != inf and trio.current_time() >= self.until_s:
            return "this broker was the master until now and has not been confirmed: it takes no messages"
        return None


__all__ = ["Gate"]
