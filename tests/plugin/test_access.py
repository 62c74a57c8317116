"""What processors ask access control."""

from __future__ import annotations

import pytest

from rmqkit.errors import RequestRefused
from rmqkit.model import names
from rmqkit.plugin.access import READ_CHECK, check_read, only_of
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.message_id import pack_host
from rmqkit.protocol.record import message_size, pack
from rmqkit.testing.peer import FakePeer
from rmqkit.testing.store import message


def record(topic: str, properties: bytes = b"") -> bytes:
    put = message(topic=topic, properties_bytes=properties)
    return pack(put, message_size(put), 0, 0, 0, pack_host("127.0.0.1", 10_911))


def test_without_access_control_nothing_is_asked() -> None:
    """Records are not even decoded."""
    check_read(FakePeer(), Command(33), b"no record")
    assert only_of(FakePeer(), "T", [b"no record"]) == [b"no record"]


def test_the_topic_is_that_of_the_record() -> None:
    """A parked message belongs to the topic for which it is meant, whatever other messages say of theirs."""
    asked: list[str] = []
    peer = FakePeer()
    peer.attributes[READ_CHECK] = lambda request, topic: asked.append(topic)
    parked = b"REAL_TOPIC\x01Orders\x02"
    for each in (
        record("T"),
        record("T", parked),
        record(names.SCHEDULE_TOPIC, parked),
        record(names.SCHEDULE_TOPIC),
        b"no record",
    ):
        check_read(peer, Command(33), each)
    assert asked == ["T", "T", "Orders", names.SCHEDULE_TOPIC, ""]
    assert only_of(peer, "T", [record("T"), record("U"), b"no record"]) == [record("T")]


def test_a_refusal_is_passed_on() -> None:
    """The processor answers with it."""

    def refuse(request: Command, topic: str) -> None:
        raise RequestRefused(ResponseCode.NO_PERMISSION, topic)

    peer = FakePeer()
    peer.attributes[READ_CHECK] = refuse
    with pytest.raises(RequestRefused, match="T"):
        check_read(peer, Command(33), record("T"))
