"""Errors that are told in one line each, without a traceback."""

from __future__ import annotations

from collections.abc import Iterator

from rmqkit.errors import ConfigError, RmqError


def told(error: BaseException) -> tuple[list[str], int] | None:
    """The lines and the exit code of an error: 2 for words and settings that are wrong, else 1. None for an error that is a fault of this program.

    Of a group of errors every known one has a line, and the first decides.
    """
    known = [found for found in _leaves(error) if isinstance(found, (RmqError, OSError))]
    if not known:
        return None
    return [str(found) for found in known], 2 if isinstance(known[0], ConfigError) else 1


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
