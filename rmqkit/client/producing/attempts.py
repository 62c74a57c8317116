"""The attempts of one send: their number, their time limit, and the pauses between them (behaviour sheet,
A7).

An attempt is a request that may have reached a broker. A refused connection sent nothing, so it costs time
but is not counted. Failed brokers are avoided while others remain, which are tried at once. When all brokers
have failed, the next attempt waits (`backoff_s`), so that a restarting broker does not use up all attempts.
All of this happens within the time-out of the send.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable

import anyio

from rmqkit.errors import ConnectFailed, NoMaster, RmqError, SendFailed

#: The first pause, doubled for each further one up to the longest. Jitter removes up to half of each pause,
#: so that the producers of a restarted broker do not all return at the same time.
FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 0.5


def backoff_s(pauses: int, jitter: Callable[[], float] = random.random) -> float:
    """The pause that follows `pauses` earlier ones, in seconds. `jitter` returns a number from 0 to 1."""
    # The exponent is bounded as well: 2.0 ** 1024 overflows, and a long time-out could get there.
    whole_s = min(FIRST_BACKOFF_S * 2.0 ** min(pauses, 16), LONGEST_BACKOFF_S)
    return whole_s * (1 - jitter() / 2)


class Attempts:
    """State of the attempts of one send.

    budget_ms  time limit for the whole send, pauses included
    most       maximum number of attempts
    patient    whether a refused connection, or the absence of a master, does not count as an attempt
    now        the clock of the event loop in seconds
    deadline_s end of the time limit, by the clock of the event loop; default: `budget_ms` from now on
    """

    __slots__ = (
        "_failures", "_last", "_last_broker", "_left", "_now", "_patient", "_pauses", "budget_ms",
        "deadline_s", "failed",
    )  # fmt: skip

    def __init__(
        self,
        budget_ms: int,
        most: int,
        now: Callable[[], float],
        *,
        patient: bool,
        deadline_s: float | None = None,
    ) -> None:
        self.budget_ms = budget_ms
        #: Brokers that failed since the last pause, and the one that failed before it.
        self.failed: set[str] = set()
        self.deadline_s = now() + budget_ms / 1000 if deadline_s is None else deadline_s
        self._now = now
        self._left = most
        self._patient = patient
        self._pauses = 0
        self._last: RmqError | None = None
        self._last_broker = ""
        self._failures: list[tuple[str, int]] = []

    @property
    def left_ms(self) -> int:
        """The remaining time in ms."""
        return int((self.deadline_s - self._now()) * 1000)

    @property
    def goes_on(self) -> bool:
        """Whether another attempt may be made. Records when the time is used up."""
        if self._left <= 0:
            return False
        if self.left_ms <= 0:
            self._note(f"the {self.budget_ms} ms for the send are used up")
            return False
        return True

    def failure(self, broker: str, error: RmqError) -> None:
        """Record that an attempt, or connecting for it, failed."""
        self._last = error
        self.avoid(broker)
        free = self._patient and isinstance(error, ConnectFailed)
        self._note(f"{broker}: {error}", again=free)
        if not free:
            self._left -= 1

    def no_master(self, error: NoMaster) -> None:
        """Record that there was no broker to send to. The next attempt may find one, and it counts as one
        unless the send is patient."""
        self._last = error
        self._note(str(error), again=True)
        if not self._patient:
            self._left -= 1

    def avoid(self, broker: str) -> None:
        """Let the next attempt use another broker if there is one."""
        self.failed.add(broker)
        self._last_broker = broker

    def spent(self, broker: str) -> None:
        """Count an attempt that stored the message with a weaker guarantee than requested."""
        self.avoid(broker)
        self._left -= 1

    async def pause(self, brokers: Iterable[str], changed: Callable[[], Awaitable[None]]) -> None:
        """When all of `brokers` have failed, wait before the next attempt: for the backoff, until `changed`
        returns, or until the time-out of the send."""
        if self._left <= 0 or not self.failed.issuperset(brokers):
            return
        with anyio.CancelScope(deadline=min(self._now() + backoff_s(self._pauses), self.deadline_s)):
            await changed()
        self._pauses += 1
        self.failed = {self._last_broker}

    def error(self, described: str, topic: str) -> SendFailed:
        """The error to raise when no attempt succeeded."""
        listed = "; ".join(
            f"attempt {number}: {text}" + (f" ({times} times)" if times > 1 else "")
            for number, (text, times) in enumerate(self._failures, 1)
        )
        error = SendFailed(f"sending {described} to {topic!r} failed. {listed}")
        if self._last is not None:
            error.code = self._last.code
        error.__cause__ = self._last
        return error

    def _note(self, text: str, *, again: bool = False) -> None:
        """Record a line for the error text; with `again`, repeated equal lines are recorded once."""
        for at, (noted, times) in enumerate(self._failures):
            if again and noted == text:
                self._failures[at] = (text, times + 1)
                return
        self._failures.append((text, 1))
