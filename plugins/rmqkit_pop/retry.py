"""What happens to a message whose lease has ended: another delivery, now or later, or the dead letters."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.dead_letter import LEASE_ENDED, Why, reasons
from rmqkit.model.message import PutMessage, StoredMessage
from rmqkit.model.topic import GroupRetryPolicy
from rmqkit.protocol.message_id import offset_message_id
from rmqkit.protocol.receipt import retry_mark
from rmqkit.toolkit.restored import restored

#: Put hooks must not keep back a message once more that was delivered already.
_UNSEEN = frozenset({props.DELAY, props.TRANSACTION_PREPARED, *props.TIMER_INPUTS, props.REPEAT})


class Next(Enum):
    """The next step of a message."""

    AGAIN = "delivered again"
    WAIT = "hidden for some time"
    DEAD = "dead letter"


class Step(NamedTuple):
    next: Next
    wait_ms: int = 0


def next_step(
    failed: int, most: int, policy: GroupRetryPolicy | None, first_pop_ms: int, now_ms: int, *, waited: bool
) -> Step:
    """The next step of a message after `failed` failed deliveries before this one, of which its group allows
    `most`. With a retry policy it is hidden until the policy's delay has passed since it was delivered;
    `waited` says that this is done."""
    if failed >= most and not waited:
        return Step(Next.DEAD)
    wait_ms = 0 if waited or policy is None else first_pop_ms + policy.delay_ms(failed) - now_ms
    return Step(Next.WAIT, wait_ms) if wait_ms > 0 else Step(Next.AGAIN)


def copy_for_retry(
    stored: StoredMessage, topic: str, group: str, pop_ms: int, *, suspended: bool
) -> PutMessage:
    """The message for a retry topic (Java: PopReviveService.reviveRetry). It says to which group it belongs,
    for the names of two groups and topics may give one retry topic. Raises MessageIllegal."""
    added = {props.POP_GROUP: group}
    if props.FIRST_POP_TIME not in stored.properties:
        added[props.FIRST_POP_TIME] = str(pop_ms)
    return _copy(stored, topic, added, failed=not suspended)


def copy_for_dead_letters(stored: StoredMessage, group: str, origin: str) -> PutMessage:
    """The message for the dead letters of a group; `origin` is the topic to which it was sent. Raises
    MessageIllegal."""
    first = stored.properties.get(props.ORIGIN_MESSAGE_ID)
    message_id = first or offset_message_id(stored.store_host, stored.physical_offset)
    added = {
        props.RETRY_TOPIC: origin,
        props.ORIGIN_MESSAGE_ID: message_id,
        props.DLQ_ORIGIN_TOPIC: origin,
        props.DLQ_ORIGIN_MESSAGE_ID: message_id,
        **reasons(Why(LEASE_ENDED), stored.reconsume_times + 1),
    }
    return _copy(stored, names.dlq_topic(group), added, failed=True)


def _copy(stored: StoredMessage, topic: str, added: dict[str, str], *, failed: bool) -> PutMessage:
    message = restored(stored, topic, 0, unseen=_UNSEEN)
    message.properties |= added
    message.properties_bytes = props.edited(stored.properties_bytes, (), added)
    message.reconsume_times += failed
    return message


def origin_topic(topic: str, group: str) -> str:
    """The topic of which a retry topic of the group has messages; another topic is its own."""
    mark = retry_mark(topic)
    if mark == "0":
        return topic
    for separator in (names.POP_RETRY_V2, names.POP_RETRY_V1):
        prefix = f"{names.RETRY_PREFIX}{group}{separator}"
        if topic.startswith(prefix):
            return topic.removeprefix(prefix)
    return topic


__all__ = ["Next", "Step", "copy_for_dead_letters", "copy_for_retry", "next_step", "origin_topic"]
