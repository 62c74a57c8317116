"""Filter servers in the routes (Java: PullAPIWrapper.computPullFromWhichFilterServer,
MQClientInstance.uploadFilterClassSource; behaviour sheet, C13)."""

from __future__ import annotations

import random
from zlib import crc32

import anyio

from rmqkit.client.answers import refusal
from rmqkit.client.instance import Instance
from rmqkit.errors import ClientError
from rmqkit.model.queue import MessageQueue
from rmqkit.model.subscription import SubscriptionData
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import request
from rmqkit.protocol.headers import RegisterMessageFilterClassRequestHeader

#: A filter is registered again after this time, so that a filter server that was restarted knows it (Java:
#: with each heartbeat).
REGISTERED_FOR_S = 30.0
REGISTER_TIMEOUT_MS = 5_000


def _java_crc(module: bytes) -> int:
    """The CRC-32 as Java's int."""
    return (crc32(module) ^ 0x80000000) - 0x80000000


class FilterServerChoice:
    """The filter server for each pull of one group, which has the group's filters. Filters that are modules
    of the client (`ClientSettings.filter_modules`) are sent to it."""

    def __init__(self, instance: Instance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._registered: dict[tuple[str, str], tuple[str, float]] = {}

    async def address(self, queue: MessageQueue, wanted: SubscriptionData, broker: str) -> str:
        """A filter server of the broker at an address, with the filter registered there. Raises ClientError
        when the route has none, BrokerError when it refuses the filter, ConnectFailed, ConnectionLost,
        RequestTimeout."""
        found = self._instance.routes.filter_servers(queue.topic, broker)
        if not found:
            self._instance.refresh_soon()
            raise ClientError(
                f"the broker {broker} has no filter server (filterServerNums), which the subscription of"
                f" group {self._group!r} to {queue.topic!r} needs"
            )
        address = random.choice(found)
        name, now_s = wanted.sub_string, anyio.current_time()
        known = self._registered.get((address, queue.topic))
        if known is None or known[0] != name or now_s - known[1] > REGISTERED_FOR_S:
            module = self._instance.settings.filter_modules.get(name, b"")
            header = RegisterMessageFilterClassRequestHeader(
                consumer_group=self._group, topic=queue.topic, class_name=name, class_crc=_java_crc(module)
            )
            command = request(RequestCode.REGISTER_MESSAGE_FILTER_CLASS, header, module)
            response = await self._instance.pool.call(address, command, REGISTER_TIMEOUT_MS)
            if response.code != ResponseCode.SUCCESS:
                raise refusal(response, address, f"registering the filter {name!r}")
            self._registered[address, queue.topic] = name, now_s
        return address

    def forget(self, address: str) -> None:
        """Register with a filter server again before the next pull."""
        for key in [key for key in self._registered if key[0] == address]:
            del self._registered[key]
