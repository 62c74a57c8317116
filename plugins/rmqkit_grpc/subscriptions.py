"""Filter expressions of clients as subscriptions of remoting."""

from __future__ import annotations

from typing import Any

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


__all__ = ["subscription_of"]
