"""Answers to senders when acknowledgement requires the disk."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
import trio
import trio.testing

from rmqkit.broker.processors.send import SendProcessor
from rmqkit.errors import StoreNotWritable
from rmqkit.plugin.flush import Level
from rmqkit.plugin.request import Ticket
from rmqkit.protocol import batch
from rmqkit.protocol.batch import BatchItem
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import request
from rmqkit.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from rmqkit.testing.peer import FakePeer
from tests.broker.desk import BrokerHarness
from tests.broker.slow_store import SLOW, Disk

Opened = Callable[..., AbstractAsyncContextManager[BrokerHarness]]


def send(
    code: int = RequestCode.SEND_MESSAGE_V2, properties: str = "UNIQ_KEY\x01K\x02"
) -> tuple[int, SendMessageRequestHeaderV2, bytes]:
    body = (
        batch.encode([BatchItem(0, b"1", b""), BatchItem(0, b"2", b"")])
        if code == RequestCode.SEND_BATCH_MESSAGE
        else b"body"
    )
    return (
        code,
        SendMessageRequestHeaderV2(producer_group="p", topic="T", queue_id=0, properties=properties),
        body,
    )


async def settled_answer(
    desk: BrokerHarness, code: int, disk: Disk, fault: Exception | None = None
) -> tuple[int, SendMessageResponseHeader]:
    """The answer to a waiting send; checks that there is none at first, nor before the disk fails, if it is
    to."""
    assert await desk.outcome(request(*send(code), opaque=7)) is None
    assert desk.peer.answers == []
    if fault is not None:
        disk.change(fault=fault)
    await desk.peer.all_answered()
    (answer,) = desk.peer.answers
    assert answer.opaque == 7
    return answer.code, answer.header(
        SendMessageResponseHeader
    ) if answer.fields() else SendMessageResponseHeader(msg_id="", queue_id=-1, queue_offset=-1)


@pytest.mark.only_store(why="brings its own store")
@pytest.mark.row("S283")
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE])
async def test_with_sync_flush_the_answer_waits_for_the_disk(opened: Opened, code: int) -> None:
    """The answer comes when the flush has passed the message."""
    disk = Disk()
    async with opened(extra=[("disk", disk)], **SLOW) as desk:
        assert await desk.outcome(request(*send(code), opaque=7)) is None
        assert desk.peer.answers == []
        disk.change(flushed=True)
        await desk.peer.all_answered()
        (answer,) = desk.peer.answers
        assert answer.code == 0
        assert answer.header(SendMessageResponseHeader).queue_offset == 0


@pytest.mark.only_store(why="brings its own store")
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE])
async def test_a_slow_disk_is_a_warning_with_the_full_answer(
    opened: Opened, code: int, autojump_clock: trio.testing.MockClock
) -> None:
    """FLUSH_DISK_TIMEOUT counts as sent: the answer has message id, queue and offset, and the message can be
    pulled."""
    disk = Disk()
    async with opened(extra=[("disk", disk)], **SLOW) as desk:
        found, header = await settled_answer(desk, code, disk)
        assert found == ResponseCode.FLUSH_DISK_TIMEOUT
        assert (header.queue_id, header.queue_offset, header.transaction_id, header.trace_on) == (
            0,
            0,
            "K",
            True,
        )
        assert header.msg_id.startswith("7F000001")
        assert (await desk.pull()).code == 0


@pytest.mark.only_store(why="brings its own store")
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE])
async def test_a_failed_disk_promises_nothing(opened: Opened, code: int) -> None:
    """The answer is SERVICE_NOT_AVAILABLE, so that the producer uses another broker."""
    disk = Disk()
    async with opened(extra=[("disk", disk)], **SLOW) as desk:
        found, header = await settled_answer(desk, code, disk, StoreNotWritable("fsync failed"))
        assert (found, header.msg_id) == (ResponseCode.SERVICE_NOT_AVAILABLE, "")
        assert desk.peer.answers[0].remark == "the message may or may not be stored: fsync failed"


@pytest.mark.only_store(why="brings its own store")
async def test_sends_of_several_connections_wait_for_the_disk_together(opened: Opened) -> None:
    """One flush answers them, each at its own connection; a connection that has ended holds up no other."""
    disk = Disk()
    async with opened(extra=[("disk", disk)], **SLOW) as desk:
        processor = desk.router.processors[RequestCode.SEND_MESSAGE_V2]
        assert isinstance(processor, SendProcessor)
        first, ended, last = FakePeer(), FakePeer(), FakePeer()
        requests = [request(*send(), opaque=number) for number in range(5)]
        outcomes = processor.process_joined(requests, [first, first, ended, last, last])
        assert {type(outcome) for outcome in outcomes} == {Ticket}
        assert [outcomes.index(outcome) for outcome in outcomes] == [0, 0, 2, 3, 3]
        ended.close()
        disk.change(flushed=True)
        for peer, opaques in ((first, [0, 1]), (ended, []), (last, [3, 4])):
            await peer.all_answered()
            assert [(answer.opaque, answer.code) for answer in peer.answers] == [
                (each, 0) for each in opaques
            ]


@pytest.mark.only_store(why="brings its own store")
async def test_those_that_wait_for_the_disk_are_not_answered_with_those_that_do_not(opened: Opened) -> None:
    """If even a message with WAIT=false has to wait for the write, messages that arrived with it are not
    acknowledged sooner."""
    disk = Disk(written=False)
    async with opened(extra=[("disk", disk)], **SLOW) as desk:
        processor = desk.router.processors[RequestCode.SEND_MESSAGE_V2]
        assert isinstance(processor, SendProcessor)
        sends = [send(), send(properties="UNIQ_KEY\x01L\x02WAIT\x01false\x02")]
        outcomes = processor.process(
            [request(*each, opaque=number) for number, each in enumerate(sends)], desk.peer
        )
        assert [type(outcome) for outcome in outcomes] == [Ticket, Ticket]
        disk.change(flushed=True)
        await desk.peer.all_answered()
        assert set(disk.levels) == {Level.WRITTEN, Level.FLUSHED}
        assert [(answer.opaque, answer.code) for answer in desk.peer.answers] == [(0, 0), (1, 0)]


@pytest.mark.only_store(why="brings its own store")
async def test_a_message_that_does_not_want_to_wait_is_answered_at_once(opened: Opened) -> None:
    """A message with WAIT=false is answered at once."""
    async with opened(extra=[("disk", Disk())], **SLOW) as desk:
        answer = await desk.ask(*send(properties="UNIQ_KEY\x01K\x02WAIT\x01false\x02"))
        assert answer.code == 0


@pytest.mark.only_store(why="brings its own store")
@pytest.mark.parametrize(
    ("fault", "code"), [(None, 0), (StoreNotWritable("fsync failed"), ResponseCode.SYSTEM_ERROR)]
)
async def test_a_send_back_waits_as_well(opened: Opened, fault: Exception | None, code: int) -> None:
    """The consumer gets its answer after the flush; if the disk fails, it sends the message back again."""
    disk = Disk(flushed=True)
    async with opened(extra=[("disk", disk)], **SLOW) as desk:
        await desk.sent()
        disk.flushed, disk.fault = False, fault
        header = ConsumerSendMsgBackRequestHeader(offset=0, group="g", delay_level=0)
        answers = []

        async def send_back() -> None:
            answer = await desk.outcome(request(RequestCode.CONSUMER_SEND_MSG_BACK, header))
            if answer is None:
                await desk.peer.all_answered()
                answer = desk.peer.answers.pop()
            answers.append(answer)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_back)
            if fault is None:
                await trio.testing.wait_all_tasks_blocked()
                assert answers == []
                disk.change(flushed=True)
        assert [answer.code for answer in answers] == [code]
