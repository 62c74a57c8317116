"""What a pop reads: in order by queue, as Java's, and by key, and what it passes over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rmqkit.model.run import MessageRun
from rmqkit.protocol import record
from rmqkit.protocol.codes import ResponseCode
from rmqkit.testing.peer import FakePeer
from rmqkit.testing.store import message
from rmqkit_pop.reading import split
from tests.plugins.pop.pop_desk import LEASE_MS, PopDesk, bodies, open_pop_desk, popped, put_group


async def send(pops: PopDesk, *texts: str, queue_id: int = 0) -> None:
    """Messages whose first letter is their key; `-` is none."""
    for text in texts:
        key = None if text[0] == "-" else {"__SHARDINGKEY": text[0]}
        await pops.desk.sent(body=text.encode(), queue_id=queue_id, properties=key)


async def pop(pops: PopDesk, **fields: Any) -> list[Any]:
    return await pops.pop(**({"order": True} | fields))


async def test_a_queue_waits_for_its_leased_messages(pops: PopDesk) -> None:
    """Nothing behind them is delivered before all are acknowledged; other queues go on. Handles say that the
    pop was ordered."""
    await send(pops, "a1", "a2", "a3")
    await send(pops, "b1", queue_id=1)
    first = await pop(pops, max_msg_nums=2, queue_id=0)
    assert bodies(first) == [b"a1", b"a2"]
    assert {each.handle.revive_queue for each in first} == {999}
    assert await pop(pops, queue_id=0) == []
    assert bodies(await pop(pops)) == [b"b1"]
    await pops.acked(first[1])
    assert await pop(pops, queue_id=0) == []
    assert pops.desk.broker.offsets.get("g", "T", 0) == 0
    await pops.acked(first[0])
    assert pops.desk.broker.offsets.get("g", "T", 0) == 2
    assert bodies(await pop(pops, queue_id=0)) == [b"a3"]


async def test_what_was_acknowledged_does_not_come_again(pops: PopDesk) -> None:
    """After the lease only the other messages of the batch do, in their place, with the number of their
    deliveries."""
    await send(pops, "a1", "a2", "a3", "a4")
    first = await pop(pops, max_msg_nums=3)
    await pops.acked(first[1])
    await pops.pass_time(LEASE_MS + 100)
    again = await pop(pops)
    assert bodies(again) == [b"a1", b"a3", b"a4"]
    assert [each.tried for each in again] == [1, 1, None]
    assert (await pops.ack(first[0])).code == ResponseCode.NO_MESSAGE
    await pops.acked(*again)
    assert pops.desk.broker.offsets.get("g", "T", 0) == 4
    assert await pop(pops) == []


async def test_an_attempt_whose_answer_was_lost_is_repeated(pops: PopDesk) -> None:
    """The same attempt id gets the same messages again, not counted as another delivery; another one
    waits."""
    await send(pops, "a1", "a2")
    lost = await pop(pops, attempt_id="x", max_msg_nums=1)
    assert await pop(pops, attempt_id="y") == []
    again = await pop(pops, attempt_id="x", max_msg_nums=1)
    assert (bodies(again), again[0].tried) == ([b"a1"], None)
    assert (await pops.ack(lost[0])).code == ResponseCode.NO_MESSAGE
    await pops.acked(*again)
    assert bodies(await pop(pops, attempt_id="y")) == [b"a2"]


async def test_keys_are_independent(pops: PopDesk) -> None:
    """Messages of one key follow each other; other keys, and messages without one, do not wait for them."""
    await send(pops, "a1", "b1", "a2", "-1", "b2", "a3")
    one = await pop(pops, order_by="key", max_msg_nums=1)
    assert bodies(one) == [b"a1"]
    rest = await pop(pops, order_by="key")
    assert bodies(rest) == [b"b1", b"-1", b"b2"]
    assert await pop(pops, order_by="key") == []
    await pops.acked(rest[2])
    assert await pop(pops, order_by="key") == []
    await pops.acked(one[0])
    assert bodies(await pop(pops, order_by="key")) == [b"a2", b"a3"]


async def test_a_failed_message_holds_up_its_key_alone(pops: PopDesk) -> None:
    """It comes again before those behind it with its key."""
    await send(pops, "a1", "b1")
    (failed, done) = await pop(pops, order_by="key")
    await send(pops, "a2", "b2")
    await pops.acked(done)
    assert bodies(await pop(pops, order_by="key")) == [b"b2"]
    hidden = await pops.changed(failed, 1_000)
    await pops.pass_time(1_100)
    assert bodies(await pop(pops, order_by="key")) == [b"a1", b"a2"]
    assert (await pops.ack(hidden)).code == ResponseCode.NO_MESSAGE


async def test_a_waiting_pop_is_woken_when_its_queue_is_free(pops: PopDesk) -> None:
    """By the last acknowledgement, and by the end of a lease."""
    await send(pops, "a1", "a2", "a3")
    (first,) = await pop(pops, max_msg_nums=1)
    waiting = FakePeer()
    request = pops.pop_request(order=True, max_msg_nums=1, poll_time=200_000)
    assert await pops.desk.outcome(request, waiting) is None
    await pops.acked(first)
    pops.desk.broker.work.finish()
    assert bodies(popped(waiting.answers[0])) == [b"a2"]
    later = FakePeer()
    assert await pops.desk.outcome(request, later) is None
    await pops.pass_time(LEASE_MS + 100)
    assert bodies(popped(later.answers[0])) == [b"a2"]


async def test_a_message_that_always_fails_becomes_a_dead_letter(pops: PopDesk) -> None:
    """Then those behind it go on."""
    await put_group(pops, retry_max_times=2)
    await send(pops, "a1", "a2")
    for tried in (None, 1, 2):
        (failed,) = await pop(pops, max_msg_nums=1)
        assert (failed.body, failed.tried) == (b"a1", tried)
        await pops.pass_time(LEASE_MS + 100)
    await pops.settle()
    assert bodies(await pop(pops)) == [b"a2"]
    (dead,) = pops.desk.stored("%DLQ%g")
    assert (dead.body, dead.properties["DLQ_ORIGIN_TOPIC"]) == (b"a1", "T")


async def test_suspended_messages_are_not_counted(pops: PopDesk) -> None:
    """A client that gives a message back for later does not use up its deliveries."""
    await send(pops, "a1")
    for _ in range(3):
        (message,) = await pop(pops)
        assert message.tried is None
        await pops.changed(message, 10, suspend=True)
        await pops.pass_time(100)


async def test_the_setting_chooses_the_order(tmp_path: Path) -> None:
    """For clients that do not say it, such as Apache's."""
    async with open_pop_desk(tmp_path, popOrderBy="key") as pops:
        await send(pops, "a1", "b1")
        assert bodies(await pop(pops, max_msg_nums=1)) == [b"a1"]
        assert bodies(await pop(pops)) == [b"b1"]


async def test_a_group_may_change_between_orders(pops: PopDesk) -> None:
    """Nothing is lost and nothing that is finished comes again."""
    await send(pops, "a1", "a2", "a3", "a4")
    first = await pop(pops, max_msg_nums=2)
    await pops.acked(first[1])
    rest = await pops.pop()
    assert bodies(rest) == [b"a3", b"a4"]
    await pops.acked(*rest)
    await pops.pass_time(LEASE_MS + 100)
    assert bodies(await pop(pops)) == [b"a1"]


async def test_the_window_of_unfinished_messages_is_limited(pops: PopDesk) -> None:
    """A key that fails for ever lets others pass it by, up to a limit, and their leases are few."""
    await send(pops, "a0")
    await pop(pops, order_by="key")
    for number in range(40):
        await send(pops, f"b{number}")
    got = []
    while found := await pop(pops, order_by="key"):
        got += found
        await pops.acked(*found)
    assert len(got) == 40
    assert pops.desk.broker.offsets.get("g", "T", 0) == 0


async def test_a_queue_whose_front_or_end_was_removed(pops: PopDesk) -> None:
    """It is read on at its first message; one whose end was cut off at its end, so that no new message is
    passed over."""
    await send(pops, "a1", "a2", "a3")
    pops.desk.broker.offsets.commit("g", "T", 0, 99)
    assert await pops.pop(queue_id=0) == []
    await send(pops, "a4")
    assert bodies(await pops.pop(queue_id=0)) == [b"a4"]


def test_records_of_slices() -> None:
    """Neighbours share a slice."""
    host = b"\x7f\x00\x00\x01\x00\x00\x00\x01"
    records = []
    for number in range(3):
        put = message("T", 0, b"%d" % number)
        records.append(record.pack(put, record.message_size(put), number, 0, 0, host))
    found = split([records[0] + records[1], memoryview(records[2])])
    assert [bytes(each) for each in found] == records
    assert split([]) == []


async def test_a_filter_that_rejects_nearly_everything(pops: PopDesk) -> None:
    """A pop looks at a part of a queue at a time, and goes on from there while it waits, in order and
    without: what matches far behind comes without another message."""
    messages = [message("T", 0, b"x") for _ in range(5_000)]
    messages.append(message("T", 0, b"found"))
    messages[-1].set_properties({"TAGS": "A"})
    pops.desk.broker.appender.append(MessageRun(messages))
    for group, order in (("g", False), ("other", True)):
        peer = FakePeer()
        request = pops.pop_request(consumer_group=group, order=order, exp="A", poll_time=10_000)
        assert await pops.desk.outcome(request, peer) is None
        pops.desk.broker.work.finish()
        assert bodies(popped(peer.answers[0])) == [b"found"]
