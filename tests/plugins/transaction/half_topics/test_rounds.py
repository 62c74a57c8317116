"""Rounds over the half topic: what is stored anew, passed over and set aside."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from rmqkit.errors import StoreNotWritable
from rmqkit.model import names, set_aside
from tests.broker.cold import cold_desk, store_of
from tests.broker.desk import open_desk
from tests.plugins.transaction.kit import COMMIT, OLD_MS, ROLLBACK, producing, serving

HOUR_MS = 3_600_000


@pytest.mark.row("S153", "S157", "S096")
async def test_a_question_has_the_half_message_under_its_own_topic(tmp_path: Path) -> None:
    """With the new place of the half message, by which the answer ends it; the message has the count of
    questions, as a listener in Java can read it."""
    async with producing(tmp_path) as producer:
        await producer.half(b"order", queue_id=2, KEYS="k")
        (question,) = await producer.questions()
        header, message = question.header, question.message
        old, new = producer.halves()
        assert (header.topic, header.bname) == (names.HALF_TOPIC, "broker-a")
        assert (header.msg_id, header.transaction_id) == ("K", "K")
        assert (header.tran_state_table_offset, header.commit_log_offset) == (1, new.physical_offset)
        assert (header.offset_msg_id or "").endswith(f"{new.physical_offset:016X}")
        assert (message.topic, message.queue_id, message.body) == ("T", 2, b"order")
        assert (message.queue_offset, message.physical_offset) == (1, new.physical_offset)
        assert message.born_timestamp_ms == old.born_timestamp_ms == new.born_timestamp_ms
        assert message.properties["KEYS"] == "k"
        assert message.properties == new.properties == old.properties | {"TRANSACTION_CHECK_TIMES": "1"}
        await producer.ended(question.sent, from_transaction_check=True)
        assert producer.delivered(2) == [b"order"]


async def test_a_young_half_message_ends_the_round(tmp_path: Path) -> None:
    """Those behind it are younger: a round does not look at them."""
    async with producing(tmp_path, transactionTimeOut=1_000) as producer:
        await producer.half(key="old")
        producer.desk.clock.advance(1_001)
        await producer.half(key="young")
        producer.foreign_half({"UNIQ_KEY": "older", "REAL_TOPIC": "T", "REAL_QID": "0"}, born_ms=0)
        assert [question.header.msg_id for question in await producer.questions(500)] == ["old"]


async def test_a_half_message_of_the_future_is_asked_for(tmp_path: Path) -> None:
    """Its producer's clock is ahead: nobody knows its age."""
    async with producing(tmp_path) as producer:
        born_ms = producer.desk.clock.now_ms() + HOUR_MS
        producer.foreign_half({"UNIQ_KEY": "F", "REAL_TOPIC": "T", "REAL_QID": "0"}, born_ms)
        assert len(await producer.questions(1)) == 1


@pytest.mark.row("S154")
async def test_ended_transactions_are_not_asked_for(tmp_path: Path) -> None:
    """A round passes over them, and the progress moves to the first open one."""
    async with producing(tmp_path) as producer:
        sent = [await producer.half(key=f"K{number}") for number in range(5)]
        for at in (0, 1, 3):
            await producer.ended(sent[at], COMMIT if at else ROLLBACK)
        producer.desk.clock.advance(1)
        assert [question.header.msg_id for question in await producer.questions()] == ["K2", "K4"]
        offsets = producer.desk.broker.offsets
        assert offsets.get("CID_RMQ_SYS_TRANS", names.HALF_TOPIC, 0) == 5


async def test_an_immune_half_message_does_not_hold_up_others(tmp_path: Path) -> None:
    """Each round stores it anew behind them, with the place of its first copy, and without counting a
    question; its producer, which knows the first copy alone, ends it."""
    async with producing(tmp_path, transactionCheckMax=2) as producer:
        sent = await producer.half(b"immune", "I", CHECK_IMMUNITY_TIME_IN_SECONDS="600")
        await producer.half(b"other", "O")
        assert [each.header.msg_id for each in await producer.questions()] == ["O"]
        for _ in range(5):
            await producer.questions()
        copy = next(each for each in reversed(producer.halves()) if each.body == b"immune")
        assert copy.queue_offset > 5
        assert copy.properties["TRAN_PREPARED_QUEUE_OFFSET"] == str(sent.number)
        assert "TRANSACTION_CHECK_TIMES" not in copy.properties
        await producer.ended(sent)
        assert "has ended" in ((await producer.end(sent)).remark or "")
        assert await producer.questions(601_000) == []
        assert producer.delivered() == [b"immune"]


async def test_an_end_that_names_an_earlier_copy(tmp_path: Path) -> None:
    """A producer may end its transaction while it is being asked: the end counts, once."""
    async with producing(tmp_path) as producer:
        sent = await producer.half()
        (first,) = await producer.questions()
        (second,) = await producer.questions()
        await producer.ended(sent)
        for late in (first.sent, second.sent, sent):
            assert "has ended" in ((await producer.end(late, from_transaction_check=True)).remark or "")
        assert producer.delivered() == [b"body"]
        assert await producer.questions() == []
        # The real message names the copy that was open.
        assert producer.desk.stored()[0].prepared_offset == second.sent.physical_offset


async def test_a_full_disk_ends_the_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked for, given up or passed over; the next round with room goes on there."""
    async with producing(tmp_path, store="memory", transactionCheckMax=1) as producer:
        await producer.half()

        def full(messages: object) -> None:
            raise StoreNotWritable("the disk is full")

        for step in range(2):
            with monkeypatch.context() as patched:
                patched.setattr(producer.desk.broker.store, "append", full)
                assert await producer.questions() == []
            assert len(await producer.questions()) == 1 - step
        assert len(producer.desk.stored(names.CHECK_MAX_TIME_TOPIC)) == 1


async def test_a_half_message_that_cannot_be_stored_anew_is_set_aside(tmp_path: Path) -> None:
    """Its properties are at the limit, and the note does not fit; the round goes on behind it."""
    async with producing(tmp_path) as producer:
        producer.foreign_half({"UNIQ_KEY": "F", "REAL_TOPIC": "T", "REAL_QID": "0", "p": "x" * 32_700})
        await producer.half()
        assert [each.header.msg_id for each in await producer.questions()] == ["K"]
        (aside,) = producer.desk.stored(names.SET_ASIDE_TOPIC)
        assert set_aside.read(aside.properties)[0].service == "transaction"
        assert producer.service.figures()["transactionsOpen"] == 1


async def test_a_half_message_without_a_legal_destination_is_given_up_in_the_end(tmp_path: Path) -> None:
    """No producer can be asked for it."""
    async with producing(tmp_path, transactionCheckMax=2) as producer:
        producer.foreign_half({"UNIQ_KEY": "F", "REAL_TOPIC": "no topic"})
        for _ in range(3):
            assert await producer.questions() == []
        assert len(producer.desk.stored(names.CHECK_MAX_TIME_TOPIC)) == 1


async def test_cold_half_messages_do_not_hold_the_loop(tmp_path: Path) -> None:
    """They are read in a thread."""
    async with cold_desk(partial(open_desk, tmp_path)) as desk, serving(desk) as producer:
        await producer.half()
        store = store_of(desk)
        store.device.set()
        store.cold = 2
        assert len(await producer.questions()) == 1
        assert len(store.warmed) == 2


async def test_an_end_during_a_round_counts(tmp_path: Path) -> None:
    """It comes while the half message is being read: the transaction is neither asked for nor ended twice."""
    async with cold_desk(partial(open_desk, tmp_path)) as desk, serving(desk) as producer:
        sent = await producer.half()
        store = store_of(desk)
        desk.clock.advance(OLD_MS)
        async with trio.open_nursery() as nursery:
            store.cold = 1
            nursery.start_soon(producer.service.check)
            await trio.testing.wait_all_tasks_blocked()
            await producer.ended(sent)
            store.device.set()
        assert (desk.peer.pushed, producer.delivered(), len(producer.halves())) == ([], [b"body"], 1)
