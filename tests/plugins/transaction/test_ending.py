"""END_TRANSACTION with what is wrong, late or doubled: RocketMQ's code, a remark, and nothing changes."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rmqkit.errors import StoreNotWritable
from rmqkit.model import names
from rmqkit.plugin.role import Role
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command
from tests.broker.cold import cold_desk, store_of
from tests.broker.desk import open_desk
from tests.plugins.transaction.conftest import Opened
from tests.plugins.transaction.kit import COMMIT, ROLLBACK, Producer, producing, serving


async def refused(producer: Producer, answer: Command, code: int, text: str) -> None:
    assert (answer.code, text in (answer.remark or "")) == (code, True), answer.remark
    assert producer.ops() == []
    assert producer.open_count == 1


@pytest.mark.parametrize("kind", [COMMIT, ROLLBACK])
@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"producer_group": "others"}, "others"),
        ({"producer_group": ""}, "producer group"),
        ({"tran_state_table_offset": 1}, "tranStateTableOffset is 1"),
        ({"tran_state_table_offset": -1}, "tranStateTableOffset"),
        ({"tran_state_table_offset": (1 << 63) - 1}, "tranStateTableOffset"),
        ({"commit_log_offset": 1}, "offset 1"),
        ({"commit_log_offset": -1}, "offset -1"),
        ({"commit_log_offset": (1 << 63) - 1}, "offset"),
    ],
)
async def test_an_end_that_names_something_else(
    opened: Opened, kind: int, changed: dict[str, Any], text: str
) -> None:
    """Another group, or offsets that are not those of the half message."""
    async with opened() as producer:
        answer = await producer.end(await producer.half(), kind, **changed)
        await refused(producer, answer, ResponseCode.SYSTEM_ERROR, text)
        assert producer.delivered() == []


@pytest.mark.parametrize("kind", [1, 4, 7, -1, 16, 2**31 - 1])
async def test_an_outcome_that_there_is_not(opened: Opened, kind: int) -> None:
    """commitOrRollback is 0, 8 or 12."""
    async with opened() as producer:
        answer = await producer.end(await producer.half(), kind)
        await refused(producer, answer, ResponseCode.SYSTEM_ERROR, "commitOrRollback")


@pytest.mark.parametrize("fields", [None, {}, {"producerGroup": "pg"}, {"commitLogOffset": "x"}])
async def test_a_header_that_is_none(opened: Opened, fields: dict[str, str] | None) -> None:
    """The answer names the field."""
    async with opened() as producer:
        await producer.half()
        answer = await producer.desk.outcome(Command(code=RequestCode.END_TRANSACTION, ext=fields, opaque=7))
        assert answer is not None
        await refused(producer, answer, ResponseCode.SYSTEM_ERROR, "header")


@pytest.mark.parametrize("kind", [COMMIT, ROLLBACK])
async def test_what_is_no_half_message_is_not_ended(opened: Opened, kind: int) -> None:
    """An ordinary message, even with the properties of a half message, and the real message of a
    transaction."""
    async with opened() as producer:
        desk = producer.desk
        await desk.sent(properties={"PGROUP": "pg", "REAL_TOPIC": "T", "REAL_QID": "0", "UNIQ_KEY": "K"})
        await producer.ended(await producer.half(), from_transaction_check=True)
        sent = await producer.half(key="open")
        for message in desk.stored():
            answer = await producer.end(
                sent,
                kind,
                tran_state_table_offset=message.queue_offset,
                commit_log_offset=message.physical_offset,
            )
            assert (answer.code, "is not a half message" in (answer.remark or "")) == (1, True)
        assert len(producer.delivered()) == 2
        assert producer.open_count == 1


@pytest.mark.parametrize("first", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("second", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("by_check", [True, False])
async def test_a_transaction_ends_once(opened: Opened, first: int, second: int, by_check: bool) -> None:
    """A second end is refused, whichever it is and whoever caused it; Java delivers the message again."""
    async with opened() as producer:
        sent = await producer.half()
        await producer.ended(sent, first)
        answer = await producer.end(sent, second, from_transaction_check=by_check)
        assert (answer.code, "has ended" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
        assert producer.delivered() == ([b"body"] if first == COMMIT else [])


@pytest.mark.parametrize(
    ("immunity", "age_ms", "code"),
    [
        (None, 1_000_000, 0),
        ("10", 10_000, 0),
        ("10", 10_001, ResponseCode.ILLEGAL_OPERATION),
        # The setting transactionTimeOut is the least.
        ("1", 6_000, 0),
        ("1", 6_001, ResponseCode.ILLEGAL_OPERATION),
        ("-1", 6_001, ResponseCode.ILLEGAL_OPERATION),
        ("x", 6_001, ResponseCode.ILLEGAL_OPERATION),
        ("9223372036854775808", 6_001, ResponseCode.ILLEGAL_OPERATION),
    ],
)
@pytest.mark.parametrize("kind", [COMMIT, ROLLBACK])
async def test_an_end_that_comes_late(
    opened: Opened, immunity: str | None, age_ms: int, code: int, kind: int
) -> None:
    """A producer that sets CHECK_IMMUNITY_TIME_IN_SECONDS must end the transaction within that time by
    itself; afterwards the broker asks, and takes the answer."""
    async with opened() as producer:
        properties: dict[str, Any] = {} if immunity is None else {"CHECK_IMMUNITY_TIME_IN_SECONDS": immunity}
        sent = await producer.half(**properties)
        producer.desk.clock.advance(age_ms)
        answer = await producer.end(sent, kind)
        assert answer.code == code
        if code:
            await refused(producer, answer, code, "CHECK_IMMUNITY_TIME_IN_SECONDS")
            await producer.ended(sent, kind, from_transaction_check=True)
        assert producer.delivered() == ([b"body"] if kind == COMMIT else [])


@pytest.mark.parametrize(
    "properties",
    [{"REAL_TOPIC": "no topic"}, {}, {"REAL_TOPIC": "T", "REAL_QID": "x"}, {"REAL_TOPIC": names.HALF_TOPIC}],
)
async def test_a_half_message_without_a_legal_destination(tmp_path: Path, properties: dict[str, str]) -> None:
    """As a damaged or foreign log may hold it: its commit is refused, and the broker goes on."""
    async with producing(tmp_path) as producer:
        sent = await producer.half()
        broken = producer.foreign_half({"UNIQ_KEY": "F", "REAL_QID": "0"} | properties)
        answer = await producer.end(broken)
        assert (answer.code, "it has the real" in (answer.remark or "")) == (1, True)
        await producer.ended(sent)
        assert producer.delivered() == [b"body"]


async def test_a_one_way_end_is_not_answered(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    """A refusal is in the log, for nobody else learns of it."""
    async with opened() as producer:
        sent = await producer.half()
        caplog.set_level(logging.WARNING, "rmqkit_transaction")
        peer = producer.desk.peer
        processor = producer.desk.router.processors[RequestCode.END_TRANSACTION]
        processor.process([sent.end_request(oneway=True, producer_group="others")], peer)
        assert "others" in caplog.text
        processor.process([sent.end_request(oneway=True)], peer)
        assert (producer.delivered(), peer.answers) == ([b"body"], [])


async def test_a_full_disk_leaves_the_transaction_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is answered with SERVICE_NOT_AVAILABLE and can be tried again. Rollbacks need no room; they
    are written when there is some."""
    async with producing(tmp_path, store="memory") as producer:
        store = producer.desk.broker.store
        first, second, third = [await producer.half(b"%d" % number, f"K{number}") for number in range(3)]
        await producer.ended(first)

        def full(messages: object) -> None:
            raise StoreNotWritable("the disk is full")

        with monkeypatch.context() as patched:
            patched.setattr(store, "append", full)
            answer = await producer.end(second)
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            await producer.ended(third, ROLLBACK)
            await producer.service.store.stop()
            assert (await producer.questions()) == []
        for again in (first, third):
            assert "has ended" in ((await producer.end(again)).remark or "")
        assert producer.ops() == []
        await producer.ended(second)
        assert producer.delivered() == [b"0", b"1"]
        assert b"".join(producer.ops()) == b"0,2,1,"


async def test_a_broker_that_is_no_master_ends_nothing(opened: Opened) -> None:
    """A slave answers with SLAVE_NOT_AVAILABLE, as Java's; one that may have a successor with
    SERVICE_NOT_AVAILABLE."""
    async with opened(graceful=False) as producer:
        sent = await producer.half()
        role = producer.desk.broker.role
        for given, code in (
            (Role.SLAVE, ResponseCode.SLAVE_NOT_AVAILABLE),
            (Role.FENCED, ResponseCode.SERVICE_NOT_AVAILABLE),
        ):
            await role.set(given, role.epoch + 1)
            assert (await producer.end(sent)).code == code
        assert producer.delivered() == []


async def test_an_end_of_a_half_message_that_is_on_the_disk_alone(tmp_path: Path) -> None:
    """It is read in a thread; the loop does not wait."""
    async with cold_desk(partial(open_desk, tmp_path)) as desk, serving(desk) as producer:
        sent, store = await producer.half(), store_of(desk)
        store.device.set()
        store.cold = 1
        await producer.ended(sent)
        assert (len(store.warmed), producer.delivered()) == (1, [b"body"])
        store.cold = 1
        assert "has ended" in ((await producer.end(sent)).remark or "")
