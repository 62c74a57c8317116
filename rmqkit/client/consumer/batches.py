"""Batches of a push or pop consumer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio

from rmqkit.client.consumer.delivery import Batch, InHand, MessageOutcomes
from rmqkit.client.consumer.distributor import Distributor
from rmqkit.client.hooks import ClientHooks


class Batches:
    """Iterates over batches until the consumer is stopped; made by `PushConsumer.batches`."""

    def __init__(
        self,
        opened: Callable[[], MessageOutcomes[Any]],
        hooks: ClientHooks,
        distributor: Distributor[Any],
        size: int,
        linger_s: float,
    ) -> None:
        self._opened = opened
        self._hooks = hooks
        self._distributor = distributor
        self._size = size
        self._linger_s = linger_s

    def __aiter__(self) -> Batches:
        return self

    async def __anext__(self) -> Batch:
        """The next batch. When cancelled, no message is taken."""
        outcomes = self._opened()
        while True:
            in_hand = await self._distributor.take(self._size)
            if not in_hand:
                self._distributor.check()
                raise StopAsyncIteration
            try:
                await self._fill(in_hand)
            except BaseException:
                _give_back(outcomes, in_hand)
                raise
            if self._distributor.closed:
                _give_back(outcomes, in_hand)
                continue
            # Queues or leases may have been lost while the batch was filled.
            kept = [(source, message) for source, message in in_hand if not source.dropped]
            if kept:
                return Batch(outcomes, self._hooks, kept)

    async def _fill(self, in_hand: list[InHand[Any]]) -> None:
        """Add messages until the batch is full, the time has passed or the consumer is stopped."""
        with anyio.move_on_after(self._linger_s):
            while len(in_hand) < self._size:
                more = await self._distributor.take(self._size - len(in_hand))
                if not more:
                    return
                in_hand += more


def _give_back(outcomes: MessageOutcomes[Any], in_hand: list[InHand[Any]]) -> None:
    for source, message in reversed(in_hand):
        outcomes.returned(source, message)
