"""The role of a broker, which determines what it may do, and the epoch of the role."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, Protocol


class Role(Enum):
    """MASTER accepts messages. SLAVE has a copy of a master's log and accepts none. FENCED was a master, may
    have a successor, and accepts none."""

    MASTER = "MASTER"
    SLAVE = "SLAVE"
    FENCED = "FENCED"


ALL_ROLES: Final = frozenset(Role)


class BrokerRole(Protocol):
    """The role of a running broker."""

    @property
    def current(self) -> Role: ...

    @property
    def epoch(self) -> int:
        """Number of the term in which the role was assigned; 0 for a broker that is a master without an
        election."""

    @property
    def on_change(self) -> list[Callable[[], None]]:
        """Functions that are called after each change; append and remove your own. They must not block."""

    def begin(self, role: Role, epoch: int) -> None:
        """Set the role with which the broker starts, in the hook `rmqkit_broker_assembled`."""

    async def set(self, role: Role, epoch: int) -> None:
        """Change the role. Messages are refused or accepted from the call on. Returns when services that do
        not run in the role have stopped and those that do have started. Raises StaleEpoch when a later epoch
        is known, or when a broker that is not the master would become it within the same epoch. Cancelled:
        the role has changed, and the next change starts and stops the services."""
