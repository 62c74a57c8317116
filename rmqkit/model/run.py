"""Runs: messages that arrived together and are not stored yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from types import MappingProxyType
from typing import Protocol, TypeVar, overload

from rmqkit.errors import RequestRefused
from rmqkit.model import values
from rmqkit.model.message import Appended, PutMessage
from rmqkit.speedups import IN_USE

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
    in_order  whether the places of its messages ascend; False where some had been stored before. Set by the
              append
    """

    refused: Mapping[int, RequestRefused] = MappingProxyType({})
    settled: bool = False
    in_order: bool = True

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

    def last_of(self, places: Sequence[R]) -> R:
        """The place of all these of its messages that is the last in the log."""
        return places[-1] if self.in_order else max(places, key=attrgetter("physical_offset"))

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


class Looks(Protocol):
    """What is asked of a whole run. Without the compiled part each value is looked at (`rmqkit.model.values`,
    which says what each question means); with it, the columns of the run are read, and no message is made."""

    def topics_of(self, messages: Sequence[PutMessage]) -> list[str]: ...
    def waits_of(self, messages: Sequence[PutMessage]) -> list[bool]: ...
    def are_normal(self, messages: Sequence[PutMessage]) -> bool: ...
    def tags_codes_of(self, messages: Sequence[PutMessage]) -> list[int]: ...
    def size_range_of(self, results: Sequence[Appended]) -> tuple[int, int, int]: ...
    def total_bytes_of(self, results: Sequence[Appended]) -> int: ...


if IN_USE:
    from rmqkit.model import _columns

looks: Looks = _columns if IN_USE else values

__all__ = ["Looks", "MessageRun", "looks"]
