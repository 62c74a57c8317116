"""The store and the transport of brokers started by `rmqkit.testing` when the test does not specify them: the
options of `rmqkit.testing.pytest_plugin`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from attrs import field, frozen

#: Default store and transport of a test.
STORE, SCHEME = "memory", "tcp"
#: Default store of a test that needs its messages after a restart.
DURABLE_STORE = "mmap"


@frozen
class Choice:
    """`carried` forces the transport even where a test would not need one. `used` records "store" and
    "transport" when a broker uses the choice."""

    store: str = STORE
    scheme: str = SCHEME
    carried: bool = False
    used: set[str] = field(factory=set)


_choices = [Choice()]


def chosen() -> Choice:
    """The current choice."""
    return _choices[-1]


@contextmanager
def choosing(choice: Choice) -> Iterator[Choice]:
    """Apply the choice to the whole process until the block ends."""
    _choices.append(choice)
    try:
        yield choice
    finally:
        _choices.remove(choice)
