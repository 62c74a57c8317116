"""What is asked of the messages of a run, and of their places, answered by looking at each value."""

from __future__ import annotations

from collections.abc import Sequence

from rmqkit.model.message import Appended, PutMessage
from rmqkit.model.message_type import TYPED


def topics_of(messages: Sequence[PutMessage]) -> list[str]:
    """The topics of messages, each once."""
    return list(dict.fromkeys([message.topic for message in messages]))


def waits_of(messages: Sequence[PutMessage]) -> list[bool]:
    """`PutMessage.wait` of each."""
    return [message.wait for message in messages]


def are_normal(messages: Sequence[PutMessage]) -> bool:
    """Whether no message has a property that gives it another type than NORMAL (`message_type`)."""
    return all(map(TYPED.isdisjoint, [message.properties for message in messages]))


def tags_codes_of(messages: Sequence[PutMessage]) -> list[int]:
    """`PutMessage.tags_code` of each."""
    return [message.tags_code for message in messages]


def size_range_of(results: Sequence[Appended]) -> tuple[int, int, int]:
    """The sizes of the smallest and of the largest record at these places, and of all together. Raises
    ValueError without a place."""
    sizes = [size for _, _, size, _ in results]
    return min(sizes), max(sizes), sum(sizes)


def total_bytes_of(results: Sequence[Appended]) -> int:
    """The size of the records at these places."""
    return sum([size for _, _, size, _ in results])


__all__ = ["are_normal", "size_range_of", "tags_codes_of", "topics_of", "total_bytes_of", "waits_of"]
