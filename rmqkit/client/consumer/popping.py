"""The requests of pop consumption: leases, their changes and acknowledgements (Java: MQClientAPIImpl; the
wire-protocol sheet, section 3.6)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from attrs import evolve

from rmqkit.client.answers import refusal
from rmqkit.client.consumer.lease import Lease
from rmqkit.client.consumer.received import received
from rmqkit.client.consumer.send_back import restored
from rmqkit.client.instance import Instance
from rmqkit.errors import (
    BrokerUnknown,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    DecodeError,
    HeaderError,
    RequestTimeout,
)
from rmqkit.model import properties as props
from rmqkit.model.route import compact
from rmqkit.model.subscription import SubscriptionData
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    NotificationRequestHeader,
    NotificationResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from rmqkit.protocol.receipt import (
    BatchAck,
    BatchAckMessageRequestBody,
    Receipt,
    parse_order_counts,
    parse_receipt,
    receipts,
)

log = logging.getLogger(__name__)

#: Messages of one request, as brokers limit them.
MAX_POP: Final = 32
#: The answer to a held request may take so much longer than its wait.
_ANSWER_MS: Final = 15_000
_FROM_FIRST, _FROM_LAST = 0, 1
#: Apache's brokers refuse a pop whose birth and wait are over by their clock: one that does not wait is born
#: so much later, for then a clock of this machine that is a little behind does no harm.
_TOLERATED_MS: Final = 15_000
#: In the remark of Apache's brokers to a pop that they take for an old one, by their clock.
_LATE = "timeout too much"
_NOTHING = frozenset({ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_TIMEOUT})


class Popper:
    """Pops for one group. Times in ms.

    order       "none"; "queue" or "key": what is kept in order
    from_first  whether a new group begins at the first message
    """

    def __init__(self, instance: Instance, group: str, *, order: str, from_first: bool) -> None:
        self._instance = instance
        self._group = group
        self._order = None if order == "none" else order
        self._from_first = from_first

    async def pop(
        self,
        broker_name: str,
        wanted: SubscriptionData,
        max_messages: int,
        *,
        lease_ms: int,
        wait_ms: int = 0,
    ) -> list[Lease]:
        """Lease up to `max_messages` messages of a topic at one broker, which waits up to `wait_ms` for the
        first one. Messages that the exact tag filter or a filter hook rejects are acknowledged.

        Raises BrokerError, ConnectFailed, ConnectionLost, RequestTimeout, BrokerUnknown, ClientError. When
        cancelled, what the broker leases meanwhile comes again after its lease.
        """
        header = PopMessageRequestHeader(
            consumer_group=self._group,
            topic=wanted.topic,
            queue_id=-1,
            max_msg_nums=min(max_messages, MAX_POP),
            invisible_time=lease_ms,
            poll_time=wait_ms,
            born_time=self._instance.now_ms() + max(0, _TOLERATED_MS - wait_ms),
            init_mode=_FROM_FIRST if self._from_first else _FROM_LAST,
            exp_type=wanted.expression_type,
            exp=wanted.sub_string,
            order=self._order is not None,
            order_by=self._order,
        )
        doing = f"popping from {wanted.topic!r}"
        address, answered = await self._call(
            broker_name, request(RequestCode.POP_MESSAGE, header), wait_ms + _ANSWER_MS
        )
        if answered.code in _NOTHING:
            if _LATE in (answered.remark or ""):
                differ = "whose clock differs from this machine's: set them"
                raise refusal(answered, address, f"{doing} at {broker_name}, {differ}")
            return []
        if answered.code != ResponseCode.SUCCESS:
            raise refusal(answered, address, doing)
        try:
            found = answered.header(PopMessageResponseHeader)
            leases = await self._leases(answered.body, found, broker_name)
        except (HeaderError, DecodeError) as error:
            raise ClientError(f"{doing}: the answer of {address} cannot be read: {error}") from error
        return await self._wanted(leases, wanted)

    async def _leases(self, body: bytes, header: PopMessageResponseHeader, broker_name: str) -> list[Lease]:
        handles = receipts(header, broker_name)
        counts = parse_order_counts(header.order_count_info)
        now_s = self._instance.backend.current_time()
        leases = []
        for message in (await received(body, broker_name)).messages:
            place = message.queue.queue_id, message.queue_offset
            text = message.properties.get(props.POP_CK)
            receipt = handles.get(place) if text is None else parse_receipt(text)
            if receipt is None:
                log.error(
                    "message %s of %s has no handle in the answer; the broker delivers it again",
                    message.message_id,
                    message.queue,
                )
                continue
            count = counts.get((receipt.retry, *place))
            if count:
                message = evolve(message, reconsume_times=count)
            message = restored(message, self._group, self._instance.names)
            ends_s = now_s + header.invisible_time / 1000
            topic = self._instance.names.wrapped(message.topic)
            leases.append(Lease(message, receipt, topic, since_s=now_s, ends_s=ends_s))
        return leases

    async def _wanted(self, leases: list[Lease], wanted: SubscriptionData) -> list[Lease]:
        """The leases that pass the exact filters; the others are acknowledged."""
        good = tuple(each.message for each in leases if each.message.fault is None)
        if wanted.is_tag and wanted.tags_set:
            # The broker compared hashes; different tags may have the same hash.
            good = tuple(each for each in good if each.tag in wanted.tags_set)
        if good:
            good = self._instance.hooks.filtered(self._group, good[0].queue, good)
        kept = {id(each) for each in good}
        passed = [each for each in leases if id(each.message) in kept or each.message.fault is not None]
        if len(passed) < len(leases):
            rejected = {*leases}.difference(passed)
            await self.ack(rejected)
        return passed

    async def ready(self, broker_name: str, wanted: SubscriptionData, wait_ms: int) -> bool:
        """Whether a pop would find messages, after up to `wait_ms`. Leases nothing. Raises as `pop`."""
        header = NotificationRequestHeader(
            consumer_group=self._group,
            topic=wanted.topic,
            queue_id=-1,
            poll_time=wait_ms,
            born_time=self._instance.now_ms(),
            order=self._order is not None,
            order_by=self._order,
        )
        address, answered = await self._call(
            broker_name, request(RequestCode.NOTIFICATION, header), wait_ms + _ANSWER_MS
        )
        if answered.code != ResponseCode.SUCCESS:
            raise refusal(answered, address, f"waiting for messages of {wanted.topic!r}")
        return answered.header(NotificationResponseHeader).has_msg

    async def ack(self, leases: Iterable[Lease]) -> None:
        """Acknowledge messages. A single one whose lease has ended raises BrokerError; among several it is
        passed over, and delivered again. Raises as `pop`. When cancelled, they may be acknowledged."""
        by_broker: dict[str, list[Lease]] = {}
        for lease in leases:
            by_broker.setdefault(lease.broker_name, []).append(lease)
        for broker_name, of_broker in by_broker.items():
            command = self._ack(of_broker[0]) if len(of_broker) == 1 else self._batch_ack(of_broker)
            address, answered = await self._call(broker_name, command)
            if answered.code != ResponseCode.SUCCESS:
                what = f"message {of_broker[0].message.message_id}"
                if len(of_broker) > 1:
                    what += f" and {len(of_broker) - 1} more"
                raise refusal(answered, address, f"acknowledging {what}")

    def _ack(self, lease: Lease) -> Command:
        header = AckMessageRequestHeader(
            consumer_group=self._group,
            topic=self._real_topic(lease),
            queue_id=lease.receipt.queue_id,
            extra_info=lease.receipt.text,
            offset=lease.offset,
        )
        return request(RequestCode.ACK_MESSAGE, header)

    def _batch_ack(self, leases: Sequence[Lease]) -> Command:
        runs: dict[tuple[str, Receipt], list[int]] = {}
        for lease in leases:
            runs.setdefault((lease.topic, lease.receipt._replace(offset=None)), []).append(lease.offset)
        acks = [
            BatchAck(
                group=self._group,
                topic=topic,
                retry=receipt.retry,
                start_offset=receipt.start_offset,
                queue_id=receipt.queue_id,
                revive_queue=receipt.revive_queue,
                pop_time_ms=receipt.pop_time_ms,
                invisible_ms=receipt.invisible_ms,
                bits=BatchAck.bits_of(receipt.start_offset, offsets),
            )
            for (topic, receipt), offsets in runs.items()
        ]
        body = BatchAckMessageRequestBody(broker_name=leases[0].broker_name, acks=acks)
        return request(RequestCode.BATCH_ACK_MESSAGE, body=compact(body))

    async def change(self, lease: Lease, lease_ms: int, *, suspend: bool = False) -> None:
        """Let a lease end `lease_ms` from now on; 0: at once. `suspend`: the next delivery does not count as
        another attempt. Raises as `pop`; BrokerError when the lease has ended. When cancelled, it may have
        been changed."""
        async with lease.changing:
            now_s = self._instance.backend.current_time()
            header = ChangeInvisibleTimeRequestHeader(
                consumer_group=self._group,
                topic=self._real_topic(lease),
                queue_id=lease.receipt.queue_id,
                extra_info=lease.receipt.text,
                offset=lease.offset,
                invisible_time=lease_ms,
                suspend=suspend,
            )
            address, answered = await self._call(
                lease.broker_name, request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
            )
            if answered.code != ResponseCode.SUCCESS:
                raise refusal(answered, address, f"changing the lease of {lease.message.message_id}")
            times = answered.header(ChangeInvisibleTimeResponseHeader)
            lease.receipt = lease.receipt._replace(
                start_offset=lease.offset,
                pop_time_ms=times.pop_time,
                invisible_ms=times.invisible_time,
                revive_queue=times.revive_qid,
                offset=lease.offset,
            )
            lease.ends_s = now_s + lease_ms / 1000

    def _real_topic(self, lease: Lease) -> str:
        return lease.receipt.topic(lease.topic, self._group)

    async def _call(
        self, broker_name: str, command: Command, timeout_ms: int | None = None
    ) -> tuple[str, Command]:
        instance = self._instance
        instance.check_usable()
        address = instance.routes.master(broker_name)
        if address is None:
            raise BrokerUnknown(f"broker {broker_name!r} has no master; its leases wait for one")
        try:
            wait_ms = instance.settings.call_timeout_ms if timeout_ms is None else timeout_ms
            answered = await instance.pool.call(address, command, wait_ms)
        except (ConnectFailed, ConnectionLost, RequestTimeout):
            instance.refresh_soon()
            raise
        if answered.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            # A failover may have made another broker the master.
            instance.refresh_soon()
        return address, answered
