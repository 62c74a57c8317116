"""Removing files from memory, also mapped ones."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from benchmarks import cold

SIZE = 1 << 20


def filled(path: Path) -> Path:
    path.write_bytes(os.urandom(SIZE))
    return path


def test_what_was_just_written_is_in_memory(tmp_path: Path) -> None:
    """Every page of a new file is in memory."""
    assert cold.resident_bytes(filled(tmp_path / "a")) == SIZE


def test_the_mappings_of_a_process_are_found(tmp_path: Path) -> None:
    """Only mappings of files under the directory are listed."""
    (tmp_path / "in").mkdir()
    inside, outside = filled(tmp_path / "in" / "a"), filled(tmp_path / "b")
    with (
        inside.open("r+b") as one,
        outside.open("r+b") as other,
        mmap.mmap(one.fileno(), SIZE),
        mmap.mmap(other.fileno(), SIZE),
    ):
        assert [length for _, length in cold.mappings(os.getpid(), tmp_path / "in")] == [SIZE]
    assert list(cold.mappings(os.getpid(), tmp_path / "in")) == []


def test_files_leave_memory_though_a_process_has_them_mapped(tmp_path: Path) -> None:
    """Files mapped and used by a process are dropped as well, and their content is unchanged."""
    plain, mapped = filled(tmp_path / "plain"), filled(tmp_path / "mapped")
    (tmp_path / "empty").touch()
    content = mapped.read_bytes()
    with mapped.open("r+b") as file, mmap.mmap(file.fileno(), SIZE) as view:
        assert sum(view[:: mmap.PAGESIZE]) == sum(content[:: mmap.PAGESIZE])
        share = cold.make_cold(tmp_path, [os.getpid()])
        if cold.resident_bytes(plain) == SIZE:
            pytest.skip("the temporary directory is on a file system that lives in memory")
        assert share < 0.1
        assert view[:] == content


def test_an_empty_directory_is_cold(tmp_path: Path) -> None:
    """The share in memory of an empty directory is 0."""
    assert cold.make_cold(tmp_path, []) == 0.0
