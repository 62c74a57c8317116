"""Parks a message with a delay level (store-format sheet, section 10.1; Java: HookUtils.transformDelayLevelMessage)."""

from __future__ import annotations

from collections.abc import Sequence

from rmqkit.errors import RequestRefused
from rmqkit.hooks import PutMessageHook
from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.protocol.codes import ResponseCode


class ParkDelayed(PutMessageHook):
    """Topic becomes SCHEDULE_TOPIC_XXXX, queue the level less one; the real ones go into REAL_TOPIC and REAL_QID. The putter gives the consume-queue
    entry its time of delivery, because only it knows the time of the append."""

    wants = frozenset({props.DELAY})

    def __init__(self, levels: Sequence[int]) -> None:
        self._last_level = len(levels)

    def before_put(self, message: PutMessage) -> None:
        text = message.properties.get(props.DELAY)
        if text is None or message.topic == names.SCHEDULE_TOPIC:
            return
        try:
            level = min(int(text), self._last_level)
        except ValueError:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, f"the delay level {text!r} is no number") from None
        if level <= 0:
            return
        message.set_properties(
            message.properties | {props.DELAY: str(level), props.REAL_TOPIC: message.topic, props.REAL_QUEUE_ID: str(message.queue_id)}
        )
        message.topic = names.SCHEDULE_TOPIC
        message.queue_id = level - 1
