from collections.abc import Callable

from rmqkit_store_mmap.index import entries
from rmqkit_store_mmap.index.entries import enter_listed as enter

__all__ = ["Entries", "Slots", "enter"]

Entries: entries.NewEntries
Slots: Callable[[], entries.Slots]
