"""Dead letters as values: how many each group has, how many of them wait to be sent again, and the origin of
one."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from rmqkit.client.cluster.admin import Admin
from rmqkit.client.cluster.group_admin import GroupAdmin
from rmqkit.client.cluster.message_views import message_dict
from rmqkit.client.cluster.reasons import Reason, reason
from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.model import properties as props
from rmqkit.model.names import DLQ_PREFIX

#: The group whose offsets in dead-letter topics are how far they have been sent again.
RESEND_GROUP = "rmqkit_cli_dlq"


@frozen(kw_only=True)
class DeadLetters:
    """The dead letters of a group.

    messages    their number
    not_resent  the number of those after the last one that `RESEND_GROUP` has sent again
    last_ms     store time of the last one in ms since 1970, 0 when there is none
    """

    group: str
    messages: int
    not_resent: int
    last_ms: int


async def dead_letters(admin: Admin, groups: GroupAdmin) -> list[DeadLetters]:
    """The groups that have a dead-letter topic, sorted. Raises as `Admin` and `GroupAdmin` do."""
    found: list[DeadLetters] = []
    for topic in await admin.topics():
        if not topic.startswith(DLQ_PREFIX):
            continue
        stats = await admin.topic_stats(topic)
        progress = await groups.progress(RESEND_GROUP, topic)
        waiting = 0
        for queue, at in stats.items():
            committed = progress[queue].committed if queue in progress else None
            waiting += at.max_offset - first_waiting(committed, at.min_offset, at.max_offset)
        found.append(
            DeadLetters(
                group=topic.removeprefix(DLQ_PREFIX),
                messages=sum(at.max_offset - at.min_offset for at in stats.values()),
                not_resent=waiting,
                last_ms=max((at.last_update_timestamp_ms for at in stats.values()), default=0),
            )
        )
    return found


def first_waiting(committed: int | None, first: int, end: int) -> int:
    """Where sending again goes on in a queue: the committed offset, or the first one if that is not in the
    queue, because the topic was made again for example."""
    return committed if committed is not None and first <= committed <= end else first


def origin_topic(message: ReceivedMessage) -> str | None:
    """The topic that a dead letter was sent to; None when it does not tell."""
    return message.properties.get(props.DLQ_ORIGIN_TOPIC) or message.properties.get(props.RETRY_TOPIC)


def origin_id(message: ReceivedMessage) -> str | None:
    """The id that a dead letter had there; None when it does not tell."""
    return message.properties.get(props.DLQ_ORIGIN_MESSAGE_ID) or message.properties.get(
        props.ORIGIN_MESSAGE_ID
    )


def dead_letter_dict(message: ReceivedMessage) -> dict[str, Any]:
    """A dead letter in JSON: the message, where it was sent to, and why it is one."""
    origin = {"originTopic": origin_topic(message), "originMessageId": origin_id(message)}
    why = reason(message)
    said = {} if why is None else {"cause": why.cause, "attempts": why.attempts, "error": why.error}
    return origin | said | message_dict(message)


__all__ = [
    "RESEND_GROUP",
    "DeadLetters",
    "Reason",
    "dead_letter_dict",
    "dead_letters",
    "first_waiting",
    "origin_id",
    "origin_topic",
    "reason",
]
