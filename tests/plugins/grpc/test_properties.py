"""The type of a message, by its properties."""

from __future__ import annotations

import pytest

from rmqkit_grpc.properties import RESERVED, TYPES, kind_of


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({}, "NORMAL"),
        ({"colour": "green"}, "NORMAL"),
        ({"TRAN_MSG": "true", "__SHARDINGKEY": "a"}, "TRANSACTION"),
        ({"TRAN_MSG": "false"}, "NORMAL"),
        ({"TIMER_DELIVER_MS": "1"}, "DELAY"),
        ({"DELAY": "3", "__SHARDINGKEY": "a"}, "DELAY"),
        ({"__SHARDINGKEY": "a"}, "FIFO"),
        ({"_SYS_MSG_PRIORITY_": "3"}, "PRIORITY"),
        ({"__LITE_TOPIC": "x"}, "LITE"),
    ],
)
def test_types(properties: dict[str, str], kind: str) -> None:
    """The first that fits."""
    assert kind_of(properties) == TYPES[kind]


def test_names_of_the_system() -> None:
    """Those by which a client could ask for more than storing a message are not an application's."""
    wanted = {"TAGS", "KEYS", "UNIQ_KEY", "DELAY", "TRAN_MSG", "TIMER_DELIVER_MS", "POP_CK", "__SHARDINGKEY"}
    assert wanted <= RESERVED
    assert "colour" not in RESERVED
