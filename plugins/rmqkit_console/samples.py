"""What the console remembers of the rates of brokers: a sample in each interval, for as long as the newest
`MAX_SAMPLES` reach back."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping

import trio
from attrs import frozen

from rmqkit.client import Admin, RmqError, broker_views

_log = logging.getLogger(__name__)
MAX_SAMPLES = 360
#: Brokers of which a sample keeps rates, the first by name.
MAX_BROKERS = 64


@frozen
class Rates:
    """Messages per second that a broker stored and gave to consumers."""

    stored: float
    fetched: float


@frozen
class Sample:
    """The rates of the brokers that answered, by name, and when they were asked (ms since 1970)."""

    time_ms: int
    rates: Mapping[str, Rates]


class Samples:
    """The samples, oldest first."""

    def __init__(self, admin: Callable[[], Admin], now_ms: Callable[[], int]) -> None:
        self._admin = admin
        self._now_ms = now_ms
        self._kept: deque[Sample] = deque(maxlen=MAX_SAMPLES)

    @property
    def kept(self) -> tuple[Sample, ...]:
        return tuple(self._kept)

    async def take(self) -> None:
        """Ask the brokers once. A cluster that does not answer leaves a sample without rates."""
        try:
            found = await broker_views.broker_states(self._admin())
        except RmqError as error:
            _log.debug("no sample: %s", error)
            self.keep(Sample(self._now_ms(), {}))
            return
        rates = {each.broker: rates_of(each.runtime) for each in found.states[:MAX_BROKERS]}
        self.keep(Sample(self._now_ms(), rates))

    def keep(self, sample: Sample) -> None:
        """Add a sample; the oldest one may be forgotten."""
        self._kept.append(sample)

    async def run(self, interval_s: float) -> None:
        """Take samples until cancelled."""
        while True:
            await self.take()
            await trio.sleep(interval_s)


def rates_of(runtime: Mapping[str, str]) -> Rates:
    """The rates of the last ten seconds, from a broker's run-time figures. Brokers of RocketMQ 4 spell the
    key of the second one with one r."""
    transferred = runtime.get("getTransferredTps") or runtime.get("getTransferedTps", "")
    return Rates(_first(runtime.get("putTps", "")), _first(transferred))


def _first(text: str) -> float:
    try:
        return float(text.split()[0])
    except (IndexError, ValueError):
        return 0.0


__all__ = ["MAX_SAMPLES", "Rates", "Sample", "Samples", "rates_of"]
