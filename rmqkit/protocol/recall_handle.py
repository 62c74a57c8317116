"""The handle by which a producer recalls a message that waits for its time of delivery (wire-protocol sheet,
section 3.1; Java: RecallMessageHandle)."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple

from rmqkit.errors import DecodeError
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.model.names import RETRY_PREFIX, TIMER_TOPIC
from rmqkit.model.text import text_of

_VERSION = "v1"
_SEPARATOR = " "
#: In place of a space in a schedule; neither a field of a cron expression nor a time zone has it.
_SPACE_IN_WORD = "~"
_BASE64 = re.compile(r"([A-Za-z0-9_-]*)(={0,2})")
_DIGITS = re.compile(r"[0-9]{1,19}")
#: Characters of a handle; a longer one is not looked at.
MAX_HANDLE_LENGTH = 4096


class RecallHandle(NamedTuple):
    """What a handle names.

    topic        the topic to which the message is delivered
    broker_name  the broker that keeps it
    deliver_ms   its time of delivery, ms since 1970; -1 for what is no such number
    message_id   its UNIQ_KEY
    repeats      the schedule of a repeating message, as one word; empty of others. Java ignores it
    """

    topic: str
    broker_name: str
    deliver_ms: int
    message_id: str
    repeats: str = ""

    def encode(self) -> str | None:
        """The handle as text; None when a part could not be read back, because it is empty or has a space."""
        parts = [_VERSION, self.topic, self.broker_name, str(self.deliver_ms), self.message_id]
        if self.repeats:
            parts.append(self.repeats)
        if not all(parts) or any(_SEPARATOR in part for part in parts):
            return None
        return urlsafe_b64encode(_SEPARATOR.join(parts).encode()).decode()


def repeats_word(rule: str, first: str) -> str:
    """The schedule of a repeating message as one word: its rule, and its first time in ms since 1970."""
    return f"{rule.replace(_SEPARATOR, _SPACE_IN_WORD)}@{first}"


def repeats_of(word: str) -> tuple[str, str]:
    """The rule and the first time in such a word; both as they stand there."""
    rule, _, first = word.rpartition("@")
    return rule.replace(_SPACE_IN_WORD, _SEPARATOR), first


def decode_handle(text: str) -> RecallHandle:
    """The parts of a handle. As in Java, padding may be absent, and further parts are ignored. Raises
    DecodeError."""
    found = _BASE64.fullmatch(text) if len(text) <= MAX_HANDLE_LENGTH else None
    if not text or found is None:
        raise DecodeError("recall handle is invalid")
    digits, padding = found.groups()
    missing = -len(digits) % 4
    if missing == 3 or (padding and len(padding) != missing):
        raise DecodeError("recall handle is invalid")
    # Java drops empty parts at the end.
    parts = text_of(urlsafe_b64decode(digits + "=" * missing)).rstrip(_SEPARATOR).split(_SEPARATOR)
    if len(parts) < 5 or parts[0] != _VERSION:
        raise DecodeError("recall handle is invalid")
    _, topic, broker_name, number, message_id, *further = parts
    deliver_ms = int(number) if _DIGITS.fullmatch(number) else -1
    return RecallHandle(topic, broker_name, deliver_ms, message_id, further[0] if further else "")


def handle_of(message: PutMessage, broker_name: str) -> RecallHandle | None:
    """The handle of a message that was put to wait for its time; None of any other one, and of a retry. The
    time is 1 ms behind that of its slot, from which it is rounded down to the slot again (Java:
    SendMessageProcessor.attachRecallHandle)."""
    if message.topic != TIMER_TOPIC:
        return None
    properties = message.properties
    topic, number = properties.get(props.REAL_TOPIC, ""), properties.get(props.TIMER_OUT_MS, "")
    if topic.startswith(RETRY_PREFIX) or not _DIGITS.fullmatch(number):
        return None
    key, rule = properties.get(props.UNIQ_KEY, ""), properties.get(props.REPEAT, "")
    repeats = repeats_word(rule, properties.get(props.REPEAT_FROM, "")) if rule else ""
    return RecallHandle(topic, broker_name, int(number) + 1, key, repeats)


__all__ = ["MAX_HANDLE_LENGTH", "RecallHandle", "decode_handle", "handle_of", "repeats_of", "repeats_word"]
