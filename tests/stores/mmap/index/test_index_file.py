"""An index file goes back to an earlier state of its own, and to no other's."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqkit_store_mmap.index.entries import new_entries
from rmqkit_store_mmap.index.index_file import HEADER, IndexFile
from rmqkit_store_mmap.log.disk import Disk


def index_file(path: Path, disk: Disk | None = None) -> IndexFile:
    return IndexFile(path, 7, 50, disk or Disk())


def entries(file: IndexFile) -> list[list[int]]:
    return [list(file.find(code, 0, 1 << 60)) for code in range(20)]


@pytest.mark.row("S285", "S286")
@pytest.mark.parametrize("applied", [True, False])
def test_an_index_file_goes_back_to_an_earlier_state(tmp_path: Path, applied: bool) -> None:
    """Whether or not the slots of later entries reached the file, the chains lead to the entries of that
    time; newer ones are erased."""
    file = index_file(tmp_path / "1")
    for number in range(20):
        file.put(new_entries([(number % 13, 1000 + number, 5_000_000 + number * 1000)]))
    file.hold()
    file.flush_held()
    header, then = file.header, entries(file)
    for number in range(20, 49):
        file.put(new_entries([(number % 13, 1000 + number, 5_000_000 + number * 1000)]))
    file.hold()
    if applied:
        file.flush_held()
    assert file.full
    file.close()
    file = index_file(tmp_path / "1")
    assert file.restore(header)
    assert (file.header, entries(file)) == (header, then)
    assert not any((tmp_path / "1").read_bytes()[-29 * 20 :])
    file.put(new_entries([(3, 2000, 5_000_000)]))
    assert list(file.find(3, 0, 1 << 60)) == [2000, *then[3]]
    file.close()


def test_an_index_file_refuses_the_header_of_another(tmp_path: Path) -> None:
    """A file created again, or with fewer entries, is not a later state of the marked one; it is left
    unchanged."""
    file = index_file(tmp_path / "1")
    for number in range(5):
        file.put(new_entries([(number, 1000 + number, 5_000_000)]))
    file.write_header()
    begin, end, begin_offset, end_offset, used, count = HEADER.unpack(file.header)
    before = (tmp_path / "1").read_bytes()
    for other in (
        HEADER.pack(begin + 1, end, begin_offset, end_offset, used, count),
        HEADER.pack(begin, end, begin_offset + 1, end_offset, used, count),
        HEADER.pack(begin, end, begin_offset, end_offset, used, count + 1),
        bytes(40),
    ):
        assert not file.restore(other)
    assert (tmp_path / "1").read_bytes() == before
    file.close()


def test_slots_are_on_the_device_before_what_they_named_is_erased(tmp_path: Path) -> None:
    """Otherwise a second power failure would find slots that name erased entries, and lose the rest of their
    chains."""

    class Keeping(Disk):
        def __init__(self) -> None:
            self.synced: list[bytes] = []

        def sync(self, fd: int) -> None:
            self.synced.append((tmp_path / "1").read_bytes())

    disk = Keeping()
    file = index_file(tmp_path / "1", disk)
    for number in range(10):
        file.put(new_entries([(number % 3, 1000 + number, 5_000_000)]))
    file.hold()
    file.flush_held()
    header = file.header
    for number in range(10, 20):
        file.put(new_entries([(number % 3, 1000 + number, 5_000_000)]))
    file.hold()
    file.flush_held()
    late = disk.synced[-1]
    assert file.restore(header)
    entries_at = 40 + 7 * 4
    assert disk.synced[-1][entries_at:] == late[entries_at:]
    assert disk.synced[-1][40:entries_at] != late[40:entries_at]
    file.close()
