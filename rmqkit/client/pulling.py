"""One pull: its request, its answer, the exact tag filter (Java: PullAPIWrapper, PullResult; wire-protocol sheet, section 3.2)."""

from __future__ import annotations

from enum import Enum

from attrs import frozen

from rmqkit.client.answers import refusal
from rmqkit.client.received import ReceivedMessage, received
from rmqkit.errors import ClientError, HeaderError
from rmqkit.model import properties as props
from rmqkit.model.queue import MessageQueue
from rmqkit.model.subscription import TAG, SubscriptionData, tag_subscription
from rmqkit.model.sysflag import PULL_SUBSCRIPTION, PULL_SUSPEND
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import PullMessageRequestHeader, PullMessageResponseHeader


class PullStatus(Enum):
    """FOUND: there may still be no message after the exact tag filter. OFFSET_ILLEGAL: go on from `next_offset`."""

    FOUND = "FOUND"
    NO_NEW_MESSAGE = "NO_NEW_MESSAGE"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


STATUS_OF_CODE: dict[int, PullStatus] = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MESSAGE,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED_MESSAGE,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}


@frozen
class PullResult:
    """What a pull brought. Offsets are queue offsets; `max_offset` is the offset the next message stored will get."""

    status: PullStatus
    messages: tuple[ReceivedMessage, ...]
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int = 0


def subscription(topic: str, expression: str, expression_type: str, version: int) -> SubscriptionData:
    """What the heartbeat and the exact filter need. Raises ClientError when a tag expression does not parse."""
    if expression_type != TAG:
        return SubscriptionData(topic=topic, sub_string=expression, expression_type=expression_type, sub_version=version)
    try:
        return tag_subscription(topic, expression, version)
    except ValueError as error:
        raise ClientError(str(error)) from error


def pull_command(group: str, queue: MessageQueue, offset: int, wanted: SubscriptionData, max_messages: int, suspend_ms: int) -> Command:
    """A pull request with the subscription inside; with `suspend_ms` > 0 the broker holds it until a message comes."""
    header = PullMessageRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=max_messages,
        sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if suspend_ms > 0 else 0),
        suspend_timeout_millis=suspend_ms,
        subscription=wanted.sub_string,
        sub_version=0 if wanted.is_tag else wanted.sub_version,
        expression_type=wanted.expression_type,
    )
    return request(RequestCode.PULL_MESSAGE, header)


def pull_answer(response: Command, queue: MessageQueue, address: str) -> tuple[PullStatus, PullMessageResponseHeader]:
    """What an answer says besides its records. Raises BrokerError, ClientError (unreadable header)."""
    status = STATUS_OF_CODE.get(response.code)
    if status is None:
        raise refusal(response, address, f"pulling from {queue}")
    try:
        return status, response.header(PullMessageResponseHeader)
    except HeaderError as error:
        raise ClientError(f"the answer of {address} to a pull from {queue} cannot be read: {error}") from error


async def pull_result(response: Command, queue: MessageQueue, wanted: SubscriptionData, address: str) -> PullResult:
    """Read the answer. Raises BrokerError, ClientError (unreadable header or body), DecodeError (damaged records)."""
    status, header = pull_answer(response, queue, address)
    bounds = {props.MIN_OFFSET: str(header.min_offset), props.MAX_OFFSET: str(header.max_offset)}
    messages = await received(response.body, queue.broker_name, queue, bounds) if status is PullStatus.FOUND else []
    if wanted.is_tag and wanted.tags_set:
        # The broker compared hashes; different tags may share one.
        tags = set(wanted.tags_set)
        messages = [message for message in messages if message.tag in tags]
    return PullResult(
        status, tuple(messages), header.next_begin_offset, header.min_offset, header.max_offset, header.suggest_which_broker_id
    )
