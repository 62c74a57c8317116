"""QUERY_MESSAGE and VIEW_MESSAGE_BY_ID (Java: QueryMessageProcessor; behaviour sheet, C4)."""

from __future__ import annotations

from functools import partial

from rmqkit.abc import Buffer, Outcome, Peer, Reply, RequestProcessor
from rmqkit.broker.context import BrokerContext
from rmqkit.broker.warming import all_of, when_warm
from rmqkit.errors import RequestRefused
from rmqkit.limits import MAX_FRAME_BYTES, MAX_QUERY_RESULTS
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import QueryMessageRequestHeader, QueryMessageResponseHeader, ViewMessageRequestHeader

_UNIQUE_KEY_RESULTS = 32
#: Room for the frame's head beside the records of an answer.
_MAX_BODY_BYTES = MAX_FRAME_BYTES - 65_536


class QueryProcessor(RequestProcessor):
    """Looks records up by key hash or by commit-log offset; clients compare the key text themselves."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def process(self, request: Command, peer: Peer) -> Outcome:
        handle = self._view if request.code == RequestCode.VIEW_MESSAGE_BY_ID else self._query
        return when_warm(self._broker.store, partial(handle, request))

    def _query(self, request: Command, wait: bool) -> Reply:
        header = request.header(QueryMessageRequestHeader)
        wanted = _UNIQUE_KEY_RESULTS if header.unique_key_query else max(0, min(header.max_num, MAX_QUERY_RESULTS))
        store = self._broker.store
        matches = store.query_by_key(header.topic, header.key, header.begin_timestamp, header.end_timestamp, wanted, wait)
        slices: list[Buffer] = []
        total = 0
        for found in all_of(partial(store.read_record, offset, wait) for offset in sorted(matches.physical_offsets)):
            if found is not None and total + len(found) <= _MAX_BODY_BYTES:
                slices.append(found)
                total += len(found)
        header_out = QueryMessageResponseHeader(
            index_last_update_timestamp=matches.last_update_timestamp_ms,
            index_last_update_phyoffset=matches.last_update_physical_offset,
        )
        if not slices:
            # With the state of the index, as Java: who asks can tell no message from no index.
            text = f"no message of topic {header.topic} with the key {header.key!r} was stored in that time"
            return Reply(answer(request, ResponseCode.QUERY_NOT_FOUND, text, header=header_out), [], 0)
        head = answer(request, header=header_out)
        return Reply(head, slices, total)

    def _view(self, request: Command, wait: bool) -> Reply:
        header = request.header(ViewMessageRequestHeader)
        found = self._broker.store.read_record(header.offset, wait) if header.offset >= 0 else None
        if found is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"no message begins at commit-log offset {header.offset}")
        return Reply(answer(request), [found], len(found))
