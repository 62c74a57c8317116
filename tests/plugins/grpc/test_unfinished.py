"""Memory of messages that have begun to arrive."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rmqkit_grpc.limits import COUNTED_UNFINISHED_BYTES
from rmqkit_grpc.unfinished import Unfinished

SMALL, LARGE = COUNTED_UNFINISHED_BYTES - 1, COUNTED_UNFINISHED_BYTES


class Connection:
    """Notes which of its calls were refused."""

    def __init__(self) -> None:
        self.refused: list[int] = []

    def refuse(self, stream: int) -> None:
        self.refused.append(stream)


def test_the_oldest_are_refused() -> None:
    """When there is no room for more, the message that began first has to go."""
    unfinished, one, other = Unfinished(3 * LARGE), Connection(), Connection()
    unfinished.note(one, 1, LARGE)
    unfinished.note(other, 1, LARGE)
    unfinished.note(one, 3, LARGE)
    assert (one.refused, other.refused) == ([], [])
    unfinished.note(other, 1, 2 * LARGE)
    assert (one.refused, other.refused) == ([1], [])
    assert unfinished.total_bytes == 3 * LARGE


def test_small_ones_are_not_counted() -> None:
    """Most messages come in one piece, or nearly."""
    unfinished, one = Unfinished(LARGE), Connection()
    for stream in range(1, 2_000, 2):
        unfinished.note(one, stream, SMALL)
    assert (unfinished.total_bytes, one.refused) == (0, [])


def test_a_connection_that_ends_frees_its_memory() -> None:
    """Only its own."""
    unfinished, one, other = Unfinished(), Connection(), Connection()
    for each in (one, other):
        for stream in (1, 3):
            unfinished.note(each, stream, LARGE)
    unfinished.note(one, 3, 0)
    unfinished.forget(one)
    assert unfinished.total_bytes == 2 * LARGE
    unfinished.forget(one)
    unfinished.forget(other)
    assert unfinished.total_bytes == 0


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 4 * LARGE)), max_size=60))
def test_the_sum_is_that_of_the_parts(notes: list[tuple[int, int, int]]) -> None:
    """Whatever is noted, the total is the sum of what is unfinished, and within the limit."""
    limit = 6 * LARGE
    unfinished, connections = Unfinished(limit), [Connection() for _ in range(3)]
    sizes: dict[tuple[int, int], int] = {}
    for at, stream, size in notes:
        unfinished.note(connections[at], stream, size)
        sizes[at, stream] = size if size >= LARGE else 0
        for number, connection in enumerate(connections):
            for refused in connection.refused:
                sizes[number, refused] = 0
            connection.refused.clear()
        assert unfinished.total_bytes == sum(sizes.values()) <= limit
