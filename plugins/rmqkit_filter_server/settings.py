"""Settings of filter servers: RocketMQ's own, and the table [plugins.filter-server]."""

from __future__ import annotations

from typing import Annotated

import msgspec

from rmqkit.config import Config
from rmqkit.limits import MAX_FILTER_SERVERS

PLUGIN = "filter-server"


class FilterServerSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """filter_server_nums  number of filter servers that the broker starts and watches"""

    filter_server_nums: Annotated[int, msgspec.Meta(ge=0, le=MAX_FILTER_SERVERS)] = 0


class FilterServerOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """[plugins.filter-server], read by a filter server

    broker      address of the broker, on the same machine
    listen      where consumers connect (the program listens there); port 0 selects a free one
    advertised  host that consumers are given, in place of the one in `listen`
    """

    broker: str = "127.0.0.1:10911"
    listen: str = "127.0.0.1:0"
    advertised: str = ""


def options(config: Config) -> FilterServerOptions:
    """The table [plugins.filter-server]. Raises ConfigError."""
    return config.plugin_settings(PLUGIN, FilterServerOptions)
