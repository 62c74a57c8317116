r"""Message properties: names, and the text `name 0x01 value 0x02 ...` they are stored as (wire-protocol
sheet, section 5.3)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rmqkit.errors import MessageIllegal
from rmqkit.model.buffer import Buffer
from rmqkit.model.text import text_of

NAME_END = "\x01"
PROPERTY_END = "\x02"
#: Separates the keys in the property KEYS. No other blank does (Java: MessageConst.KEY_SEPARATOR).
KEY_SEPARATOR = " "

KEYS = "KEYS"
TAGS = "TAGS"
WAIT = "WAIT"
#: The value of WAIT by which a sender does not wait for the conditions of an acknowledgement.
NO_WAIT = "false"
DELAY = "DELAY"
UNIQ_KEY = "UNIQ_KEY"
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
TRANSACTION_PREPARED = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
#: What a broker notes in a half message: the id of its transaction, how often it has asked for the outcome,
#: and the queue offset of the first copy of one that is not to be asked for yet.
TRANSACTION_ID = "__transactionId__"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
TRANSACTION_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
#: Seconds for which a broker does not ask for the outcome of a half message.
CHECK_IMMUNITY_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
MSG_REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
CLUSTER = "CLUSTER"
MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"
CORRELATION_ID = "CORRELATION_ID"
#: What a body is, such as application/json. No property of RocketMQ's; Spring's messages have it, too.
CONTENT_TYPE = "contentType"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
TTL = "TTL"
BORN_TIMESTAMP = "BORN_TIMESTAMP"
MSG_TYPE = "MSG_TYPE"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
SHARDING_KEY = "__SHARDINGKEY"
PRIORITY = "_SYS_MSG_PRIORITY_"
LITE_TOPIC = "__LITE_TOPIC"
#: The queues besides its own in which Apache's broker has a message, and its offset in each.
DISPATCHED_TO, DISPATCHED_OFFSETS = "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"
POP_CK = "POP_CK"
#: On messages that a proxy passes on; it has checked them.
TRANSFER_FLAG = "TRANSFER_FLAG"
FIRST_POP_TIME = "1ST_POP_TIME"
#: The group to which a message of a retry topic of pop consumption belongs; no property of RocketMQ's.
POP_GROUP = "POP_GROUP"
INNER_NUM = "INNER_NUM"
INNER_BASE = "INNER_BASE"
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
#: Why a message is a dead letter, its deliveries, and the last error of its consumer. No properties of
#: RocketMQ's.
DLQ_CAUSE = "RMQKIT_DLQ_CAUSE"
DLQ_ATTEMPTS = "RMQKIT_DLQ_ATTEMPTS"
DLQ_ERROR = "RMQKIT_DLQ_ERROR"
#: How often a message is delivered again after failures, and when, as in 5s,1m,10m. No properties of
#: RocketMQ's.
RETRY_TIMES = "RMQKIT_RETRY_TIMES"
RETRY_DELAYS = "RMQKIT_RETRY_DELAYS"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"
#: When a message is delivered again and again: an interval or a cron expression; and how often at most. No
#: properties of RocketMQ's. The other two are the broker's: the first time, and the number of the delivery.
REPEAT = "RMQKIT_REPEAT"
REPEAT_TIMES = "RMQKIT_REPEAT_TIMES"
REPEAT_FROM = "RMQKIT_REPEAT_FROM"
REPEAT_NUMBER = "RMQKIT_REPEAT_NUMBER"
#: A message with one of these properties requests a delivery time of its own.
TIMER_INPUTS = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, TIMER_DEL_UNIQKEY)
TIMER_OUT_MS = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
#: What a broker writes into a message with a delivery time.
TIMER_TRACES = (TIMER_OUT_MS, TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS, TIMER_ROLL_TIMES)
#: Properties that belong to one sending of a message: a copy that is sent anew must not have them.
OF_ONE_SENDING = frozenset(
    {
        *(KEYS, TAGS, WAIT, DELAY, UNIQ_KEY, SHARDING_KEY, REAL_TOPIC, REAL_QUEUE_ID, RETRY_TOPIC),
        *(ORIGIN_MESSAGE_ID, RECONSUME_TIME, MAX_RECONSUME_TIMES, TRANSACTION_PREPARED, PRODUCER_GROUP),
        *(MSG_REGION, TRACE_ON, CLUSTER, MIN_OFFSET, MAX_OFFSET, CORRELATION_ID, REPLY_TO_CLIENT, TTL),
        *(MSG_TYPE, PUSH_REPLY_TIME, POP_CK, FIRST_POP_TIME, POP_GROUP, INNER_NUM, INNER_BASE),
        *(DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID, DLQ_CAUSE, DLQ_ATTEMPTS, DLQ_ERROR),
        *(*TIMER_INPUTS, *TIMER_TRACES),
        *(REPEAT, REPEAT_TIMES, REPEAT_FROM, REPEAT_NUMBER),
    }
)


def decode(text: str) -> dict[str, str]:
    """Text -> mapping by Java's rules: items below 3 characters, without a name or a value are dropped;
    the last of equal names wins."""
    result: dict[str, str] = {}
    for item in text.split(PROPERTY_END):
        if item:
            name, _, value = item.partition(NAME_END)
            if value and name:
                result[name] = value
    return result


def decode_bytes(stored: Buffer) -> dict[str, str]:
    """The mapping of a stored text; bytes that are not UTF-8 are replaced."""
    return decode(text_of(stored))


def encode(properties: Mapping[str, str]) -> str:
    """Mapping -> text; empty values are left out, because no reader keeps them. A value may contain the end
    of a name: it is everything behind the first one. Raises MessageIllegal for what would be read as
    something else, which `decode` never gives: an empty name, or another separator in a property."""
    parts: list[str] = []
    for name, value in properties.items():
        if not value:
            continue
        if not name or NAME_END in name or PROPERTY_END in name or PROPERTY_END in value:
            raise MessageIllegal(
                f"property {name!r} has an empty name, or a separator (0x01 or 0x02) in its name, or 0x02 in"
                " its value; encode such text, for example in base64"
            )
        parts.append(f"{name}{NAME_END}{value}{PROPERTY_END}")
    return "".join(parts)


def extended(stored: bytes, added: Mapping[str, str]) -> bytes:
    """A stored text with further properties, whose names it does not have. Raises MessageIllegal as
    `encode`."""
    end = b"" if not stored or stored.endswith(b"\x02") else b"\x02"
    return stored + end + encode(added).encode()


def edited(stored: bytes, removed: Collection[str], added: Mapping[str, str]) -> bytes:
    """A stored text without some properties, and with others, which replace those of their names. The bytes
    of all others stay as they are, also those that are not UTF-8. Raises MessageIllegal as `encode`."""
    gone = {*removed, *added}
    kept = [
        item + b"\x02"
        for item in stored.split(b"\x02")
        if item and text_of(item.partition(b"\x01")[0]) not in gone
    ]
    return b"".join(kept) + encode(added).encode()


def changed(stored: bytes, properties: Mapping[str, str]) -> bytes:
    """A stored text with exactly these properties. The bytes of those that it has already stay as they are.
    Raises MessageIllegal as `encode`."""
    before = decode_bytes(stored)
    removed = [name for name, value in before.items() if properties.get(name) != value]
    return edited(
        stored, removed, {name: value for name, value in properties.items() if before.get(name) != value}
    )


def split_keys(keys: str | None) -> tuple[str, ...]:
    """The single keys of the property KEYS."""
    return tuple(key for key in keys.split(KEY_SEPARATOR) if key) if keys else ()
