"""POP_MESSAGE: what is delivered, to whom, and who waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmqkit.model import names
from rmqkit.model.topic import TopicConfig
from rmqkit.protocol import record
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers import PopMessageResponseHeader
from rmqkit.testing.peer import FakePeer
from rmqkit_pop.limits import MAX_INVISIBLE_MS
from tests.plugins.pop.pop_desk import GROUP, LEASE_MS, PopDesk, bodies, open_pop_desk, popped, put_group


async def send(pops: PopDesk, *texts: str, queue_id: int = 0, **fields: Any) -> None:
    for text in texts:
        await pops.desk.sent(body=text.encode(), queue_id=queue_id, **fields)


async def test_members_share_the_messages_of_all_queues(pops: PopDesk) -> None:
    """Each message goes to one of them, also when they are more than queues; what is leased is not delivered
    meanwhile."""
    for number in range(12):
        await send(pops, str(number), queue_id=number % 4)
    got = [await pops.pop(max_msg_nums=2) for _ in range(7)]
    assert sorted(map(len, got)) == [0, 2, 2, 2, 2, 2, 2]
    assert len({body for each in got for body in bodies(each)}) == 12
    assert pops.leased == 12


async def test_one_queue_alone(pops: PopDesk) -> None:
    """A pop of a queue gets its messages, and those of the retry topic."""
    await send(pops, "a", queue_id=1)
    await send(pops, "b", queue_id=2)
    assert bodies(await pops.pop(queue_id=2)) == [b"b"]
    await pops.pass_time(LEASE_MS + 100)
    assert bodies(await pops.pop(queue_id=3)) == [b"b"]
    assert bodies(await pops.pop(queue_id=1)) == [b"a"]


async def test_a_group_begins_at_the_first_or_the_last_message(pops: PopDesk) -> None:
    """initMode 0 is the first one. With 1 a topic that is young is read from its first message as well, and
    what comes after the first pop is never missed."""
    await send(pops, "a", "b")
    assert bodies(await pops.pop(init_mode=1)) == [b"a", b"b"]
    assert await pops.pop(init_mode=1, consumer_group="other") != []
    assert await pops.pop(init_mode=1, consumer_group="late", queue_id=3) == []
    await send(pops, "c", queue_id=3)
    assert bodies(await pops.pop(init_mode=1, consumer_group="late", queue_id=3)) == [b"c"]


async def test_the_offset_of_the_group_follows(pops: PopDesk) -> None:
    """It is committed when the leases are stored, so that lag and a change to push are right."""
    await send(pops, "a", "b", "c")
    await pops.pop(max_msg_nums=2)
    assert pops.desk.broker.offsets.get(GROUP, "T", 0) == 2


async def test_a_reset_delivers_again_and_ends_old_leases(pops: PopDesk) -> None:
    """Also what is leased; old handles are refused, and what was acknowledged comes again."""
    await send(pops, "a", "b")
    first = await pops.pop()
    await pops.acked(first[0])
    pops.desk.broker.offsets.reset(GROUP, "T", 0, 0)
    again = await pops.pop()
    assert bodies(again) == [b"a", b"b"]
    assert (await pops.ack(first[1])).code == ResponseCode.NO_MESSAGE
    await pops.acked(*again)
    await pops.pass_time(2 * LEASE_MS)
    assert await pops.pop() == []


async def test_an_offset_that_others_set_counts(pops: PopDesk) -> None:
    """As by a push consumer of the group, or an administrator who skips messages."""
    await send(pops, "a", "b", "c")
    assert bodies(await pops.pop(max_msg_nums=1)) == [b"a"]
    pops.desk.broker.offsets.commit(GROUP, "T", 0, 2)
    assert bodies(await pops.pop()) == [b"c"]


async def test_tags_select_messages(pops: PopDesk) -> None:
    """What the expression rejects is passed over, also when nothing matches, and is not leased."""
    for number in range(20):
        await send(pops, str(number), properties={"TAGS": "A" if number % 10 == 3 else "B"})
    assert bodies(await pops.pop(exp="A", exp_type="TAG")) == [b"3", b"13"]
    assert await pops.pop(exp="A", exp_type="TAG") == []
    assert pops.desk.broker.offsets.get(GROUP, "T", 0) == 20
    assert pops.leased == 2
    refused = await pops.ask(pops.pop_request(exp="a >", exp_type="SQL92"))
    assert refused.code in (ResponseCode.SUBSCRIPTION_PARSE_FAILED, ResponseCode.SYSTEM_ERROR)
    assert refused.remark


async def test_expressions_select_messages(tmp_path: Path) -> None:
    """By the properties in the records; the messages keep their handles."""
    async with open_pop_desk(tmp_path, enablePropertyFilter="true") as pops:
        for number in range(6):
            await send(pops, str(number), properties={"n": str(number)})
        got = await pops.pop(exp="n BETWEEN 2 AND 3 OR n = 5", exp_type="SQL92")
        assert bodies(got) == [b"2", b"3", b"5"]
        await pops.acked(*got)
        await pops.pass_time(2 * LEASE_MS)
        assert await pops.pop(exp="n > 0", exp_type="SQL92") == []


@pytest.mark.row("S068")
async def test_a_pop_waits_for_every_queue_and_for_the_retry_topic(pops: PopDesk) -> None:
    """It is woken by a message of any queue, and by the end of a lease, at once: not when its time is over.
    The retry topic need not exist yet."""
    peer = FakePeer()
    assert await pops.desk.outcome(pops.pop_request(poll_time=20_000), peer) is None
    await send(pops, "news", queue_id=2)
    pops.desk.broker.work.finish()
    assert bodies(popped(peer.answers[0])) == [b"news"]
    waiting = FakePeer()
    assert await pops.desk.outcome(pops.pop_request(poll_time=300_000), waiting) is None
    await pops.pass_time(LEASE_MS + 100)
    await pops.settle()
    (again,) = popped(waiting.answers[0])
    assert (again.body, again.message.reconsume_times) == (b"news", 1)


async def test_a_pop_that_waits_is_answered_at_its_deadline(pops: PopDesk) -> None:
    """With the code and the header that clients read."""
    peer = FakePeer()
    assert await pops.desk.outcome(pops.pop_request(poll_time=5_000), peer) is None
    pops.desk.clock.advance(5_000)
    pops.desk.expire_pulls(pops.desk.clock.now_ms())
    (late,) = peer.answers
    assert late.code == ResponseCode.POLLING_TIMEOUT
    assert late.header(PopMessageResponseHeader).invisible_time == LEASE_MS


async def test_a_message_wakes_one_of_many(pops: PopDesk) -> None:
    """The others wait on."""
    peers = [FakePeer(port=40_000 + number) for number in range(5)]
    for peer in peers:
        assert await pops.desk.outcome(pops.pop_request(poll_time=20_000), peer) is None
    await send(pops, "one")
    pops.desk.broker.work.finish()
    assert sum(len(peer.answers) for peer in peers) == 1
    assert len(pops.desk.broker.held) == 4


async def test_nobody_gets_what_a_closed_connection_waits_for(pops: PopDesk) -> None:
    """A pop of a client that has gone leases nothing."""
    gone = FakePeer()
    assert await pops.desk.outcome(pops.pop_request(poll_time=20_000), gone) is None
    gone.closed = True
    await send(pops, "a")
    pops.desk.broker.work.finish()
    assert pops.leased == 0
    assert bodies(await pops.pop()) == [b"a"]


async def test_large_messages(pops: PopDesk) -> None:
    """The first is delivered whatever its size; the others wait for the next pop."""
    for number in range(3):
        await pops.desk.sent(body=b"%d" % number * 300_000, queue_id=number)
    got = [await pops.pop() for _ in range(4)]
    assert [len(each) for each in got] == [1, 1, 1, 0]


async def test_a_retried_message_comes_under_its_own_topic(pops: PopDesk) -> None:
    """With its handle, one more delivery, and all that it was sent with."""
    await send(pops, "a", properties={"TAGS": "x", "KEYS": "k", "mine": "ä"}, flag=9)
    (first,) = await pops.pop(exp="x", exp_type="TAG")
    await pops.pass_time(LEASE_MS + 100)
    (again,) = await pops.pop(exp="x", exp_type="TAG")
    assert (again.message.topic, again.message.flag) == ("T", 9)
    assert again.message.properties.items() >= {"TAGS": "x", "KEYS": "k", "mine": "ä"}.items()
    assert again.message.properties["1ST_POP_TIME"] == str(first.handle.pop_time_ms)
    assert again.topic == names.pop_retry_topic("T", GROUP)
    assert again.message.born_timestamp_ms == first.message.born_timestamp_ms
    await pops.acked(again)


async def test_retry_topics_of_the_second_version(tmp_path: Path) -> None:
    """They are written when the setting says so; those of the first are read on."""
    async with open_pop_desk(tmp_path, enableRetryTopicV2="true") as pops:
        await send(pops, "a")
        await pops.pop()
        await pops.pass_time(LEASE_MS + 100)
        (again,) = await pops.pop()
        assert again.topic == "%RETRY%g+T"
        assert again.handle.retry == "2"
        await pops.acked(again)
        await pops.desk.broker.topics.put(TopicConfig(topic_name="%RETRY%g_T", read_queue_nums=1))
        await pops.desk.sent(topic="%RETRY%g_T", body=b"old")
        (old,) = await pops.pop()
        assert (old.body, old.topic) == (b"old", "%RETRY%g_T")


async def test_groups_whose_retry_topics_have_one_name(tmp_path: Path) -> None:
    """`a` with `b_c`, and `a_b` with `c`: each gets its own messages only."""
    async with open_pop_desk(tmp_path) as pops:
        for topic in ("b_c", "c"):
            await pops.desk.broker.topics.put(TopicConfig(topic_name=topic))
            await pops.desk.sent(topic=topic, body=topic.encode())
        pairs = (("a", "b_c"), ("a_b", "c"))
        for group, topic in pairs:
            assert len(await pops.pop(topic, consumer_group=group)) == 1
        await pops.pass_time(LEASE_MS + 100)
        await pops.settle()
        for group, topic in pairs:
            assert bodies(await pops.pop(topic, consumer_group=group)) == [topic.encode()]
            assert await pops.pop(topic, consumer_group=group) == []


@pytest.mark.parametrize(
    ("fields", "code", "said"),
    [
        ({"max_msg_nums": 0}, ResponseCode.INVALID_PARAMETER, "1 to 32"),
        ({"max_msg_nums": 33}, ResponseCode.INVALID_PARAMETER, "1 to 32"),
        ({"max_msg_nums": 1_000_000}, ResponseCode.INVALID_PARAMETER, "1 to 32"),
        ({"invisible_time": -1}, ResponseCode.INVALID_PARAMETER, "renew the lease"),
        ({"invisible_time": 0}, ResponseCode.INVALID_PARAMETER, "renew the lease"),
        ({"invisible_time": MAX_INVISIBLE_MS + 1}, ResponseCode.INVALID_PARAMETER, "renew the lease"),
        ({"topic": "missing"}, ResponseCode.TOPIC_NOT_EXIST, "missing"),
        ({"queue_id": 4}, ResponseCode.INVALID_PARAMETER, "-1 for all"),
        ({"queue_id": -2}, ResponseCode.INVALID_PARAMETER, "-1 for all"),
        ({"consumer_group": "g" * 121}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "does not exist"),
        ({"attempt_id": "x" * 129}, ResponseCode.INVALID_PARAMETER, "attemptId"),
        ({"order_by": "size"}, ResponseCode.INVALID_PARAMETER, "orderBy"),
        ({"exp_type": "MAGIC", "exp": "x"}, ResponseCode.SYSTEM_ERROR, "MAGIC"),
    ],
)
async def test_odd_pops_are_refused(pops: PopDesk, fields: dict[str, Any], code: int, said: str) -> None:
    """With the code and what to do; nothing is leased, and the next pop works."""
    await send(pops, "a")
    refused = await pops.ask(pops.pop_request(**fields))
    assert (refused.code, said in (refused.remark or "")) == (code, True), refused.remark
    assert pops.leased == 0
    assert bodies(await pops.pop()) == [b"a"]


@pytest.mark.parametrize("invisible", ["9223372036854775808", "x", ""])
async def test_numbers_that_java_could_not_hold(pops: PopDesk, invisible: str) -> None:
    """A field that is not an i64 is named in the refusal."""
    odd = pops.pop_request()
    fields = dict(odd.fields()) | {"invisibleTime": invisible}
    refused = await pops.ask(Command(code=odd.code, opaque=7, ext=fields))
    assert refused.code != ResponseCode.SUCCESS
    assert "invisibleTime" in (refused.remark or "")


async def test_names_that_would_have_no_retry_topic(pops: PopDesk) -> None:
    """Group and topic together are longer than a topic may be: refused at once, not when a message fails."""
    topic, group = "t" * 127, "g" * 120
    await pops.desk.broker.topics.put(TopicConfig(topic_name=topic))
    await pops.desk.sent(topic=topic, body=b"a")
    refused = await pops.ask(pops.pop_request(topic, consumer_group=group))
    if names.topic_fault(names.pop_retry_topic(topic, group)):
        assert refused.code == ResponseCode.INVALID_PARAMETER
        assert "shorter name" in (refused.remark or "")
    else:
        assert refused.code == ResponseCode.SUCCESS


async def test_a_group_may_not_lease_without_limit(tmp_path: Path) -> None:
    """At the limit its pops are refused until it acknowledges some; other groups are not held up."""
    async with open_pop_desk(tmp_path, popMaxLeasesPerGroup="3") as pops:
        await send(pops, *"abcde")
        got = await pops.pop()
        assert len(got) == 3
        full = await pops.ask(pops.pop_request(poll_time=20_000))
        assert full.code == ResponseCode.POLLING_FULL
        assert "acknowledge some" in (full.remark or "")
        assert full.header(PopMessageResponseHeader).rest_num == 0
        assert len(await pops.pop(consumer_group="other")) == 3
        await pops.acked(got[0])
        assert bodies(await pops.pop()) == [b"d"]


async def test_a_group_that_may_not_consume(pops: PopDesk) -> None:
    """consumeEnable is looked at for each pop."""
    await put_group(pops, consume_enable=False)
    assert (await pops.ask(pops.pop_request())).code == ResponseCode.NO_PERMISSION


async def test_a_broker_that_does_not_know_its_leases_serves_none(pops: PopDesk) -> None:
    """While it starts, or is not the master: clients try again or go elsewhere."""
    await send(pops, "a")
    assert pops.service.engine is not None
    pops.service.engine.ready = False
    refused = await pops.ask(pops.pop_request())
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_records_that_are_damaged_are_seen_by_their_consumer(pops: PopDesk) -> None:
    """A pop delivers what is stored, byte for byte, as a pull does."""
    await send(pops, "a")
    (message,) = await pops.pop()
    (stored,) = pops.desk.stored()
    assert record.unpack_all is not None
    assert message.message == stored
