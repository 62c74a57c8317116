"""State shared by the request handlers of one name server, and their JSON encoding."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from attrs import Factory, define

from rmqkit.config import Config
from rmqkit.errors import RequestRefused
from rmqkit.plugin.request import Outcome, Peer
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command
from rmqkit_namesrv.changes import Changes
from rmqkit_namesrv.kv import KvConfig
from rmqkit_namesrv.settings import NameServerSettings
from rmqkit_namesrv.tables import RouteTables

#: Answers a request at once or by a ticket. Raises RmqError for errors of the sender.
Handler = Callable[[Command, Peer], Outcome]

#: Cluster and broker names. Names like `idc@broker-a` are valid; characters that could break a JSON key or a
#: log line are not.
_NAME = re.compile(r"[^\s{}\[\]\"'\\,:;\x00-\x1f\x7f]{1,255}")
_ADDRESS = re.compile(r"[^\s{}\"'\\,;\x00-\x1f\x7f]{1,255}:\d{1,5}")


@define(eq=False)
class NameServerState:
    """`now_ms` returns a monotonic time; `kinds` are the structs of plugins that own settings. `config` and
    `settings` are replaced when a setting changes at run time, and then the functions in `on_change` are
    called."""

    config: Config
    now_ms: Callable[[], int]
    kinds: Sequence[type[msgspec.Struct]] = (NameServerSettings,)
    settings: NameServerSettings = Factory(
        lambda self: self.config.owned(NameServerSettings), takes_self=True
    )
    tables: RouteTables = Factory(RouteTables)
    changes: Changes = Factory(lambda self: Changes(self.tables), takes_self=True)
    kv: KvConfig = Factory(KvConfig)
    on_change: list[Callable[[], None]] = Factory(list)


def json_body(value: object, *, raw_keys: bool = False) -> bytes:
    """JSON as Java's name server writes it: no spaces, members sorted, null members omitted; integer keys
    without quotes with `raw_keys`."""
    return loose_json.dumps(_tidy(msgspec.to_builtins(value, str_keys=False)), raw_keys=raw_keys)


def _tidy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tidy(item) for key, item in sorted(value.items()) if item is not None}
    if isinstance(value, list):
        return [_tidy(item) for item in value]
    return value


def checked_name(what: str, name: str) -> str:
    """Validate a cluster or broker name. Raises RequestRefused."""
    if not _NAME.fullmatch(name):
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"the {what} {name!r} is blank, too long or has characters that no name has",
        )
    return name


def checked_address(what: str, address: str) -> str:
    """Validate an address `host:port`. Raises RequestRefused."""
    if not _ADDRESS.fullmatch(address):
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"the {what} {address!r} is not of the form host:port"
        )
    return address
