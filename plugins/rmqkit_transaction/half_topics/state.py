"""What a broker knows about its half messages while it is a master."""

from __future__ import annotations

from rmqkit.model import names
from rmqkit.plugin.request_broker import RequestBroker
from rmqkit_transaction.half_topics.ended import Ended
from rmqkit_transaction.half_topics.moved import Moved
from rmqkit_transaction.half_topics.ops import Ops

#: The group whose offsets are the progress in both topics, and the only queue of each.
GROUP, QUEUE_ID = "CID_RMQ_SYS_TRANS", 0


class State:
    """Begins at the saved progress of both topics."""

    def __init__(self, broker: RequestBroker) -> None:
        self.broker = broker
        self.ended = Ended(self._saved(names.HALF_TOPIC))
        self.moved = Moved()
        self.ops = Ops(broker, QUEUE_ID, self._saved(names.OP_HALF_TOPIC))

    def _saved(self, topic: str) -> int:
        store = self.broker.store
        first, end = store.min_offset(topic, QUEUE_ID), store.max_offset(topic, QUEUE_ID)
        return max(first, min(self.broker.offsets.get(GROUP, topic, QUEUE_ID) or 0, end))

    def end(self, offset: int) -> None:
        """Note that the transaction of the half message at a queue offset has ended, and write it down."""
        self.ended.add(offset)
        self.ops.add(offset)

    async def save(self) -> None:
        """Save the progress: up to the first open half message, once what ended those before it is as safe as
        an acknowledged message. Raises StoreError."""
        broker, ended, ops = self.broker, self.ended, self.ops
        base = ended.next_open(ended.base)
        if base != ended.base:
            await broker.appender.settle_everything()
            ended.advance(base)
            broker.offsets.commit(GROUP, names.HALF_TOPIC, QUEUE_ID, base)
        before = ops.progress
        ops.advance(base)
        if ops.progress != before:
            broker.offsets.commit(GROUP, names.OP_HALF_TOPIC, QUEUE_ID, ops.progress)
        self.moved.forget(ended)
