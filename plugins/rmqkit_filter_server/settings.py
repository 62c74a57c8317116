"""Settings of filter servers: RocketMQ's own, and the table [plugins.filter-server]."""

from __future__ import annotations

from typing import Annotated

import msgspec

from rmqkit.config import Config
from rmqkit.limits import MAX_FILTER_SERVERS
from rmqkit_filter_server.limits import MAX_FILTER_MODULE_BYTES, MAX_FILTER_MODULE_MEMORY_MIB
from rmqkit_filter_server.web_assembly import ModuleLimits

PLUGIN = "filter-server"


class FilterServerSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """filter_server_nums  number of filter servers that the broker starts and watches"""

    filter_server_nums: Annotated[int, msgspec.Meta(ge=0, le=MAX_FILTER_SERVERS)] = 0


class FilterServerOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """[plugins.filter-server], read by a filter server

    broker                   address of the broker, on the same machine
    listen                   where consumers connect (the program listens there); port 0 selects a free one
    advertised               host that consumers are given, in place of the one in `listen`
    web_assembly             run filters that consumers send, as modules of WebAssembly
    web_assembly_max_bytes   size of a module
    web_assembly_memory_mib  size of a module's memory
    web_assembly_fuel        about the number of instructions for one message
    web_assembly_timeout_ms  time of a module for the messages that it gets at once
    """

    broker: str = "127.0.0.1:10911"
    listen: str = "127.0.0.1:0"
    advertised: str = ""
    web_assembly: bool = False
    web_assembly_max_bytes: Annotated[int, msgspec.Meta(ge=8, le=MAX_FILTER_MODULE_BYTES)] = 256 * 1024
    web_assembly_memory_mib: Annotated[int, msgspec.Meta(ge=1, le=MAX_FILTER_MODULE_MEMORY_MIB)] = 16
    web_assembly_fuel: Annotated[int, msgspec.Meta(ge=1, le=1 << 40)] = 1_000_000
    web_assembly_timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=60_000)] = 1_000

    @property
    def module_limits(self) -> ModuleLimits:
        return ModuleLimits(
            self.web_assembly_max_bytes,
            self.web_assembly_memory_mib,
            self.web_assembly_fuel,
            self.web_assembly_timeout_ms,
        )


def options(config: Config) -> FilterServerOptions:
    """The table [plugins.filter-server]. Raises ConfigError."""
    return config.plugin_settings(PLUGIN, FilterServerOptions)
