"""Registers the expression types `TAG`, `SQL92` and `PYTHON`, and the filters of groups by expressions."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.config import Config, SettingsType
from rmqkit.model.subscription import PYTHON
from rmqkit.plugin.filter import FilterIndexFactory, FilterServer
from rmqkit.plugin.hookspecs import Register
from rmqkit_filter.index.filters import GroupFilters
from rmqkit_filter.python import PythonFilter, installed
from rmqkit_filter.settings import ExpressionSettings, FilterSettings
from rmqkit_filter.sql92.server import Sql92Filter
from rmqkit_filter.tag import TagFilter


@hookimpl
def rmqkit_register_settings(register: Register[SettingsType], config: Config) -> None:
    register("filter", ExpressionSettings)


@hookimpl
def rmqkit_register_filter_indexes(register: Register[FilterIndexFactory], config: Config) -> None:
    register("filter", GroupFilters)


@hookimpl
def rmqkit_register_filter_servers(register: Register[FilterServer], config: Config) -> None:
    settings = config.plugin_settings("filter", FilterSettings)
    register("TAG", TagFilter())
    register("SQL92", Sql92Filter(strict=settings.strict))
    register(PYTHON, PythonFilter(installed, settings.python_timeout_ms))
