"""Log lines on standard error: text for people, or JSON for programs that collect them."""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime
from typing import Any

import msgspec

from rmqkit.errors import ConfigError, did_you_mean

#: The levels and the form of log lines, of this process and of those that it starts. Options of the command
#: line override them.
LEVEL_VARIABLE, FORM_VARIABLE = "RMQKIT_LOG_LEVEL", "RMQKIT_LOG_FORMAT"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
TEXT, JSON = FORMS = ("text", "json")
_DEFAULT_LEVEL = "INFO"


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


def levels_of(text: str) -> dict[str, str]:
    """Logger -> its level, of a text such as `WARNING,rmqkit_ha=DEBUG`. The empty name is for all others,
    which have INFO where the text does not say it. Raises ValueError, which lists the levels."""
    found = {"": _DEFAULT_LEVEL}
    for part in filter(None, (each.strip() for each in text.split(","))):
        logger, separator, level = part.rpartition("=")
        if separator and not logger.strip():
            raise ValueError(f"{part!r} names no logger: write it as rmqkit_ha=DEBUG")
        found[logger.strip()] = _known(level.strip(), LEVELS)
    return found


def start_logging(level: str | None, form: str | None, broker: str = "") -> None:
    """Log to standard error from now on, unless that has begun; `level` is a text as of `levels_of`. None: as
    the variables say, else INFO and text. Processes that this one starts log in the same way. Raises
    ConfigError."""
    try:
        where = LEVEL_VARIABLE
        level = level or os.environ.get(LEVEL_VARIABLE) or _DEFAULT_LEVEL
        levels = levels_of(level)
        where = FORM_VARIABLE
        form = _known(form or os.environ.get(FORM_VARIABLE) or TEXT, FORMS)
    except ValueError as error:
        raise ConfigError(f"environment {where} = {error}") from error
    os.environ[LEVEL_VARIABLE], os.environ[FORM_VARIABLE] = level, form
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines(broker) if form == JSON else TextLines(broker))
    logging.basicConfig(level=levels.pop(""), handlers=[handler])
    for name, value in levels.items():
        logging.getLogger(name).setLevel(value)


def _known(text: str, known: tuple[str, ...]) -> str:
    for each in known:
        if text.lower() == each.lower():
            return each
    raise ValueError(f"{text!r}: it is one of {', '.join(known)}{did_you_mean(text.upper(), known)}")
