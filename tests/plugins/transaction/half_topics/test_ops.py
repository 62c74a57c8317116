"""Op messages: when they are written, how large they are, and what a reader makes of foreign ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.model import names
from rmqkit.model.message import PutMessage, StoredMessage
from rmqkit.model.run import MessageRun
from rmqkit.protocol.record import message_size, pack, unpack
from rmqkit_transaction.half_topics.ops import offsets_of
from tests.plugins.transaction.kit import ROLLBACK, Producer, producing

pytestmark = pytest.mark.only_store("memory", why="moves a virtual clock")


async def many(producer: Producer, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        await producer.ended(await producer.half(b"%d" % number, f"K{number}"), ROLLBACK)


async def test_an_op_message_has_javas_form(autojump_clock: trio.testing.MockClock, tmp_path: Path) -> None:
    """The half offsets, each followed by a comma, with the tag d, in the queue of the half messages."""
    async with producing(tmp_path, store="memory") as producer:
        await many(producer, 12)
        await trio.sleep(7)
        ops = producer.desk.stored(names.OP_HALF_TOPIC)
        assert b"".join(op.body for op in ops) == b"0,1,2,3,4,5,6,7,8,9,10,11,"
        assert {(op.queue_id, op.properties["TAGS"], op.sys_flag) for op in ops} == {(0, "d", 0)}


async def test_ends_are_written_within_the_interval(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """`transactionOpBatchInterval` after the write before, together; without ends nothing is written."""
    async with producing(tmp_path, store="memory", transactionOpBatchInterval=2_000) as producer:
        await many(producer, 1)
        await trio.sleep(0.001)
        assert producer.ops() == [b"0,"]
        await many(producer, 3, first=1)
        await trio.sleep(1.9)
        assert producer.ops() == [b"0,"]
        await trio.sleep(0.2)
        assert producer.ops() == [b"0,", b"1,2,3,"]
        await trio.sleep(60)
        assert len(producer.ops()) == 2


async def test_a_full_op_message_is_written_at_once(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """When its text is longer than `transactionOpMsgMaxSize`; what is left waits for the interval."""
    keys: dict[str, Any] = {"transactionOpMsgMaxSize": 10, "transactionOpBatchInterval": 60_000}
    async with producing(tmp_path, store="memory", **keys) as producer:
        await many(producer, 1)
        await trio.sleep(0.001)
        await many(producer, 5, first=1)
        await trio.sleep(0.001)
        assert producer.ops() == [b"0,"]
        await many(producer, 1, first=6)
        await trio.sleep(0.001)
        assert producer.ops() == [b"0,", b"1,2,3,4,5,", b"6,"]


@pytest.mark.row("S159")
async def test_the_progress_of_op_messages_follows_that_of_half_messages(tmp_path: Path) -> None:
    """An op message is needed as long as it names a half message behind their progress."""
    async with producing(tmp_path, store="memory", transactionOpMsgMaxSize=1) as producer:
        offsets, group = producer.desk.broker.offsets, "CID_RMQ_SYS_TRANS"
        open_one = await producer.half(key="open")
        await many(producer, 4)
        await producer.questions(0)
        assert offsets.get(group, names.OP_HALF_TOPIC, 0) is None
        await producer.ended(open_one)
        await producer.service.store.stop()
        half, op = (offsets.get(group, topic, 0) for topic in (names.HALF_TOPIC, names.OP_HALF_TOPIC))
        assert (half, op) == (5, len(producer.ops()))


@given(st.lists(st.integers(0, 2**63 - 1)))
def test_offsets_are_read_as_they_were_written(offsets: list[int]) -> None:
    """In their order."""
    body = "".join(f"{offset}," for offset in offsets).encode()
    assert offsets_of(stored(body, "d")) == offsets


@given(st.binary(max_size=200), st.sampled_from(["d", "x", ""]))
def test_foreign_op_messages(body: bytes, tag: str) -> None:
    """What is not a number is passed over, and so is a message with another tag."""
    found = offsets_of(stored(body, tag))
    assert all(0 <= offset < 10**19 for offset in found)
    assert tag == "d" or found == []


def stored(body: bytes, tag: str) -> StoredMessage:
    message = PutMessage("T", 0, body, {}, f"TAGS\x01{tag}\x02".encode() if tag else b"")
    return unpack(pack(message, message_size(message), 0, 0, 0, bytes(8)))


async def test_op_messages_that_name_what_there_is_not(tmp_path: Path) -> None:
    """A damaged or foreign log costs no memory, and ends nothing else."""
    async with producing(tmp_path, store="memory") as producer:
        sent = await producer.half()
        op = PutMessage(
            names.OP_HALF_TOPIC, 0, b"9223372036854775807,-1,,x,1,", {}, b"TAGS\x01d\x02", wait=False
        )
        producer.desk.broker.appender.append(MessageRun([op]))
        await producer.service.store.load()
        assert producer.service.figures()["transactionsOpen"] == 1
        await producer.ended(sent)
        assert producer.delivered() == [b"body"]
