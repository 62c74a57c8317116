"""Batches of a push consumer."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from rmqkit.client.consumer.assigned import Held
from rmqkit.client.consumer.delivery import Batch, Settlement
from rmqkit.client.consumer.dispatcher import Dispatcher
from rmqkit.client.hooks import ClientHooks


class Batches:
    """Iterates over batches until the consumer is stopped; made by `PushConsumer.batches`."""

    def __init__(
        self,
        opened: Callable[[], Settlement],
        hooks: ClientHooks,
        dispatcher: Dispatcher,
        size: int,
        linger_s: float,
    ) -> None:
        self._opened = opened
        self._hooks = hooks
        self._dispatcher = dispatcher
        self._size = size
        self._linger_s = linger_s

    def __aiter__(self) -> Batches:
        return self

    async def __anext__(self) -> Batch:
        """The next batch. When cancelled, no message is taken."""
        settlement = self._opened()
        while True:
            held = await self._dispatcher.take(self._size)
            if not held:
                self._dispatcher.check()
                raise StopAsyncIteration
            try:
                await self._fill(held)
            except BaseException:
                _give_back(settlement, held)
                raise
            if self._dispatcher.closed:
                _give_back(settlement, held)
                continue
            # Queues may have been lost while the batch was filled.
            kept = [(assigned, message) for assigned, message in held if not assigned.dropped]
            if kept:
                return Batch(settlement, self._hooks, kept)

    async def _fill(self, held: list[Held]) -> None:
        """Add messages until the batch is full, the time has passed or the consumer is stopped."""
        with anyio.move_on_after(self._linger_s):
            while len(held) < self._size:
                more = await self._dispatcher.take(self._size - len(held))
                if not more:
                    return
                held += more


def _give_back(settlement: Settlement, held: list[Held]) -> None:
    for assigned, message in reversed(held):
        settlement.returned(assigned, message)
