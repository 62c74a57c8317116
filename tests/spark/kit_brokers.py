"""A name server and a broker in a thread, for blocking tests: the broker can be stopped, restarted, and made
to delete old messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import trio
from attrs import define, field

from rmqkit.broker.run.running import RunningBroker, run_broker
from rmqkit.client import BlockingClient, Message
from rmqkit.config import Config, with_values
from rmqkit.model.queue import MessageQueue
from rmqkit.plugin import loader
from rmqkit.plugin.flush import Level
from rmqkit.testing.broker import running_namesrv, test_config

T = TypeVar("T")

BROKER = "broker-a"
#: Size limit of one request, below that of the smallest broker here.
_BATCH_BYTES = 32 * 1024


@define(eq=False)
class Brokers:
    """Created by `brokers`. `name_server` is the address for clients; the broker keeps its port and its files
    over a restart."""

    config: Config
    name_server: str
    directory: Path
    _nursery: trio.Nursery
    _token: trio.lowlevel.TrioToken
    _running: RunningBroker | None = None
    _ended: trio.Event = field(factory=trio.Event)
    client: BlockingClient = field(init=False)

    def run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run a coroutine function in the broker's loop."""
        return trio.from_thread.run(function, *args, trio_token=self._token)

    def start(self) -> None:
        """Start the broker, and wait until the name server knows it."""

        async def serve(config: Config, task_status: trio.TaskStatus[RunningBroker]) -> None:
            try:
                await run_broker(config, loader.load(config), task_status=task_status)
            finally:
                self._ended.set()

        async def begin() -> None:
            self._ended = trio.Event()
            self._running = await self._nursery.start(serve, self.config)
            self.config = with_values(self.config, listen_port=self._running.address.port)

        self.run(begin)

    def stop(self) -> None:
        """Stop the broker gracefully, which removes its routes."""

        async def end() -> None:
            if self._running is not None:
                self._running.stop.set()
                await self._ended.wait()
                self._running = None

        self.run(end)

    @contextmanager
    def another(self, name: str, **keys: Any) -> Iterator[None]:
        """One more broker of the cluster, with its own directory. Keys as in broker.conf."""
        directory = self.directory / name
        config = with_values(
            test_config(directory, store="mmap", brokerName=name, **keys),
            namesrv_addr=self.config.namesrv_addr,
        )
        other = Brokers(config, self.name_server, directory, self._nursery, self._token)
        other.start()
        try:
            yield
        finally:
            other.stop()

    def create_topic(self, topic: str, queues: int) -> None:
        """Create a topic, or add queues to it."""
        self.client.admin.create_topic(topic, queues=queues)

    def delete_topic(self, topic: str) -> None:
        self.client.admin.delete_topic(topic)

    def send(self, topic: str, bodies: Iterable[bytes], queues: int = 1) -> None:
        """Send the bodies in order, in turn to this number of queues."""
        bodies = list(bodies)
        with self.client.producer("spark-tests") as producer:
            for queue_id in range(queues):
                messages = [Message(topic, body) for body in bodies[queue_id::queues]]
                step = max(1, _BATCH_BYTES // (max(map(len, bodies)) + 100))
                for begin in range(0, len(messages), step):
                    producer.send_batch(
                        messages[begin : begin + step], queue=MessageQueue(topic, BROKER, queue_id)
                    )

    def forget_old_messages(self) -> None:
        """Delete all of the log except the file being written, as retention does."""

        async def trim() -> None:
            assert self._running is not None
            store = self._running.context.store
            await store.settled(store.end_offset, Level.FLUSHED)
            await store.trim(store.end_offset)

        self.run(trim)

    def min_offset(self, topic: str, queue_id: int = 0) -> int:
        async def ask() -> int:
            assert self._running is not None
            return self._running.context.store.min_offset(topic, queue_id)

        return self.run(ask)


@contextmanager
def brokers(directory: Path, **keys: Any) -> Iterator[Brokers]:
    """A name server and one broker with the mmap store; leaving the context stops both. Keys as in
    broker.conf; those of TLS apply to both."""
    ready: SimpleQueue[Brokers | None] = SimpleQueue()
    leave = trio.Event()

    async def main() -> None:
        # A disk that is nearly full would delete messages.
        defaults = {"store": "mmap", "brokerName": BROKER, "disabledPlugins": "retention"}
        config = test_config(directory, **defaults | keys)
        secure = {key: value for key, value in keys.items() if key.startswith("tls.")}
        async with (
            running_namesrv(directory, scheme="tcp", store="mmap", **secure) as address,
            trio.open_nursery() as nursery,
        ):
            config = with_values(config, namesrv_addr=str(address))
            ready.put(Brokers(config, str(address), directory, nursery, trio.lowlevel.current_trio_token()))
            await leave.wait()

    with ThreadPoolExecutor(1, "brokers of a test") as pool:
        loop = pool.submit(trio.run, main)
        loop.add_done_callback(lambda _: ready.put(None))
        cluster = ready.get()
        if cluster is None:
            loop.result()
            raise AssertionError("the name server ended at once")
        try:
            cluster.start()
            with BlockingClient(cluster.name_server) as cluster.client:
                yield cluster
        finally:
            cluster.stop()
            trio.from_thread.run_sync(leave.set, trio_token=cluster._token)
            loop.result()
