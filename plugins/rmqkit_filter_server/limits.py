"""Limits of a filter server, each with its reason."""

from __future__ import annotations

#: Filters of groups that are kept.
MAX_FILTER_CLASSES = 4_096
#: Of these, modules that consumers have sent; modules that wait to be compiled; entries of a module's table.
MAX_FILTER_MODULES = 64
MAX_WAITING_FILTER_MODULES = 16
MAX_FILTER_MODULE_TABLE = 10_000
#: Of the settings for such modules: size of a module, and of its memory.
MAX_FILTER_MODULE_BYTES = 4 * 1024 * 1024
MAX_FILTER_MODULE_MEMORY_MIB = 1_024
#: Pulls that wait for the broker.
MAX_FORWARDED_PULLS = 8_192
