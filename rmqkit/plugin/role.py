"""The role of a broker, which determines what it may do, and the epoch of the role."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from math import inf
from typing import Final, Protocol


class Role(Enum):
    """MASTER accepts messages. SLAVE has a copy of a master's log and accepts none. FENCED was a master, may
    have a successor, and accepts none."""

    MASTER = "MASTER"
    SLAVE = "SLAVE"
    FENCED = "FENCED"


ALL_ROLES: Final = frozenset(Role)

#: Prepares a role of an epoch; it takes effect afterwards.
Preparation = Callable[[Role, int], Awaitable[None]]


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

    @property
    def until_s(self) -> float:
        """The end of a master's term, as `trio.current_time`; infinite without a deadline. From then on
        nothing is appended or acknowledged, and the broker becomes FENCED in the same epoch."""

    @property
    def preparations(self) -> list[Preparation]:
        """Functions that are awaited in order before a role takes effect, after the services that do not run
        in it have stopped; append your own. Messages are refused meanwhile. An error fences the broker."""

    async def set(self, role: Role, epoch: int, until_s: float = inf) -> None:
        """Change the role. A master is FENCED from the call on: messages are refused, and those that are not
        acknowledged are answered with SERVICE_NOT_AVAILABLE. Returns when the role is prepared and its
        services have started; `extend` may be called meanwhile.

        Raises StaleEpoch when a later epoch is known, when a broker that is not the master would become it
        within the same epoch, when a later order comes during the preparation, or when the deadline passes
        during it; raises the errors of preparations. After an error or a cancellation the broker is FENCED,
        unless another order was the reason; the next change starts and stops the services.
        """

    def extend(self, epoch: int, until_s: float) -> bool:
        """Move the deadline of a master, or of one in preparation, to a later time. Returns False, without
        effect, when it has passed, or when the broker is not the master of this epoch."""
