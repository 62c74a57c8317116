"""The type of a message by its properties."""

from __future__ import annotations

import pytest

from rmqkit.model.message_type import (
    MessageType,
    TopicMessageType,
    declared_type,
    message_type,
    type_for_topics,
)


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({}, MessageType.NORMAL),
        ({"TAGS": "a"}, MessageType.NORMAL),
        ({"__SHARDINGKEY": "k"}, MessageType.ORDER),
        ({"DELAY": "3"}, MessageType.DELAY),
        ({"TIMER_DELIVER_MS": "1"}, MessageType.DELAY),
        ({"TIMER_DELAY_SEC": "1"}, MessageType.DELAY),
        ({"TIMER_DELAY_MS": "1"}, MessageType.DELAY),
        ({"TRAN_MSG": "true"}, MessageType.HALF),
        ({"TRAN_MSG": "TRUE"}, MessageType.HALF),
        ({"TRAN_MSG": "false"}, MessageType.NORMAL),
        ({"TRAN_MSG": "true", "DELAY": "1"}, MessageType.DELAY),
        ({"DELAY": "1", "__SHARDINGKEY": "k"}, MessageType.ORDER),
    ],
)
def test_kinds(properties: dict[str, str], kind: MessageType) -> None:
    """As in Java's broker, an ordering key is checked first, then a time, then a transaction."""
    assert message_type(properties) is kind


def test_numbers() -> None:
    """The numbers are those used in trace records."""
    assert [kind.name for kind in sorted(MessageType)] == ["NORMAL", "HALF", "COMMIT", "DELAY", "ORDER"]


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({}, "NORMAL"),
        ({"TAGS": "a", "TRAN_MSG": "false"}, "NORMAL"),
        ({"TRAN_MSG": "TRUE"}, "NORMAL"),
        ({"__SHARDINGKEY": "k"}, "FIFO"),
        ({"DELAY": "0"}, "DELAY"),
        ({"TIMER_DELAY_SEC": "1", "__SHARDINGKEY": "k"}, "DELAY"),
        ({"TIMER_DELAY_MS": "x"}, "DELAY"),
        ({"TIMER_DELIVER_MS": "1"}, "DELAY"),
        ({"TRAN_MSG": "true", "DELAY": "1", "__SHARDINGKEY": "k"}, "TRANSACTION"),
        ({"_SYS_MSG_PRIORITY_": "1", "__LITE_TOPIC": "a"}, "PRIORITY"),
        ({"__LITE_TOPIC": "a"}, "LITE"),
    ],
)
def test_what_a_message_is_for_its_topic(properties: dict[str, str], kind: str) -> None:
    """As in Java's TopicMessageType, a transaction is checked first, then a time, then an ordering key."""
    assert type_for_topics(properties) == kind


@pytest.mark.parametrize(
    ("attributes", "kind"),
    [
        ({}, "MIXED"),
        ({"queue.type": "SimpleCQ"}, "MIXED"),
        ({"message.type": "UNSPECIFIED"}, "MIXED"),
        ({"message.type": "FIFO"}, "FIFO"),
        ({"message.type": "MIXED"}, "MIXED"),
        ({"message.type": "fifo"}, "MIXED"),
        ({"message.type": ""}, "MIXED"),
        ({"message.type": "SomethingNewer"}, "MIXED"),
    ],
)
def test_what_a_topic_declares(attributes: dict[str, str], kind: str) -> None:
    """A topic that declares nothing, or what is not a type, takes all messages."""
    assert declared_type(attributes) is TopicMessageType[kind]
