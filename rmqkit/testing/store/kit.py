"""Tools for tests of stores: flush policies, small settings, messages, and readers of a store's whole
content."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import trio

from rmqkit.config import Config, load
from rmqkit.config.schema import KEYS
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage, StoredMessage
from rmqkit.plugin.flush import Flushable, FlushPolicy, Level
from rmqkit.plugin.store import Appended, MessageStore, QueueUnit, ReadLimits, ReadResult
from rmqkit.protocol.record import unpack_all
from rmqkit.toolkit.cold_reads import blocking

Store = TypeVar("Store", bound=MessageStore)
#: More messages than any test stores.
ALL = ReadLimits(max_messages=100_000, max_bytes=1 << 30, max_scanned_units=100_000)
#: Settings under which a few messages of 200 bytes fill a segment, and a few keys an index file.
SMALL = {
    "max_message_size": 1_000,
    "mapped_file_size_commit_log": 66_560,
    "mapped_file_size_consume_queue": 200,
}
SMALL_INDEX = {"max_hash_slot_num": 3, "max_index_num": 4}


class NeverFlush(FlushPolicy):
    """A flush policy that leaves flushing to the test."""

    async def run(
        self, log: Flushable, wanted: Callable[[], Awaitable[None]], task_status: trio.TaskStatus[None]
    ) -> None:
        task_status.started()
        await trio.sleep_forever()


class FlushWhenWanted(FlushPolicy):
    """The simplest group commit: flushes when a caller waits."""

    acknowledge_at = Level.FLUSHED

    async def run(
        self, log: Flushable, wanted: Callable[[], Awaitable[None]], task_status: trio.TaskStatus[None]
    ) -> None:
        task_status.started()
        while True:
            await wanted()
            await log.commit()
            await log.flush()


class CommitWhenWanted(FlushWhenWanted):
    """The simplest group commit with a commit buffer."""

    commit_buffer_bytes = 1024 * 1024


def as_keys(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the kernel and of plugins, given by the names of their attributes, by their keys."""
    kernel = {attribute: key for key, attribute in KEYS.items()}
    return {kernel.get(name) or _camel(name): value for name, value in settings.items()}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def store_config(directory: Path, **settings: Any) -> Config:
    """Settings of a store in `directory`, by the names of their attributes; sizes are small unless given, so
    that a test does not need a gigabyte."""
    sizes: dict[str, Any] = {
        "mapped_file_size_commit_log": 8 << 20,
        "mapped_file_size_consume_queue": 20_000,
        "max_hash_slot_num": 1_000,
        "max_index_num": 5_000,
    }
    return load(environ={}, flags={"storePathRootDir": str(directory)} | as_keys(sizes | settings))


def message(topic: str = "Orders", queue_id: int = 0, body: bytes = b"body", **fields: Any) -> PutMessage:
    """A message to put; `unique_key`, `keys` and `tag` become properties, the rest are fields."""
    properties = {props.WAIT: "true"}
    for name, given in ((props.UNIQ_KEY, "unique_key"), (props.KEYS, "keys"), (props.TAGS, "tag")):
        if given in fields:
            properties[name] = fields.pop(given)
    made = PutMessage(topic=topic, queue_id=queue_id, body=body, properties={}, properties_bytes=b"")
    made.set_properties(properties)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


async def put(store: MessageStore, messages: Sequence[PutMessage]) -> Sequence[Appended]:
    """Append, and wait until what was appended can be read."""
    results = store.append(messages)
    await store.settled(store.end_offset, Level.WRITTEN)
    return results


@asynccontextmanager
async def running(store: Store, *, blocking: bool = True) -> AsyncIterator[Store]:
    """The opened store with its background work running; closed at the end. With `blocking` its reads may
    wait for the device, so that a test can read anything."""
    await store.open()
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            with store.blocking_reads() if blocking else nullcontext():
                yield store
            nursery.cancel_scope.cancel()
    finally:
        await store.close()


def records(result: ReadResult) -> list[StoredMessage]:
    """The messages of a read; checks that `total_bytes` and `message_count` are right."""
    data = b"".join(result.slices)
    found = list(unpack_all(data))
    assert (result.total_bytes, result.message_count) == (len(data), len(found))
    return found


def bodies(store: MessageStore, topic: str = "Orders", queue_id: int = 0) -> list[bytes]:
    """The bodies of a whole queue."""
    return [found.body for found in records(_whole_queue(store, topic, queue_id))]


def _whole_queue(store: MessageStore, topic: str, queue_id: int) -> ReadResult:
    low = store.min_offset(topic, queue_id)
    return blocking(store, partial(store.read, topic, queue_id, low, ALL, None))


def contents(
    store: MessageStore,
) -> dict[tuple[str, int], tuple[int, int, list[StoredMessage], list[QueueUnit]]]:
    """Everything the queues of a store hold."""
    found = {}
    for topic, queue_ids in store.queues().items():
        for queue_id in queue_ids:
            low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            messages = records(_whole_queue(store, topic, queue_id)) if high > low else []
            units = blocking(store, partial(store.read_units, topic, queue_id, low, high - low))
            found[topic, queue_id] = (low, high, messages, units)
    return found
