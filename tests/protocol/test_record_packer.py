"""Runs of messages packed into records, for all stores."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from attrs import define

from rmqkit.errors import MessageIllegal
from rmqkit.model.message import PutMessage
from rmqkit.model.sysflag import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rmqkit.protocol.packed import UNIT, PackedRun, TopicHead, next_place_in_files
from rmqkit.protocol.record import BLANK_BYTES, message_size, pack, unpack
from rmqkit.protocol.record_packer import RecordPacker
from rmqkit.protocol.tags import extend_hash
from rmqkit.testing.store import message

SHORT_HOST, LONG_HOST = bytes(range(8)), bytes(range(20))
FILE_BYTES = 1_000


@define(eq=False)
class Queue:
    head: TopicHead
    next_offset: int = 0
    reserved_until: int = 2
    reserved: int = 0

    def reserve(self, stop: int) -> None:
        self.reserved = self.reserved_until = stop


def new_queue(topic: str, queue_id: int, number: int) -> Queue:
    return Queue(TopicHead.of(topic))


def packed(
    messages: Sequence[PutMessage],
    queues: dict[tuple[str, int], Queue],
    *,
    host: bytes = SHORT_HOST,
    made: dict[tuple[str, int], Queue] | None = None,
) -> PackedRun[Queue]:
    packer, place_elsewhere = RecordPacker(500, host), next_place_in_files(FILE_BYTES)
    codes = {"Coded": lambda properties, time_ms: time_ms + 1}
    found = {} if made is None else made
    return packer.pack(
        messages, 7_000, queues, new_queue, *place_elsewhere(0, 0), place_elsewhere, found, codes
    )


@pytest.mark.parametrize("host", [SHORT_HOST, LONG_HOST])
@pytest.mark.parametrize("topic", ["T", "x" * 127, "%RETRY%" + "x" * 200])
def test_records_are_those_of_the_codec(topic: str, host: bytes) -> None:
    """A packed record has the bytes that `record.pack` makes of the message, with hosts of either width and
    topics of either magic."""
    queue = Queue(TopicHead.of(topic), 5)
    given = [
        message(topic, 0, b"body", tag="A", keys="k1 k2", born_host=SHORT_HOST, flag=3),
        message(topic, 0, b"", born_host=LONG_HOST, sys_flag=BORN_HOST_V6, reconsume_times=2),
    ]
    run = packed(given, {(topic, 0): queue}, host=host)
    for number, (one, made, at) in enumerate(zip(given, run.records(), run.results, strict=True)):
        one.sys_flag |= STORE_HOST_V6 if host == LONG_HOST else 0
        size = message_size(one)
        assert made == pack(one, size, 5 + number, at.physical_offset, 7_000, host)
        assert at == (5 + number, at.physical_offset, size, 7_000)
        assert unpack(made).queue_offset == 5 + number


def test_records_do_not_lie_across_the_end_of_a_file() -> None:
    """A record that leaves no room for a blank record goes to the next file."""
    run = packed([message(body=bytes(300)) for _ in range(5)], {})
    size = run.results[0].size_bytes
    assert [at.physical_offset for at in run.results] == [
        0,
        size,
        FILE_BYTES,
        FILE_BYTES + size,
        2 * FILE_BYTES,
    ]
    assert (run.end, 3 * size + BLANK_BYTES > FILE_BYTES) == (2 * FILE_BYTES + size, True)


def test_units_and_notes() -> None:
    """Units carry the tags code, that of topics with a function of their own included; prepared and
    rolled-back messages get none, and no key is noted of rolled-back ones. The queues stay as they are but
    for reserved room."""
    queue = Queue(TopicHead.of("T"))
    given = [
        message("T", 0, keys="a", tags_code=4),
        message("T", 0, keys="b", sys_flag=TRANSACTION_PREPARED),
        message("T", 0, keys="c", sys_flag=TRANSACTION_ROLLBACK),
        message("Coded", 1, unique_key="u"),
        message("T", 0, tags_code=-5),
        message("T", 0),
    ]
    made: dict[tuple[str, int], Queue] = {}
    run = packed(given, {("T", 0): queue}, made=made)
    (coded,) = made.values()
    places = [at.physical_offset for at in run.results]
    sizes = [at.size_bytes for at in run.results]
    assert {each: [*UNIT.iter_unpack(units)] for each, units in run.units.items()} == {
        queue: [(places[0], sizes[0], 4), (places[4], sizes[4], -5), (places[5], sizes[5], 0)],
        coded: [(places[3], sizes[3], 7_001)],
    }
    assert [at.queue_offset for at in run.results] == [0, 0, 0, 0, 1, 2]
    assert (given[3].tags_code, queue.next_offset, queue.reserved, list(made)) == (
        7_001,
        0,
        3,
        [("Coded", 1)],
    )
    code = extend_hash(0, "T#")
    assert run.notes == [
        (code, None, "a", places[0], 7_000),
        (code, None, "b", places[1], 7_000),
        (coded.head.key_code, "u", None, places[3], 7_000),
    ]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (message(body=bytes(501)), "a body of 501 bytes"),
        (message(tags_code=1 << 63), "out of its range"),
        (message(flag=1 << 31), "out of its range"),
        (message(queue_id=-1), "queue id -1"),
        (message("a/b"), "characters"),
        (message(born_host=LONG_HOST), "a born host of 20 bytes"),
        (message(born_host=SHORT_HOST, sys_flag=BORN_HOST_V6), "says 20"),
    ],
)
def test_an_illegal_message_is_refused(wrong: PutMessage, why: str) -> None:
    """The whole run is refused, and no queue has moved."""
    queue = Queue(TopicHead.of("Orders"))
    with pytest.raises(MessageIllegal, match=why):
        packed([message(), wrong], {("Orders", 0): queue})
    assert queue.next_offset == 0
