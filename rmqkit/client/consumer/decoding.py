"""The values of messages, for consumers with a codec."""

from __future__ import annotations

from typing import Any

from attrs import evolve

from rmqkit.client.codecs import Codec
from rmqkit.client.consumer.received import ReceivedMessage


def with_value(message: ReceivedMessage, codec: Codec[Any] | None) -> ReceivedMessage:
    """The message with the value of its body; with a `fault` when the codec cannot decode it, so that it is
    treated as a record that cannot be decoded."""
    if codec is None or message.fault is not None:
        return message
    try:
        value = codec.decode(message.body)
    except Exception as error:  # noqa: BLE001 - it is the reason of the dead letter
        return evolve(message, fault=f"{codec.content_type} expected: {type(error).__name__}: {error}")
    return evolve(message, value=value)
