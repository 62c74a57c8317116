"""Half messages in their two topics (Java: TransactionalMessageServiceImpl)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import trio

from rmqkit.model import names
from rmqkit.model.message import PutMessage, StoredMessage
from rmqkit.plugin.request_broker import RequestBroker
from rmqkit_transaction.half_topics import copies
from rmqkit_transaction.half_topics.loading import load
from rmqkit_transaction.half_topics.rounds import Round
from rmqkit_transaction.half_topics.state import QUEUE_ID, State
from rmqkit_transaction.transaction_store import Ask, Half, TransactionStore


class HalfTopics(TransactionStore):
    """Keeps a byte for each half message behind the progress, which is the first open one of the last round.
    Memory: 3.6 MB for an hour in which the oldest half message stays open, at a thousand in a second."""

    def __init__(self, broker: RequestBroker) -> None:
        self._broker = broker
        self._state = State(broker)
        self._used = trio.Event()
        self._given_up = 0

    def keep(self, message: PutMessage) -> None:
        copies.park(message, QUEUE_ID)
        self._used.set()

    async def load(self) -> None:
        self._state = state = State(self._broker)
        if self._broker.store.max_offset(names.HALF_TOPIC, QUEUE_ID):
            self._used.set()
        await load(state)

    def numbers_of(self, message: StoredMessage) -> Collection[int]:
        is_half = (message.topic, message.queue_id) == (names.HALF_TOPIC, QUEUE_ID)
        return (message.queue_offset,) if is_half else ()

    def open_half(self, message: StoredMessage) -> Half | None:
        number, physical_offset = self._state.moved.place(message.queue_offset, message.physical_offset)
        return None if self._state.ended.has_ended(number) else Half(message, number, physical_offset)

    def outcome(self, half: Half, *, commit: bool) -> PutMessage | None:
        return copies.committed(half.message, half.physical_offset) if commit else None

    def end(self, half: Half) -> None:
        self._state.end(half.number)

    def resumed(self, message: StoredMessage) -> PutMessage | None:
        if message.topic != names.CHECK_MAX_TIME_TOPIC:
            return None
        self._used.set()
        return copies.resumed(message, QUEUE_ID)

    async def check(self, ask: Ask) -> None:
        current = Round(self._state, ask)
        try:
            await current.run()
        finally:
            self._given_up += current.given_up

    async def run(self) -> None:
        """Create the topics at the first half message: a broker without transactions has none of them."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._state.ops.run)
            await self._used.wait()
            for topic in (names.HALF_TOPIC, names.OP_HALF_TOPIC):
                await self._broker.topics.ensure(topic, 1)

    async def stop(self) -> None:
        self._state.ops.stop()
        await self._state.save()

    def figures(self) -> Mapping[str, int]:
        end = self._broker.store.max_offset(names.HALF_TOPIC, QUEUE_ID)
        return {
            "transactionsOpen": self._state.ended.open_before(end),
            "transactionsGivenUp": self._given_up,
            "transactionEndsUnwritten": len(self._state.ops.pending),
        }
