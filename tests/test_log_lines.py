"""Log lines as text and as JSON."""

from __future__ import annotations

import json
import logging
import os
import sys

import pytest

from rmqkit import log_lines
from rmqkit.errors import ConfigError


def test_every_line_of_the_log_has_the_brokers_name() -> None:
    """Every line contains the broker's name, including lines of tracebacks; a percent sign in the name is
    kept."""
    formatter = log_lines.TextLines("broker%s-b")
    try:
        raise ValueError("one\ntwo")
    except ValueError:
        record = logging.LogRecord(
            "some.logger", logging.ERROR, __file__, 1, "it is %s", ("bad",), sys.exc_info()
        )
    first, *rest = formatter.format(record).splitlines()
    assert first.endswith(" ERROR broker%s-b some.logger: it is bad")
    assert rest[0] == "broker%s-b | Traceback (most recent call last):"
    assert rest[-1] == "broker%s-b | two"
    assert all(line.startswith("broker%s-b | ") for line in rest)


def test_json_has_an_object_in_each_line() -> None:
    """Time, level, logger, message, broker and traceback; line ends are inside the texts."""
    formatter = log_lines.JsonLines("broker-b")
    try:
        raise ValueError("one\ntwo")
    except ValueError:
        record = logging.LogRecord("some", logging.ERROR, __file__, 1, "it is %s", ("bad",), sys.exc_info())
    record.created = 0.5
    text = formatter.format(record)
    assert "\n" not in text
    found = json.loads(text)
    assert found.pop("traceback").endswith("two")
    assert found == {
        "time": "1970-01-01T00:00:00.500+00:00",
        "level": "ERROR",
        "logger": "some",
        "message": "it is bad",
        "broker": "broker-b",
    }


def test_levels_of_single_loggers() -> None:
    """A level for all, and others for the loggers of a package or module; case does not matter."""
    assert log_lines.levels_of("warning, rmqkit_ha=debug,rmqkit.remoting.server=Error") == {
        "": "WARNING",
        "rmqkit_ha": "DEBUG",
        "rmqkit.remoting.server": "ERROR",
    }
    assert log_lines.levels_of("rmqkit_ha=DEBUG") == {"": "INFO", "rmqkit_ha": "DEBUG"}
    for wrong in ("loud", "INFO,rmqkit_ha=loud", "INFO,rmqkit_ha"):
        with pytest.raises(ValueError, match="it is one of DEBUG, INFO, WARNING, ERROR"):
            log_lines.levels_of(wrong)
    with pytest.raises(ValueError, match="names no logger"):
        log_lines.levels_of("=DEBUG")


def test_a_logger_with_a_level_of_its_own_logs_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its modules have the level, others that of all; processes that are started inherit the text."""
    monkeypatch.setenv(log_lines.LEVEL_VARIABLE, "")
    monkeypatch.setenv(log_lines.FORM_VARIABLE, "")
    own = logging.getLogger("levels_of_one")
    try:
        log_lines.start_logging("ERROR,levels_of_one=DEBUG", None)
        assert logging.getLogger("levels_of_one.module").isEnabledFor(logging.DEBUG)
        assert own.level == logging.DEBUG
        assert os.environ[log_lines.LEVEL_VARIABLE] == "ERROR,levels_of_one=DEBUG"
        assert os.environ[log_lines.FORM_VARIABLE] == log_lines.TEXT
    finally:
        own.setLevel(logging.NOTSET)


@pytest.mark.parametrize("variable", [log_lines.LEVEL_VARIABLE, log_lines.FORM_VARIABLE])
def test_a_wrong_variable_is_an_error_that_lists_what_there_is(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """As a wrong option is."""
    monkeypatch.setenv(variable, "loud")
    with pytest.raises(ConfigError, match=f"environment {variable} = 'loud': it is one of"):
        log_lines.start_logging(None, None)
