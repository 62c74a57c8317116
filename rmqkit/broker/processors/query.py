"""QUERY_MESSAGE and VIEW_MESSAGE_BY_ID (Java: QueryMessageProcessor; behaviour sheet, C4).

Apache's broker has tags in its index since 5.5. Here a query for a tag searches the newest units of the
topic's queues, which contain the hashes of the tags.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import trio

from rmqkit.errors import DecodeError, HeaderError, RequestRefused
from rmqkit.limits import MAX_BODY_BYTES, MAX_QUERY_RESULTS, MAX_SEARCHED_UNITS, SEARCHED_UNITS_PER_TURN
from rmqkit.model import properties as props
from rmqkit.model.buffer import Buffer
from rmqkit.plugin.access import check_read, only_of
from rmqkit.plugin.request import EachRequest, Outcome, Peer, Reply
from rmqkit.plugin.request_broker import RequestBroker
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import (
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    ViewMessageRequestHeader,
)
from rmqkit.protocol.record import peek_properties, peek_store_timestamp
from rmqkit.protocol.tags import tags_code
from rmqkit.toolkit.cold_reads import all_of, read_cached, read_when_cached

_UNIQUE_KEY_RESULTS = 32
#: Types of keys (Java: MessageConst.INDEX_UNIQUE_TYPE, INDEX_TAG_TYPE).
_UNIQUE, _TAG = "U", "T"


class QueryProcessor(EachRequest):
    """Finds records by key hash or by commit-log offset; clients compare the key text themselves."""

    def __init__(self, broker: RequestBroker) -> None:
        self._broker = broker

    def handle(self, request: Command, peer: Peer) -> Outcome:
        if request.code == RequestCode.QUERY_MESSAGE and _type(request) == _TAG:
            return peer.answer_async(request, partial(self._by_tag, request))
        handle = self._view if request.code == RequestCode.VIEW_MESSAGE_BY_ID else self._query
        return read_cached(self._broker.store, partial(handle, request, peer), request, peer)

    def _query(self, request: Command, peer: Peer) -> Reply:
        header = request.header(QueryMessageRequestHeader)
        wanted = (
            _UNIQUE_KEY_RESULTS
            if header.unique_key_query or header.index_type == _UNIQUE
            else max(0, min(header.max_num, MAX_QUERY_RESULTS))
        )
        store = self._broker.store
        matches = store.query_by_key(
            header.topic, header.key, header.begin_timestamp, header.end_timestamp, wanted
        )
        found = all_of(partial(store.read_record, offset) for offset in sorted(matches.physical_offsets))
        slices = _fitting(only_of(peer, header.topic, (each for each in found if each is not None)))
        header_out = QueryMessageResponseHeader(
            index_last_update_timestamp=matches.last_update_timestamp_ms,
            index_last_update_phyoffset=matches.last_update_physical_offset,
        )
        if not slices:
            # As in Java, the state of the index is included, so that the client can distinguish no message
            # from no index.
            text = f"no message of topic {header.topic} with the key {header.key!r} was stored in that time"
            return Reply(answer(request, ResponseCode.QUERY_NOT_FOUND, text, header=header_out), [], 0)
        head = answer(request, header=header_out)
        return Reply(head, slices, sum(map(len, slices)))

    async def _by_tag(self, request: Command) -> Reply:
        """The newest messages with a tag. Raises RequestRefused."""
        header = request.header(QueryMessageRequestHeader)
        wanted = max(0, min(header.max_num, MAX_QUERY_RESULTS))
        search = _TagSearch(self._broker, header)
        found = await search.newest(wanted)
        slices = _fitting(found)
        store = self._broker.store
        header_out = QueryMessageResponseHeader(
            index_last_update_timestamp=self._broker.clock.now_ms(),
            index_last_update_phyoffset=store.end_offset,
        )
        if not slices:
            text = f"no message of topic {header.topic} with the tag {header.key!r} was stored in that time"
            if search.searched >= MAX_SEARCHED_UNITS:
                text += f", among the newest {search.searched} of the topic"
            return Reply(answer(request, ResponseCode.QUERY_NOT_FOUND, text, header=header_out), [], 0)
        return Reply(answer(request, header=header_out), slices, sum(map(len, slices)))

    def _view(self, request: Command, peer: Peer) -> Reply:
        header = request.header(ViewMessageRequestHeader)
        found = self._broker.store.read_record(header.offset) if header.offset >= 0 else None
        if found is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"no message begins at commit-log offset {header.offset}"
            )
        check_read(peer, request, found)
        return Reply(answer(request), [found], len(found))


class _TagSearch:
    """Searches the queues of a topic from their ends on, in turns. `searched` counts units."""

    def __init__(self, broker: RequestBroker, header: QueryMessageRequestHeader) -> None:
        self._store = broker.store
        self._header = header
        self._code = tags_code(header.key)
        config = broker.topics.get(header.topic)
        queues = max(config.read_queue_nums, config.write_queue_nums) if config is not None else 0
        #: Queue -> the end of what is left to search.
        self._ends = {number: self._store.max_offset(header.topic, number) for number in range(queues)}
        self.searched = 0

    async def newest(self, wanted: int) -> list[Buffer]:
        """The newest matches of the units that may be searched, in the order of the log."""
        found: dict[int, Buffer] = {}
        left = dict.fromkeys(self._ends, wanted)
        while any(left.values()) and self.searched < MAX_SEARCHED_UNITS:
            for queue_id in [number for number, count in left.items() if count]:
                matches = await self._turn(queue_id, left[queue_id])
                left[queue_id] = 0 if matches is None else left[queue_id] - len(matches)
                found |= matches or {}
        return [found[offset] for offset in sorted(found)[-wanted:]] if wanted else []

    async def _turn(self, queue_id: int, wanted: int) -> dict[int, Buffer] | None:
        """The matches in the next units of a queue; None when there are none left."""
        store, topic = self._store, self._header.topic
        end, first = self._ends[queue_id], store.min_offset(topic, queue_id)
        start = max(end - SEARCHED_UNITS_PER_TURN, first)
        if start >= end:
            return None
        await trio.lowlevel.checkpoint()
        units = await read_when_cached(store, partial(store.read_units, topic, queue_id, start, end - start))
        self._ends[queue_id] = start
        self.searched += end - start
        found: dict[int, Buffer] = {}
        for unit in reversed(units):
            if unit.tags_code == self._code and len(found) < wanted:
                record = await read_when_cached(store, partial(store.read_record, unit.physical_offset))
                if record is not None and self._matches(record):
                    found[unit.physical_offset] = record
        return found

    def _matches(self, record: Buffer) -> bool:
        header = self._header
        try:
            stored_ms = peek_store_timestamp(memoryview(record))
            found = props.decode_bytes(peek_properties(record)[1:])
        except DecodeError:
            return False
        in_time = header.begin_timestamp <= stored_ms <= header.end_timestamp
        return in_time and found.get(props.TAGS) == header.key


def _type(request: Command) -> str | None:
    """The type of key that a query asks for; None also for a header that cannot be read."""
    try:
        return request.header(QueryMessageRequestHeader).index_type
    except HeaderError:
        return None


def _fitting(records: Iterable[Buffer]) -> list[Buffer]:
    """The records that fit into an answer."""
    slices: list[Buffer] = []
    total = 0
    for record in records:
        if total + len(record) <= MAX_BODY_BYTES:
            slices.append(record)
            total += len(record)
    return slices
