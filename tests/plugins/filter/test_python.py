"""Filters in Python by name."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

import pytest

from rmqkit.errors import RequestRefused
from rmqkit.model.message import StoredMessage
from rmqkit.model.subscription import SubscriptionData
from rmqkit.plugin.filter import CompiledFilter
from rmqkit.protocol.codes import ResponseCode
from rmqkit.testing.filter import check_filter_server
from rmqkit_filter.python import PythonFilter
from tests.plugins.filter.test_sql92 import stored

#: No filter of these tests needs so long.
LONG_MS = 600_000


def cheap(message: StoredMessage, below: str = "10") -> bool:
    return int(message.properties["amount"]) < int(below)


def leaves(message: StoredMessage) -> bool:
    raise SystemExit(3)


def broken() -> Callable[..., bool]:
    raise ImportError("no module of this name")


def server(timeout_ms: int = LONG_MS, **functions: Callable[..., bool]) -> PythonFilter:
    """PYTHON with these filters, `cheap`, and `broken`, which cannot be imported."""
    loaders: dict[str, Callable[[], Callable[..., bool]]] = {
        "cheap": partial(_given, cheap),
        "broken": broken,
    }
    loaders |= {name: partial(_given, function) for name, function in functions.items()}
    return PythonFilter(lambda: loaders, timeout_ms)


def _given(function: Callable[..., bool]) -> Callable[..., bool]:
    return function


def compiled(filters: PythonFilter, expression: str) -> CompiledFilter:
    return filters.compile(SubscriptionData(topic="T", sub_string=expression, expression_type="PYTHON"), "G")


async def verdicts(filters: PythonFilter, expression: str, *amounts: str) -> list[bool]:
    matches = compiled(filters, expression).records_async
    assert matches is not None
    return list(await matches([memoryview(stored({"amount": amount})) for amount in amounts]))


def test_contract() -> None:
    check_filter_server(
        server(),
        good=["cheap", "cheap?below=5", "cheap?below=%35"],
        bad=[
            *("", "?", "dear", "broken", "cheap?above=5", "cheap?below=1&below=2", "cheap?below"),
            "x" * 20_000,
            "cheap?" + "&".join(f"p{number}=1" for number in range(100)),
        ],
    )


async def test_parameters_are_keyword_arguments() -> None:
    assert await verdicts(server(), "cheap", "5", "15") == [True, False]
    assert await verdicts(server(), "cheap?below=20", "5", "15", "25") == [True, True, False]


async def test_a_damaged_record_does_not_match() -> None:
    matches = compiled(server(), "cheap").records_async
    assert matches is not None
    assert list(await matches([stored({"amount": "1"})[:-3]])) == [False]


@pytest.mark.parametrize(
    ("expression", "reason"), [("cheap", "it raised ValueError"), ("leaves", "SystemExit")]
)
async def test_a_filter_that_raises_is_disabled(
    expression: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once, and not called again; the other filters go on."""
    filters = server(leaves=leaves, other=lambda message: True)
    for amount in ("many", "1"):
        with pytest.raises(
            RequestRefused, match=f"the filter {expression} is disabled .*{reason}"
        ) as refused:
            await verdicts(filters, expression, amount)
        assert refused.value.code == ResponseCode.SYSTEM_ERROR
    assert list(filters.disabled()) == [expression]
    assert [each.levelno for each in caplog.records if "is disabled" in each.message] == [logging.ERROR]
    assert await verdicts(filters, "other", "1") == [True]


async def test_a_filter_that_does_not_return_is_disabled() -> None:
    """Its thread is left, and the consumer is refused."""
    goes_on = threading.Event()

    def hangs(message: StoredMessage) -> bool:
        return goes_on.wait()

    filters = server(timeout_ms=1, hangs=hangs)
    try:
        with pytest.raises(RequestRefused, match="more than 1 ms for 2 messages"):
            await verdicts(filters, "hangs", "1", "2")
        assert list(filters.disabled()) == ["hangs"]
    finally:
        goes_on.set()
