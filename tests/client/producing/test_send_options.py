"""The keywords of a send make one message, or belong to a message that is given whole."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
import pytest

from rmqkit.client.producing.producer import Producer
from rmqkit.client.producing.send_options import SendKeywords, SendOptions
from rmqkit.errors import ClientError
from rmqkit.model.message import Message
from rmqkit.model.queue import MessageQueue

PARTS: dict[str, Any] = {
    "tag": "new",
    "keys": ["a", "b"],
    "properties": {"colour": "red"},
    "ordering_key": "customer-1",
    "delay_level": 3,
    "priority": 0,
}


def test_the_keywords_are_the_fields() -> None:
    """A type checker sees the keywords, and the fields take them: both name the same ones."""
    assert [*SendKeywords.__annotations__] == [field.name for field in msgspec.structs.fields(SendOptions)]


def test_parts_make_a_message() -> None:
    """Each part is in the message; those that are left out have the defaults of a message."""
    assert SendOptions(**PARTS).message("Orders", b"1") == Message("Orders", b"1", **PARTS)
    assert SendOptions().message("Orders", b"1") == Message("Orders", b"1")
    options = SendOptions(queue=MessageQueue("Orders", "broker-a", 1), timeout_ms=100)
    assert options.message("Orders", b"1") == Message("Orders", b"1")


@pytest.mark.parametrize("part", PARTS)
def test_a_whole_message_takes_no_parts(part: str) -> None:
    """A part besides a message, or a second body, is refused: it would silently be left out."""
    message = Message("Orders", b"1")
    assert SendOptions().message(message, None) is message
    for options, body in ((SendOptions(**{part: PARTS[part]}), None), (SendOptions(), b"2")):
        with pytest.raises(ClientError, match="set them there"):
            options.message(message, body)


def test_a_topic_needs_a_body() -> None:
    """A topic alone is not a message, nor is a value of another type."""
    with pytest.raises(ClientError, match="a topic and a body"):
        SendOptions().message("Orders", None)
    with pytest.raises(TypeError, match="topic"):
        SendOptions().message(7, b"1")  # type: ignore[arg-type]


@pytest.mark.parametrize("method", [Producer.send, Producer.send_oneway])
def test_an_unknown_keyword_is_refused(method: Any) -> None:
    """A misspelt keyword is an error that names it, before anything else is looked at."""
    with pytest.raises(TypeError, match="tagg"):
        inspect.unwrap(method)(None, "Orders", b"1", tagg="new").send(None)
