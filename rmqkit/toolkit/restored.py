"""Stored records as messages that can be put again, for plugins that keep messages in internal topics."""

from __future__ import annotations

from collections.abc import Set

from rmqkit.errors import DecodeError
from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage, StoredMessage
from rmqkit.protocol.tags import tags_code


def restored(
    stored: StoredMessage, topic: str, queue_id: int, *, unseen: Set[str] = frozenset(), wait: bool = True
) -> PutMessage:
    """The message with body, birth, flags, reconsumptions and stored properties of a record, for another
    topic and queue. Put hooks do not see the properties `unseen`, so that they do not act on them once more;
    what is stored still has them. `PutMessage.set_properties` replaces both. `wait` as in PutMessage."""
    properties = {name: value for name, value in stored.properties.items() if name not in unseen}
    return PutMessage(
        topic=topic,
        queue_id=queue_id,
        body=stored.body,
        properties=properties,
        properties_bytes=stored.properties_bytes,
        flag=stored.flag,
        sys_flag=stored.sys_flag,
        born_timestamp_ms=stored.born_timestamp_ms,
        born_host=stored.born_host,
        reconsume_times=stored.reconsume_times,
        tags_code=tags_code(properties.get(props.TAGS)),
        wait=wait,
    )


def real_place(stored: StoredMessage) -> tuple[str, int]:
    """Topic and queue id for which a parked message is meant, from REAL_TOPIC and REAL_QID. Raises
    DecodeError for a message without a legal one, or whose topic would hold prepared messages."""
    topic, number = (stored.properties.get(name) for name in (props.REAL_TOPIC, props.REAL_QUEUE_ID))
    try:
        queue_id = int(number or "")
    except ValueError as error:
        raise DecodeError(f"it has the real queue {number!r}") from error
    if topic is None or topic == names.HALF_TOPIC or names.topic_fault(topic):
        raise DecodeError(f"it has the real topic {topic!r}")
    return topic, queue_id


__all__ = ["real_place", "restored"]
