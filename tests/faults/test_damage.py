"""A killed broker whose log is damaged before the next start: one wrong byte must cost at most one
message."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import trio

from rmqkit.client import Client
from rmqkit.model.message import Message
from rmqkit.model.queue import MessageQueue
from rmqkit.protocol.record import BLANK, MAGIC_BLANK, unpack
from tests.faults.kit import PATIENCE_S, POLICIES, SEND_MS, SMALL_FILES, serving
from tests.programs import run

TOPIC = "Kept"
BROKER = "broker-a"
QUEUES = 4
MESSAGES = 1_500
BODY_BYTES = 2_000
#: The damaged record, counted from the beginning of its segment.
RECORD = 30

#: Acknowledged bodies by queue and queue offset.
Promises = dict[tuple[int, int], bytes]


async def fill_and_kill(directory: Path, settings: dict[str, str], count: int = MESSAGES) -> Promises:
    """The messages acknowledged by a broker before it was killed."""
    promises: Promises = {}
    with serving(directory, settings) as server, trio.fail_after(PATIENCE_S):
        async with Client(server.namesrv) as client:
            await client.admin.create_topic(TOPIC, queues=QUEUES)
            async with (
                client.producer("senders", timeout_ms=SEND_MS) as producer,
                trio.open_nursery() as nursery,
            ):

                async def send(first: int) -> None:
                    for number in range(first, count, 16):
                        body = (b"%d " % number).ljust(BODY_BYTES, b".")
                        sent = await producer.send(Message(TOPIC, body))
                        promises[sent.queue.queue_id, sent.queue_offset] = body

                for first in range(16):
                    nursery.start_soon(send, first)
        server.kill()
    assert len(promises) == count
    return promises


def damage(directory: Path, segment: int, byte: int = 100) -> tuple[int, tuple[int, int]]:
    """Flip a byte of record 30 of a segment, counted from the last one in use (-1); returns its log offset,
    queue and queue offset."""
    paths = [
        path for path in sorted((directory / "data" / "commitlog").iterdir()) if any(path.read_bytes()[:8])
    ]
    path = paths[segment]
    log = bytearray(path.read_bytes())
    at = 0
    for _ in range(RECORD):
        size, magic = BLANK.unpack_from(log, at)
        assert magic != MAGIC_BLANK
        at += size
    found = unpack(bytes(log), at)
    log[at + byte] ^= 0xFF
    path.write_bytes(log)
    return int(path.name) + at, (found.queue_id, found.queue_offset)


async def compare(directory: Path, settings: dict[str, str], promises: Promises) -> tuple[Promises, Promises]:
    """The lost promises, and the places of the next messages. Raises AssertionError when a place has another
    body, or is assigned twice."""
    given: Promises = {}
    with serving(directory, settings) as server, trio.fail_after(PATIENCE_S):
        async with Client(server.namesrv) as client:
            found: Promises = {}
            async with client.pull_consumer("checker") as consumer:
                for number in range(QUEUES):
                    queue = MessageQueue(TOPIC, BROKER, number)
                    at, end = 0, await consumer.max_offset(queue)
                    while at < end:
                        result = await consumer.pull(queue, at, max_messages=64)
                        found |= {(number, one.queue_offset): one.body for one in result.messages}
                        assert result.next_offset > at
                        at = result.next_offset
            async with client.producer("senders", timeout_ms=SEND_MS) as producer:
                for _ in range(2 * QUEUES):
                    sent = await producer.send(Message(TOPIC, b"next"))
                    given[sent.queue.queue_id, sent.queue_offset] = b"next"
        assert server.stop() == 0
    assert not given.keys() & promises.keys(), "a queue offset was given a second time"
    assert all(promises[place] == body for place, body in found.items())
    return {place: body for place, body in promises.items() if place not in found}, given


@pytest.mark.row("S245", "S256", "S258")
@pytest.mark.parametrize("segment", [-1, -2])
@pytest.mark.parametrize("policy", POLICIES)
async def test_a_flipped_byte_costs_one_message(
    tmp_path: Path, policy: str, segment: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Damage in the last segment and in the one before costs one message; the broker's log names the
    position, and the tool finds nothing else. A start does not read flushed data again; there the broker sets
    the message aside when the client meets it."""
    settings = SMALL_FILES | POLICIES[policy]
    promises = await fill_and_kill(tmp_path, settings)
    offset, place = damage(tmp_path, segment)
    lost, given = await compare(tmp_path, settings, promises)
    assert list(lost) == [place]
    assert Counter(queue_id for queue_id, _ in given) == dict.fromkeys(range(QUEUES), 2)
    text = (tmp_path / "stderr.txt").read_text()
    if "is damaged from offset" not in text:
        assert f"log offset {offset}, cannot be decoded" in caplog.text
        assert f"the record at log offset {offset} (send-back: {TOPIC} queue {place[0]}" in text
    else:
        assert f"is damaged from offset {offset} up to" in text
        words = ["store", "verify", "data", "--set", f"maxHashSlotNum={settings['maxHashSlotNum']}"]
        checked = await trio.to_thread.run_sync(run, words, tmp_path)
        assert checked.returncode == 0, checked.stdout
        assert f"damage at log offset {offset}".encode() in checked.stdout
