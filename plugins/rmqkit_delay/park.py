"""Parks a message with a delay level (store-format sheet, section 10.1; Java:
HookUtils.transformDelayLevelMessage)."""

from __future__ import annotations

from collections.abc import Sequence

from rmqkit.errors import RequestRefused
from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.plugin.hooks import EachPutHook
from rmqkit.plugin.later import Due, LaterDelivery, Level
from rmqkit.protocol.codes import ResponseCode


class ParkDelayed(EachPutHook, LaterDelivery):
    """Changes the topic to SCHEDULE_TOPIC_XXXX and the queue id to the level minus one, and stores the
    original ones in REAL_TOPIC and REAL_QID. The store gives the unit its time of delivery
    (`levels.delivery_time_of`)."""

    wants = claims = frozenset({props.DELAY})

    def __init__(self, levels: Sequence[int]) -> None:
        self._levels_ms = levels
        self._last_level = len(levels)

    def mark(self, message: PutMessage, due: Due, now_ms: int) -> bool:
        """A time is rounded up to the shortest level that is not earlier."""
        level = due.level if isinstance(due, Level) else self._level_for(due.time_ms - now_ms)
        if level <= 0:
            return False
        message.set_properties(message.properties | {props.DELAY: str(level)})
        return True

    def _level_for(self, delay_ms: int) -> int:
        """The shortest level of at least this delay; 0 if all are shorter."""
        longer = [(level_ms, at) for at, level_ms in enumerate(self._levels_ms, 1) if level_ms >= delay_ms]
        return min(longer, default=(0, 0))[1]

    def before_each(self, message: PutMessage) -> None:
        text = message.properties.get(props.DELAY)
        if text is None or message.topic == names.SCHEDULE_TOPIC:
            return
        try:
            level = min(int(text), self._last_level)
        except ValueError:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL, f"the delay level {text!r} is not a number"
            ) from None
        if level <= 0:
            return
        real = {props.REAL_TOPIC: message.topic, props.REAL_QUEUE_ID: str(message.queue_id)}
        message.set_properties(message.properties | {props.DELAY: str(level)} | real)
        message.topic = names.SCHEDULE_TOPIC
        message.queue_id = level - 1
