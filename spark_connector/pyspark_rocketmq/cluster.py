"""Reading from a cluster over the network, with rmqkit's client (its event loop runs in a thread of its own)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TypeVar

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.pull_windows import Pace, Pull, PullWindows, blocks_of
from pyspark_rocketmq.records import record_places
from pyspark_rocketmq.source import Block, Bounds, NoSuchTopic, QueueKey, QueueRange, Selection, SourceError
from rmqkit.client import (
    BrokerError,
    Client,
    ConnectFailed,
    ConnectionLost,
    MessageQueue,
    NameServersUnreachable,
    NoRoute,
    RawPull,
    RawReader,
    RequestTimeout,
    RmqError,
)
from rmqkit.model.subscription import SQL92, SUBSCRIBE_ALL, TAG
from rmqkit.model.sysflag import PERM_READ
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.record import unpack_all

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Questions under way at a time, each about one queue or one topic.
MAX_QUESTIONS = 32
#: About so many bytes are taken from the client's thread at a time.
TAKE_BYTES = 2 << 20
PROBE_RECORDS = 32
#: A look-up by key brings at most this many messages of a broker (Java: QueryMessageProcessor, defaultQueryMaxNum).
MAX_QUERY_RECORDS = 64
#: Brokers leave out of an answer what is too much for a frame of 16 MiB, and do not say so.
FULL_ANSWER_BYTES = 8 << 20
#: Answers that a cut time window is asked for before everything is read instead.
MAX_QUERIES = 256
_RETRIED = (ConnectFailed, ConnectionLost, RequestTimeout)
_RETRIED_CODES = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)
#: A broker answers so when it keeps no account of topics, or not for everybody.
_NO_STATS = (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.NO_PERMISSION)


class ClusterSource:
    """A `Source`. Opening sends nothing. Several threads may use it; each process makes its own."""

    def __init__(self, options: ReadOptions) -> None:
        assert options.name_server is not None
        self._options = options
        self._name_server = options.name_server
        self._stack = ExitStack()
        try:
            with ExitStack() as stack:
                self._portal: BlockingPortal = stack.enter_context(start_blocking_portal("asyncio", name="rocketmq"))
                client = Client(options.name_server, transport="tls" if options.tls else "")
                self._client: Client = stack.enter_context(self._portal.wrap_async_context_manager(client))
                self._reader: RawReader = self._client.raw_reader(options.group_id)
                self._stack = stack.pop_all()
        except RmqError as error:
            raise self._explained(error) from error

    def topics(self) -> Sequence[str]:
        return self._call(self._client.admin.application_topics)

    def queues(self, topic: str) -> Sequence[QueueKey]:
        data = self._call(self._client.admin.route, topic)
        if data is None:
            raise NoSuchTopic(
                f"no broker of the cluster at nameServer = {self._name_server} has the topic {topic!r}. "
                f"Check its name (`rmqkit topic list`), or create it (`rmqkit topic create {topic}`)"
            )
        readable = [item for item in data.queue_datas if item.perm & PERM_READ]
        return sorted(QueueKey(topic, item.broker_name, number) for item in readable for number in range(item.read_queue_nums))

    def bounds(self, queues: Sequence[QueueKey]) -> Mapping[QueueKey, Bounds]:
        found: dict[QueueKey, Bounds] = {}
        wanted = set(queues)

        async def ask(topic: str) -> None:
            try:
                stats = await self._client.admin.topic_stats(topic)
            except NoRoute:
                return
            except BrokerError as error:
                if error.code not in _NO_STATS:
                    raise
                for key in sorted(key for key in wanted if key.topic == topic):
                    offsets, queue = self._reader.offsets, _queue(key)
                    found[key] = Bounds(await offsets.min_offset(queue), await offsets.max_offset(queue))
                return
            for queue, entry in stats.items():
                key = QueueKey(queue.topic, queue.broker_name, queue.queue_id)
                if key in wanted:
                    found[key] = Bounds(entry.min_offset, max(entry.min_offset, entry.max_offset))

        self._call(_for_each, ask, sorted({key.topic for key in wanted}))
        return dict(sorted(found.items()))

    def offsets_at(self, times_ms: Mapping[QueueKey, int]) -> Mapping[QueueKey, int]:
        found: dict[QueueKey, int] = {}

        async def ask(key: QueueKey) -> None:
            found[key] = await self._reader.offsets.offset_for_time(_queue(key), times_ms[key])

        self._call(_for_each, ask, list(times_ms))
        return found

    def mean_record_bytes(self, queue: QueueKey, bounds: Bounds) -> int:
        """The mean of a few records from the middle on, filtered or not."""
        if bounds.end <= bounds.first:
            return 1
        answer = self._call(self._pull, queue, SUBSCRIBE_ALL, TAG, (bounds.first + bounds.end) // 2, PROBE_RECORDS)
        records = len(record_places(answer.body)[0])
        return max(1, len(answer.body) // records) if records else 1024

    def blocks(self, part: QueueRange, selection: Selection, first_records: int) -> Iterator[Block]:
        expression, kind = SUBSCRIBE_ALL, TAG
        if selection.sql92:
            expression, kind = selection.sql92, SQL92
        elif selection.tags:
            expression = "||".join(selection.tags)
        pull: Pull = partial(self._pull, part.queue, expression, kind)
        pace = Pace(under_way=self._options.pull_pipelining, max_records=self._options.pull_batch_size)
        windows = PullWindows(part, pull, pace, first_records, dense=expression == SUBSCRIBE_ALL)
        running, _ = self._portal.start_task(windows.run)
        try:
            while taken := self._portal.call(windows.take, TAKE_BYTES):
                yield from blocks_of(part.queue, taken)
        finally:
            running.cancel()

    def with_key(self, topic: str, key: str, start_ms: int, stop_ms: int) -> Iterator[Block] | None:
        """By keys and by unique keys. A broker gives the newest 64 only: a full answer is asked for again in halves of its time."""
        bodies: dict[str, list[bytes]] = {}
        spans = [(start_ms, stop_ms)]
        asked = 0
        while spans:
            begin, end = spans.pop()
            asked += 1
            if asked > MAX_QUERIES:
                return None
            query = partial(self._reader.query, topic, key, max_messages=MAX_QUERY_RECORDS, begin_ms=begin, end_ms=end)
            answers = self._call(query)
            if any(answer.indexed_ms == 0 for answer in answers.values()):
                # There is no index (messageIndexEnable), or nothing is in it.
                return None
            if any(
                len(record_places(answer.body)[0]) >= MAX_QUERY_RECORDS or len(answer.body) > FULL_ANSWER_BYTES
                for answer in answers.values()
            ):
                if begin >= end:
                    return None
                middle = (begin + end) // 2
                spans += [(middle + 1, end), (begin, middle)]
                continue
            for broker, answer in answers.items():
                bodies.setdefault(broker, []).append(answer.body)
        return _by_queue(topic, bodies)

    def commit(self, group: str, positions: Mapping[QueueKey, int]) -> None:
        """Let a consumer group go on from these offsets. Raises SourceError."""

        async def tell(key: QueueKey) -> None:
            await self._reader.offsets.commit(group, _queue(key), positions[key])

        self._call(_for_each, tell, list(positions))

    def close(self) -> None:
        self._stack.close()

    # --- within --------------------------------------------------------------------------------------------------------

    async def _pull(self, key: QueueKey, expression: str, kind: str, offset: int, records: int) -> RawPull:
        """One pull, again after failures that may pass. Raises SourceError."""
        options = self._options
        left = options.fetch_num_retries
        while True:
            try:
                return await self._reader.pull(
                    _queue(key),
                    offset,
                    expression=expression,
                    expression_type=kind,
                    max_messages=records,
                    timeout_ms=options.pull_timeout_ms,
                )
            except RmqError as error:
                passing = isinstance(error, _RETRIED) or (isinstance(error, BrokerError) and error.code in _RETRIED_CODES)
                if not passing or not left:
                    raise self._explained(error) from error
                left -= 1
                log.warning("pulling again in %d ms: %s", options.fetch_retry_interval_ms, error)
                await anyio.sleep(options.fetch_retry_interval_ms / 1000)

    def _call(self, function: Callable[..., Awaitable[T]], *args: object) -> T:
        """Run it in the client's loop. Raises SourceError."""
        try:
            return self._portal.call(partial(function, *args))
        except RmqError as error:
            raise self._explained(error) from error
        except BaseExceptionGroup as group:
            one = _first(group)
            if isinstance(one, RmqError):
                raise self._explained(one) from one
            raise

    def _explained(self, error: RmqError) -> SourceError:
        if isinstance(error, NameServersUnreachable):
            return SourceError(
                f"{error}. Does nameServer = {self._name_server} name the name servers (not a broker), and can the driver and every worker reach them?"
            )
        if isinstance(error, NoRoute) or (isinstance(error, BrokerError) and error.code == ResponseCode.TOPIC_NOT_EXIST):
            return NoSuchTopic(str(error))
        if isinstance(error, _RETRIED):
            return SourceError(
                f"{error}. Is the broker up, and can the driver and every worker reach the address that it registered (brokerIP1)?"
            )
        return SourceError(str(error))


def _queue(key: QueueKey) -> MessageQueue:
    return MessageQueue(key.topic, key.broker, key.queue_id)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """One of the errors of a task group: they are alike, and the rest was cancelled."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


async def _for_each(ask: Callable[[T], Awaitable[None]], things: Iterable[T]) -> None:
    """Ask about all of them, MAX_QUESTIONS at a time."""
    limit = anyio.CapacityLimiter(MAX_QUESTIONS)

    async def one(thing: T) -> None:
        async with limit:
            await ask(thing)

    async with anyio.create_task_group() as group:
        for thing in things:
            group.start_soon(one, thing)


def _by_queue(topic: str, bodies: Mapping[str, Sequence[bytes]]) -> Iterator[Block]:
    """Records of an index, each once, by queue and offset. Their own headers say which queue they are of; those of other topics are left out."""
    for broker, parts in sorted(bodies.items()):
        records: dict[tuple[int, int], bytes] = {}
        for data in parts:
            starts, sizes = record_places(data)
            for stored, at, size in zip(unpack_all(data), starts.tolist(), sizes.tolist(), strict=True):
                if stored.topic == topic:
                    records[stored.queue_id, stored.queue_offset] = data[at : at + size]
        for queue_id in sorted({place[0] for place in records}):
            joined = b"".join(records[place] for place in sorted(records) if place[0] == queue_id)
            yield Block(QueueKey(topic, broker, queue_id), joined, *record_places(joined))
