"""Which store and which transport a broker of `rmqkit.testing` has when the test does not say: the options of `rmqkit.testing.pytest_plugin`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from attrs import field, frozen

#: Of a test that says nothing.
STORE, SCHEME = "memory", "tcp"
#: Of a test that needs what it sent to be there after a restart.
DURABLE_STORE = "mmap"


@frozen
class Choice:
    """`carried` asks for the transport also where a test would do without any. `used` gets "store" and "transport" when a broker goes by the choice."""

    store: str = STORE
    scheme: str = SCHEME
    carried: bool = False
    used: set[str] = field(factory=set)


_choices = [Choice()]


def chosen() -> Choice:
    """What holds now."""
    return _choices[-1]


@contextmanager
def choosing(choice: Choice) -> Iterator[Choice]:
    """The choice for as long as the block lasts, in the whole process."""
    _choices.append(choice)
    try:
        yield choice
    finally:
        _choices.remove(choice)
