"""The contract of a message store, as tests: subclass `StoreContract`, say how a store is made, and pytest
runs them over it.

class TestMine(StoreContract):
    persistent = True

    def make_store(self, directory: Path, clock: FakeClock, **settings: Any) -> MessageStore:
        config = store_config(directory, **settings)
        return MyStore(config, clock, NeverFlush())
"""

from __future__ import annotations

from rmqkit.testing.store.appending import Appending
from rmqkit.testing.store.cleaning import Cleaning
from rmqkit.testing.store.finding import Finding
from rmqkit.testing.store.kit import (
    ALL,
    SMALL,
    SMALL_INDEX,
    CommitWhenWanted,
    FlushWhenWanted,
    NeverFlush,
    as_keys,
    bodies,
    contents,
    message,
    put,
    records,
    running,
    store_config,
)
from rmqkit.testing.store.opening import Opening
from rmqkit.testing.store.reading import Reading
from rmqkit.testing.store.replicating import Replicating
from rmqkit.testing.store.safety import Safety


class StoreContract(Appending, Reading, Finding, Safety, Cleaning, Opening, Replicating):
    """The tests that every message store must pass. `persistent` adds the tests that open a directory
    again."""


__all__ = [
    "ALL",
    "SMALL",
    "SMALL_INDEX",
    "CommitWhenWanted",
    "FlushWhenWanted",
    "NeverFlush",
    "StoreContract",
    "as_keys",
    "bodies",
    "contents",
    "message",
    "put",
    "records",
    "running",
    "store_config",
]
