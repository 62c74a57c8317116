"""Messages of an answer as consumers get them."""

from __future__ import annotations

import struct
import zlib

import pytest

from rmqkit.client.consumer.received import Decoded, received
from rmqkit.model.queue import MessageQueue
from rmqkit.model.sysflag import COMPRESSED, INNER_BATCH, NEED_UNWRAP
from rmqkit.protocol import batch
from rmqkit.protocol.record import message_size, pack
from rmqkit.testing.store import message

QUEUE = MessageQueue("Orders", "broker-a", 0)


def record(number: int, body: bytes, sys_flag: int = 0) -> bytearray:
    one = message("Orders", body=body)
    one.sys_flag = sys_flag
    return bytearray(pack(one, message_size(one), number, 1000 + number, 5, bytes(8)))


def shown(found: Decoded) -> list[tuple[int, bytes, str | None]]:
    return [(each.queue_offset, each.body, each.fault) for each in found.messages]


@pytest.mark.parametrize("compressed", [False, True])
async def test_a_message_without_the_crc_of_its_body_has_a_fault(compressed: bool) -> None:
    """It has its bytes as they are stored; the other messages of the answer are good. A body with a wrong
    CRC is not decompressed."""
    flag = COMPRESSED if compressed else 0
    bodies = [zlib.compress(each) if compressed else each for each in (b"body 0", b"body 1", b"body 2")]
    records = [record(number, each, flag) for number, each in enumerate(bodies)]
    records[1][90] ^= 0xFF
    found = await received(b"".join(records), "broker-a", QUEUE)
    first, bad, last = found.messages
    assert [(each.queue_offset, each.body, each.fault) for each in (first, last)] == [
        (0, b"body 0", None),
        (2, b"body 2", None),
    ]
    assert found.complete
    assert bad.fault is not None
    assert "wrong CRC" in bad.fault
    assert "store verify" in bad.fault
    assert (bad.queue_offset, bad.physical_offset, len(bad.body)) == (1, 1001, len(bodies[1]))
    assert bad.sys_flag & COMPRESSED == flag


@pytest.mark.parametrize(
    ("at", "value"),
    [(0, 50), (0, 1 << 30), (0, -1), (4, 7), (84, -5), (84, 1 << 20)],
    ids=["short", "long", "negative", "magic", "negative body", "long body"],
)
async def test_nothing_follows_a_record_whose_length_is_not_known(at: int, value: int) -> None:
    """Those before it are good; it has a fault and the offsets of its head, and the answer is not
    complete."""
    records = [record(number, b"body %d" % number) for number in range(3)]
    struct.pack_into(">i", records[1], at, value)
    found = await received(b"".join(records), "broker-a", QUEUE)
    good, bad = found.messages
    assert (good.body, good.fault, found.complete) == (b"body 0", None, False)
    assert bad.fault is not None
    assert (bad.queue_offset, bad.physical_offset) == (1, 1001)
    assert bad.body == b"".join(records[1:])


@pytest.mark.parametrize("size", [1, 20, 40, 100])
async def test_a_record_that_is_cut_short(size: int) -> None:
    """Its offsets are -1 when not even they are there."""
    body = bytes(record(0, b"x")) + record(7, b"y" * 100)[:size]
    found = await received(body, "broker-a", None, {"MIN_OFFSET": "0"})
    good, bad = found.messages
    assert (good.fault, found.complete) == (None, False)
    assert bad.fault is not None
    assert bad.queue_offset == (7 if size >= 36 else -1)
    assert dict(bad.properties) == {"MIN_OFFSET": "0"}
    assert (bad.message_id, bad.keys) == ("", ())


@pytest.mark.parametrize("cut", [1, 25, 30])
async def test_a_damaged_batch_gives_the_messages_before_the_damage(cut: int) -> None:
    """The rest is one message with a fault, at the offset of the first that cannot be read; the records
    behind the batch are good."""
    items = [batch.BatchItem(0, b"item %d" % number, b"n\x01%d\x02" % number) for number in range(3)]
    body = batch.encode(items)
    records = record(4, body[:-cut], INNER_BATCH | NEED_UNWRAP) + record(7, b"after")
    found = await received(bytes(records), "broker-a", QUEUE)
    *good, bad, after = found.messages
    whole = (len(body) - cut) // items[0].size_bytes
    assert [(each.queue_offset, each.body) for each in good] == [
        (4 + number, b"item %d" % number) for number in range(whole)
    ]
    assert bad.fault is not None
    assert bad.queue_offset == 4 + whole
    assert bad.body == body[whole * items[0].size_bytes : -cut]
    assert (after.body, after.fault, found.complete) == (b"after", None, True)


@pytest.mark.parametrize("in_parts", [False, True])
async def test_bodies_are_decompressed_while_there_is_room(in_parts: bool) -> None:
    """The first one always is, whatever its size. The rest is left for another answer, or stays compressed
    with a fault if there is none."""
    packed = zlib.compress(bytes(600))
    records = b"".join([*(record(number, packed, COMPRESSED) for number in range(4)), record(4, b"plain")])
    found = await received(records, "broker-a", QUEUE, room_bytes=1000, in_parts=in_parts)
    good = [(0, bytes(600), None), (1, bytes(600), None)]
    if in_parts:
        assert (shown(found), found.complete) == (good, False)
    else:
        too_large = "it is not decompressed, because those before it are too large; ask for it alone"
        rest = [(2, packed, too_large), (3, packed, too_large), (4, b"plain", None)]
        assert (shown(found), found.complete) == (good + rest, True)
    first = await received(records, "broker-a", QUEUE, room_bytes=0, in_parts=True)
    assert (shown(first), first.complete) == (good[:1], False)


@pytest.mark.parametrize("inner", [False, True])
async def test_properties_that_are_no_text(inner: bool) -> None:
    """They are read with replacement, and their stored bytes are at hand for who sends the message again."""
    odd, plain = b"a\x01b\x01\xa4\x02TAGS\x01t", b"a\x01b\x02"
    found = []
    for stored in (odd, plain):
        one = message("Orders", body=b"b")
        one.properties_bytes = plain if inner else stored
        if inner:
            one.body = batch.encode([batch.BatchItem(0, b"b", stored)])
            one.sys_flag = INNER_BATCH | NEED_UNWRAP
        data = pack(one, message_size(one), 0, 1000, 5, bytes(8))
        found += (await received(data, "broker-a", QUEUE)).messages
    assert [dict(each.properties) for each in found] == [{"a": "b\x01\ufffd", "TAGS": "t"}, {"a": "b"}]
    assert [each.stored_properties for each in found] == [plain + odd if inner else odd, None]


async def test_keys_are_separated_by_spaces_alone() -> None:
    """A tab or another blank belongs to a key, in both twins, as in Java."""
    found = []
    for keys in ("a\tb  c ", "a\u3000b\u00a0 c"):
        one = message("Orders", body=b"b")
        one.set_properties({"KEYS": keys})
        found += (
            await received(pack(one, message_size(one), 0, 1000, 5, bytes(8)), "broker-a", QUEUE)
        ).messages
    assert [each.keys for each in found] == [("a\tb", "c"), ("a\u3000b\u00a0", "c")]
