"""The contract of dispatchers finds the fault of broken dispatchers."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.counting import Counter
from tests.plugin import test_dispatcher as whole


class Forgetful(Counter):
    """A broken dispatcher that reports more progress than it has saved."""

    @property
    def progress_offset(self) -> int:
        return self.end


class Double(Counter):
    """A broken dispatcher that counts messages twice."""

    def is_known(self, offset: int) -> bool:
        return False


class Trusting(Counter):
    """A broken dispatcher that ignores where the log ends at the start."""

    async def open(self, log_start: int, log_end: int) -> None:
        await super().open(log_start, 1 << 62)


class Stubborn(Counter):
    """A broken dispatcher that keeps what a truncation removed."""

    async def forget_from(self, log_end: int) -> int:
        await trio.lowlevel.checkpoint()
        self._saved = self.end = min(self.end, log_end)
        return self.end


class Hasty(Counter):
    """A broken dispatcher that forgets in memory only."""

    async def forget_from(self, log_end: int) -> int:
        await trio.lowlevel.checkpoint()
        if self.end > log_end:
            self.counts.clear()
            self.end = self._saved = 0
        return self.end


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (Forgetful, "test_killed_and_opened_again"),
        (Double, "test_a_batch_that_was_not_finished_comes_again"),
        (Trusting, "test_a_log_that_lost_its_end"),
        (Stubborn, "test_a_truncated_log"),
        (Hasty, "test_a_lost_end_that_is_followed_by_a_crash"),
        (Hasty, "test_a_truncation_that_is_followed_by_a_crash"),
    ],
)
async def test_the_contract_finds_what_is_broken(broken: type[Counter], test: str, tmp_path: Path) -> None:
    """Each of these mistakes loses or doubles messages, and one of the contract's tests fails for it."""

    class Contract(whole.TestCounter):
        def make_dispatcher(self, directory: Path) -> Counter:
            return broken(directory)

    with pytest.raises(AssertionError):
        await getattr(Contract(), test)(tmp_path)
