"""Settings of a process: those of the kernel, those owned by plugins, and the source of each value."""

from __future__ import annotations

from rmqkit.config.changing import with_tables, with_texts, with_values
from rmqkit.config.java_properties import (
    decoded_properties,
    encoded_properties,
    parse_properties,
    properties_text,
)
from rmqkit.config.loading import NAMESRV_VARIABLE, examine, file_text, load, read_file
from rmqkit.config.owned import Kinds, SettingsType, live_keys, spellings
from rmqkit.config.owned import fields as setting_fields
from rmqkit.config.schema import ALL_DISPATCHERS, CONSUME_QUEUE, FREE_PORT, INDEX, STORE_DISPATCHERS, Config
from rmqkit.config.store_host import address_faults, address_warnings, store_host
from rmqkit.config.values import LIVE, PORT, IntervalMs, KeptMs, Live, PauseMs, has_mark, is_secret

__all__ = [
    "ALL_DISPATCHERS",
    "CONSUME_QUEUE",
    "FREE_PORT",
    "INDEX",
    "LIVE",
    "NAMESRV_VARIABLE",
    "PORT",
    "STORE_DISPATCHERS",
    "Config",
    "IntervalMs",
    "KeptMs",
    "Kinds",
    "Live",
    "PauseMs",
    "SettingsType",
    "address_faults",
    "address_warnings",
    "decoded_properties",
    "encoded_properties",
    "examine",
    "file_text",
    "has_mark",
    "is_secret",
    "live_keys",
    "load",
    "parse_properties",
    "properties_text",
    "read_file",
    "setting_fields",
    "spellings",
    "store_host",
    "with_tables",
    "with_texts",
    "with_values",
]
