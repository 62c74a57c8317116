"""Why a message is a dead letter."""

from __future__ import annotations

from attrs import frozen

from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.model import properties as props


@frozen(kw_only=True)
class Reason:
    """Why a message is a dead letter.

    cause     "asked": its consumer wanted it; "attempts": they are used up; "unreadable": it cannot be
              decoded; "lease ended": the last delivery was not acknowledged
    attempts  number of its deliveries
    error     the last error of its consumer; empty when that did not tell
    """

    cause: str
    attempts: int
    error: str


def reason(message: ReceivedMessage) -> Reason | None:
    """Why a message is a dead letter; None when it does not tell: clients of other projects do not."""
    cause, attempts = message.properties.get(props.DLQ_CAUSE), message.properties.get(props.DLQ_ATTEMPTS, "")
    if cause is None or not attempts.isdecimal():
        return None
    return Reason(cause=cause, attempts=int(attempts), error=message.properties.get(props.DLQ_ERROR, ""))


__all__ = ["Reason", "reason"]
