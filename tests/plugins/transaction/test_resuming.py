"""RESUME_CHECK_HALF_MESSAGE: a transaction that was given up is opened again."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqkit.model import names
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers import ResumeCheckHalfMessageRequestHeader
from rmqkit.protocol.message_id import offset_message_id
from tests.plugins.transaction.kit import Producer, producing


async def resume(producer: Producer, message_id: str) -> Command:
    return await producer.desk.ask(
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
        ResumeCheckHalfMessageRequestHeader(msg_id=message_id, topic="T"),
    )


async def given_up(producer: Producer) -> str:
    """The id of a message that was given up."""
    await producer.half(b"order")
    for _ in range(2):
        await producer.questions()
    (found,) = producer.desk.stored(names.CHECK_MAX_TIME_TOPIC)
    return offset_message_id(found.store_host, found.physical_offset)


@pytest.mark.parametrize("store", ["memory", "mmap", "lmdb"])
async def test_a_resumed_transaction_is_asked_for_again(tmp_path: Path, store: str) -> None:
    """From the first question on, and it can be committed."""
    async with producing(tmp_path, store=store, transactionCheckMax=1) as producer:
        assert (await resume(producer, await given_up(producer))).code == 0
        (question,) = await producer.questions()
        assert question.message.properties["TRANSACTION_CHECK_TIMES"] == "1"
        await producer.ended(question.sent)
        assert producer.delivered() == [b"order"]


async def test_a_transaction_is_resumed_once(tmp_path: Path) -> None:
    """A second one would be another transaction of the same message."""
    async with producing(tmp_path, transactionCheckMax=1) as producer:
        message_id = await given_up(producer)
        await resume(producer, message_id)
        answer = await resume(producer, message_id)
        assert (answer.code, "resumed already" in (answer.remark or "")) == (1, True)
        assert len(await producer.questions()) == 1


async def test_what_was_not_given_up_is_not_resumed(tmp_path: Path) -> None:
    """Ordinary messages, half messages, and ids of nothing; Java makes half messages of them."""
    async with producing(tmp_path, transactionCheckMax=1) as producer:
        desk = producer.desk
        await desk.sent()
        await producer.half()
        for message in (*desk.stored(), *producer.halves()):
            answer = await resume(producer, offset_message_id(message.store_host, message.physical_offset))
            assert (answer.code, "given up" in (answer.remark or "")) == (1, True)
        for wrong in ("", "x", "7F" * 7, offset_message_id(b"\x7f\0\0\1\0\0\0\1", 3), "7F" * 16):
            assert (await resume(producer, wrong)).code == 1
        assert len(producer.halves()) == 1
