"""The forms of a half message: as it is first stored, as a round stores it anew, and as it is delivered
(store-format sheet, section 11.1; Java: TransactionalMessageBridge, EndTransactionProcessor)."""

from __future__ import annotations

from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage, StoredMessage
from rmqkit.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK
from rmqkit.toolkit.restored import real_place, restored
from rmqkit_transaction.transaction_store import LATER, NOTES


def park(message: PutMessage, queue_id: int) -> None:
    """Change a producer's message into a half message. Raises MessageIllegal."""
    added = {props.REAL_TOPIC: message.topic, props.REAL_QUEUE_ID: str(message.queue_id)}
    if (key := message.properties.get(props.UNIQ_KEY)) is not None:
        added[props.TRANSACTION_ID] = key
    kept = {name: value for name, value in message.properties.items() if name not in NOTES}
    message.set_properties(kept | added)
    message.properties = {name: value for name, value in message.properties.items() if name not in LATER}
    message.topic, message.queue_id = names.HALF_TOPIC, queue_id
    message.sys_flag &= ~TRANSACTION_MASK


def stored_anew(half: StoredMessage, notes: dict[str, str]) -> PutMessage:
    """The half message again, with these notes. Raises MessageIllegal."""
    return _noted(half, half.topic, half.queue_id, notes)


def _noted(stored: StoredMessage, topic: str, queue_id: int, notes: dict[str, str]) -> PutMessage:
    message = restored(stored, topic, queue_id, unseen=LATER, wait=False)
    message.properties |= notes
    message.properties_bytes = props.edited(stored.properties_bytes, (), notes)
    return message


def given_up(half: StoredMessage) -> PutMessage:
    """The half message for the topic of those that no producer ended."""
    return restored(half, names.CHECK_MAX_TIME_TOPIC, 0, unseen=LATER, wait=False)


def resumed(given: StoredMessage, queue_id: int) -> PutMessage:
    """A message that was given up as a half message that was never asked for. Raises MessageIllegal."""
    return _noted(given, names.HALF_TOPIC, queue_id, {props.TRANSACTION_CHECK_TIMES: "0"})


def committed(half: StoredMessage, physical_offset: int) -> PutMessage:
    """The real message, for its own topic. What is stored keeps the properties of the half message, as in
    Java. Raises DecodeError."""
    message = restored(half, *real_place(half), unseen=frozenset({props.TRANSACTION_PREPARED}))
    message.sys_flag = message.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT
    message.prepared_offset = physical_offset
    return message


def is_copy(half: StoredMessage) -> bool:
    """Whether a round has stored the half message anew, so that it takes the place of an earlier one."""
    return not NOTES.isdisjoint(half.properties)


def transaction_of(half: StoredMessage) -> tuple[str | None, ...] | None:
    """What all copies of a half message share; None for one without an id."""
    properties = half.properties
    key = properties.get(props.UNIQ_KEY)
    if key is None:
        return None
    return key, *map(properties.get, (props.PRODUCER_GROUP, props.REAL_TOPIC, props.REAL_QUEUE_ID))
