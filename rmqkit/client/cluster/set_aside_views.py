"""Records that brokers have set aside, as values: how many of them wait to be sent again."""

from __future__ import annotations

from rmqkit.client.cluster.admin import Admin
from rmqkit.client.cluster.dead_letter_views import first_waiting
from rmqkit.client.cluster.group_admin import GroupAdmin
from rmqkit.errors import NoRoute
from rmqkit.model.names import SET_ASIDE_TOPIC

#: The group whose offsets in the topic are how far the records have been sent again.
RESEND_GROUP = "rmqkit_cli_set_aside"


async def records_aside(admin: Admin, groups: GroupAdmin) -> dict[str, int]:
    """Broker name -> number of records after the last one that `RESEND_GROUP` has sent again, for brokers
    that have some. Raises as `Admin` and `GroupAdmin` do."""
    try:
        stats = await admin.topic_stats(SET_ASIDE_TOPIC)
        progress = await groups.progress(RESEND_GROUP, SET_ASIDE_TOPIC)
    except NoRoute:
        return {}
    found: dict[str, int] = {}
    for queue, at in sorted(stats.items()):
        committed = progress[queue].committed if queue in progress else None
        waiting = at.max_offset - first_waiting(committed, at.min_offset, at.max_offset)
        if waiting:
            found[queue.broker_name] = found.get(queue.broker_name, 0) + waiting
    return found
