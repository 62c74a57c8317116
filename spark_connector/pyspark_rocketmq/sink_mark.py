"""The last micro-batch that a query has written whole, kept at the broker as the offset of a consumer group.

The number says whose it is: 31 bits of the query's id, then 32 bits of the batch's number plus one. A group that another query used says nothing.
"""

from __future__ import annotations

import logging
from zlib import crc32

import anyio
from attrs import frozen

from rmqkit.client import BlockingClient, BrokerError, MessageQueue
from rmqkit.protocol.codes import ResponseCode

log = logging.getLogger(__name__)

_BATCH_BITS = 32
_TRIES, _PAUSE_S = 20, 0.1


@frozen
class SinkMark:
    """Of one query that writes to one topic. The offset belongs to the topic's first queue, by broker name and number.

    A broker writes offsets to its disk every few seconds: after a crash the mark may be an older one, never a newer one.
    """

    query: str
    topic: str
    group: str

    def last(self, client: BlockingClient) -> int | None:
        """Number of the last batch that was marked, None when there is none. Raises RmqError."""
        with client.pull_consumer(self.group) as consumer:
            offset = consumer.committed(self._place(client))
        return None if offset is None else read_mark(self.query, offset)

    def put(self, client: BlockingClient, batch: int) -> None:
        """Mark a batch that has written something. A topic that the broker is only about to make keeps no mark: the next batch's will do. Raises RmqError."""
        with client.pull_consumer(self.group) as consumer:
            place, offset = self._place(client), make_mark(self.query, batch)
            for left in range(_TRIES - 1, -1, -1):
                try:
                    consumer.commit(place, offset)
                    return
                except BrokerError as error:
                    if error.code == ResponseCode.TOPIC_NOT_EXIST:
                        log.warning("batch %d is not marked as written: %s", batch, error)
                        return
                    if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST or not left:
                        raise
                # Apache's broker makes a group at the first heartbeat of a consumer, which is under way.
                client.run(anyio.sleep, _PAUSE_S)

    def _place(self, client: BlockingClient) -> MessageQueue:
        with client.producer(f"{self.group}-mark") as producer:
            return min(producer.queues(self.topic), key=lambda queue: (queue.broker_name, queue.queue_id))


def make_mark(query: str, batch: int) -> int:
    return _owner(query) << _BATCH_BITS | batch + 1


def read_mark(query: str, offset: int) -> int | None:
    """The number of the batch, None when the offset is none of this query's."""
    owner, number = offset >> _BATCH_BITS, offset & (1 << _BATCH_BITS) - 1
    return number - 1 if owner == _owner(query) and number else None


def _owner(query: str) -> int:
    return crc32(query.encode()) >> 1
