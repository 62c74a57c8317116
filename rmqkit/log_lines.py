"""Log lines on standard error: text for people, or JSON for programs that collect them."""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime
from typing import Any

import msgspec

from rmqkit.errors import ConfigError

#: The level and the form of log lines, of this process and of those that it starts. Options of the command
#: line override them.
LEVEL_VARIABLE, FORM_VARIABLE = "RMQKIT_LOG_LEVEL", "RMQKIT_LOG_FORMAT"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
TEXT, JSON = FORMS = ("text", "json")


class TextLines(logging.Formatter):
    """Time, level, module and message. With the name of one of several brokers in every line, those of
    tracebacks included."""

    def __init__(self, broker: str = "") -> None:
        named = f"{broker.replace('%', '%%')} " if broker else ""
        super().__init__(f"%(asctime)s %(levelname)s {named}%(name)s: %(message)s")
        self._next_line = f"\n{broker} | " if broker else "\n"

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).replace("\n", self._next_line)


class JsonLines(logging.Formatter):
    """One object a line: `time` (RFC 3339, UTC), `level`, `logger`, `message`; `broker` and `traceback` where
    there is one."""

    def __init__(self, broker: str = "") -> None:
        super().__init__()
        self._broker = broker

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._broker:
            fields["broker"] = self._broker
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields, enc_hook=str).decode()


def start_logging(level: str | None, form: str | None, broker: str = "") -> None:
    """Log to standard error from now on, unless that has begun. None: as the variables say, else INFO and
    text. Processes that this one starts log in the same way. Raises ConfigError."""
    level = _chosen(LEVEL_VARIABLE, level, LEVELS, "INFO")
    form = _chosen(FORM_VARIABLE, form, FORMS, TEXT)
    os.environ[LEVEL_VARIABLE], os.environ[FORM_VARIABLE] = level, form
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines(broker) if form == JSON else TextLines(broker))
    logging.basicConfig(level=level, handlers=[handler])


def _chosen(variable: str, given: str | None, known: tuple[str, ...], default: str) -> str:
    text = given or os.environ.get(variable) or default
    for each in known:
        if text.lower() == each.lower():
            return each
    raise ConfigError(f"environment {variable} = {text!r}: it is one of {', '.join(known)}")
