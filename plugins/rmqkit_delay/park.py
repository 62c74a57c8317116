"""Parks a message with a delay level (store-format sheet, section 10.1; Java:
HookUtils.transformDelayLevelMessage)."""

from __future__ import annotations

from collections.abc import Sequence

from rmqkit.errors import RequestRefused
from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.plugin.hooks import EachPutHook
from rmqkit.protocol.codes import ResponseCode


class ParkDelayed(EachPutHook):
    """Changes the topic to SCHEDULE_TOPIC_XXXX and the queue id to the level minus one, and stores the
    original ones in REAL_TOPIC and REAL_QID. The store gives the unit its time of delivery
    (`levels.delivery_time_of`)."""

    wants = claims = frozenset({props.DELAY})

    def __init__(self, levels: Sequence[int]) -> None:
        self._last_level = len(levels)

    def before_each(self, message: PutMessage) -> None:
        text = message.properties.get(props.DELAY)
        if text is None or message.topic == names.SCHEDULE_TOPIC:
            return
        try:
            level = min(int(text), self._last_level)
        except ValueError:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL, f"the delay level {text!r} is no number"
            ) from None
        if level <= 0:
            return
        real = {props.REAL_TOPIC: message.topic, props.REAL_QUEUE_ID: str(message.queue_id)}
        message.set_properties(message.properties | {props.DELAY: str(level)} | real)
        message.topic = names.SCHEDULE_TOPIC
        message.queue_id = level - 1
