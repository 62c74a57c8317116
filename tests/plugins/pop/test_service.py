"""The end of leases, restarts, and what the log says about leases."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from rmqkit.errors import RequestRefused, StoreError
from rmqkit.model import names
from rmqkit.model.run import MessageRun
from rmqkit.model.topic import ConsumerOffsetFile, CustomizedRetryPolicy, GroupRetryPolicy, TopicConfig
from rmqkit.plugin.store import NotInMemory
from rmqkit.protocol.codes import ResponseCode
from rmqkit.testing.listening import until
from rmqkit_pop.engine import REVIVE_GROUP, Engine
from rmqkit_pop.records import AckRecord, CheckPointRecord, from_message, to_message
from rmqkit_pop.service import follow
from tests.broker.desk import open_desk
from tests.killed import killed
from tests.plugins.pop.pop_desk import GROUP, LEASE_MS, PopDesk, bodies, open_pop_desk, put_group

#: Stores whose files outlive a broker that is killed.
LASTING = ("mmap", "lmdb")


def engine_of(pops: PopDesk) -> Engine:
    assert pops.service.engine is not None
    return pops.service.engine


async def send(pops: PopDesk, *texts: str, queue_id: int = 0, **fields: Any) -> None:
    for text in texts:
        await pops.desk.sent(body=text.encode(), queue_id=queue_id, **fields)


@pytest.mark.parametrize("store", LASTING)
async def test_leases_survive_a_kill(tmp_path: Path, store: str) -> None:
    """Nothing is written but the log: what was leased stays leased, what was acknowledged stays so, the old
    handles are valid, and the leases end when they would have."""
    async with open_pop_desk(tmp_path / "a", store=store) as pops:
        await send(pops, "a", "b", "c", "d")
        first, second, third = await pops.pop(max_msg_nums=3)
        await pops.acked(first)
        renewed = await pops.changed(second, 2 * LEASE_MS)
        copy = killed(tmp_path / "a", tmp_path / "b")
    async with open_pop_desk(copy, store=store) as pops:
        assert pops.leased == 2
        assert bodies(await pops.pop()) == [b"d"]
        assert (await pops.ack(first)).code == ResponseCode.NO_MESSAGE
        await pops.acked(second)
        assert (await pops.ack(renewed)).code == ResponseCode.NO_MESSAGE
        await pops.pass_time(LEASE_MS + 100)
        assert sorted(bodies(await pops.pop())) == [b"c", b"d"]
        assert (await pops.ack(third)).code == ResponseCode.NO_MESSAGE


@pytest.mark.parametrize("store", LASTING)
async def test_a_new_group_goes_on_after_a_kill(tmp_path: Path, store: str) -> None:
    """Its first offset was not written yet: it is read on behind its leases, not at the last message."""
    async with open_pop_desk(tmp_path / "a", store=store) as pops:
        await send(pops, *"abcdef")
        assert bodies(await pops.pop(init_mode=1, max_msg_nums=2)) == [b"a", b"b"]
        copy = killed(tmp_path / "a", tmp_path / "b")
    async with open_pop_desk(copy, store=store, accessMessageInMemoryMaxRatio="0") as pops:
        assert pops.desk.broker.offsets.get(GROUP, "T", 0) == 2
        assert bodies(await pops.pop(init_mode=1)) == [b"c", b"d", b"e", b"f"]


@pytest.mark.parametrize("store", LASTING)
async def test_order_survives_a_kill(tmp_path: Path, store: str) -> None:
    """Leased keys still wait, finished messages stay finished, and failed deliveries are counted."""
    fields: dict[str, Any] = {"order": True, "order_by": "key"}
    async with open_pop_desk(tmp_path / "a", store=store) as pops:
        for text in ("a1", "b1", "a2", "c1", "b2"):
            await pops.desk.sent(body=text.encode(), properties={"__SHARDINGKEY": text[0]})
        await pops.pop(**fields, max_msg_nums=1)
        await pops.pass_time(LEASE_MS + 100)
        again = await pops.pop(**fields, max_msg_nums=3)
        assert bodies(again) == [b"a1", b"b1", b"a2"]
        await pops.acked(again[1])
        copy = killed(tmp_path / "a", tmp_path / "b")
    async with open_pop_desk(copy, store=store) as pops:
        pops.desk.clock.advance(LEASE_MS + 100)
        assert bodies(await pops.pop(**fields)) == [b"c1", b"b2"]
        await pops.pass_time(LEASE_MS + 100)
        last = await pops.pop(**fields)
        assert bodies(last) == [b"a1", b"a2", b"c1", b"b2"]
        assert [each.tried for each in last] == [2, 1, 1, 1]


async def test_leases_survive_a_failover(tmp_path: Path) -> None:
    """A slave that becomes the master has the log, and a table of offsets of some time ago: it knows each
    lease, and what was acknowledged, by the log."""
    async with open_pop_desk(tmp_path / "a", store="mmap") as pops:
        await send(pops, *"abcde")
        first, second = await pops.pop(max_msg_nums=2)
        old = msgspec.json.decode(
            msgspec.json.encode(pops.desk.broker.offsets.table()), type=ConsumerOffsetFile
        )
        await pops.acked(first)
        third = await pops.pop(max_msg_nums=2)
        await pops.acked(third[1])
        store = pops.desk.broker.store
        log = bytes(store.read_log(0, store.end_offset))
    async with open_desk(tmp_path / "b", store="mmap", brokerName="broker-a") as desk:
        await desk.broker.store.truncate(0)
        desk.broker.store.append_log(0, log)
        desk.broker.offsets.merge(old)
        slave = PopDesk(desk)
        async with trio.open_nursery() as nursery:
            await nursery.start(slave.service.run, desk.broker)
            assert slave.leased == 2
            assert bodies(await slave.pop()) == [b"e"]
            assert (await slave.ack(first)).code == ResponseCode.NO_MESSAGE
            await slave.acked(second)
            await slave.pass_time(LEASE_MS + 100)
            assert sorted(bodies(await slave.pop())) == [b"c", b"e"]
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("store", LASTING)
async def test_a_graceful_stop_leaves_little_to_read(tmp_path: Path, store: str) -> None:
    """The next start begins at the oldest lease."""
    async with open_pop_desk(tmp_path, store=store) as pops:
        await send(pops, *"abcdef")
        for _ in range(5):
            await pops.acked(*await pops.pop(max_msg_nums=1))
        await pops.pop()
        engine = engine_of(pops)
        queue_id, topic = engine.revive_queue(GROUP), engine.topic
        await pops.service.stop(pops.desk.broker)
        assert pops.desk.broker.offsets.get(REVIVE_GROUP, topic, queue_id) == 9
        await pops.desk.broker.offsets.persist()
    async with open_pop_desk(tmp_path, store=store) as pops:
        assert pops.leased == 1
        assert await pops.pop() == []


async def test_a_message_that_always_fails_becomes_a_dead_letter(pops: PopDesk) -> None:
    """After the deliveries that its group allows, with its origin, and it is counted."""
    await put_group(pops, retry_max_times=2)
    await send(pops, "a")
    for delivery in range(3):
        (message,) = await pops.pop()
        assert message.message.reconsume_times == delivery
        await pops.pass_time(LEASE_MS + 100)
        await pops.settle()
    assert await pops.pop() == []
    (dead,) = pops.desk.stored(names.dlq_topic(GROUP))
    assert dead.properties["DLQ_ORIGIN_TOPIC"] == "T"
    assert dead.properties["DLQ_ORIGIN_MESSAGE_ID"]
    assert pops.desk.broker.stats.dead_lettered[GROUP, "T"].count == 1
    assert pops.leased == 0


async def test_the_policy_of_a_group_hides_what_failed(pops: PopDesk) -> None:
    """Until its delay has passed since the delivery; no handle is valid meanwhile."""
    policy = GroupRetryPolicy(customized_retry_policy=CustomizedRetryPolicy(next=(0, 0, 3 * LEASE_MS)))
    await put_group(pops, group_retry_policy=policy)
    await send(pops, "a")
    (message,) = await pops.pop()
    await pops.pass_time(LEASE_MS + 100)
    assert await pops.pop() == []
    assert (await pops.ack(message)).code == ResponseCode.NO_MESSAGE
    await pops.pass_time(2 * LEASE_MS)
    (again,) = await pops.pop()
    assert again.message.reconsume_times == 1


async def test_a_policy_that_says_nothing_hides_nothing(pops: PopDesk) -> None:
    """Java's tools give one to each group that they make."""
    await put_group(pops, group_retry_policy=GroupRetryPolicy())
    await send(pops, "a")
    await pops.pop()
    await pops.pass_time(LEASE_MS + 100)
    (again,) = await pops.pop()
    assert again.message.reconsume_times == 1


async def test_many_leases_that_end_together(pops: PopDesk) -> None:
    """All of them, each once, also those that were changed at the same time."""
    await send(pops, *map(str, range(100)))
    got = []
    while found := await pops.pop():
        got += found
    for message in got[::2]:
        await pops.changed(message, LEASE_MS)
    await pops.pass_time(LEASE_MS + 100)
    again = []
    while found := await pops.pop():
        again += found
    assert sorted(bodies(again)) == sorted(bodies(got))
    assert pops.leased == 100


async def test_a_lease_that_is_longer_holds_up_no_other(pops: PopDesk) -> None:
    """Each ends at its own time, whatever the order of their records."""
    await send(pops, "long", "short")
    await pops.pop(max_msg_nums=1, invisible_time=3_600_000)
    await pops.pop(max_msg_nums=1, invisible_time=1_000)
    await pops.pass_time(1_100)
    assert bodies(await pops.pop()) == [b"short"]


async def test_a_full_disk_loses_nothing(pops: PopDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pop that cannot be stored leases nothing, an acknowledgement that cannot be stored changes nothing,
    and a message that cannot be moved is moved later."""
    await send(pops, "a", "b")
    (first,) = await pops.pop(max_msg_nums=1)
    full = RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "the disk is full")
    with monkeypatch.context() as broken:

        class Refused:
            results = (full,) * 4
            outcome = full

        broken.setattr(pops.desk.broker.appender, "append_durably", lambda run: Refused())
        assert (await pops.ask(pops.pop_request())).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert (await pops.ack(first)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert (await pops.change(first, 1_000)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        await pops.pass_time(LEASE_MS + 100)
        assert pops.leased == 1
    await pops.pass_time(2_000)
    assert sorted(bodies(await pops.pop())) == [b"a", b"b"]


async def test_a_read_that_fails_is_repeated(pops: PopDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the store, or data that is not in memory, delays one message and loses none."""
    await send(pops, "a")
    await pops.pop()
    real = pops.desk.broker.store.read_units
    errors: list[Exception] = [StoreError("cannot be read"), NotInMemory(), OSError("I/O")]

    def failing(topic: str, *rest: Any) -> Any:
        if topic == "T" and errors:
            raise errors.pop()
        return real(topic, *rest)

    monkeypatch.setattr(pops.desk.broker.store, "read_units", failing)

    def failed(times: int) -> bool:
        return len(errors) <= 3 - times

    for times in (1, 2, 3):
        await pops.pass_time(LEASE_MS + 100)
        await until(partial(failed, times))
    await pops.pass_time(LEASE_MS + 100)
    assert bodies(await pops.pop()) == [b"a"]


async def test_a_message_that_is_gone_ends_its_lease(pops: PopDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other message is delivered in its place."""
    await send(pops, "a", "b")
    await pops.pop(max_msg_nums=1)
    real = pops.desk.broker.store.read_units
    monkeypatch.setattr(
        pops.desk.broker.store,
        "read_units",
        lambda topic, queue_id, offset, count: real(topic, queue_id, max(offset, 1), count),
    )
    await pops.pass_time(LEASE_MS + 100)
    assert pops.leased == 0
    assert bodies(await pops.pop()) == [b"b"]


async def test_a_deleted_topic_takes_its_leases_along(pops: PopDesk) -> None:
    """One with its name has other messages, which are not touched by old leases and handles."""
    await send(pops, "a")
    (old,) = await pops.pop()
    await pops.desk.broker.topics.delete("T")
    await pops.desk.broker.topics.put(TopicConfig(topic_name="T"))
    await send(pops, "new")
    assert pops.leased == 0
    (new,) = await pops.pop()
    assert new.body == b"new"
    if old.handle.pop_time_ms != new.handle.pop_time_ms:
        assert (await pops.ack(old)).code == ResponseCode.NO_MESSAGE


async def test_a_deleted_group_has_no_leases_left(pops: PopDesk) -> None:
    """They end without another delivery."""
    await send(pops, "a")
    await pops.pop()
    await pops.desk.broker.groups.delete(GROUP)
    await pops.pass_time(LEASE_MS + 100)
    assert pops.leased == 0


async def test_old_records_are_stored_again(pops: PopDesk) -> None:
    """So that the log before them is not needed any more; the leases do not change by it."""
    await send(pops, "a", "b", "c")
    first, second, _ = await pops.pop()
    await pops.acked(second)
    engine = engine_of(pops)
    queue_id = engine.revive_queue(GROUP)
    assert not engine.rewrite(queue_id, 0, 0)
    assert engine.rewrite(queue_id, 1, 0)
    assert engine.marks()[queue_id] == (2, 3)
    await pops.acked(first)
    await pops.pass_time(LEASE_MS + 100)
    assert bodies(await pops.pop()) == [b"c"]


async def test_records_are_javas(pops: PopDesk) -> None:
    """A Java broker that takes the store over finds each lease, by its start offset and time, in the fields
    that it reads, and takes the time of the append for the present."""
    await send(pops, "a", "b", "c")
    first, second, third = await pops.pop()
    await pops.acked(first)
    await pops.changed(third, 5_000)
    engine = engine_of(pops)
    stored = pops.desk.stored(engine.topic, engine.revive_queue(GROUP))
    assert [each.properties["TAGS"] for each in stored] == ["ck", "ack", "ck", "ack"]
    now_ms = str(pops.desk.clock.now_ms())
    assert {each.properties["TIMER_DELIVER_MS"] for each in stored} == {now_ms}
    check_point, ack, changed, ended = (msgspec.json.decode(each.body) for each in stored)
    name = {"c": GROUP, "t": "T", "q": 0, "bn": "broker-a"}
    pt = second.handle.pop_time_ms
    assert check_point.items() >= (name | {"so": 0, "pt": pt, "it": LEASE_MS, "n": 3, "d": [0, 1, 2]}).items()
    assert ack.items() >= (name | {"so": 0, "pt": pt, "ao": 0}).items()
    assert changed.items() >= (name | {"so": 2, "pt": pt + 1, "n": 1, "d": [0]}).items()
    assert ended.items() >= (name | {"so": 0, "pt": pt, "ao": 2}).items()


async def test_what_a_java_broker_left_is_taken_over(pops: PopDesk) -> None:
    """Its records come to the revive topic through the timer, while this broker runs."""
    await send(pops, "a", "b", "c")
    engine = engine_of(pops)
    now_ms, queue_id = pops.desk.clock.now_ms(), engine.revive_queue(GROUP)
    check_point = CheckPointRecord(
        start=0,
        pop_ms=now_ms - 1_000,
        invisible_ms=1_000,
        count=3,
        queue_id=0,
        topic="T",
        group=GROUP,
        differences=(0, 1, 2),
        broker_name="broker-a",
    )
    ack = AckRecord(
        several=(0, 2),
        start=0,
        pop_ms=now_ms - 1_000,
        group=GROUP,
        topic="T",
        queue_id=0,
        broker_name="broker-a",
    )
    pops.desk.broker.offsets.commit(GROUP, "T", 0, 3)
    host = pops.desk.broker.store_host
    messages = [to_message(each, engine.topic, queue_id, host, now_ms, 0) for each in (check_point, ack)]
    pops.desk.broker.appender.append(MessageRun(messages))
    await send(pops, "d")
    own = await pops.pop()
    assert bodies(own) == [b"d"]
    await pops.acked(*own)
    while await follow(engine, queue_id, 0):
        pass
    assert pops.leased == 1
    await pops.pass_time(3_100)
    assert bodies(await pops.pop()) == [b"b"]
    assert not engine.ahead


async def test_odd_records_are_passed_over(pops: PopDesk) -> None:
    """Messages of other kinds in the revive topic, and damaged ones, stop nothing."""
    engine = engine_of(pops)
    await send(pops, "a")
    (popped,) = await pops.pop()
    queue_id = engine.revive_queue(GROUP)
    host = pops.desk.broker.store_host
    odd = to_message(
        AckRecord(offset=0, start=0, pop_ms=0, group="x", topic="T", queue_id=0),
        engine.topic,
        queue_id,
        host,
        1,
        0,
    )
    for body, tag in ((b"{", "ack"), (b'{"so":1}', "ck"), (b"anything", "other"), (b"\xff", "bAck")):
        message = msgspec.structs.replace(odd, body=body)
        message.set_properties({"TAGS": tag})
        pops.desk.broker.appender.append(MessageRun([message]))
    while await follow(engine, queue_id, 0):
        pass
    assert pops.leased == 1
    await pops.acked(popped)
    stored = pops.desk.stored(engine.topic, queue_id)
    assert from_message(stored[3]) is None


async def test_clients_may_not_write_leases(pops: PopDesk) -> None:
    """What is in the revive topic is believed, so nobody may send to it."""
    engine = engine_of(pops)
    answer = await pops.desk.send(engine.topic, b"{}", properties={"TAGS": "ack"})
    assert answer.code == ResponseCode.NO_PERMISSION
    assert pops.desk.stored(engine.topic) == []


async def test_figures(pops: PopDesk) -> None:
    """The number of leased messages is among the broker's figures."""
    await send(pops, "a", "b")
    await pops.pop()
    assert pops.service.figures() == {"popLeasedMessages": 2}
