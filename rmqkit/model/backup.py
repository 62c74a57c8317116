"""What a backup of brokers says of itself."""

from __future__ import annotations

import msgspec

#: `BrokerBackup.accounts`: the copy has the users and policies; the broker has none; or it did not give them.
TAKEN, NONE, WITHHELD = "taken", "none", "withheld"
#: Settings of the broker that its copy has, and whoever starts one on it needs.
SIZES = ("mappedFileSizeCommitLog", "maxMessageSize")
#: The file that says what a backup has.
MANIFEST = "backup.json"


class BrokerBackup(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the backup of one broker has. Offsets are those of the log; `new_bytes` came with this run.

    accounts  TAKEN, NONE or WITHHELD; empty in a backup by an older version, which takes none
    users     the number of users that the copy has, with their passwords
    settings  of the broker, for whoever starts one on the copy, without secrets
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
    accounts: str = ""
    users: int = 0
    settings: dict[str, str] = {}


class Manifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The file backup.json. Times are in ms since 1970."""

    finished_at: int
    rmqkit: str
    brokers: list[BrokerBackup]


__all__ = ["MANIFEST", "NONE", "SIZES", "TAKEN", "WITHHELD", "BrokerBackup", "Manifest"]
