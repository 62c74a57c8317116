"""Messages of an answer as consumers get them."""

from __future__ import annotations

import pytest

from rmqkit.client.received import received
from rmqkit.model.queue import MessageQueue
from rmqkit.protocol.record import message_size, pack
from rmqkit.testing.store import message


async def test_a_message_without_the_crc_of_its_body_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """The other messages of the answer are returned, and the log contains the position."""
    records = []
    for number in range(3):
        one = message("Orders", body=b"body %d" % number)
        records.append(bytearray(pack(one, message_size(one), number, 1000 + number, 5, bytes(8))))
    records[1][90] ^= 0xFF
    found = await received(b"".join(records), "broker-a", MessageQueue("Orders", "broker-a", 0))
    assert [(each.queue_offset, each.body) for each in found] == [(0, b"body 0"), (2, b"body 2")]
    assert "queue offset 1, log offset 1001, is damaged and skipped" in caplog.text
