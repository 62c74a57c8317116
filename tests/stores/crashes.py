"""Directories of the mmap store as a killed process leaves them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import SMALL, FlushWhenWanted, running, store_config
from rmqkit_store_mmap.store import MmapStore
from tests.stores.disks import Forgetful

SEGMENT_BYTES = 66_560


FIRST = "00000000000000000000"


def make(directory: Path, **settings: Any) -> MmapStore:
    return MmapStore(
        store_config(directory, **(SMALL | settings)), FakeClock(), FlushWhenWanted(), disk=Forgetful()
    )


async def crashed_store(directory: Path, *batches: list[Any], **settings: Any) -> Path:
    """A directory as a killed process leaves it: copied while the store is open."""
    copy = directory / "crashed"
    async with running(make(directory / "live", **settings)) as store:
        for batch in batches:
            store.append(batch)
        shutil.copytree(directory / "live", copy)
    assert (copy / "abort").exists()
    return copy


def write_at(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)
