"""Limits the log lines that peers can cause, which could otherwise fill the disk and hide important ones."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic

from rmqkit.limits import MAX_LOG_KINDS, MAX_LOG_LINES_PER_MINUTE

_WINDOW_S = 60.0


class LogLimit(logging.Filter):
    """Lets at most MAX_LOG_LINES_PER_MINUTE lines of one kind pass per minute; the kind is the text of the
    call before its arguments are inserted.

    The last line that passes announces that further ones are suppressed, and the first of a later minute
    contains their number. Attach it to the logger of a module to count its lines. Thread-safe.
    """

    def __init__(self, clock_s: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._clock_s = clock_s
        #: Kind -> start of its minute, number of lines.
        self._kinds: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind, now_s = str(record.msg), self._clock_s()
        started_s, lines = self._kinds.get(kind, (now_s, 0))
        left_out = 0
        if now_s - started_s >= _WINDOW_S:
            left_out = max(0, lines - MAX_LOG_LINES_PER_MINUTE)
            started_s, lines = now_s, 0
        if kind not in self._kinds and len(self._kinds) >= MAX_LOG_KINDS:
            self._kinds.clear()
        self._kinds[kind] = started_s, lines + 1
        if lines >= MAX_LOG_LINES_PER_MINUTE:
            return False
        if left_out:
            _add(record, f" ({left_out} lines like this one were left out before)")
        if lines == MAX_LOG_LINES_PER_MINUTE - 1:
            _add(record, " (more lines like this one are left out for up to a minute)")
        return True

    def reset(self) -> None:
        """Forget all counts."""
        self._kinds.clear()


def _add(record: logging.LogRecord, text: str) -> None:
    record.msg, record.args = record.getMessage() + text, None


#: The limit of the loggers for lines caused by peers; each kind of line is counted separately.
peer_lines = LogLimit()


def limited_logger(name: str) -> logging.Logger:
    """The logger of a module whose lines are caused by peers."""
    logger = logging.getLogger(name)
    logger.addFilter(peer_lines)
    return logger
