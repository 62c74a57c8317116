"""The last micro-batch that a query has written completely, stored on the broker as the offset of a consumer
group.

The offset is a digest of the query's id and of the batch's entry in the checkpoint (`checkpoint`), not the
batch's number: after a checkpoint was restored from a backup, the same number belongs to other messages. Only
the marked batch itself is recognised as written.
"""

from __future__ import annotations

import logging

import anyio
from attrs import frozen

from pyspark_rocketmq.write.checkpoint import BatchId, digest_of
from rmqkit.client import BlockingClient, BrokerError, MessageQueue
from rmqkit.protocol.codes import ResponseCode

log = logging.getLogger(__name__)

_TRIES, _PAUSE_S = 20, 0.1


@frozen
class SinkMark:
    """The mark of one query that writes to one topic. The offset belongs to the topic's first queue, by
    broker name and number.

    A broker saves offsets every few seconds: after a crash the mark may be an older one, never a newer one.
    """

    query: str
    topic: str
    group: str

    def is_on(self, client: BlockingClient, batch: BatchId) -> bool:
        """Whether this batch is the last one marked; not if the broker refuses to say. Raises RmqError."""
        with client.pull_consumer(self.group) as consumer:
            try:
                return consumer.committed(self._place(client)) == self._offset(batch)
            except BrokerError as error:
                self._tell_refused(batch, error)
                return False

    def put(self, client: BlockingClient, batch: BatchId) -> None:
        """Mark a batch that has written something. If the broker refuses, for example because the topic or
        the group does not exist, a warning is logged: the rows are written. Raises other RmqErrors."""
        with client.pull_consumer(self.group) as consumer:
            place, offset = self._place(client), self._offset(batch)
            for left in range(_TRIES - 1, -1, -1):
                try:
                    consumer.commit(place, offset)
                    return
                except BrokerError as error:
                    if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST or not left:
                        self._tell_refused(batch, error)
                        return
                # Apache's broker creates a group at the first heartbeat of a consumer, which has been sent.
                client.run(anyio.sleep, _PAUSE_S)

    def _tell_refused(self, batch: BatchId, error: BrokerError) -> None:
        log.warning(
            "batch %d cannot be marked as written, so it would be written again after a failure: %s. The mark"
            " is an offset of group %s: let brokers create groups (autoCreateSubscriptionGroup), name an"
            " existing group with the option sinkGroup, or set skipCommittedBatches=false",
            batch.number,
            error,
            self.group,
        )

    def _offset(self, batch: BatchId) -> int:
        return digest_of(f"{self.query}/{batch.number}/{batch.digest}".encode())

    def _place(self, client: BlockingClient) -> MessageQueue:
        with client.producer(f"{self.group}-mark") as producer:
            return min(producer.queues(self.topic), key=lambda queue: (queue.broker_name, queue.queue_id))
