"""Messages with a priority (RIP-80): a queue of a topic is a priority, and pops read the highest first."""

from __future__ import annotations

from rmqkit.model import properties as props
from rmqkit.model.attributes import PRIORITY_FACTOR
from rmqkit.model.message import PutMessage
from rmqkit.model.message_type import MESSAGE_TYPE, TopicMessageType, type_for_topics
from rmqkit.model.topic import SubscriptionGroupConfig, TopicConfig
from rmqkit.plugin.hooks import EachPutHook
from rmqkit.plugin.request_broker import NeedsBroker, RequestBroker

_ALWAYS = 100


class PutByPriority(NeedsBroker, EachPutHook):
    """Puts a message into the queue of its priority, the last one if there are fewer; a priority of a message
    of another type counts for nothing, and goes (Java: SendMessageProcessor). Before the hooks that keep
    messages until later."""

    wants = frozenset({props.PRIORITY})

    def open(self, broker: RequestBroker) -> None:
        self._topics = broker.topics

    def before_each(self, message: PutMessage) -> None:
        text = message.properties[props.PRIORITY]
        config = self._topics.configs.get(message.topic)
        if config is None or not (text.isascii() and text.isdigit() and len(text) < 10):
            return
        if type_for_topics(message.properties) is TopicMessageType.PRIORITY:
            message.queue_id = max(0, min(int(text), config.write_queue_nums - 1))
            return
        left = {name: value for name, value in message.properties.items() if name != props.PRIORITY}
        message.set_properties(left)


def by_priority(topic: TopicConfig, group: SubscriptionGroupConfig, turn: int) -> bool:
    """Whether this pop of a group takes what has the highest priority; the others take from all queues in
    turn, so that nothing waits for ever (`priority.factor` in a hundred)."""
    if topic.attributes.get(MESSAGE_TYPE) != TopicMessageType.PRIORITY:
        return False
    factor = group.attributes.get(PRIORITY_FACTOR, "")
    return turn * 61 % _ALWAYS < (int(factor) if factor.isdigit() else _ALWAYS)


__all__ = ["PutByPriority", "by_priority"]
