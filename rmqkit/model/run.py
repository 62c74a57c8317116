"""Runs: messages that arrived together and are not stored yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from types import MappingProxyType
from typing import TypeVar, overload

from rmqkit.errors import RequestRefused
from rmqkit.model.message import Appended, PutMessage
from rmqkit.model.message_type import TYPED
from rmqkit.speedups.sends import Places, PutColumns

R = TypeVar("R")


class MessageRun(Sequence[PutMessage]):
    """Messages that arrived together, or that a service writes together, in order. A single message is a run
    of one.

    messages  all of them: a list, or columns, which make a message when it is read
    requests  for each message the number of its request; None when each message is a request by itself. The
              messages of a request (a batch) are neighbours, and are stored all or none
    special   indexes of the messages with a property that put hooks watch; None before the first look
    refused   index -> refusal, for messages that the log did not accept; set by the append
    settled   whether all may be acknowledged at once, whatever their senders requested; set by the append
    """

    refused: Mapping[int, RequestRefused] = MappingProxyType({})
    settled: bool = False

    def __init__(
        self,
        messages: Sequence[PutMessage],
        requests: Sequence[int] | None = None,
        special: Sequence[int] | None = None,
    ) -> None:
        self.messages = messages
        self.requests = requests
        self.special = special

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[PutMessage]:
        return iter(self.messages)

    @overload
    def __getitem__(self, at: int) -> PutMessage: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[PutMessage]: ...
    def __getitem__(self, at: int | slice) -> PutMessage | Sequence[PutMessage]:
        return self.messages[at]

    def note(self, results: Sequence[R]) -> Sequence[R]:
        """Set `refused` to the refusals among the results of all messages; returns the results."""
        self.refused = {at: each for at, each in enumerate(results) if isinstance(each, RequestRefused)}
        return results

    def select(self, indexes: Sequence[int]) -> MessageRun:
        """A run of the messages at some indexes, which must ascend."""
        requests = self.requests
        return MessageRun(
            [self.messages[at] for at in indexes],
            None if requests is None else [requests[at] for at in indexes],
        )

    def request_at(self, index: int) -> range:
        """The indexes of all messages of the request to which the message at `index` belongs."""
        requests = self.requests
        if requests is None:
            return range(index, index + 1)
        number, start, stop = requests[index], index, index + 1
        while start and requests[start - 1] == number:
            start -= 1
        while stop < len(requests) and requests[stop] == number:
            stop += 1
        return range(start, stop)

    def by_request(self) -> list[MessageRun]:
        """One run per request."""
        if self.requests is None:
            return [MessageRun([message]) for message in self.messages]
        parts: list[MessageRun] = []
        for number, pairs in groupby(zip(self.requests, self.messages, strict=True), key=itemgetter(0)):
            messages = [message for _, message in pairs]
            parts.append(MessageRun(messages, [number] * len(messages)))
        return parts


def topics_of(messages: Sequence[PutMessage]) -> Sequence[str]:
    """The topics of messages, each once. Makes no values of a run that consists of columns."""
    if isinstance(messages, PutColumns):
        return messages.topics()
    return list(dict.fromkeys([message.topic for message in messages]))


def waits_of(messages: Sequence[PutMessage]) -> list[bool]:
    """`PutMessage.wait` of each. Makes no values of a run that consists of columns."""
    if isinstance(messages, PutColumns):
        return messages.waits()
    return [message.wait for message in messages]


def are_normal(messages: Sequence[PutMessage]) -> bool:
    """Whether no message has a property that gives it another type than NORMAL (`message_type`). Makes no
    values of a run that consists of columns."""
    if isinstance(messages, PutColumns):
        return messages.are_normal()
    return all(map(TYPED.isdisjoint, [message.properties for message in messages]))


def size_range_of(landed: Sequence[Appended]) -> tuple[int, int, int]:
    """The sizes of the smallest and of the largest record at these places, at least one, and of all
    together."""
    if isinstance(landed, Places):
        return landed.size_range()
    sizes = [size for _, _, size, _ in landed]
    return min(sizes), max(sizes), sum(sizes)


def tags_codes_of(messages: Sequence[PutMessage]) -> list[int]:
    """`PutMessage.tags_code` of each. Makes no values of a run that consists of columns."""
    if isinstance(messages, PutColumns):
        return messages.tags_codes()
    return [message.tags_code for message in messages]


def total_bytes_of(landed: Sequence[Appended]) -> int:
    """The size of the records at these places."""
    if isinstance(landed, Places):
        return landed.total_bytes
    return sum([size for _, _, size, _ in landed])


__all__ = [
    "MessageRun",
    "are_normal",
    "size_range_of",
    "tags_codes_of",
    "topics_of",
    "total_bytes_of",
    "waits_of",
]
