"""Registers the expression type `TAG`."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.plugin.filter import FilterServer
from rmqkit.plugin.hookspecs import Register
from rmqkit_filter.tag import TagFilter


@hookimpl
def rmqkit_register_filter_servers(register: Register[FilterServer]) -> None:
    register("TAG", TagFilter())
