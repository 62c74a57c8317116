"""How often and when a failed message is delivered again: as its group says, or as the message does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from rmqkit.model import properties as props
from rmqkit.model.spans import span_ms
from rmqkit.model.topic import GroupRetryPolicy, SubscriptionGroupConfig

#: Limits of what a message may ask for: a sender is not trusted with the broker's disk.
MOST_RETRIES: Final = 1_000
MOST_DELAYS: Final = 64
LONGEST_DELAY_MS: Final = 3 * 86_400_000


class Retries(NamedTuple):
    """Deliveries after the first one, until a message is a dead letter, and when; `policy` is None when
    nobody says it."""

    most: int
    policy: GroupRetryPolicy | None


def retries_of(group: SubscriptionGroupConfig, properties: Mapping[str, str]) -> Retries:
    """What counts for a message: its properties RMQKIT_RETRY_TIMES and RMQKIT_RETRY_DELAYS where they are
    legal, else the settings of its group."""
    most, policy = group.retry_max_times, group.chosen_retry_policy
    asked = own_retries(properties)
    if asked is not None:
        most = asked
    if (delays := properties.get(props.RETRY_DELAYS)) is not None:
        policy = _policy(delays) or policy
    return Retries(most, policy)


def own_retries(properties: Mapping[str, str]) -> int | None:
    """The number of retries that a message asks for; None when it asks for none, or for an illegal one."""
    text = properties.get(props.RETRY_TIMES, "")
    if text.isascii() and text.isdigit() and len(text) <= len(str(MOST_RETRIES)):
        return min(int(text), MOST_RETRIES)
    return None


def _policy(text: str) -> GroupRetryPolicy | None:
    delays = [span_ms(each) for each in text.split(",", MOST_DELAYS)]
    legal = [each for each in delays if each is not None and each <= LONGEST_DELAY_MS]
    if len(legal) < len(delays) or len(delays) > MOST_DELAYS:
        return None
    return GroupRetryPolicy.of_delays(legal)


__all__ = ["LONGEST_DELAY_MS", "MOST_DELAYS", "MOST_RETRIES", "Retries", "own_retries", "retries_of"]
