"""The file timercheck."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.errors import DecodeError
from rmqkit_timer import checkpoint
from rmqkit_timer.checkpoint import Checkpoint, Moment

I64 = st.integers(-(2**63), 2**63 - 1)
NAMES = Checkpoint.__struct_fields__[:7]
MOMENTS = st.none() | st.builds(Moment, **dict.fromkeys(Moment.__struct_fields__, I64))
CHECKPOINTS = st.builds(Checkpoint, **dict.fromkeys(NAMES, I64), moment=MOMENTS)


@given(CHECKPOINTS)
def test_a_checkpoint_is_read_as_it_was_written(found: Checkpoint) -> None:
    """With and without a moment; a master of Apache's answers with the first numbers alone."""
    data = checkpoint.encode(found)
    assert checkpoint.decode(data) == found
    plain = msgspec.structs.replace(found, moment=None)
    assert checkpoint.decode(data[: checkpoint.WIRE_BYTES]) == plain


def test_the_numbers_are_where_apache_has_them() -> None:
    """Store-format sheet, section 10.7."""
    numbers: dict[str, Any] = {name: at + 1 for at, name in enumerate(NAMES)}
    data = checkpoint.encode(Checkpoint(**numbers))
    assert data[:56] == b"".join((at + 1).to_bytes(8, "big") for at in range(7))
    assert not any(data[56:])


@pytest.mark.parametrize("at", [0, 8, 16])
def test_a_moment_counts_only_for_the_numbers_that_it_repeats(at: int) -> None:
    """Apache's broker changes those and leaves the rest of the file."""
    data = bytearray(checkpoint.encode(Checkpoint(read_time_ms=1, moment=Moment(log_end=52))))
    data[at + 7] += 1
    assert checkpoint.decode(bytes(data)).moment is None


def test_the_file_is_written_in_place(tmp_path: Path) -> None:
    """It is as long as Apache's; bytes behind the numbers stay."""
    path = tmp_path / "config" / "timercheck"
    assert checkpoint.read(path) is None
    found = Checkpoint(read_time_ms=1_700_000_000_000, queue_offset=7, moment=Moment(precision_ms=10))
    checkpoint.write(path, Checkpoint())
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    checkpoint.write(path, found)
    assert checkpoint.read(path) == found
    assert path.stat().st_size == 4_096
    assert path.read_bytes()[-1:] == b"x"


def test_a_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    """It says where timers are, which must not be guessed."""
    path = tmp_path / "timercheck"
    path.write_bytes(bytes(55))
    with pytest.raises(DecodeError, match="56 bytes"):
        checkpoint.read(path)
