"""The state of a consumer as administrators ask for it (Java: ConsumerRunningInfo; behaviour sheet, B16)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from rmqkit.client.instance import Instance
from rmqkit.model.queue import MessageQueue
from rmqkit.model.subscription import SubscriptionData

NOTHING: Mapping[str, Any] = MappingProxyType({})


def running_info(
    instance: Instance,
    consume_type: str,
    subscriptions: Iterable[SubscriptionData],
    queues: Mapping[MessageQueue, Mapping[str, int | bool]],
    *,
    started_ms: int,
    statistics: Mapping[str, Mapping[str, float | int]] = NOTHING,
    settings: Mapping[str, str] = NOTHING,
) -> dict[str, Any]:
    """The data that `mqadmin consumerStatus` shows, with queues as keys. `statistics` are figures by topic,
    `settings` further properties."""
    return {
        "properties": {
            "PROP_CLIENT_VERSION": "V5_3_3",
            "PROP_CONSUMEORDERLY": "false",
            "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
            "PROP_CONSUME_TYPE": consume_type,
            "PROP_NAMESERVER_ADDR": "".join(f"{address};" for address in instance.name_servers.addresses),
            "PROP_THREADPOOL_CORE_SIZE": "0",
            "instanceName": instance.settings.instance_name,
            "clientIP": instance.settings.ip,
            "pollNameServerInterval": str(instance.settings.poll_name_server_interval_ms),
            "heartbeatBrokerInterval": str(instance.settings.heartbeat_interval_ms),
            **settings,
        },
        "subscriptionSet": msgspec.to_builtins(sorted(subscriptions, key=lambda each: each.topic)),
        "mqTable": dict(queues),
        "mqPopTable": {},
        "statusTable": {topic: dict(figures) for topic, figures in statistics.items()},
        "userConsumerInfo": {},
    }
