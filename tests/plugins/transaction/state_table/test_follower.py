"""The contract of dispatchers over the follower of the state table."""

from __future__ import annotations

from pathlib import Path

from rmqkit.testing.dispatch import DispatcherContract
from rmqkit_transaction.state_table.follower import StateFollower


class TestStateFollower(DispatcherContract):
    def make_dispatcher(self, directory: Path) -> StateFollower:
        return StateFollower(directory, rows_per_file=8)

    def outcome(self, dispatcher: StateFollower) -> object:
        return dispatcher.open_in_redo_log()
