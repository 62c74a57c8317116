"""Result of a send (Java: SendResult, SendStatus)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec

from rmqkit.errors import ClientError, HeaderError
from rmqkit.model.queue import MessageQueue
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers import SendMessageResponseHeader


class SendStatus(Enum):
    """Status of a successful send. All four mean that the broker has the message. The last three name a stage
    required by its settings that was not reached in time."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


STATUS_OF_CODE: dict[int, SendStatus] = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """Where a message was stored.

    message_id        the id given by this client (property UNIQ_KEY); for a batch, the ids joined by commas
    offset_message_id the broker's id, which contains the position in its log; for a batch, joined by commas
    queue_offset      for a batch, that of its first message
    region_id         the broker's region; None when the answer has none
    trace_on          whether the broker asks for message traces
    recall_handle     of a message that waits for its time of delivery: `Producer.recall` takes it back by it
    """

    status: SendStatus
    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    region_id: str | None = None
    trace_on: bool = True
    recall_handle: str | None = None

    @property
    def is_ok(self) -> bool:
        """Whether every stage required by the broker's settings was reached."""
        return self.status is SendStatus.SEND_OK


def send_result(
    response: Command, status: SendStatus, queue: MessageQueue, message_id: str, address: str
) -> SendResult:
    """The result of a send from the answer of the broker. Raises ClientError when the answer lacks its
    fields."""
    try:
        header = response.header(SendMessageResponseHeader)
    except HeaderError as error:
        raise ClientError(f"{address} stored the message but its answer cannot be read: {error}") from error
    where = MessageQueue(queue.topic, queue.broker_name, header.queue_id)
    return SendResult(
        status,
        message_id,
        header.msg_id,
        where,
        header.queue_offset,
        header.transaction_id,
        header.region_id,
        header.trace_on is not False,
        header.recall_handle or None,
    )


def results_of_batch(whole: SendResult, message_ids: Sequence[str]) -> list[SendResult]:
    """The result of each message of a batch. A broker that keeps the batch as one record has one offset id
    for all of them."""
    offset_ids = whole.offset_message_id.split(",")
    if len(offset_ids) != len(message_ids):
        offset_ids = [whole.offset_message_id] * len(message_ids)
    return [
        SendResult(
            whole.status,
            message_id,
            offset_id,
            whole.queue,
            whole.queue_offset + number,
            whole.transaction_id,
            whole.region_id,
            whole.trace_on,
        )
        for number, (message_id, offset_id) in enumerate(zip(message_ids, offset_ids, strict=True))
    ]
