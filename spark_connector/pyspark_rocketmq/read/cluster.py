"""Reads from a cluster over the network with rmqkit's client, whose event loop runs in its own thread."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TypeVar

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from pyspark_rocketmq.decode.records import record_places, sound_bytes
from pyspark_rocketmq.options.connection import client_keywords
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.read.attempts import Attempts, Patience
from pyspark_rocketmq.read.pull_windows import Pull, PullLimits, PullWindows, blocks_of, pull_around
from pyspark_rocketmq.read.source import (
    Block,
    Bounds,
    FinalError,
    NoSuchTopic,
    QueueKey,
    QueueRange,
    Selection,
    SourceError,
    Unanswered,
)
from rmqkit.client import (
    BrokerError,
    BrokerUnknown,
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
from rmqkit.errors import DecodeError, first_error
from rmqkit.model.subscription import SQL92, SUBSCRIBE_ALL, TAG
from rmqkit.model.sysflag import PERM_READ
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.record import unpack_all

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Maximum number of concurrent requests, each about one queue or one topic.
MAX_QUESTIONS = 32
#: Approximate number of bytes taken from the client's thread at a time.
TAKE_BYTES = 2 << 20
PROBE_RECORDS = 32
#: What an answer may take: more than a window is to have (MAX_WINDOW_BYTES), so that one with larger records
#: still takes one pull.
SEQUENTIAL_BYTES = 4 << 20
#: Maximum number of messages that a broker returns for a key (Java: QueryMessageProcessor,
#: defaultQueryMaxNum).
MAX_QUERY_RECORDS = 64
#: Brokers silently truncate an answer that exceeds a frame of 16 MiB; answers above this size may be
#: truncated.
FULL_ANSWER_BYTES = 8 << 20
#: Maximum number of queries for parts of a time range, before everything is read instead.
MAX_QUERIES = 256
_RETRIED = (BrokerUnknown, ConnectFailed, ConnectionLost, NameServersUnreachable, RequestTimeout)
_RETRIED_CODES = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)
#: For requests that the caller retries.
ONCE = Patience(retries=0, interval_s=0.0)
#: Codes of brokers that have no topic statistics, or do not permit access to them.
_NO_STATS = (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.NO_PERMISSION)


class ClusterSource:
    """A `Source`. Opening it sends nothing. Several threads may use it; each process creates its own."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._name_server = options.name_server
        self._stack = ExitStack()
        try:
            with ExitStack() as stack:
                self._portal: BlockingPortal = stack.enter_context(
                    start_blocking_portal("asyncio", name="rocketmq")
                )
                client = Client(options.name_server, **client_keywords(options))
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
        return sorted(
            QueueKey(topic, item.broker_name, number)
            for item in readable
            for number in range(item.read_queue_nums)
        )

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

    def gone(self, queues: Collection[QueueKey]) -> Collection[QueueKey]:
        return self._call(self._gone, queues)

    def offsets_at(self, times_ms: Mapping[QueueKey, int]) -> Mapping[QueueKey, int]:
        found: dict[QueueKey, int] = {}

        async def ask(key: QueueKey) -> None:
            found[key] = await self._reader.offsets.offset_for_time(_queue(key), times_ms[key])

        self._call(_for_each, ask, list(times_ms))
        return found

    def mean_record_bytes(self, queue: QueueKey, bounds: Bounds) -> int:
        """Mean length of a few records from the middle on, ignoring filters."""
        if bounds.end <= bounds.first:
            return 1
        answer = self._call(
            self._pull, ONCE, queue, SUBSCRIBE_ALL, TAG, (bounds.first + bounds.end) // 2, PROBE_RECORDS
        )
        end = sound_bytes(answer.body)
        records = len(record_places(answer.body[:end])[0])
        return max(1, end // records) if records else 1024

    def blocks(self, part: QueueRange, selection: Selection, first_records: int) -> Iterator[Block]:
        expression, kind = SUBSCRIBE_ALL, TAG
        if selection.sql92:
            expression, kind = selection.sql92, SQL92
        elif selection.tags:
            expression = "||".join(selection.tags)
        pull: Pull = partial(self._pull, patience_of(self._options), part.queue, expression, kind)
        if self._options.bad_records != "fail":
            pull = partial(pull_around, part.queue, pull)
        limits = PullLimits(
            under_way=self._options.pull_pipelining, max_records=self._options.pull_batch_size
        )
        windows = PullWindows(part, pull, limits, first_records, dense=expression == SUBSCRIBE_ALL)
        running, _ = self._portal.start_task(windows.run)
        try:
            while taken := self._portal.call(windows.take, TAKE_BYTES):
                yield from blocks_of(part.queue, taken)
        finally:
            running.cancel()

    def with_key(
        self, topic: str, brokers: Collection[str], key: str, start_ms: int, stop_ms: int
    ) -> Iterator[Block] | None:
        """Finds records by keys and unique keys. A broker returns only the newest 64, so after a full answer
        the time range is halved and queried again."""
        bodies: dict[str, list[bytes]] = {}
        spans = [(start_ms, stop_ms)]
        asked = 0
        while spans:
            begin, end = spans.pop()
            asked += 1
            if asked > MAX_QUERIES:
                return None
            query = partial(
                self._reader.query, topic, key, max_messages=MAX_QUERY_RECORDS, begin_ms=begin, end_ms=end
            )
            answers = self._call(query)
            if away := set(brokers) - answers.keys():
                raise Unanswered(
                    f"{', '.join(sorted(away))}: no answer for key {key!r} of topic {topic}: the name servers"
                    " know no master of it. Start the broker, or make a slave its master."
                )
            if any(answers[broker].indexed_ms == 0 for broker in brokers):
                # The broker has no index (messageIndexEnable), or the index is empty.
                return None
            if any(
                len(record_places(answer.body)[0]) >= MAX_QUERY_RECORDS
                or len(answer.body) > FULL_ANSWER_BYTES
                for answer in map(answers.__getitem__, brokers)
            ):
                if begin >= end:
                    return None
                middle = (begin + end) // 2
                spans += [(middle + 1, end), (begin, middle)]
                continue
            for broker in brokers:
                bodies.setdefault(broker, []).append(answers[broker].body)
        try:
            return iter(list(_by_queue(topic, bodies)))
        except (DecodeError, SourceError) as error:
            log.warning("everything is read for key %r of topic %s: %s", key, topic, error)
            return None

    def commit(self, group: str, positions: Mapping[QueueKey, int]) -> None:
        """Commit these offsets for a consumer group. Raises SourceError."""

        async def tell(key: QueueKey) -> None:
            await self._reader.offsets.commit(group, _queue(key), positions[key])

        self._call(_for_each, tell, list(positions))

    def close(self) -> None:
        self._stack.close()

    # --- within ---------------------------------------------------------------------------------------------

    async def _pull(
        self, patience: Patience, key: QueueKey, expression: str, kind: str, offset: int, records: int
    ) -> RawPull:
        """One pull, retried after temporary failures. Raises SourceError."""
        options = self._options
        attempts = Attempts(patience)
        while True:
            try:
                return await self._reader.pull(
                    _queue(key),
                    offset,
                    expression=expression,
                    expression_type=kind,
                    max_messages=records,
                    sequential_bytes=SEQUENTIAL_BYTES,
                    timeout_ms=options.pull_timeout_ms,
                )
            except RmqError as error:
                pause = attempts.pause_s(outage=True) if await self._is_away(error, key) else None
                if pause is None:
                    raise self._explained(error) from error
                log.warning("pulling again in %d ms: %s", pause * 1000, error)
                await anyio.sleep(pause)

    async def _is_away(self, error: RmqError, key: QueueKey) -> bool:
        """Whether a pull failed because of an outage. Name servers have no route for a deleted topic, nor for
        a topic whose broker is down."""
        if _passing(error) or not self._options.streaming or not isinstance(error, NoRoute):
            return _passing(error)
        try:
            return key not in await self._gone([key])
        except RmqError:
            return True

    async def _gone(self, queues: Collection[QueueKey]) -> Collection[QueueKey]:
        """The queues that no longer exist. Each broker is queried at its registered address, because the
        routes of its topics may be gone."""
        brokers = (await self._client.admin.cluster_info()).broker_addr_table
        found: set[QueueKey] = set()

        async def ask(place: tuple[str, str]) -> None:
            topic, name = place
            here = {key for key in queues if (key.topic, key.broker) == place}
            address = brokers[name].master if name in brokers else None
            if address is None:
                return
            try:
                stats = await self._client.admin.topic_stats_of(address, topic)
            except BrokerError as error:
                if error.code != ResponseCode.TOPIC_NOT_EXIST and error.code not in _NO_STATS:
                    return
                stats = {}
            except _RETRIED:
                return
            found.update(key for key in here if _queue(key) not in stats)

        await _for_each(ask, sorted({(key.topic, key.broker) for key in queues}))
        return found

    def _call(self, function: Callable[..., Awaitable[T]], *args: object) -> T:
        """Run a function in the client's loop. Raises SourceError."""
        try:
            return self._portal.call(partial(function, *args))
        except RmqError as error:
            raise self._explained(error) from error
        except BaseExceptionGroup as group:
            one = first_error(group)
            if isinstance(one, RmqError):
                raise self._explained(one) from one
            raise

    def _explained(self, error: RmqError) -> SourceError:
        if isinstance(error, NameServersUnreachable):
            return Unanswered(
                f"{error}. Does nameServer = {self._name_server} name the name servers (not a broker), and"
                " can the driver and every worker reach them?"
            )
        if isinstance(error, NoRoute) or (
            isinstance(error, BrokerError) and error.code == ResponseCode.TOPIC_NOT_EXIST
        ):
            return NoSuchTopic(str(error))
        if _passing(error):
            return Unanswered(
                f"{error}. Is the broker up, and can the driver and every worker reach the address that it"
                " registered (brokerIP1)?"
            )
        if isinstance(error, BrokerError) and error.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            return FinalError(
                f"{error}. Reading needs a consumer group: set groupId to one that exists, or let brokers"
                " create groups (autoCreateSubscriptionGroup)"
            )
        # A broker may have a reason of the moment for an unspecified error.
        unspecified = isinstance(error, BrokerError) and error.code == ResponseCode.SYSTEM_ERROR
        return SourceError(str(error)) if unspecified else FinalError(str(error))


def patience_of(options: ReadOptions) -> Patience:
    """The retry limits of the options: a stream waits out an outage."""
    outage_s = options.outage_timeout_ms / 1000 if options.streaming else None
    return Patience(
        retries=options.fetch_num_retries,
        interval_s=options.fetch_retry_interval_ms / 1000,
        outage_s=outage_s,
    )


def _passing(error: RmqError) -> bool:
    """Whether the error is temporary: no answer, or a service that is unavailable now."""
    return isinstance(error, _RETRIED) or (isinstance(error, BrokerError) and error.code in _RETRIED_CODES)


def _queue(key: QueueKey) -> MessageQueue:
    return MessageQueue(key.topic, key.broker, key.queue_id)


async def _for_each(ask: Callable[[T], Awaitable[None]], things: Iterable[T]) -> None:
    """Query all items, at most MAX_QUESTIONS at a time."""
    limit = anyio.CapacityLimiter(MAX_QUESTIONS)

    async def one(thing: T) -> None:
        async with limit:
            await ask(thing)

    async with anyio.create_task_group() as group:
        for thing in things:
            group.start_soon(one, thing)


def _by_queue(topic: str, bodies: Mapping[str, Sequence[bytes]]) -> Iterator[Block]:
    """The records of an index query without duplicates, by queue and offset, as given by their own headers.
    Records of other topics are left out."""
    for broker, parts in sorted(bodies.items()):
        records: dict[tuple[int, int], bytes] = {}
        for data in parts:
            starts, sizes = record_places(data)
            for stored, at, size in zip(
                unpack_all(data, check_crc=False), starts.tolist(), sizes.tolist(), strict=True
            ):
                if stored.topic == topic:
                    records[stored.queue_id, stored.queue_offset] = data[at : at + size]
        for queue_id in sorted({place[0] for place in records}):
            joined = b"".join(records[place] for place in sorted(records) if place[0] == queue_id)
            yield Block(QueueKey(topic, broker, queue_id), joined, *record_places(joined))
