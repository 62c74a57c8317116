"""A write that stopped at any byte, of several records, or across the end of a segment."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from rmqkit.model.message import PutMessage
from rmqkit.protocol.record import BLANK_BYTES, MAGIC_BLANK
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import SMALL, FlushWhenWanted, bodies, message, running, store_config
from rmqkit_store_mmap.store import MmapStore
from tests.stores.disks import Forgetful

_SEGMENT_BYTES = 66_560


def make(directory: Path) -> MmapStore:
    return MmapStore(store_config(directory, **SMALL), FakeClock(), FlushWhenWanted(), disk=Forgetful())


def segment(directory: Path, number: int) -> Path:
    return directory / "commitlog" / f"{number * _SEGMENT_BYTES:020d}"


async def crashed(
    directory: Path, before: Sequence[PutMessage], last: Sequence[PutMessage]
) -> tuple[Path, list[tuple[int, int]]]:
    """The directory left by a process killed right after the append of `last`, and where the records of that
    append begin and end."""
    async with running(make(directory / "live")) as store:
        for one in before:
            store.append([one])
        results = store.append(last)
        shutil.copytree(directory / "live", directory / "crashed")
    return directory / "crashed", [(at.physical_offset, at.physical_offset + at.size_bytes) for at in results]


async def check_torn(
    source: Path, end: int, kept: Sequence[bytes], lost: Sequence[bytes], next_at: int
) -> None:
    """Open `source` without the bytes of its log from `end` on: exactly `kept` exists, the next message is
    stored at `next_at`, and a further crash restores none of `lost`."""
    directory = source.with_name("torn")
    shutil.copytree(source, directory)
    for number in range(2):
        path = segment(directory, number)
        cut = max(0, end - number * _SEGMENT_BYTES)
        if path.exists() and cut < _SEGMENT_BYTES:
            with path.open("r+b") as file:
                file.truncate(cut)
                file.truncate(_SEGMENT_BYTES)
    async with running(make(directory)) as store:
        assert bodies(store) == kept, f"cut at {end}"
        for number, body in enumerate([*kept, *lost]):
            found = store.query_by_key("Orders", f"k{number}", 0, 1 << 60, 9).physical_offsets
            assert len(found) == (body in kept), f"cut at {end}: the key of message {number} finds {found}"
        (at,) = store.append([message(body=b"next")])
        assert (at.queue_offset, at.physical_offset) == (len(kept), next_at), f"cut at {end}"
    (directory / "abort").write_text("1")
    async with running(make(directory)) as store:
        assert bodies(store) == [*kept, b"next"], f"cut at {end}"
    shutil.rmtree(directory)


@pytest.mark.row("S258")
async def test_a_batch_torn_at_any_byte(tmp_path: Path) -> None:
    """The complete records of a batch stay; the torn one and those after it are removed and do not
    reappear."""
    given = [message(body=b"%d" % number * (number + 1), keys=f"k{number}") for number in range(4)]
    source, places = await crashed(tmp_path, given[:1], given[1:])
    for end in range(places[0][0], places[-1][1]):
        whole = 1 + sum(stop <= end for _, stop in places)
        everything = [one.body for one in given]
        next_at = places[whole - 1][0]
        await check_torn(source, end, everything[:whole], everything[whole:], next_at)


@pytest.mark.row("S258")
async def test_a_write_over_the_end_of_a_segment_torn_at_any_byte(tmp_path: Path) -> None:
    """Whatever is missing of the last record of a segment, the blank record and the first record of the next
    segment, the log continues at its end."""
    filler = [message(body=b"x" * 900, keys=f"k{number}") for number in range(65)]
    last = [message(body=b"a", keys="k65"), message(body=b"b" * 900, keys="k66")]
    source, places = await crashed(tmp_path, filler, last)
    (start, stop), (first, end) = places
    assert first == _SEGMENT_BYTES
    assert int.from_bytes(segment(source, 0).read_bytes()[stop + 4 : stop + 8], "big") == MAGIC_BLANK
    everything = [one.body for one in (*filler, *last)]
    for cut in [*range(start, stop + BLANK_BYTES), *range(first, end, 7), end - 1]:
        whole = 65 + (cut >= stop)
        if cut < stop:
            next_at = start
        elif cut < stop + BLANK_BYTES:
            next_at = stop
        else:
            next_at = first
        await check_torn(source, cut, everything[:whole], everything[whole:], next_at)
