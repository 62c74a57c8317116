"""One pull: its request, its answer and the exact tag filter (Java: PullAPIWrapper, PullResult; wire-protocol
sheet, section 3.2)."""

from __future__ import annotations

import re
from enum import Enum
from operator import attrgetter

from attrs import evolve, frozen

from rmqkit.client.answers import refusal
from rmqkit.client.consumer.received import Decoded, ReceivedMessage, received
from rmqkit.client.instance import Instance
from rmqkit.client.routing.filter_servers import FilterServerChoice
from rmqkit.errors import BrokerError, ClientError, ConnectFailed, ConnectionLost, HeaderError, RequestTimeout
from rmqkit.limits import MAX_INFLATED_BODY_BYTES
from rmqkit.model import properties as props
from rmqkit.model.queue import MessageQueue
from rmqkit.model.subscription import CLASS, TAG, SubscriptionData, tag_subscription
from rmqkit.model.sysflag import (
    PULL_CLASS_FILTER,
    PULL_COMMIT_OFFSET,
    PULL_LITE,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
)
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import PullMessageRequestHeader, PullMessageResponseHeader


class PullStatus(Enum):
    """Status of a pull. FOUND: the exact tag filter may still have left no message. OFFSET_ILLEGAL: continue
    at `next_offset`."""

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
    """Result of a pull. Offsets are queue offsets; `max_offset` is the offset of the next message to be
    stored."""

    status: PullStatus
    messages: tuple[ReceivedMessage, ...]
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int = 0


#: Marks of a condition over properties that hardly occur in a tag: comparisons, word operators, a single bar,
#: `&&`.
_CONDITION = re.compile(
    r"[<>=]|&&|(?<!\|)\|(?!\|)|\bis\s+(not\s+)?null\b|\bin\s*\(|\bbetween\b.+\band\b|\b(like|contains|startswith|endswith)\s*'",
    re.IGNORECASE,
)


def check_expression(expression: str, expression_type: str | None) -> str:
    """The type of an expression, TAG by default. Raises ClientError when the expression is not text, and when
    no type is given and it looks like a condition.

    Java accepts any text as a tag, so a condition without a type becomes a tag that no message has, and the
    consumer waits forever. For a tag that really looks like a condition, the type TAG must be given.
    """
    if not isinstance(expression, str):
        raise TypeError(f"the expression is a str such as 'A || B', not {type(expression).__name__}")
    try:
        expression.encode()
    except UnicodeEncodeError as error:
        raise ClientError(
            f"the expression {expression!r} holds half of a surrogate pair, which is not text; cut texts"
            " between characters"
        ) from error
    if expression_type is not None:
        return expression_type
    found = _CONDITION.search(expression)
    if found is not None:
        raise ClientError(
            f"the expression {expression!r} looks like a condition ({found.group().strip()!r}), but it is"
            ' taken for tags and would match nothing. Write tags joined by ||, as in "A || B", or * for all.'
            ' A condition needs expression_type="SQL92" and a broker that has SQL92 filters; a tag that is'
            ' really spelled so needs expression_type="TAG"'
        )
    return TAG


def subscription(topic: str, expression: str, expression_type: str | None, version: int) -> SubscriptionData:
    """The subscription for the heartbeat and the exact filter. Raises ClientError when a tag expression
    cannot be parsed, and as `check_expression`."""
    kind = check_expression(expression, expression_type)
    if kind == CLASS:
        return SubscriptionData(
            topic=topic, sub_string=expression, class_filter_mode=True, sub_version=version
        )
    if kind != TAG:
        return SubscriptionData(topic=topic, sub_string=expression, expression_type=kind, sub_version=version)
    try:
        return tag_subscription(topic, expression, version)
    except ValueError as error:
        raise ClientError(str(error)) from error


def pull_command(
    group: str,
    queue: MessageQueue,
    offset: int,
    wanted: SubscriptionData,
    max_messages: int,
    suspend_ms: int,
    commit_offset: int = 0,
    *,
    lite: bool = False,
) -> Command:
    """A pull request that contains the subscription; with `suspend_ms` > 0 the broker holds it until a
    message arrives. With `commit_offset` > 0 the broker also commits that offset. `lite`: the request of lite
    pull consumers. A filter server knows the subscription already."""
    by_class = wanted.class_filter_mode
    header = PullMessageRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=max_messages,
        sys_flag=(PULL_CLASS_FILTER if by_class else PULL_SUBSCRIPTION)
        | (PULL_SUSPEND if suspend_ms > 0 else 0)
        | (PULL_COMMIT_OFFSET if commit_offset > 0 else 0)
        | (PULL_LITE if lite and not by_class else 0),
        commit_offset=commit_offset,
        suspend_timeout_millis=suspend_ms,
        subscription=None if by_class else wanted.sub_string,
        sub_version=0 if wanted.is_tag else wanted.sub_version,
        expression_type=wanted.expression_type,
    )
    return request(
        RequestCode.LITE_PULL_MESSAGE if lite and not by_class else RequestCode.PULL_MESSAGE, header
    )


def pull_answer(
    response: Command, queue: MessageQueue, address: str
) -> tuple[PullStatus, PullMessageResponseHeader]:
    """The content of an answer except its records. Raises BrokerError, ClientError (unreadable header)."""
    status = STATUS_OF_CODE.get(response.code)
    if status is None:
        raise refusal(response, address, f"pulling from {queue}")
    try:
        return status, response.header(PullMessageResponseHeader)
    except HeaderError as error:
        raise ClientError(
            f"the answer of {address} to a pull from {queue} cannot be read: {error}"
        ) from error


async def pull_result(
    response: Command,
    queue: MessageQueue,
    offset: int,
    wanted: SubscriptionData,
    address: str,
    room_bytes: int = MAX_INFLATED_BODY_BYTES,
) -> PullResult:
    """Decode the answer to a pull at `offset`. When decompressed bodies have taken `room_bytes`, the result
    ends, and `next_offset` is that of the message behind it. Raises BrokerError, ClientError (unreadable
    header)."""
    status, header = pull_answer(response, queue, address)
    bounds = {props.MIN_OFFSET: str(header.min_offset), props.MAX_OFFSET: str(header.max_offset)}
    found, following = Decoded([], complete=True), header.next_begin_offset
    if status is PullStatus.FOUND:
        found = await received(
            response.body, queue.broker_name, queue, bounds, room_bytes=room_bytes, in_parts=True
        )
    messages = found.messages
    if not found.complete:
        messages, following = _placed(messages, offset, following)
    if wanted.is_tag and wanted.tags_set:
        # The broker compared hashes; different tags may have the same hash. A damaged record has no tag.
        tags = set(wanted.tags_set)
        messages = [
            each for each in messages if each.tag in tags or (each.fault is not None and each.tag is None)
        ]
    return PullResult(
        status,
        tuple(messages),
        following,
        header.min_offset,
        header.max_offset,
        header.suggest_which_broker_id,
    )


def _placed(messages: list[ReceivedMessage], offset: int, end: int) -> tuple[list[ReceivedMessage], int]:
    """The messages of an incomplete answer to a pull at `offset`, and the offset of the next pull, `end` at
    most. A damaged last message may claim any offset: an impossible one is replaced if it is the only
    message, else the next pull gets it as the first one."""
    *before, last = messages
    first = before[-1].queue_offset + 1 if before else offset
    if last.fault is not None and not first <= last.queue_offset < end:
        if before:
            return before, first
        last = evolve(last, queue_offset=offset)
    return [*before, last], last.queue_offset + 1


class Puller:
    """Pulls for one group, from the broker that the last answer for a queue suggested, master or slave, or
    from one of its filter servers."""

    def __init__(self, instance: Instance, group: str, *, lite: bool = False) -> None:
        self._instance = instance
        self._group = group
        self._lite = lite
        self._suggested: dict[MessageQueue, int] = {}
        self._filter_servers = FilterServerChoice(instance, group)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        wanted: SubscriptionData,
        *,
        max_messages: int,
        hold_ms: int,
        timeout_ms: int,
        commit_offset: int = 0,
        room_bytes: int = MAX_INFLATED_BODY_BYTES,
    ) -> PullResult:
        """One pull, which the broker may hold for `hold_ms`. The messages have passed the exact tag filter
        and the filter hooks, which see no message that cannot be decoded. A master also commits
        `commit_offset` if it is above 0. The result ends when decompressed bodies have taken `room_bytes`.

        Raises BrokerError, ConnectFailed, ConnectionLost, RequestTimeout, NoRoute, ClientError. When
        cancelled, the answer to a held request is dropped.
        """
        instance = self._instance
        address = await instance.reader_address(queue, self._suggested.get(queue, 0))
        if address != instance.routes.master(queue.broker_name):
            commit_offset = 0
        if wanted.class_filter_mode:
            commit_offset = 0
        command = pull_command(
            self._group, queue, offset, wanted, max_messages, hold_ms, commit_offset, lite=self._lite
        )
        try:
            if wanted.class_filter_mode:
                address = await self._filter_servers.address(queue, wanted, address)
            response = await instance.pool.call(address, command, timeout_ms)
            result = await pull_result(response, queue, offset, wanted, address, room_bytes)
        except (ConnectFailed, ConnectionLost, RequestTimeout):
            # The suggested slave or the filter server may be gone: the next pull goes to the master, and the
            # route is refreshed.
            self._suggested.pop(queue, None)
            self._filter_servers.forget(address)
            instance.refresh_soon()
            raise
        except BrokerError as error:
            # A filter server that was restarted does not have the group's filter.
            self._filter_servers.forget(address)
            if address != instance.routes.master(queue.broker_name):
                # What a slave refuses, its master may know: a slave copies topics and groups later.
                self._suggested.pop(queue, None)
            if error.code == ResponseCode.SERVICE_NOT_AVAILABLE:
                # A failover may have made another broker the master.
                self._suggested.pop(queue, None)
                instance.refresh_soon()
            raise
        self._suggested[queue] = result.suggested_broker_id
        return evolve(result, messages=self._filtered(queue, result.messages))

    def _filtered(
        self, queue: MessageQueue, messages: tuple[ReceivedMessage, ...]
    ) -> tuple[ReceivedMessage, ...]:
        good = tuple(each for each in messages if each.fault is None)
        kept = self._instance.hooks.filtered(self._group, queue, good)
        if len(good) == len(messages):
            return kept
        bad = (each for each in messages if each.fault is not None)
        return tuple(sorted((*kept, *bad), key=attrgetter("queue_offset")))

    def forget(self, queue: MessageQueue) -> None:
        """Forget the suggestion for a queue."""
        self._suggested.pop(queue, None)
