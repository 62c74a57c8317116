"""What the log has within a window: restarts, failovers, topics that ask for one later."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from rmqkit.errors import StoreError
from rmqkit.model import properties as props
from rmqkit.model.topic import TopicConfig
from rmqkit.plugin.store import NotInMemory
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.headers import (
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    SendMessageResponseHeader,
)
from tests.broker.desk import BrokerHarness, open_desk
from tests.killed import killed
from tests.plugins.dedup.conftest import at_work, put_topic

MINUTE_MS = 60_000
LASTING = ("mmap", "lmdb")


async def sent(
    desk: BrokerHarness, key: str, queue_id: int = 0, topic: str = "T"
) -> SendMessageResponseHeader:
    return await desk.sent(topic=topic, queue_id=queue_id, properties={props.UNIQ_KEY: key})


@pytest.mark.parametrize("store", LASTING)
async def test_windows_survive_a_kill(tmp_path: Path, store: str) -> None:
    """Nothing is written but the log: what was stored within the window is known, in every queue, and what is
    older is not."""
    async with open_desk(tmp_path / "a", store=store) as desk, at_work(desk):
        await put_topic(desk, "Once")
        await sent(desk, "old", topic="Once")
        desk.clock.advance(MINUTE_MS)
        first = [await sent(desk, key, at, "Once") for at, key in enumerate("abc")]
        await trio.testing.wait_all_tasks_blocked()
        copy = killed(tmp_path / "a", tmp_path / "b")
        now_ms = desk.clock.now_ms()
    async with open_desk(copy, store=store) as desk:
        desk.clock.advance(now_ms - desk.clock.now_ms() + 1)
        async with at_work(desk) as service:
            assert service.figures() == {"dedupKeys": 3}
            assert [await sent(desk, key, topic="Once") for key in "abc"] == first
            await sent(desk, "old", topic="Once")
            assert [len(desk.stored("Once", at)) for at in range(3)] == [3, 1, 1]


async def test_windows_survive_a_failover(tmp_path: Path) -> None:
    """A slave that becomes the master knows the keys by its log."""
    async with open_desk(tmp_path / "a", store="mmap") as desk, at_work(desk):
        await put_topic(desk)
        first = await sent(desk, "a", 2)
        log = bytes(desk.broker.store.read_log(0, desk.broker.store.end_offset))
    async with open_desk(tmp_path / "b", store="mmap") as slave:
        await slave.broker.store.truncate(0)
        slave.broker.store.append_log(0, log)
        async with at_work(slave):
            await put_topic(slave)
            assert (await sent(slave, "a")).queue_offset == first.queue_offset
            assert [len(slave.stored("T", at)) for at in range(4)] == [0, 0, 1, 0]


async def test_a_topic_that_asks_for_a_window_later(tmp_path: Path) -> None:
    """What it had before counts; without the attribute nothing does."""
    async with open_desk(tmp_path) as desk, at_work(desk):
        first = await sent(desk, "a")
        assert (await sent(desk, "a")).queue_offset == 1
        await put_topic(desk)
        assert await sent(desk, "a") == first
        await desk.broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4))
        assert (await sent(desk, "a")).queue_offset == 2


async def test_a_deleted_topic_is_forgotten(tmp_path: Path) -> None:
    """Its successor has none of its messages."""
    async with open_desk(tmp_path) as desk, at_work(desk):
        await put_topic(desk)
        first = await sent(desk, "a")
        header = DeleteTopicRequestHeader(topic="T")
        assert (await desk.ask(RequestCode.DELETE_TOPIC_IN_BROKER, header)).code == 0
        await put_topic(desk)
        again = await sent(desk, "a")
        assert (again.queue_offset, len(desk.stored("T"))) == (0, 1)
        assert again.msg_id != first.msg_id


async def test_sends_wait_until_the_window_is_read(tmp_path: Path) -> None:
    """A send to a topic whose window is not read is refused, so that its client sends again; other topics
    take theirs."""
    async with open_desk(tmp_path) as desk:
        await put_topic(desk)
        answer = await desk.send(properties={props.UNIQ_KEY: "a"})
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "still reads which messages of topic T" in (answer.remark or "")
        await desk.sent(topic="TBW102", properties={props.UNIQ_KEY: "a"})
        async with at_work(desk):
            await sent(desk, "a")
        assert len(desk.stored("T")) == 1


async def test_cold_and_failing_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """Data that is not in memory is fetched, and a read that fails is repeated."""
    async with open_desk(tmp_path) as desk:
        first = await sent(desk, "a")
        read_record, trouble = (
            desk.broker.store.read_record,
            [StoreError("the device"), NotInMemory(object())],
        )

        def troubled(physical_offset: int) -> object:
            if trouble:
                raise trouble.pop()
            return read_record(physical_offset)

        async def fetch(missed: NotInMemory) -> None:
            await trio.lowlevel.checkpoint()

        monkeypatch.setattr(desk.broker.store, "read_record", troubled)
        monkeypatch.setattr(desk.broker.store, "fetch", fetch)
        async with at_work(desk):
            await put_topic(desk)
            await trio.sleep(2)
            assert trouble == []
            assert await sent(desk, "a") == first


async def test_records_that_cannot_be_read_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_desk(tmp_path) as desk:
        await sent(desk, "a")
        second = await sent(desk, "b")
        read_record = desk.broker.store.read_record

        def damaged(physical_offset: int) -> object:
            return read_record(physical_offset) if physical_offset else b"\0" * 20

        monkeypatch.setattr(desk.broker.store, "read_record", damaged)
        async with at_work(desk):
            await put_topic(desk)
            assert await sent(desk, "b") == second


@pytest.mark.parametrize(
    ("attributes", "fault"),
    [
        ("+dedup.window=10m", None),
        ("+dedup.window=10m,+dedup.key=order", None),
        ("+dedup.window=500ms", "dedup.window is a span from 1000 ms to 86400000 ms"),
        ("+dedup.window=soon", "such as 10m, not 'soon'"),
    ],
)
async def test_the_attributes_are_checked(tmp_path: Path, attributes: str, fault: str | None) -> None:
    async with open_desk(tmp_path) as desk:
        answer = await created(desk, attributes)
        assert (answer[0] == 0) == (fault is None)
        assert (fault or "") in answer[1]


async def test_a_broker_without_the_service_refuses_the_attributes(tmp_path: Path) -> None:
    """They would have no effect."""
    async with open_desk(tmp_path, disabledServices="dedup") as desk:
        assert "unsupported key: dedup.window" in (await created(desk, "+dedup.window=10m"))[1]


async def created(desk: BrokerHarness, attributes: str) -> tuple[int, str]:
    """Code and remark of the answer to the creation of a topic."""
    header = CreateTopicRequestHeader(
        topic="Once", read_queue_nums=1, write_queue_nums=1, perm=6, topic_filter_type="SINGLE_TAG",
        order=False, attributes=attributes, default_topic="TBW102",
    )  # fmt: skip
    answer = await desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    return answer.code, answer.remark or ""


async def test_metrics_and_figures(tmp_path: Path) -> None:
    """Keys and repeated messages by topic; nothing where no topic has a window."""
    async with open_desk(tmp_path) as desk, at_work(desk) as service:
        assert (list(service.metrics()), service.figures()) == ([], {})
        await put_topic(desk)
        for key in "aab":
            await sent(desk, key)
        found = {metric.family.name: list(metric.samples) for metric in service.metrics()}
        assert found == {"rmqkit_deduplicated_messages": [(("T",), 1)], "rmqkit_dedup_keys": [(("T",), 2)]}
        assert service.figures() == {"dedupKeys": 2}
