"""Looking messages up (wire-protocol sheet, section 3.5)."""

from __future__ import annotations

import msgspec

from rmqkit.protocol.headers.base import Header
from rmqkit.protocol.integers import I32, I64


class QueryMessageRequestHeader(Header, kw_only=True):
    """QUERY_MESSAGE (12): store times in ms, both inclusive. `index_type` is sent since 5.5: K for a key, U
    for a unique key, T for a tag in place of the key."""

    topic: str
    key: str
    max_num: I32 = 32
    begin_timestamp: I64 = 0
    end_timestamp: I64 = 0x7FFFFFFFFFFFFFFF
    unique_key_query: bool | None = msgspec.field(default=None, name="_UNIQUE_KEY_QUERY")
    index_type: str | None = None


class QueryMessageResponseHeader(Header, kw_only=True):
    index_last_update_timestamp: I64
    index_last_update_phyoffset: I64


class ViewMessageRequestHeader(Header, kw_only=True):
    """VIEW_MESSAGE_BY_ID (33): `offset` is the commit-log offset inside the offset message id."""

    offset: I64
    topic: str | None = None
