"""The hook by itself, its settings, and in a broker that found it by its entry point."""

from __future__ import annotations

from pathlib import Path

import pytest
from rmqkit_redact.hook import Redact, RedactSettings

from rmqkit import config as settings
from rmqkit.errors import PluginError
from rmqkit.model.message import PutMessage
from rmqkit.model.sysflag import COMPRESSED
from rmqkit.plugin.loader import load
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import request
from rmqkit.protocol.headers import SendMessageRequestHeader
from rmqkit.protocol.record import unpack
from rmqkit.testing.broker import running_broker
from rmqkit.testing.calls import calling_broker
from rmqkit.testing.store import message

CARD = b"card 1234-5678-9012-3456, thanks"
BLOTTED = b"card *******************, thanks"


def redacted(given: PutMessage, **keys: object) -> bytes:
    Redact(RedactSettings(**keys)).before_each(given)  # type: ignore[arg-type]
    return given.body


def test_what_matches_is_blotted_out() -> None:
    """In the topics that are named, or all; the rest of the body and its length stay."""
    assert redacted(message(body=CARD)) == BLOTTED
    assert redacted(message("Payments", body=CARD), topics=("Payments",)) == BLOTTED
    assert redacted(message("Other", body=CARD), topics=("Payments",)) == CARD
    assert redacted(message(body=b"a b"), pattern="[ab]") == b"* *"


def test_compressed_bodies_stay() -> None:
    """A match in compressed bytes is none in the message."""
    assert redacted(message(body=CARD, sys_flag=COMPRESSED)) == CARD


def test_a_bad_pattern_stops_the_start() -> None:
    """With the plugin's name, and what is wrong."""
    with pytest.raises(PluginError, match=r"'redact': pattern '\(' is not a regular expression"):
        load(settings.load(environ={}, flags={"plugins.redact.pattern": "("}))


async def test_a_broker_uses_it(tmp_path: Path) -> None:
    """What is stored is blotted out."""
    async with running_broker(tmp_path, scheme="memory") as broker, calling_broker(broker) as call:
        header = SendMessageRequestHeader(producer_group="p", topic="Payments", queue_id=0)
        assert (await call(request(RequestCode.SEND_MESSAGE, header, CARD))).code == 0
        assert unpack(broker.context.store.read_record(0) or b"").body == BLOTTED
