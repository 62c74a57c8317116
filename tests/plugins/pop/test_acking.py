"""Acknowledgements and changes of leases."""

from __future__ import annotations

from typing import Any

import pytest

from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import AckMessageRequestHeader, ChangeInvisibleTimeResponseHeader
from rmqkit.protocol.receipt import BatchAck
from rmqkit.testing.peer import FakePeer
from rmqkit_pop.acking import AckProcessor
from rmqkit_pop.limits import MAX_INVISIBLE_MS
from tests.plugins.pop.pop_desk import GROUP, LEASE_MS, PopDesk, Popped, bodies


async def leased(pops: PopDesk, count: int = 3) -> list[Popped]:
    for number in range(count):
        await pops.desk.sent(body=b"%d" % number)
    return await pops.pop()


async def test_what_is_acknowledged_does_not_come_again(pops: PopDesk) -> None:
    """What is not comes when its lease has ended, and not before."""
    first, second, third = await leased(pops)
    await pops.acked(first, third)
    await pops.pass_time(LEASE_MS - 100)
    assert await pops.pop() == []
    await pops.pass_time(200)
    assert bodies(await pops.pop()) == [b"1"]
    assert (await pops.ack(second)).code == ResponseCode.NO_MESSAGE


async def test_a_renewed_lease_has_several_handles(pops: PopDesk) -> None:
    """The first one stays valid, however often it is renewed, and each new one is; the lease ends when the
    last renewal says. A client or proxy that lost a new handle loses nothing."""
    (message,) = await leased(pops, 1)
    handles = [message]
    for _ in range(4):
        await pops.pass_time(LEASE_MS // 2)
        handles.append(await pops.changed(handles[len(handles) // 2], LEASE_MS))
    assert len({each.handle for each in handles}) == 5
    await pops.pass_time(LEASE_MS // 2)
    assert await pops.pop() == []
    await pops.acked(handles[0])
    for each in handles:
        assert (await pops.ack(each)).code == ResponseCode.NO_MESSAGE
    await pops.pass_time(LEASE_MS)
    assert await pops.pop() == []


async def test_a_shortened_lease_ends_sooner(pops: PopDesk) -> None:
    """A client gives a message back; with 0 it may come at once. It counts as another delivery unless it is
    suspended."""
    first, second = await leased(pops, 2)
    await pops.changed(first, 0)
    await pops.changed(second, 1_000, suspend=True)
    await pops.pass_time(64)
    (again,) = await pops.pop()
    assert (again.body, again.message.reconsume_times) == (b"0", 1)
    await pops.pass_time(1_000)
    (later,) = await pops.pop()
    assert (later.body, later.message.reconsume_times) == (b"1", 0)


async def test_the_last_change_decides_whether_it_counts(pops: PopDesk) -> None:
    """A renewal after a suspension counts again."""
    (message,) = await leased(pops, 1)
    await pops.changed(message, 5_000, suspend=True)
    await pops.changed(message, 1_000)
    await pops.pass_time(1_100)
    (again,) = await pops.pop()
    assert again.message.reconsume_times == 1


async def test_a_retried_message_is_acknowledged_under_its_retry_topic(pops: PopDesk) -> None:
    """Its handle says so; under its own topic it is another message."""
    await leased(pops, 1)
    await pops.pass_time(LEASE_MS + 100)
    (again,) = await pops.pop()
    refused = await pops.ack(again, topic="T")
    assert refused.code == ResponseCode.INVALID_PARAMETER
    await pops.acked(again)
    assert pops.leased == 0


@pytest.mark.parametrize(
    ("fields", "code", "said"),
    [
        ({"extra_info": ""}, ResponseCode.INVALID_PARAMETER, "not a handle"),
        ({"extra_info": "1 2 3"}, ResponseCode.INVALID_PARAMETER, "8 fields"),
        ({"extra_info": "x" * 10_000}, ResponseCode.INVALID_PARAMETER, "not a handle"),
        ({"extra_info": "0 1 1 0 0 elsewhere 0 0"}, ResponseCode.INVALID_PARAMETER, "elsewhere"),
        ({"extra_info": "0 1 1 0 0 broker-a 0 0"}, ResponseCode.NO_MESSAGE, "another delivery"),
        ({"extra_info": "0 1 1 0 0 broker-a 0 1"}, ResponseCode.INVALID_PARAMETER, "another message"),
        ({"extra_info": "0 1 1 0 0 broker-a 1 0"}, ResponseCode.INVALID_PARAMETER, "another message"),
        ({"extra_info": "0 1 1 0 1 broker-a 0 0"}, ResponseCode.INVALID_PARAMETER, "another message"),
        ({"offset": 2, "extra_info": "0 1 1 0 0 broker-a 0"}, ResponseCode.NO_MESSAGE, "no lease"),
        ({"offset": -1, "extra_info": "0 1 1 0 0 broker-a 0"}, ResponseCode.NO_MESSAGE, "no lease"),
        ({"offset": 2**63 - 1, "extra_info": "0 1 1 0 0 broker-a 0"}, ResponseCode.NO_MESSAGE, "no lease"),
        ({"consumer_group": "other"}, ResponseCode.NO_MESSAGE, "other"),
        ({"queue_id": 9}, ResponseCode.MESSAGE_ILLEGAL, "queue 9"),
        ({"queue_id": -1}, ResponseCode.MESSAGE_ILLEGAL, "queue -1"),
        ({"topic": "missing"}, ResponseCode.TOPIC_NOT_EXIST, "missing"),
    ],
)
async def test_odd_handles_are_refused(pops: PopDesk, fields: dict[str, Any], code: int, said: str) -> None:
    """Truncated, forged, foreign and stale ones, and those of what was never popped: for an acknowledgement
    and for a change, with the reason; nothing changes for who has the lease."""
    await pops.desk.sent(body=b"x")
    (message,) = await pops.pop()
    for answer in (await pops.ack(message, **fields), await pops.change(message, 1_000, **fields)):
        assert (answer.code, said in (answer.remark or "")) == (code, True), answer.remark
        assert len(answer.remark or "") < 600
    assert pops.leased == 1
    await pops.acked(message)


@pytest.mark.parametrize("invisible_ms", [-1, MAX_INVISIBLE_MS + 1, 2**63 - 1])
async def test_odd_times_are_refused(pops: PopDesk, invisible_ms: int) -> None:
    """The lease stays as it is."""
    (message,) = await leased(pops, 1)
    refused = await pops.change(message, invisible_ms)
    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert "invisibleTime" in (refused.remark or "")
    await pops.acked(message)


async def test_a_change_answers_the_times_of_the_new_handle(pops: PopDesk) -> None:
    """Their sum is the new end."""
    (message,) = await leased(pops, 1)
    answer = await pops.change(message, 5_000)
    times = answer.header(ChangeInvisibleTimeResponseHeader)
    assert times.pop_time + times.invisible_time == pops.desk.clock.now_ms() + 5_000
    assert times.pop_time > message.handle.pop_time_ms
    assert times.revive_qid == message.handle.revive_queue


def batch(messages: list[Popped], **fields: Any) -> BatchAck:
    handle = messages[0].handle
    given: dict[str, Any] = {
        "group": GROUP,
        "topic": "T",
        "retry": handle.retry,
        "start_offset": handle.start_offset,
        "queue_id": handle.queue_id,
        "revive_queue": handle.revive_queue,
        "pop_time_ms": handle.pop_time_ms,
        "bits": BatchAck.bits_of(handle.start_offset, [each.offset for each in messages]),
    } | fields
    return BatchAck(**given)


async def test_many_are_acknowledged_together(pops: PopDesk) -> None:
    """Those that are not leased are passed over, as in Java."""
    messages = await leased(pops, 10)
    await pops.acked(messages[4])
    answer = await pops.batch_ack(batch(messages[2:7]), broker_name="broker-a")
    assert answer.code == ResponseCode.SUCCESS
    assert pops.leased == 5
    assert (await pops.batch_ack(batch(messages[2:7]))).code == ResponseCode.SUCCESS
    await pops.pass_time(LEASE_MS + 100)
    assert sorted(bodies(await pops.pop())) == [b"0", b"1", b"7", b"8", b"9"]


async def test_batches_of_retried_and_of_ordered_messages(pops: PopDesk) -> None:
    """Their topic is the original one, with the mark where they were read."""
    await leased(pops, 2)
    await pops.pass_time(LEASE_MS + 100)
    again = await pops.pop()
    assert (await pops.batch_ack(batch(again))).code == ResponseCode.SUCCESS
    assert pops.leased == 0
    await pops.desk.sent(body=b"a", queue_id=1)
    ordered = await pops.pop(order=True, queue_id=1)
    assert (await pops.batch_ack(batch(ordered))).code == ResponseCode.SUCCESS
    assert pops.leased == 0
    assert pops.desk.broker.offsets.get(GROUP, "T", 1) == 1


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group": "other"}, ResponseCode.SUCCESS),
        ({"topic": "missing"}, ResponseCode.SUCCESS),
        ({"queue_id": -5}, ResponseCode.SUCCESS),
        ({"pop_time_ms": 5}, ResponseCode.SUCCESS),
        ({"start_offset": 2**63 - 1}, ResponseCode.SUCCESS),
        ({"bits": "!"}, ResponseCode.INVALID_PARAMETER),
        ({"bits": "A" * 40_000}, ResponseCode.INVALID_PARAMETER),
    ],
)
async def test_odd_batches_change_nothing(pops: PopDesk, fields: dict[str, Any], code: int) -> None:
    """Unknown places are passed over, what is malformed is refused with the reason."""
    messages = await leased(pops, 3)
    answer = await pops.batch_ack(batch(messages, **fields))
    assert answer.code == code
    assert bool(answer.remark) == bool(code)
    assert pops.leased == 3


async def test_a_batch_of_nothing_or_of_too_much(pops: PopDesk) -> None:
    """And one for another broker."""
    messages = await leased(pops, 1)
    assert (await pops.batch_ack()).code == ResponseCode.NO_MESSAGE
    empty = await pops.ask(Command(RequestCode.BATCH_ACK_MESSAGE, opaque=7))
    assert empty.code == ResponseCode.NO_MESSAGE
    many = await pops.batch_ack(*[batch(messages)] * 5_000)
    assert many.code == ResponseCode.INVALID_PARAMETER
    foreign = await pops.batch_ack(batch(messages), broker_name="elsewhere")
    assert foreign.code == ResponseCode.INVALID_PARAMETER
    assert pops.leased == 1


async def test_acknowledgements_that_arrive_together_are_stored_together(pops: PopDesk) -> None:
    """One record for those of a lease; each request gets its own answer, a repeated one its refusal."""
    messages = await leased(pops, 4)
    engine = pops.service.engine
    assert engine is not None
    before = len(pops.desk.stored(engine.topic, engine.revive_queue(GROUP)))
    requests = [
        request(
            RequestCode.ACK_MESSAGE,
            AckMessageRequestHeader(
                consumer_group=GROUP, topic="T", queue_id=0, extra_info=each.handle.text, offset=each.offset
            ),
            opaque=number,
        )
        for number, each in enumerate([*messages, messages[0]])
    ]
    peer = FakePeer()
    outcomes = AckProcessor(engine).process(requests, peer)
    await peer.all_answered()
    at_once = [each for each in outcomes if isinstance(each, Command)]
    codes = {answer.opaque: answer.code for answer in [*at_once, *peer.answers]}
    assert codes == {0: 0, 1: 0, 2: 0, 3: 0, 4: ResponseCode.NO_MESSAGE}
    assert len(pops.desk.stored(engine.topic, engine.revive_queue(GROUP))) == before + 1
    assert pops.leased == 0
