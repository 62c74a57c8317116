"""QUERY_MESSAGE and VIEW_MESSAGE_BY_ID (Java: QueryMessageProcessor; behaviour sheet, C4)."""

from __future__ import annotations

from functools import partial

from rmqkit.broker.context import BrokerContext
from rmqkit.errors import RequestRefused
from rmqkit.limits import MAX_BODY_BYTES, MAX_QUERY_RESULTS
from rmqkit.model.buffer import Buffer
from rmqkit.plugin.cold_reads import all_of, read_cached
from rmqkit.plugin.request import EachRequest, Outcome, Peer, Reply
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import (
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    ViewMessageRequestHeader,
)

_UNIQUE_KEY_RESULTS = 32


class QueryProcessor(EachRequest):
    """Finds records by key hash or by commit-log offset; clients compare the key text themselves."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def handle(self, request: Command, peer: Peer) -> Outcome:
        handle = self._view if request.code == RequestCode.VIEW_MESSAGE_BY_ID else self._query
        return read_cached(self._broker.store, partial(handle, request), request, peer)

    def _query(self, request: Command) -> Reply:
        header = request.header(QueryMessageRequestHeader)
        wanted = (
            _UNIQUE_KEY_RESULTS if header.unique_key_query else max(0, min(header.max_num, MAX_QUERY_RESULTS))
        )
        store = self._broker.store
        matches = store.query_by_key(
            header.topic, header.key, header.begin_timestamp, header.end_timestamp, wanted
        )
        slices: list[Buffer] = []
        total = 0
        for found in all_of(
            partial(store.read_record, offset) for offset in sorted(matches.physical_offsets)
        ):
            if found is not None and total + len(found) <= MAX_BODY_BYTES:
                slices.append(found)
                total += len(found)
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
        return Reply(head, slices, total)

    def _view(self, request: Command) -> Reply:
        header = request.header(ViewMessageRequestHeader)
        found = self._broker.store.read_record(header.offset) if header.offset >= 0 else None
        if found is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"no message begins at commit-log offset {header.offset}"
            )
        return Reply(answer(request), [found], len(found))
