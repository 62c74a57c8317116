"""Ends the consumption of groups that read far behind the log (Java: BrokerController.protectBroker;
behaviour sheet, C11).

Such a group reads what only the device has, and takes its time from the others. The group may consume again
when somebody says so; the topics stay readable for the others.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial

import trio
from attrs import frozen
from msgspec.structs import replace

from rmqkit.errors import RequestRefused
from rmqkit.plugin.broker import Broker, OnlineGroup
from rmqkit.plugin.role import Role
from rmqkit.plugin.service import Service
from rmqkit.toolkit.cold_reads import read_when_cached
from rmqkit_protection.settings import ProtectionSettings

_log = logging.getLogger(__name__)
_PERIOD_S = 180


@frozen
class Slow:
    """A group, and the queue in which it is farthest behind the end of the log."""

    group: str
    topic: str
    queue_id: int
    behind_bytes: int


class SlowConsumers(Service):
    """Looks at all groups with members every three minutes, when `disableConsumeIfConsumerReadSlowly` is set.
    When cancelled, a group that was found may still consume."""

    name = "protection"
    roles = frozenset({Role.MASTER})

    async def run(self, broker: Broker, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        while True:
            await trio.sleep(_PERIOD_S)
            settings = broker.config.owned(ProtectionSettings)
            if settings.disable_consume_if_consumer_read_slowly:
                await self._round(broker, settings.consumer_fallbehind_threshold)

    async def _round(self, broker: Broker, threshold_bytes: int) -> None:
        for group in list(broker.clients.consumers.values()):
            config = broker.groups.configs.get(group.name)
            if config is None or not config.consume_enable:
                continue
            slow = await farthest_behind(broker, group)
            if slow is not None and slow.behind_bytes > threshold_bytes:
                _log.warning(
                    "group %s may not consume any more: it is %d bytes behind the end of the log in queue %d"
                    " of topic %s (consumerFallbehindThreshold: %d); set its consumeEnable to let it",
                    slow.group,
                    slow.behind_bytes,
                    slow.queue_id,
                    slow.topic,
                    threshold_bytes,
                )
                try:
                    await broker.groups.put(replace(config, consume_enable=False))
                except RequestRefused as error:
                    _log.error("group %s may still consume, trying again: %s", slow.group, error)


async def farthest_behind(broker: Broker, group: OnlineGroup) -> Slow | None:
    """Where the group's next message is farthest from the end of the log; None when the group has everything
    or has committed nothing. Cancellation leaves nothing behind."""
    store = broker.store
    found: Slow | None = None
    for topic, queue_id, offset in _positions(broker, group):
        units = await read_when_cached(store, partial(store.read_units, topic, queue_id, offset, 1))
        for unit in units:
            behind_bytes = store.end_offset - unit.physical_offset
            if found is None or behind_bytes > found.behind_bytes:
                found = Slow(group.name, topic, queue_id, behind_bytes)
    return found


def _positions(broker: Broker, group: OnlineGroup) -> Iterator[tuple[str, int, int]]:
    """(topic, queue id, next offset) of each queue of which the group has committed an offset. A group may
    lose queues while its positions are read."""
    for topic in list(group.subscriptions):
        for queue_id in list(broker.store.queues().get(topic, ())):
            offset = broker.offsets.get(group.name, topic, queue_id)
            if offset is not None:
                yield topic, queue_id, max(offset, broker.store.min_offset(topic, queue_id))
