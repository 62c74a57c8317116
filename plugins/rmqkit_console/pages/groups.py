"""The consumer groups, and one of them with its queues and members."""

from __future__ import annotations

from typing import Any

import msgspec

from rmqkit.client import ClientError, GroupConnections, GroupMemberInfo, RmqError, group_views
from rmqkit_console.console import Asked, Console
from rmqkit_console.pages.listing import chosen
from rmqkit_console.pages.plots import group_plots
from rmqkit_console.side_by_side import side_by_side


async def groups(console: Console, asked: Asked) -> dict[str, Any]:
    """Groups by name, with their members and how far they are behind, in messages and in time."""
    admin, system = console.client.groups, asked.choice("all", ("no", "yes")) == "yes"
    part = chosen(await group_views.group_names(admin, system=system), asked)
    summaries = await group_views.group_summaries(admin, only=part.names)

    async def lag(group: str) -> group_views.GroupLag:
        return await group_views.group_lag(admin, group)

    lags = await side_by_side(lag, [each.group for each in summaries if each.topics])
    rows = []
    for each in summaries:
        found = lags.get(each.group)
        rows.append(
            {
                "group": each.group,
                "members": each.members,
                "messageModel": each.message_model,
                "topics": each.topics,
                "lag": each.lag,
                "behindMs": found.behind_ms if isinstance(found, group_views.GroupLag) else None,
                "brokers": each.brokers,
            }
        )
    return {"groups": rows, "all": system, **part.described}


async def group(console: Console, asked: Asked) -> dict[str, Any]:
    """One group: how far it is in each queue, its members with what each subscribes to, and its settings.
    Raises ClientError when no broker knows it."""
    admin, name = console.client.groups, asked.needed("group")
    view = await group_views.group_view(admin, name)
    lag: dict[str, Any] = {"lag": view.lag, "behindMs": None, "queuesBeyondEnd": 0, "queues": []}
    if view.progress:
        try:
            lag = group_views.lag_dict(await group_views.group_lag(admin, name))
        except ClientError:
            # Its offsets were deleted since.
            lag = {**lag, "lag": 0}
    return {
        **lag,
        "group": view.group,
        "settings": msgspec.to_builtins(view.settings or {}),
        "topics": view.lag_by_topic,
        **group_views.connections_dict(view.online),
        "subscriptionsOf": await _subscriptions(console, name, view.online),
        "plots": group_plots(console.samples.kept, [name]) if view.progress else [],
    }


async def _subscriptions(
    console: Console, group: str, online: GroupConnections | None
) -> dict[str, dict[str, str]]:
    """Client id -> topic -> expression, as each member says itself; a member that does not answer is left
    out."""
    if online is None:
        return {}

    async def ask(member: GroupMemberInfo) -> dict[str, str]:
        found = await console.client.groups.subscriptions_of(group, member)
        return {topic: each.sub_string for topic, each in found.items()}

    found = await side_by_side(ask, online.members)
    return {member.client_id: answer for member, answer in found.items() if not isinstance(answer, RmqError)}


__all__ = ["group", "groups"]
