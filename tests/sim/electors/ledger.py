"""The coordinator of a simulation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rmqkit_failover.coordinator import Entry, Put, Snapshot

#: Time of a lease.
TTL_S = 5.0


class Ledger:
    """The coordinator: keys, leases and transactions."""

    def __init__(self) -> None:
        self.revision = 0
        self.entries: dict[str, Entry] = {}
        self.leases: dict[int, float] = {}

    def expire(self, now_s: float) -> None:
        for lease in [each for each, until_s in self.leases.items() if until_s <= now_s]:
            del self.leases[lease]
            self._delete([key for key, entry in self.entries.items() if entry.lease == lease])

    def grant(self, now_s: float) -> int:
        lease = self.revision * 1_000 + len(self.leases) + 1
        while lease in self.leases:
            lease += 1
        self.revision += 1
        self.leases[lease] = now_s + TTL_S
        return lease

    def renew(self, lease: int, now_s: float) -> bool:
        if lease in self.leases:
            self.leases[lease] = now_s + TTL_S
        return lease in self.leases

    def write(self, conditions: Mapping[str, int], changes: Sequence[Put]) -> bool:
        if any(each.lease and each.lease not in self.leases for each in changes):
            return False
        for key, revision in conditions.items():
            if (self.entries[key].revision if key in self.entries else 0) != revision:
                return False
        self.revision += 1
        for change in changes:
            self.entries[change.key] = Entry(change.value, self.revision, change.lease)
        return True

    def _delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            del self.entries[key]
            self.revision += 1

    def snapshot(self) -> Snapshot:
        return Snapshot(self.revision, dict(self.entries))
