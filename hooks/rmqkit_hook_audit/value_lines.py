"""Lines of events about runs of sends, made message by message."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rmqkit.model.message import PutMessage
from rmqkit.plugin.hooks import SendHeader
from rmqkit.plugin.store import Appended
from rmqkit.protocol.command import Command


def json_lines(
    messages: Sequence[PutMessage],
    places: Sequence[Appended],
    heads: Sequence[bytes],
    stops: Sequence[int],
    topic: str,
    max_key_bytes: int,
    other: Callable[[int], bytes],
) -> list[bytes]:
    """A line for each head: the head, an array with an object for each message from the stop of the line
    before to its own, and a closing brace. `other` gives the object of the message with a number, as bytes.
    The compiled twin makes objects itself, with the unique key of a message, its queue, queue offset and the
    size of its body, where it was sent to `topic` and the key is a plain one of at most `max_key_bytes`.
    Raises IndexError for stops that descend or exceed the messages, ValueError for places of other messages
    and for another number of heads."""
    if len(places) != len(messages):
        raise ValueError(f"{len(places)} places of {len(messages)} messages")
    if len(heads) != len(stops):
        raise ValueError(f"{len(heads)} heads of {len(stops)} lines")
    first, lines = 0, []
    for head, stop in zip(heads, stops, strict=True):
        if not first <= stop <= len(messages):
            raise IndexError(f"from {first} to {stop} of {len(messages)} messages")
        lines.append(b"%b[%b]}\n" % (head, b",".join([other(at) for at in range(first, stop)])))
        first = stop
    return lines


def are_alike(requests: Sequence[Command], headers: Sequence[SendHeader], word: bytes) -> bool:
    """Whether all headers have one topic and one producer group, and the text of every request's header is at
    hand and does not contain `word`. Raises ValueError for an empty word."""
    if not word:
        raise ValueError("an empty word")
    destinations = {(header.topic, header.producer_group) for header in headers}
    return len(destinations) < 2 and all(
        request.head_json and word not in request.head_json for request in requests
    )


__all__ = ["are_alike", "json_lines"]
