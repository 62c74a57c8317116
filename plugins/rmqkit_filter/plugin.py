"""Registers the expression types `TAG`, `SQL92` and `PYTHON`."""

from __future__ import annotations

import msgspec

from rmqkit import hookimpl
from rmqkit.config import Config, IntervalMs
from rmqkit.model.subscription import PYTHON
from rmqkit.plugin.filter import FilterServer
from rmqkit.plugin.hookspecs import Register
from rmqkit_filter.python import PythonFilter, installed
from rmqkit_filter.sql92.server import Sql92Filter
from rmqkit_filter.tag import TagFilter


class FilterSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Table [plugins.filter].

    strict             refuse SQL92 expressions of which Apache ignores a part
    python_timeout_ms  time of a filter in Python for the messages that it gets at once
    """

    strict: bool = False
    python_timeout_ms: IntervalMs = 1_000


@hookimpl
def rmqkit_register_filter_servers(register: Register[FilterServer], config: Config) -> None:
    settings = config.plugin_settings("filter", FilterSettings)
    register("TAG", TagFilter())
    register("SQL92", Sql92Filter(strict=settings.strict))
    register(PYTHON, PythonFilter(installed, settings.python_timeout_ms))
