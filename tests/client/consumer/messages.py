"""Messages for the tests of consumers."""

from __future__ import annotations

from rmqkit.client import MessageQueue, ReceivedMessage

QUEUE = MessageQueue("T", "broker-a", 0)


def message(
    offset: int, size: int = 1, *, queue: MessageQueue = QUEUE, reconsume_times: int = 0
) -> ReceivedMessage:
    """A message of a queue with a body of `size` bytes."""
    return ReceivedMessage(
        topic=queue.topic,
        body=b"x" * size,
        tag=None,
        keys=(),
        properties={},
        queue=queue,
        queue_offset=offset,
        message_id=f"id-{offset}",
        offset_message_id=f"offset-id-{offset}",
        born_timestamp_ms=0,
        store_timestamp_ms=0,
        born_host="10.0.0.1:1",
        store_host="10.0.0.2:2",
        physical_offset=1000 * offset,
    )
