"""Bounds of every setting that is a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import Any, get_args, get_origin

import msgspec
import pytest

from rmqkit.config import Config
from rmqkit.config.values import typed
from rmqkit.errors import ConfigError
from rmqkit.plugin import loader
from rmqkit_failover.settings import FailoverOptions
from rmqkit_filter.settings import FilterSettings
from rmqkit_ha.settings import HaOptions
from rmqkit_hook_audit.settings import AuditSettings
from rmqkit_transport_quic.settings import QuicSettings

_TIMES = re.compile(r"_(interval|timeout|period|mills|time|span|ms)(_|$)")
_TABLES = (AuditSettings, FailoverOptions, FilterSettings, HaOptions, QuicSettings)


def times() -> Iterator[tuple[str, Any]]:
    """(key, type) of each setting whose name is that of a time, in whatever unit."""
    kinds: list[type[msgspec.Struct]] = [Config, *loader.load(Config()).settings.values(), *_TABLES]
    for field in chain.from_iterable(map(msgspec.structs.fields, kinds)):
        plain = get_args(field.type)[0] if get_origin(field.type) else field.type
        if _TIMES.search(field.name) and plain is int:
            yield field.encode_name, field.type


TIMES = dict(times())


def test_the_times_are_found() -> None:
    """The settings of the kernel, of plugins and of their tables are among them."""
    assert {"flushConsumerOffsetInterval", "registerNameServerPeriod", "lingerMs", "slaveTimeout"} < set(
        TIMES
    )


@pytest.mark.parametrize("key", TIMES)
@pytest.mark.parametrize("value", ["-1", str(1 << 60)])
def test_a_time_has_bounds(key: str, value: str) -> None:
    """A negative time and one of a billion years are refused with the reason, in a file as in a request."""
    with pytest.raises(ConfigError, match=rf"setting {key} = '{value}' .*: Expected `int` [<>]="):
        typed(key, value, TIMES[key], "request")
