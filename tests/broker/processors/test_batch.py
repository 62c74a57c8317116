"""Batch sends: one request with several messages, all or none."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from struct import pack
from typing import Any

import pytest

from rmqkit.model import properties as props
from rmqkit.protocol import batch
from rmqkit.protocol.batch import BatchItem
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers import (
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from rmqkit.protocol.message_id import parse_offset_message_id
from tests.broker.desk import BrokerHarness

Opened = Callable[..., AbstractAsyncContextManager[BrokerHarness]]
TEXT = props.encode({"TAGS": "A", "UNIQ_KEY": "K"}).encode()


async def send(
    desk: BrokerHarness,
    body: bytes,
    *,
    topic: str = "T",
    queue_id: int = 0,
    properties: str = "",
    **fields: Any,
) -> Command:
    header = SendMessageRequestHeaderV2(
        producer_group="p", topic=topic, queue_id=queue_id, batch=True, properties=properties, **fields
    )
    return await desk.ask(RequestCode.SEND_BATCH_MESSAGE, header, body)


def items(*bodies: bytes, properties: bytes = TEXT) -> bytes:
    return batch.encode(BatchItem(number, body, properties) for number, body in enumerate(bodies))


@pytest.mark.row("S097", "S329")
async def test_a_batch_is_stored_in_one_queue_in_order(desk: BrokerHarness) -> None:
    """The answer has the ids joined by commas and the queue offset of the first; the messages' own properties
    are unchanged."""
    await desk.sent(queue_id=2)
    answer = await send(
        desk,
        items(b"1", b"2", b"3"),
        queue_id=2,
        properties=props.encode({"UNIQ_KEY": "OUTER"}),
        born_timestamp=77,
    )
    assert answer.code == 0
    got = answer.header(SendMessageResponseHeader)
    stored = desk.stored("T", 2)[1:]
    assert [message.body for message in stored] == [b"1", b"2", b"3"]
    assert [message.flag for message in stored] == [0, 1, 2]
    assert {message.born_timestamp_ms for message in stored} == {77}
    assert all(message.properties == {"TAGS": "A", "UNIQ_KEY": "K"} for message in stored)
    ids = [parse_offset_message_id(one)[2] for one in got.msg_id.split(",")]
    assert ids == [message.physical_offset for message in stored]
    assert (got.queue_id, got.queue_offset, got.transaction_id) == (2, 1, "OUTER")


async def test_a_batch_of_one_is_a_batch(desk: BrokerHarness) -> None:
    """A batch of one has one id, without a comma, and nothing is added to its properties."""
    answer = await send(desk, items(b"1"))
    assert answer.code == 0
    (message,) = desk.stored()
    assert (message.body, message.properties) == (b"1", {"TAGS": "A", "UNIQ_KEY": "K"})


async def test_the_field_decides_and_the_code_too(desk: BrokerHarness) -> None:
    """As in Java, SEND_MESSAGE with batch=true is a batch, and so is SEND_BATCH_MESSAGE without the field."""
    header = SendMessageRequestHeader(producer_group="p", topic="T", queue_id=0, batch=True)
    assert (await desk.ask(RequestCode.SEND_MESSAGE, header, items(b"1", b"2"))).code == 0
    assert (await send(desk, items(b"3", b"4"))).code == 0
    assert [message.body for message in desk.stored()] == [b"1", b"2", b"3", b"4"]


async def test_a_negative_queue_id_puts_the_whole_batch_into_one_queue(desk: BrokerHarness) -> None:
    """The broker chooses the queue once per batch."""
    answer = await send(desk, items(b"1", b"2", b"3"), queue_id=-1)
    queue_id = answer.header(SendMessageResponseHeader).queue_id
    assert len(desk.stored("T", queue_id)) == 3


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"garbage",
        items(b"1", b"2")[:-1],
        items(b"1") + b"\x00",
        pack(">iiiii", 22, 0, 0, 0, 2**31 - 1) + bytes(2),
        pack(">iiiii", 22, 0, 0, 0, -1) + bytes(2),
        pack(">iiiiih", 1_000, 0, 0, 0, 0, 0),
        items(b"1", b"", b"3"),
        items(b"1", b"2", properties=props.encode({"DELAY": "3"}).encode()),
        items(b"1", b"2", properties=props.encode({"TIMER_DELAY_SEC": "3"}).encode()),
    ],
)
async def test_a_bad_batch_is_illegal_and_nothing_is_stored(desk: BrokerHarness, body: bytes) -> None:
    """Wrong lengths, an empty message, delayed or timed messages make the whole batch illegal."""
    answer = await send(desk, body)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert desk.is_empty()


async def test_properties_that_are_no_text_are_stored(desk: BrokerHarness) -> None:
    """Go's client sends the bytes of a text as they are; a batch is stored with them, as by Apache's
    broker."""
    properties = b"trace\x01\xb1\xe0\xa4\x02row\x01a\x01b\x02TAGS\x01\xa4"
    answer = await send(desk, items(b"1", b"2", properties=properties))
    assert answer.code == ResponseCode.SUCCESS
    for message in desk.stored():
        assert message.properties_bytes == properties
        assert message.properties == {"trace": "\ufffd\ufffd", "row": "a\x01b", "TAGS": "\ufffd"}


async def test_half_messages_do_not_travel_in_a_batch(desk: BrokerHarness) -> None:
    """Half messages are refused with NO_PERMISSION, for the batch or for one of its messages."""
    half = props.encode({"TRAN_MSG": "true"})
    for answer in (
        await send(desk, items(b"1", properties=half.encode())),
        await send(desk, items(b"1"), properties=half),
    ):
        assert answer.code == ResponseCode.NO_PERMISSION
    assert desk.is_empty()


async def test_a_batch_does_not_go_to_a_retry_topic(desk: BrokerHarness) -> None:
    """The answer is MESSAGE_ILLEGAL, and the topic is not created."""
    answer = await send(desk, items(b"1", b"2"), topic="%RETRY%g")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert desk.broker.topics.get("%RETRY%g") is None


async def test_a_batch_over_max_message_size_is_illegal(opened: Opened) -> None:
    """The limit counts the request's body."""
    async with opened(maxMessageSize=1_000) as desk:
        assert (await send(desk, items(bytes(400), bytes(700)))).code == ResponseCode.MESSAGE_ILLEGAL
        assert desk.is_empty()
        assert (await send(desk, items(bytes(400), bytes(400)))).code == 0


async def test_queue_ids_of_a_batch_are_checked(desk: BrokerHarness) -> None:
    """Queue ids are checked as for a single message."""
    assert (await send(desk, items(b"1"), queue_id=99)).code == ResponseCode.INVALID_PARAMETER
    assert desk.is_empty()
