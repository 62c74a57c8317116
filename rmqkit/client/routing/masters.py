"""The masters of brokers, and changes of their topics and groups during elections (Java: MQAdminImpl, which
asks once)."""

from __future__ import annotations

import sys
from collections.abc import Callable

import anyio

from rmqkit.client.instance import Instance
from rmqkit.client.producing.attempts import Attempts
from rmqkit.errors import BrokerError, ClientError, ConnectFailed, ConnectionLost, RequestTimeout, RmqError
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command

ADMIN_TIMEOUT_MS = 5000


class Masters:
    """Asks the name servers who the masters are, each time anew."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance

    async def addresses(self, broker: str | None = None, cluster: str | None = None) -> dict[str, str]:
        """Broker name -> address of the selected masters, sorted. Raises ClientError when there are none."""
        selected = await self.selected(broker, cluster)
        found = {name: master for name, master in selected.items() if master is not None}
        if not found:
            raise ClientError(f"no master of {', '.join(selected)} is registered at the name servers")
        return found

    async def change(
        self,
        command: Callable[[], Command],
        doing: str,
        *,
        broker: str | None = None,
        cluster: str | None = None,
        timeout_ms: int = ADMIN_TIMEOUT_MS,
    ) -> list[str]:
        """Send a request that may be repeated to the selected masters, one after the other, as sends do: a
        broker that cannot be reached, or is not the master any more, is asked again, at the address that the
        name servers have by then, until the time for that broker is used up. Brokers without a master are
        left out, unless there are no others. Returns the broker names, sorted. Raises ClientError when the
        selection is empty, and the last error of the first broker that fails."""
        selected = await self.selected(broker, cluster)
        brokers = [name for name, master in selected.items() if master is not None] or list(selected)
        for name in brokers:
            await self._change(name, selected[name], command, f"{doing} on {name}", timeout_ms)
        return brokers

    async def _change(
        self, name: str, address: str | None, command: Callable[[], Command], doing: str, timeout_ms: int
    ) -> None:
        attempts = Attempts(timeout_ms, sys.maxsize, self._instance.backend.current_time, patient=True)
        while True:
            failure: RmqError = ClientError(f"{doing}: no master of it is registered at the name servers")
            try:
                if address is not None:
                    within_ms = min(attempts.left_ms, ADMIN_TIMEOUT_MS)
                    await self._instance.call(address, command(), doing, within_ms)
                    return
            except BrokerError as error:
                if error.code != ResponseCode.SERVICE_NOT_AVAILABLE:
                    raise
                failure = error
            except (ConnectFailed, ConnectionLost, RequestTimeout) as error:
                failure = error
            await attempts.pause((), anyio.sleep_forever)
            if attempts.left_ms <= 0:
                raise failure
            address = (await self.selected(name))[name]

    async def selected(self, broker: str | None = None, cluster: str | None = None) -> dict[str, str | None]:
        """The selected brokers, sorted by name, and the addresses of their masters. Raises ClientError when
        there are none."""
        info = await self._instance.name_servers.cluster_info()
        if cluster is not None and cluster not in info.cluster_addr_table:
            raise ClientError(
                f"there is no cluster {cluster!r}; known are:"
                f" {', '.join(sorted(info.cluster_addr_table)) or 'none'}"
            )
        names = set(info.broker_addr_table) if cluster is None else set(info.cluster_addr_table[cluster])
        if broker is not None:
            names &= {broker}
        found = {name: data.master for name, data in sorted(info.broker_addr_table.items()) if name in names}
        if not found:
            known = ", ".join(sorted(info.broker_addr_table)) or "none: no broker has registered"
            raise ClientError(f"no master of broker {broker!r}, cluster {cluster!r}; known brokers: {known}")
        return found
