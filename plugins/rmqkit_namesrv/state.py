"""What the request handlers of one name server share, and how they write JSON."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
from attrs import Factory, define

from rmqkit.abc import Outcome, Peer
from rmqkit.config import Config
from rmqkit.errors import RequestRefused
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command
from rmqkit_namesrv.kv import KvConfig
from rmqkit_namesrv.tables import RouteTables

#: Answers a request at once or with an awaitable; raises RmqError for anything that is the sender's fault.
Handler = Callable[[Command, Peer], Outcome]

#: Cluster and broker names: broker names like `idc@broker-a` exist, but nothing that could break out of a JSON key or a log line.
_NAME = re.compile(r"[^\s{}\[\]\"'\\,:;\x00-\x1f\x7f]{1,255}")
_ADDRESS = re.compile(r"[^\s{}\"'\\,;\x00-\x1f\x7f]{1,255}:\d{1,5}")


@define(eq=False)
class NameServerState:
    """`now_ms` gives a time that only moves forward; `config` is replaced when a setting changes at run time."""

    config: Config
    now_ms: Callable[[], int]
    tables: RouteTables = Factory(RouteTables)
    kv: KvConfig = Factory(KvConfig)


def json_body(value: object, *, raw_keys: bool = False) -> bytes:
    """JSON as Java's name server writes it: no blanks, members sorted, null ones left out; integer keys bare with `raw_keys`."""
    return loose_json.dumps(_tidy(msgspec.to_builtins(value, str_keys=False)), raw_keys=raw_keys)


def _tidy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tidy(item) for key, item in sorted(value.items()) if item is not None}
    if isinstance(value, list):
        return [_tidy(item) for item in value]
    return value


def checked_name(what: str, name: str) -> str:
    """A cluster or broker name. Raises RequestRefused."""
    if not _NAME.fullmatch(name):
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the {what} {name!r} is blank, too long or has characters that no name has")
    return name


def checked_address(what: str, address: str) -> str:
    """An address `host:port`. Raises RequestRefused."""
    if not _ADDRESS.fullmatch(address):
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the {what} {address!r} is not of the form host:port")
    return address
