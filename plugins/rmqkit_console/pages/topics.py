"""The topics, and one of them with its queues and groups."""

from __future__ import annotations

from typing import Any

import msgspec

from rmqkit.client import NoRoute, RmqError, topic_views
from rmqkit.model.message_type import declared_type
from rmqkit_console.console import Asked, Console
from rmqkit_console.pages.listing import chosen
from rmqkit_console.side_by_side import side_by_side


async def topics(console: Console, asked: Asked) -> dict[str, Any]:
    """Topics by name, with the number and the age of their messages."""
    admin, system = console.client.admin, asked.choice("all", ("no", "yes")) == "yes"
    names = await (admin.topics() if system else admin.application_topics())
    part = chosen(names, asked)
    stats = await side_by_side(admin.topic_stats, part.names)
    rows: list[dict[str, Any]] = []
    for name, found in stats.items():
        if isinstance(found, RmqError):
            rows.append({"topic": name, "fault": str(found)})
            continue
        rows.append(
            {
                "topic": name,
                "queues": len(found),
                "messages": sum(each.max_offset - each.min_offset for each in found.values()),
                "written": sum(each.max_offset for each in found.values()),
                "lastUpdateTimestamp": max(
                    (each.last_update_timestamp_ms for each in found.values()), default=0
                ),
            }
        )
    return {"topics": rows, "all": system, **part.described}


async def topic(console: Console, asked: Asked) -> dict[str, Any]:
    """One topic: its settings on each broker, its queues and the groups that consume it. Raises NoRoute."""
    client, name = console.client, asked.needed("topic")
    settings = await topic_views.topic_settings(client.admin, name)
    stats = await client.admin.topic_stats(name)
    try:
        groups = await client.groups.consuming(name)
    except NoRoute:
        groups = []
    return {
        "topic": name,
        "settings": [
            {"brokerName": broker, "messageType": declared_type(config.attributes).value}
            | msgspec.to_builtins(config)
            for broker, config in settings.items()
        ],
        "queues": [
            {
                "brokerName": queue.broker_name,
                "queueId": queue.queue_id,
                "minOffset": at.min_offset,
                "maxOffset": at.max_offset,
                "lastUpdateTimestamp": at.last_update_timestamp_ms,
            }
            for queue, at in stats.items()
        ],
        "groups": groups,
    }


__all__ = ["topic", "topics"]
