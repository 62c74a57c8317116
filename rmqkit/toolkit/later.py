"""Delivers messages at a later time, whichever plugin keeps them until then (`rmqkit.plugin.later`).

deliver_later(broker, message, Time(now_ms + 30_000))
"""

from __future__ import annotations

from rmqkit.errors import RequestRefused
from rmqkit.model.message import PutMessage
from rmqkit.model.run import MessageRun
from rmqkit.plugin.acks import Acknowledgement
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.later import Due, LaterDelivery, Level, Time
from rmqkit.protocol.codes import ResponseCode


def mark_later(broker: Broker, message: PutMessage, due: Due) -> None:
    """Prepare a message for delivery in its topic and queue when it is due: it is kept until then by whoever
    takes it, once it is appended. A time that has passed needs no preparation. Raises RequestRefused, with
    the message unchanged, when no plugin of the broker can deliver it then; MessageIllegal."""
    now_ms = broker.clock.now_ms()
    if isinstance(due, Time) and due.time_ms <= now_ms:
        return
    for hook in broker.registry.put_message_hooks:
        if isinstance(hook, LaterDelivery) and hook.mark(message, due, now_ms):
            return
    raise _nobody(due, now_ms)


def deliver_later(broker: Broker, message: PutMessage, due: Due) -> Acknowledgement:
    """Store a message that is delivered in its topic and queue when it is due. The result is settled when it
    is as safe as an acknowledged message. Raises as `mark_later`, and stores nothing then."""
    mark_later(broker, message, due)
    return broker.appender.append_durably(MessageRun([message]))


def _nobody(due: Due, now_ms: int) -> RequestRefused:
    if isinstance(due, Level):
        wanted = f"after delay level {due.level}"
    else:
        wanted = f"in {due.time_ms - now_ms} ms"
    return RequestRefused(
        ResponseCode.MESSAGE_ILLEGAL,
        f"no plugin of this broker delivers a message {wanted}: enable a plugin that does; `rmqkit plugins`"
        " lists those that are off",
    )


__all__ = ["Due", "Level", "Time", "deliver_later", "mark_later"]
