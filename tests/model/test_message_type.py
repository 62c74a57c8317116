"""The type of a message by its properties."""

from __future__ import annotations

import pytest

from rmqkit.model.message_type import MessageType, message_type


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
