"""Finds out from a broker's topics and log which transactions are open.

The progress and the op messages tell of most of those that have ended. They are written a little later than
what they tell of, so a broker that died may have stored more: real messages, which name their half messages,
and half messages that a round has stored anew.
"""

from __future__ import annotations

from collections.abc import Hashable

from rmqkit.errors import DecodeError
from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.buffer import Buffer
from rmqkit.model.message import StoredMessage
from rmqkit.plugin.store import QueueUnit
from rmqkit.protocol.record import unpack
from rmqkit_transaction.half_topics.copies import is_copy, transaction_of
from rmqkit_transaction.half_topics.ops import offsets_of
from rmqkit_transaction.half_topics.reading import all_entries, committed_since
from rmqkit_transaction.half_topics.state import QUEUE_ID, State


async def load(state: State) -> None:
    """Read everything behind the progress. Raises StoreError. Cancelled: the state is incomplete."""
    store = state.broker.store
    end = store.max_offset(names.HALF_TOPIC, QUEUE_ID)
    async for unit, record in all_entries(store, names.OP_HALF_TOPIC, QUEUE_ID, state.ops.progress):
        op = unpacked(record)
        named = (
            [] if op is None else [offset for offset in offsets_of(op) if state.ended.base <= offset < end]
        )
        state.ops.read(unit.queue_offset, named)
        for offset in named:
            state.ended.add(offset)
    await _find_lost_ends(state)


async def _find_lost_ends(state: State) -> None:
    """Note the ends that are in no op message: what ends here is not committed a second time."""
    store, ended = state.broker.store, state.ended
    copies = _Copies(state)
    async for unit, record in all_entries(store, names.HALF_TOPIC, QUEUE_ID, ended.next_open(ended.base)):
        if (half := unpacked(record)) is not None:
            copies.see(unit, half)
    if copies.open:
        committed = await committed_since(store, min(copies.open.values()))
        for offset, physical_offset in copies.open.items():
            if physical_offset in committed:
                state.end(offset)


class _Copies:
    """The open half messages seen so far, with their offsets in the log, without those of which a later copy
    came."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.open: dict[int, int] = {}
        self._earlier: dict[Hashable, list[int]] = {}

    def see(self, unit: QueueUnit, half: StoredMessage) -> None:
        """Take the next half message of the queue."""
        offset, key, moved = unit.queue_offset, transaction_of(half), self._state.moved
        earlier = [] if key is None else self._earlier.setdefault(key, [])
        if is_copy(half):
            for each in earlier:
                moved.move(each, offset, unit.physical_offset)
                del self.open[each]
                self._state.end(each)
            earlier.clear()
            first = half.properties.get(props.TRANSACTION_PREPARED_QUEUE_OFFSET, "")
            if first.isascii() and first.isdigit() and int(first) < offset:
                # The producer of an immune half message knows its first place alone.
                moved.move(int(first), offset, unit.physical_offset)
        if not self._state.ended.has_ended(offset):
            self.open[offset] = unit.physical_offset
            earlier.append(offset)


def unpacked(record: Buffer | None) -> StoredMessage | None:
    """The message of a record; None for one that is gone or damaged."""
    try:
        return None if record is None else unpack(record)
    except DecodeError:
        return None
