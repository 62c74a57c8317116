"""Dispatchers of a whole broker: killed and restarted, as replacements of queues and index, and as shown to
administrators."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from rmqkit import hookimpl
from rmqkit.broker.run.running import RunningBroker
from rmqkit.client import Client
from rmqkit.client.consumer.pull_consumer import PullConsumer
from rmqkit.client.consumer.pulling import PullStatus
from rmqkit.client.producing.producer import Producer
from rmqkit.config import Config
from rmqkit.errors import BrokerError, ConfigError, PluginError
from rmqkit.model.message import Message
from rmqkit.model.queue import MessageQueue
from rmqkit.model.topic import TopicConfig
from rmqkit.plugin.dispatcher import DispatchEntry, Dispatcher, LogFollower
from rmqkit.plugin.hookspecs import Register
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import SendMessageRequestHeader
from rmqkit.remoting.pool import ConnectionPool
from rmqkit.testing.broker import Cluster, dialer, running_broker, running_cluster
from rmqkit.testing.choice import chosen
from rmqkit.testing.lookups import KeyLists, QueueLists
from tests.broker.counting_broker import SAVED_EVERY
from tests.broker.desk import open_desk
from tests.counting import Counter, Volatile

ROOT = Path(__file__).parent.parent.parent
CALL_MS = 30_000


class Brings:
    """A plugin that registers dispatchers by name."""

    def __init__(self, **dispatchers: LogFollower) -> None:
        self._dispatchers = dispatchers

    @hookimpl
    def rmqkit_register_dispatchers(self, register: Register[LogFollower], config: Config) -> None:
        for name, dispatcher in self._dispatchers.items():
            register(name, dispatcher)


def send(topic: str = "T", body: bytes = b"body") -> Command:
    return request(
        RequestCode.SEND_MESSAGE, SendMessageRequestHeader(producer_group="p", topic=topic, queue_id=0), body
    )


# --- killed -------------------------------------------------------------------------------------------------


@contextmanager
def counting_broker(directory: Path) -> Iterator[str]:
    """Address of a broker in another process; leaving kills it."""
    words = [
        sys.executable,
        "-m",
        "tests.broker.counting_broker",
        str(directory),
        chosen().store,
        chosen().scheme,
    ]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.mark.durable_store
@pytest.mark.only_transport("tcp", "tls", "quic", "unix", why="has the broker in another process")
async def test_a_dispatcher_that_is_killed_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """After a kill the missing messages are given again at the next start: every message counts once."""
    sent = {"TBW102": 0, "Other": 0}
    for number in (50, 7, 33):
        with counting_broker(tmp_path) as address:
            async with ConnectionPool(connect=dialer()) as pool:
                for at in range(number):
                    topic = ("TBW102", "Other")[at % 3 == 0]
                    header = SendMessageRequestHeader(
                        producer_group="p",
                        topic=topic,
                        queue_id=0,
                        default_topic="TBW102",
                        default_topic_queue_nums=1,
                    )
                    answer = await pool.call(
                        address, request(RequestCode.SEND_MESSAGE, header, b"x"), CALL_MS
                    )
                    assert answer.code == 0, answer.remark
                    sent[topic] += 1
        kept = json.loads((tmp_path / "counts.json").read_text())
        assert sum(kept["counts"].values()) == sum(sent.values()) - sum(sent.values()) % SAVED_EVERY
    counter = Counter(tmp_path)
    async with running_broker(tmp_path, extra=[("counting", Brings(counter=counter))]) as running:
        assert counter.counts == sent
        (_, _, progress) = running.context.dispatching.progress()
        assert (progress.name, progress.behind_bytes, progress.failures) == ("counter", 0, 0)


# --- in the place of queues and index -----------------------------------------------------------------------

INSTEAD = "queue-lists,key-lists"
CAN_LEAVE_OUT = pytest.mark.only_store("memory", "mmap", why="takes a store that can leave out its queues")


@CAN_LEAVE_OUT
@pytest.mark.parametrize("starts", [1, pytest.param(2, marks=pytest.mark.durable_store)])
async def test_queues_and_index_of_plugins(tmp_path: Path, starts: int) -> None:
    """With both of the store's own disabled, producers and consumers see no difference, keys are found, and
    held pulls are woken, also after a restart."""
    queue_lists, key_lists = QueueLists(), KeyLists()
    brought = [("mine", Brings(**{"queue-lists": queue_lists, "key-lists": key_lists}))]
    for number in range(starts):
        async with running_cluster(tmp_path, extra=brought, dispatchers=INSTEAD) as cluster:
            await check_messages(cluster, queue_lists, kept=5 * number)
        assert (tmp_path / "consumequeue").exists() is (tmp_path / "index").exists() is False


async def check_messages(cluster: Cluster, queue_lists: QueueLists, kept: int) -> None:
    async with Client(cluster.namesrv_text, connect=cluster.connect) as client:
        await client.admin.create_topic("T", queues=1)
        queue = MessageQueue("T", "broker-a", 0)
        async with client.producer("p") as producer, client.pull_consumer("g") as consumer:
            for at in range(4):
                result = await producer.send(Message("T", b"%d" % (kept + at), keys=[f"key{kept + at}"]))
                assert result.queue_offset == kept + at
            found = await consumer.pull(queue, 0)
            assert [message.body for message in found.messages] == [b"%d" % at for at in range(kept + 4)]
            assert queue_lists.max_offset("T", 0) == kept + 4
            for at in range(kept + 4):
                assert [message.body for message in await client.admin.query_by_key("T", f"key{at}")] == [
                    b"%d" % at
                ]
            await check_hold(cluster, producer, consumer, queue, kept + 4)


async def check_hold(
    cluster: Cluster, producer: Producer, consumer: PullConsumer, queue: MessageQueue, offset: int
) -> None:
    """A pull at the end is held and answered by the next message."""
    answered: list[bytes] = []

    async def pull() -> None:
        found = await consumer.pull(queue, offset, block=True)
        assert found.status is PullStatus.FOUND
        answered.extend(message.body for message in found.messages)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pull)
        with trio.fail_after(CALL_MS / 1000):
            while not cluster.broker.context.held.count:
                await trio.testing.wait_all_tasks_blocked()
        await producer.send(Message("T", b"%d" % offset, keys=[f"key{offset}"]))
    assert answered == [b"%d" % offset]


@CAN_LEAVE_OUT
@pytest.mark.parametrize("kind", ["any", pytest.param("durable", marks=pytest.mark.durable_store)])
async def test_without_queues_and_index(tmp_path: Path, kind: str) -> None:
    """The broker accepts and numbers messages and finds them by their offset; pulls and key queries find
    nothing."""
    async with open_desk(tmp_path, dispatchers="") as desk:
        for number in range(3):
            assert (await desk.sent(properties={"KEYS": "k"})).queue_offset == number
        assert (await desk.pull()).code != 0
        assert desk.broker.store.query_by_key("T", "k", 0, 1 << 60, 9) == ([], 0, 0)
        assert desk.broker.store.read_record(0) is not None
        assert desk.broker.dispatching.progress() == []


@pytest.mark.only_store("mmap", why="is about the files of one store")
async def test_a_replaced_index_alone(tmp_path: Path) -> None:
    """The queues stay the store's; its index has no file."""
    key_lists = KeyLists()
    async with open_desk(
        tmp_path, store="mmap", extra=[("mine", Brings(mine=key_lists))], dispatchers="consume-queue,mine"
    ) as desk:
        await desk.sent(properties={"KEYS": "k"})
        assert len(desk.stored()) == 1
        assert desk.broker.store.query_by_key("T", "k", 0, 1 << 60, 9).physical_offsets == [0]
        assert [each.name for each in desk.broker.dispatching.progress()] == ["consume-queue", "mine"]
    assert not (tmp_path / "index").exists()
    assert (tmp_path / "consumequeue").is_dir()


# --- start, stop, commit buffer -----------------------------------------------------------------------------


class Life(Volatile):
    """Records its life; with `fault` it cannot open."""

    def __init__(self, fault: Exception | None = None) -> None:
        super().__init__()
        self.life: list[str] = []
        self._fault = fault

    async def open(self, log_start: int, log_end: int) -> None:
        await trio.lowlevel.checkpoint()
        if self._fault is not None:
            raise self._fault
        self.life.append("open")

    async def run(self) -> None:
        self.life.append("run")
        try:
            await trio.sleep_forever()
        finally:
            self.life.append("stopped")

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()
        self.life.append("closed")

    def dispatch(self, entries: Sequence[DispatchEntry]) -> None:
        super().dispatch(entries)
        self.life.append("dispatch")


async def test_the_life_of_a_dispatcher(tmp_path: Path) -> None:
    """It is opened before the broker serves, runs beside it, and is closed when nothing more arrives."""
    life = Life()
    async with (
        running_broker(tmp_path, extra=[("mine", Brings(life=life))]) as running,
        ConnectionPool(connect=dialer()) as pool,
    ):
        await running.context.topics.put(TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1))
        assert (await pool.call(str(running.address), send(), CALL_MS)).code == 0
        assert life.life == ["open", "run", "dispatch"]
    assert life.life == ["open", "run", "dispatch", "stopped", "closed"]


@pytest.mark.durable_store
async def test_one_that_cannot_open_keeps_the_broker_from_starting(tmp_path: Path) -> None:
    """The error names it, those opened before it are closed, and the directory is free again."""
    first = Life()
    with pytest.raises(ExceptionGroup) as caught:
        async with running_broker(
            tmp_path, extra=[("mine", Brings(a=first, b=Life(OSError("no such disk"))))]
        ):
            pass
    assert caught.group_contains(
        PluginError, match=r"dispatcher 'b' of plugin 'mine' cannot start: OSError: no such disk"
    )
    assert first.life == ["open", "closed"]
    async with running_broker(tmp_path):
        pass


async def test_an_unknown_dispatcher_keeps_the_broker_from_starting(tmp_path: Path) -> None:
    """The broker stops before anything is opened."""
    with pytest.raises(ExceptionGroup) as caught:
        async with running_broker(tmp_path, dispatchers="consume-queue,indx"):
            pass
    assert caught.group_contains(ConfigError, match="did you mean 'index'")


@pytest.mark.only_store("mmap", why="is about the commit buffer of one store")
async def test_with_a_commit_buffer_entries_come_once_they_are_written(tmp_path: Path) -> None:
    """A dispatcher may read the log, so it gets no unwritten entries."""

    class Looks(Dispatcher):
        found: list[bool]
        running: RunningBroker

        def dispatch(self, entries: Sequence[DispatchEntry]) -> None:
            self.found += [
                self.running.context.store.read_record(entry.at.physical_offset) is not None
                for entry in entries
            ]

    looks = Looks()
    looks.found = []
    async with (
        running_broker(
            tmp_path, extra=[("mine", Brings(looks=looks))], store="mmap", transientStorePoolEnable="true"
        ) as running,
        ConnectionPool(connect=dialer()) as pool,
    ):
        looks.running = running
        assert not running.context.store.written_by_append
        await running.context.topics.put(TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1))
        for _ in range(5):
            assert (await pool.call(str(running.address), send(), CALL_MS)).code == 0
        assert looks.found == [True] * 5


# --- what an administrator sees -----------------------------------------------------------------------------


@pytest.mark.only_store("mmap", why="is about a store whose index comes later")
async def test_runtime_information_of_dispatchers(tmp_path: Path) -> None:
    """Java's key shows the store's own dispatchers, including the index, which lags slightly; each has its
    own keys as well."""
    counter = Counter(tmp_path)
    async with open_desk(
        tmp_path, store="mmap", extra=[("mine", Brings(counter=counter, volatile=Volatile()))]
    ) as desk:
        await desk.sent(properties={"KEYS": "k"})
        end = str(desk.broker.store.end_offset)
        table = json.loads((await desk.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)["table"]
        found = {key: value for key, value in table.items() if key.startswith("dispatch")}
        assert found == {
            "dispatchBehindBytes": end,
            "dispatchBehindBytes.consume-queue": "0",
            "dispatchBehindBytes.counter": "0",
            "dispatchBehindBytes.index": end,
            "dispatchBehindBytes.volatile": "0",
            "dispatchFailures.consume-queue": "0",
            "dispatchFailures.counter": "0",
            "dispatchFailures.index": "0",
            "dispatchFailures.volatile": "0",
            "dispatchMaxBuffer": "0",
            "dispatchUnsavedBytes.counter": end,
        }


async def test_a_client_asks_a_broker_how_it_is(tmp_path: Path) -> None:
    """`client.admin.runtime_info` returns the keys unchanged; an unreachable address raises an error."""
    async with (
        running_cluster(tmp_path) as cluster,
        Client(cluster.namesrv_text, connect=cluster.connect) as client,
    ):
        table = await client.admin.runtime_info(str(cluster.broker.address))
        assert (table["brokerActive"], table["dispatchBehindBytes.index"]) == ("true", "0")
        with pytest.raises(BrokerError):
            await client.admin.runtime_info(cluster.namesrv_text)
