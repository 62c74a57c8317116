"""Filter expressions of clients as subscriptions of remoting."""

from __future__ import annotations

from typing import Any

from rmqkit.model.message import StoredMessage
from rmqkit.model.properties import TAGS
from rmqkit.model.subscription import SQL92, SubscriptionData, tag_subscription
from rmqkit_grpc.messages import V2, Code
from rmqkit_grpc.statuses import Refusal

_SQL = V2.enums["FilterType"]["SQL"]


def subscription_of(topic: str, expression: Any) -> SubscriptionData:
    """A subscription as remoting has it. Raises Refusal."""
    if expression.type == _SQL:
        return SubscriptionData(topic=topic, sub_string=expression.expression, expression_type=SQL92)
    try:
        return tag_subscription(topic, expression.expression)
    except ValueError as error:
        raise Refusal(Code.ILLEGAL_FILTER_EXPRESSION, str(error)) from error


def is_wanted(subscription: SubscriptionData, stored: StoredMessage) -> bool:
    """Whether the tag of a message is one of those that were asked for; brokers compare hashes of tags."""
    return not subscription.tags_set or stored.properties.get(TAGS) in subscription.tags_set


__all__ = ["is_wanted", "subscription_of"]
