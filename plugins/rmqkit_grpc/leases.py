"""Leases that the server renews for a client: push consumers receive with `auto_renew`, and keep a message
for as long as they work on it (gRPC sheet, section 8). Times are in ms of the broker's clock.

The broker keeps a lease valid under its first handle, so only times are kept here. Each renewal is short: the
messages of a client that is killed are delivered again soon.
"""

from __future__ import annotations

from typing import NamedTuple

from rmqkit_grpc.handles import Handle
from rmqkit_grpc.limits import MAX_RENEWALS_MS, MAX_RENEWED, RENEW_BEFORE_MS

#: Group, topic that the message was read from, lite topic, queue, offset.
Key = tuple[str, str, str | None, int, int]


class Lease(NamedTuple):
    """One leased message. `topic` is that of the subscription."""

    group: str
    topic: str
    handle: Handle
    since_ms: int
    until_ms: int


class Leases:
    """The leases of one client."""

    def __init__(self) -> None:
        self._leases: dict[Key, Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def room(self) -> int:
        """How many more can be renewed."""
        return MAX_RENEWED - len(self._leases)

    def add(self, group: str, topic: str, handle: Handle, now_ms: int) -> None:
        """A message was delivered."""
        until_ms = handle.receipt.pop_time_ms + handle.receipt.invisible_ms
        self._leases[_key(group, topic, handle)] = Lease(group, topic, handle, now_ms, until_ms)

    def forget(self, group: str, topic: str, handle: Handle) -> None:
        """A message is finished, or its client has changed its lease."""
        self._leases.pop(_key(group, topic, handle), None)

    def renewed(self, lease: Lease, until_ms: int) -> None:
        """The broker has moved the end of a lease."""
        key = _key(lease.group, lease.topic, lease.handle)
        if key in self._leases:
            self._leases[key] = lease._replace(until_ms=until_ms)

    def due(self, now_ms: int) -> list[Lease]:
        """The leases that end soon and are to be renewed. Those that have ended are forgotten, and those of a
        client that has worked on its message for too long."""
        found = []
        for key, lease in list(self._leases.items()):
            if now_ms >= lease.until_ms or now_ms - lease.since_ms > MAX_RENEWALS_MS:
                del self._leases[key]
            elif lease.until_ms - now_ms <= RENEW_BEFORE_MS:
                found.append(lease)
        return found

    def take(self) -> list[Lease]:
        """All leases, which are the client's no longer."""
        found = list(self._leases.values())
        self._leases.clear()
        return found


def _key(group: str, topic: str, handle: Handle) -> Key:
    receipt = handle.receipt
    assert receipt.offset is not None, "it was checked"
    return group, receipt.topic(topic, group), handle.lite_topic, receipt.queue_id, receipt.offset


__all__ = ["Lease", "Leases"]
