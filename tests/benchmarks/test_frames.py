"""The generator's frames, decoded by rmqkit's decoder, which shares no code with it."""

from __future__ import annotations

import struct

import pytest

from benchmarks.load.frames import SEND_BATCH, SEND_V2, LoadError, Ring, SendShape, decode_header, encode
from rmqkit.model import properties as props
from rmqkit.protocol import batch
from rmqkit.protocol.command import Command
from rmqkit.protocol.frame import FrameDecoder


def opaques(first: int, count: int) -> list[bytes]:
    return [b"%d" % opaque for opaque in range(first, first + count)]


def taken(ring: Ring, wanted: list[bytes]) -> list[Command]:
    return FrameDecoder().feed(b"".join(ring.take(wanted)))


def test_a_ring_hands_out_requests_with_their_own_opaque_and_key_to_queues_in_turn() -> None:
    """Each request has its own opaque, key and queue, also where the ring wraps around within a call."""
    ring = Ring(SendShape("T", 100, 1, 4), at_least=6)
    commands = [
        command
        for first in (2_000_000_000, 2_000_000_005, 2_000_000_010)
        for command in taken(ring, opaques(first, 5))
    ]
    assert [command.opaque for command in commands] == list(range(2_000_000_000, 2_000_000_015))
    assert {command.code for command in commands} == {SEND_V2}
    assert [command.fields()["e"] for command in commands] == [str(index % 4) for index in range(15)]
    keys = [props.decode(command.fields()["i"])[props.UNIQ_KEY] for command in commands]
    assert [key[-10:] for key in keys] == [str(command.opaque) for command in commands]
    assert {len(command.body) for command in commands} == {100}


def test_every_message_of_a_batch_has_a_key_of_its_own() -> None:
    """Requests of 3 messages have 3 bodies, and keys that differ within and between requests."""
    commands = taken(Ring(SendShape("T", 50, 3, 2), at_least=2), opaques(1_500_000_000, 2))
    items = [item for command in commands for item in batch.decode(command.body)]
    assert {command.code for command in commands} == {SEND_BATCH}
    assert [len(item.body) for item in items] == [50] * 6
    assert len({props.decode(item.properties.decode())[props.UNIQ_KEY] for item in items}) == 6


def test_frames_that_cannot_be_patched_in_place_are_refused() -> None:
    """Queue 10 has one digit more than queue 9, so its frame has another length."""
    with pytest.raises(LoadError, match="at most ten queues"):
        Ring(SendShape("T", 10, 1, 11), at_least=1)


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b'{"code":0}', b'{"opaque":"7"}'])
def test_a_header_that_is_none_is_a_load_error(raw: bytes) -> None:
    """An invalid header raises LoadError."""
    with pytest.raises(LoadError):
        decode_header(len(raw), raw)


def test_of_a_binary_header_code_and_opaque_are_read() -> None:
    """A broker may answer in RocketMQ's binary serialisation, of which code and opaque are read."""
    raw = struct.pack(">hbhi", 14, 0, 453, 77) + bytes(12)
    assert decode_header(1 << 24 | len(raw), raw) == {"code": 14, "opaque": 77}
    with pytest.raises(LoadError):
        decode_header(1 << 24 | 3, raw[:3])


def test_a_request_is_read_as_it_was_meant() -> None:
    """Code, opaque, fields and body are decoded as they were given."""
    (command,) = FrameDecoder().feed(encode(11, 5, {"topic": "T"}, b"body"))
    assert (command.code, command.opaque, command.fields(), bytes(command.body)) == (
        11,
        5,
        {"topic": "T"},
        b"body",
    )
