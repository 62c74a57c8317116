"""What a backup of brokers says of itself."""

from __future__ import annotations

import msgspec

#: The file that says what a backup has.
MANIFEST = "backup.json"


class BrokerBackup(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the backup of one broker has. Offsets are those of the log; `new_bytes` came with this run.

    settings  of the broker, for whoever starts one on the copy
    """

    broker: str
    cluster: str
    address: str
    store: str
    start: int
    end: int
    new_bytes: int
    topics: int
    groups: int
    settings: dict[str, str] = {}


class Manifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The file backup.json. Times are in ms since 1970."""

    finished_at: int
    rmqkit: str
    brokers: list[BrokerBackup]


__all__ = ["MANIFEST", "BrokerBackup", "Manifest"]
