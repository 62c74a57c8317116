"""Services: work beside the request path of a broker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import trio

from rmqkit.plugin.role import ALL_ROLES, Role

if TYPE_CHECKING:
    from rmqkit.plugin.address import Address
    from rmqkit.plugin.broker import Broker
    from rmqkit.plugin.metrics import Metric


class Service(ABC):
    """Work beside the request path of a broker, while the broker's role is one of `roles`."""

    name: str
    #: Roles of the broker in which the service runs. A service that writes messages runs on a master only.
    roles: frozenset[Role] = ALL_ROLES
    #: Where clients reach the service besides the ports of the broker; None for a service that has no port,
    #: and while it does not listen.
    door: Address | None = None

    @abstractmethod
    async def run(self, broker: Broker, task_status: trio.TaskStatus[None]) -> None:
        """Run until cancelled; call `task_status.started()` when the start of the broker may continue. An
        exception stops the broker. May be called again after it has ended, after changes of the broker's
        role."""

    async def stop(self, broker: Broker) -> None:
        """Finish before the store closes or the role changes (save, unregister). Limited to a few seconds."""
        return

    def figures(self) -> Mapping[str, object]:
        """What the service adds to the broker's run-time information, by keys of its own; called whether it
        runs or not (Java: BrokerAttachedPlugin.buildRuntimeInfo). Must not block."""
        return {}

    def metrics(self) -> Iterable[Metric]:
        """What the service adds to the broker's metrics, under the rules of `figures`. Labels of topics and
        groups must be of those that exist."""
        return ()
