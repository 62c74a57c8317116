"""The limit on log lines that peers cause."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from rmqkit import log_limit
from rmqkit.log_limit import LogLimit


@pytest.fixture
def now_s() -> list[float]:
    return [100.0]


@pytest.fixture
def logger(now_s: list[float], monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """Three lines of a kind in a minute."""
    monkeypatch.setattr(log_limit, "MAX_LOG_LINES_PER_MINUTE", 3)
    logger, limit = logging.getLogger("tests.log_limit"), LogLimit(lambda: now_s[0])
    logger.addFilter(limit)
    yield logger
    logger.removeFilter(limit)


def test_lines_beyond_the_limit_are_left_out_and_counted(
    logger: logging.Logger, now_s: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """The last line that passes says so, and the first of the next minute says how many were left out."""
    for number in range(10):
        logger.warning("peer %s", number)
    now_s[0] += 60
    logger.warning("peer %s", "next")
    assert caplog.messages == [
        "peer 0",
        "peer 1",
        "peer 2 (more lines like this one are left out for up to a minute)",
        "peer next (7 lines like this one were left out before)",
    ]


def test_kinds_count_apart(logger: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    """A flood of one kind of line does not hide another kind."""
    for number in range(10):
        logger.warning("flood %s", number)
    logger.warning("something else")
    assert caplog.messages[-1] == "something else"
    assert len(caplog.messages) == 4


def test_the_kinds_that_are_remembered_are_limited(
    logger: logging.Logger, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines whose text is made by a peer do not fill the memory."""
    monkeypatch.setattr(log_limit, "MAX_LOG_KINDS", 5)
    for number in range(100):
        logger.warning(f"made {number}")
    (limit,) = logger.filters
    assert isinstance(limit, LogLimit)
    assert len(limit._kinds) <= 5
