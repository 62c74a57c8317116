"""Appends as the broker's log appender makes them, without its hooks and acknowledgements."""

from __future__ import annotations

from collections.abc import Sequence

from rmqkit.broker.dispatch.manager import Dispatching
from rmqkit.model.message import PutMessage
from rmqkit.plugin.store import Appended, MessageStore


def append(
    store: MessageStore, dispatching: Dispatching, messages: Sequence[PutMessage]
) -> Sequence[Appended]:
    """Append to the store, and give the messages to those that follow its log."""
    start = store.end_offset
    results = store.append(messages)
    dispatching.stored(start, messages, results)
    store.positions.moved()
    return results
