"""Ends a consumer whose handlers keep failing, before it fills its dead letters."""

from __future__ import annotations

from collections.abc import Callable

from rmqkit.client.consumer.delivery import DeadLetter
from rmqkit.errors import TooManyFailures


class Breaker:
    """Counts failures in a row, of whatever messages; a success begins anew, and a `DeadLetter` is neither.

    limit   failures after which it opens; None: never
    trip    called once then, with the error that ends the consumer
    """

    def __init__(self, group: str, limit: int | None, trip: Callable[[TooManyFailures], None]) -> None:
        self._group = group
        self._limit = limit
        self._trip = trip
        self._in_row = 0
        self._is_open = False

    def succeeded(self) -> None:
        """A handler has finished its messages."""
        self._in_row = 0

    def failed(self, error: Exception) -> bool:
        """A handler has failed. Returns whether its messages stay as they are, because the consumer ends."""
        if self._limit is not None and not isinstance(error, DeadLetter):
            self._in_row += 1
            if self._in_row >= self._limit and not self._is_open:
                self._is_open = True
                ended = TooManyFailures(self._group, self._in_row, error)
                ended.__cause__ = error
                self._trip(ended)
        return self._is_open
