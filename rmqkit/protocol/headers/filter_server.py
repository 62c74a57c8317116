"""Filter servers of RocketMQ 3.x and 4.x (behaviour sheet, C13)."""

from __future__ import annotations

import msgspec

from rmqkit.protocol.headers.base import Header
from rmqkit.protocol.integers import I32, I64


class RegisterFilterServerRequestHeader(Header, kw_only=True):
    """REGISTER_FILTER_SERVER (301): `host:port` where consumers reach the filter server."""

    filter_server_addr: str


class RegisterFilterServerResponseHeader(Header, kw_only=True):
    """The broker that the filter server belongs to."""

    broker_name: str
    broker_id: I64


class RegisterMessageFilterClassRequestHeader(Header, kw_only=True):
    """REGISTER_MESSAGE_FILTER_CLASS (302): the filter of a group for a topic. The body is its source text, of
    which the header has the CRC-32 as Java's int."""

    consumer_group: str
    topic: str
    class_name: str
    class_crc: I32 = msgspec.field(name="classCRC")
