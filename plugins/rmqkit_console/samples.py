"""What the console remembers of brokers and groups: a sample in each interval, for as long as the newest
`MAX_SAMPLES` reach back."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import trio
from attrs import field, frozen

from rmqkit.client import Client, RmqError, broker_views, group_views
from rmqkit_console.side_by_side import side_by_side

_log = logging.getLogger(__name__)
MAX_SAMPLES = 360
#: Brokers, and groups, that a sample keeps, the first by name.
MAX_BROKERS, MAX_GROUPS = 64, 64
#: Clients that are tried until one may see the cluster.
_MAX_TRIED = 4
#: Samples for which the names of the groups are not asked for again.
_SAME_GROUPS = 6


@frozen
class Rates:
    """Messages per second that a broker stored and gave to consumers, and the used part of its disk (0 to 1,
    None: it does not tell)."""

    stored: float
    fetched: float
    disk: float | None = None


@frozen
class Lag:
    """Messages that a group has not consumed, and the age of the first of them in ms."""

    messages: int
    behind_ms: int


@frozen
class Sample:
    """What brokers and groups told, and when they were asked (ms since 1970).

    rates     of the brokers that answered, by name
    replicas  bytes that each slave is behind, by the name of its broker and its address
    groups    by name
    """

    time_ms: int
    rates: Mapping[str, Rates]
    replicas: Mapping[str, int] = field(factory=dict)
    groups: Mapping[str, Lag] = field(factory=dict)


class Samples:
    """The samples, oldest first."""

    def __init__(self, clients: Callable[[], Sequence[Client]], now_ms: Callable[[], int]) -> None:
        """Each sample is taken with the first of the clients that may see the cluster."""
        self._clients = clients
        self._now_ms = now_ms
        self._kept: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self._names: list[str] = []
        self._names_for = 0

    @property
    def kept(self) -> tuple[Sample, ...]:
        return tuple(self._kept)

    async def take(self) -> None:
        """Ask the cluster once. One that does not answer leaves an empty sample."""
        for client in self._clients()[:_MAX_TRIED]:
            try:
                found = await broker_views.broker_states(client.admin)
            except RmqError as error:
                _log.debug("no sample: %s", error)
                continue
            if found.states:
                states = found.states[:MAX_BROKERS]
                rates = {each.broker: rates_of(each.runtime) for each in states}
                replicas = await _replicas(client, {each.broker: each.address for each in states})
                self.keep(Sample(self._now_ms(), rates, replicas, await self._groups(client)))
                return
        self.keep(Sample(self._now_ms(), {}))

    def keep(self, sample: Sample) -> None:
        """Add a sample; the oldest one may be forgotten."""
        self._kept.append(sample)

    async def run(self, interval_s: float) -> None:
        """Take samples until cancelled."""
        while True:
            await self.take()
            await trio.sleep(interval_s)

    async def _groups(self, client: Client) -> dict[str, Lag]:
        if self._names_for == 0:
            try:
                self._names = (await group_views.group_names(client.groups))[:MAX_GROUPS]
            except RmqError as error:
                _log.debug("no sample of groups: %s", error)
                self._names = []
        self._names_for = (self._names_for + 1) % _SAME_GROUPS

        async def lag(group: str) -> group_views.GroupLag:
            return await group_views.group_lag(client.groups, group)

        found = await side_by_side(lag, self._names)
        return {
            group: Lag(each.total, each.behind_ms)
            for group, each in found.items()
            if not isinstance(each, RmqError)
        }


async def _replicas(client: Client, masters: Mapping[str, str]) -> dict[str, int]:
    found = await side_by_side(client.admin.replication, masters.values())
    return {
        f"{broker} {slave.addr}": slave.diff
        for broker, address in masters.items()
        if not isinstance(status := found[address], RmqError)
        for slave in status.ha_connection_info
    }


def rates_of(runtime: Mapping[str, str]) -> Rates:
    """The rates of the last ten seconds, from a broker's run-time figures. Brokers of RocketMQ 4 spell the
    key of the second one with one r."""
    transferred = runtime.get("getTransferredTps") or runtime.get("getTransferedTps", "")
    disk = _ratio(runtime.get("commitLogDiskRatio", ""))
    return Rates(_first(runtime.get("putTps", "")), _first(transferred), disk)


def _first(text: str) -> float:
    try:
        return float(text.split()[0])
    except (IndexError, ValueError):
        return 0.0


def _ratio(text: str) -> float | None:
    """A part of a disk that is used; None when the broker does not know it."""
    try:
        found = float(text)
    except ValueError:
        return None
    return found if 0 <= found <= 1 else None


__all__ = ["MAX_SAMPLES", "Lag", "Rates", "Sample", "Samples", "rates_of"]
