"""The preparation of messages for sending (behaviour sheet, A8 to A10)."""

from __future__ import annotations

from typing import Any

import pytest

from rmqkit.client import ClientError, Message
from rmqkit.client.producing.outgoing import batch_item, batch_of, check_message, keyed_properties
from rmqkit.errors import MessageIllegal
from rmqkit.model import properties as props
from rmqkit.protocol import batch

LIMIT = 1 << 20


@pytest.mark.parametrize("wait_store", [True, False])
@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"tag": "t"},
        {"keys": ["k"]},
        {"properties": {"p": "v"}},
        {"ordering_key": "o"},
        {"delay_level": 3},
        {"priority": 0},
    ],
)
def test_the_properties_of_a_message_are_its_own_and_its_id(parts: dict[str, Any], wait_store: bool) -> None:
    """The text that is sent decodes to the message's properties and UNIQ_KEY, also for a message without
    properties of its own."""
    message = Message("T", b"body", wait_store=wait_store, **parts)
    key, text = keyed_properties(message, lambda: "ID")
    assert key == "ID"
    assert props.decode(text) == {**message.all_properties(), props.UNIQ_KEY: "ID"}
    assert text == props.encode({**message.all_properties(), props.UNIQ_KEY: "ID"})


def test_a_message_keeps_the_id_that_it_has() -> None:
    """A UNIQ_KEY among the properties is not replaced."""
    assert keyed_properties(Message("T", b"b", properties={props.UNIQ_KEY: "OWN"}), lambda: "NEW")[0] == "OWN"


def test_the_size_of_an_item_is_that_of_its_encoded_form() -> None:
    """A batch has the sum of the sizes of its items."""
    items = [
        batch_item(Message("T", bytes([65]) * size), lambda: "ID", max_message_bytes=LIMIT)[1]
        for size in (1, 1000)
    ]
    body = batch_of("T", True, ["ID", "ID"], items, max_message_bytes=LIMIT).body
    assert len(body) == sum(item.size_bytes for item in items)
    assert batch.decode(body) == items


@pytest.mark.parametrize("topic", ["", "a b", "x" * 5000, "SELF_TEST_TOPIC"])
def test_an_illegal_topic_is_refused_each_time(topic: str) -> None:
    """The refusal is the same for every message to the topic."""
    texts = set()
    for _ in range(2):
        with pytest.raises(ClientError) as caught:
            check_message(Message(topic, b"b"), LIMIT)
        texts.add(str(caught.value))
    assert len(texts) == 1


@pytest.mark.parametrize("key", ["a\tb", "a\u3000b", "a\u00a0b\n"])
def test_a_key_may_have_other_blanks_than_a_space(key: str) -> None:
    """Only a space separates keys, so no other blank can tear one apart."""
    message = Message("T", b"b", keys=[key])
    check_message(message, LIMIT)
    assert props.split_keys(props.decode(keyed_properties(message, lambda: "ID")[1])[props.KEYS]) == (key,)


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"a": "x\x02y"}, "separator"),
        ({"a\x01": "x"}, "separator"),
        ({"": "x"}, "empty name"),
        ({"title": "cut \ud83d"}, "half of a surrogate pair"),
        ({"\ude00": "x"}, "half of a surrogate pair"),
    ],
)
def test_properties_that_would_be_read_as_others(properties: dict[str, str], why: str) -> None:
    """What readers would take for something else, or what is not text, is refused at the application."""
    with pytest.raises(MessageIllegal, match=why):
        keyed_properties(Message("T", b"b", properties=properties), lambda: "ID")


def test_a_value_with_the_end_of_a_name() -> None:
    """Readers take everything behind the first 0x01 for the value, so a value may contain it."""
    text = keyed_properties(Message("T", b"b", properties={"row": "a\x01b"}), lambda: "ID")[1]
    assert props.decode(text)["row"] == "a\x01b"
