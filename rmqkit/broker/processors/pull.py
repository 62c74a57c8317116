"""PULL_MESSAGE and LITE_PULL_MESSAGE with long polling (Java: PullMessageProcessor; behaviour sheet, C5; store-format sheet, section 8)."""

from __future__ import annotations

import logging
import os
from functools import partial

from attrs import define

from rmqkit.abc import CompiledFilter, NotInMemory, Outcome, Peer, ReadLimits, ReadResult, ReadStatus, Reply, RequestProcessor
from rmqkit.broker.clients import ConsumerGroup
from rmqkit.broker.context import BrokerContext
from rmqkit.broker.held_pulls import HeldPull
from rmqkit.broker.warming import again_when_warm
from rmqkit.errors import RequestRefused
from rmqkit.hooks import RCV_EPOLLS, RCV_SUCCESS, ConsumeContext, ConsumeMessageHook
from rmqkit.limits import MAX_HOLD_MS
from rmqkit.model.subscription import SQL92, TAG, SubscriptionData
from rmqkit.model.sysflag import PERM_READ, PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import PullMessageRequestHeader, PullMessageResponseHeader
from rmqkit.remoting.serve import error_answer

_log = logging.getLogger(__name__)
_UNIT_BYTES = 20
_MAX_CACHED_FILTERS = 1024
#: A client that is given at most this many bytes at a time gets at least its first message.
_MIN_TRANSFER_BYTES = 100

_CODES = {
    ReadStatus.FOUND: ResponseCode.SUCCESS,
    ReadStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}


@define(eq=False, slots=True)
class _Pull:
    """A checked pull."""

    request: Command
    header: PullMessageRequestHeader
    peer: Peer
    filter: CompiledFilter
    limits: ReadLimits


class PullProcessor(RequestProcessor):
    """Answers pulls with slices of the log, or holds them until there is something to answer."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._config = broker.config
        self._tell_hooks = broker.registry.consume_message_hooks.checked(ConsumeMessageHook, ("before", "after")).teller("before")
        self._filters: dict[tuple[object, ...], CompiledFilter] = {}
        machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._memory_bytes = machine_bytes * broker.config.access_message_in_memory_max_ratio // 100

    def process(self, request: Command, peer: Peer) -> Outcome:
        header = request.header(PullMessageRequestHeader)
        self._check(header)
        pull = _Pull(request, header, peer, self._filter(header), self._limits(header))
        may_hold = header.sys_flag & PULL_SUSPEND != 0
        try:
            result = self._read(pull, wait=False)
        except NotInMemory as missed:
            self._commit(header)
            return again_when_warm(self._broker.store, partial(self._answer, pull), missed)
        self._commit(header)
        code = _code(result.status, header.queue_offset)
        if code == ResponseCode.PULL_NOT_FOUND and may_hold and self._hold(pull, result):
            return None
        return self._reply(pull, result, code)

    def _commit(self, header: PullMessageRequestHeader) -> None:
        """The offset that came along, once, when the pull is read for the first time."""
        if header.sys_flag & PULL_SUSPEND and header.sys_flag & PULL_COMMIT_OFFSET:
            self._broker.offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)

    def _check(self, header: PullMessageRequestHeader) -> None:
        """Raises RequestRefused, in the order of the sheet."""
        broker = self._broker
        if not self._config.broker_permission & PERM_READ:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"broker {self._config.broker_name} may not be read now")
        group = broker.groups.get(header.consumer_group)
        if group is None:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"consumer group {header.consumer_group!r} does not exist")
        if not group.consume_enable:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"consumer group {header.consumer_group} may not consume (consumeEnable)")
        topic = broker.topics.get(header.topic)
        if topic is None:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST, f"topic {header.topic!r} does not exist at broker {self._config.broker_name}"
            )
        if not topic.readable:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"topic {header.topic} may not be read")
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"queue {header.queue_id} of topic {header.topic} does not exist, it has {topic.read_queue_nums}",
            )

    def _filter(self, header: PullMessageRequestHeader) -> CompiledFilter:
        if header.sys_flag & PULL_SUBSCRIPTION:
            kind, expression = header.expression_type or TAG, header.subscription or "*"
            return self._compiled(kind, expression, header)
        group = self._broker.clients.consumers.get(header.consumer_group)
        if group is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, f"consumer group {header.consumer_group} has sent no heartbeat to this broker yet"
            )
        self._check_group(group, header)
        subscription = group.subscriptions.get(header.topic)
        if subscription is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"consumer group {header.consumer_group} has not subscribed to {header.topic}: all its members must subscribe to the same topics",
            )
        if subscription.sub_version < header.sub_version:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"the subscription of {header.consumer_group} to {header.topic} is older than the request's",
            )
        return self._compiled(subscription.expression_type or TAG, subscription.sub_string, header, subscription)

    def _check_group(self, group: ConsumerGroup, header: PullMessageRequestHeader) -> None:
        settings = self._broker.groups.get(group.name)
        if settings is not None and not settings.consume_broadcast_enable and group.broadcasting:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"consumer group {header.consumer_group} may not consume by broadcasting")

    def _compiled(
        self, kind: str, expression: str, header: PullMessageRequestHeader, subscription: SubscriptionData | None = None
    ) -> CompiledFilter:
        # A heartbeat's subscription brings codes of its own, which need not be those of its text: one client's must not serve another.
        own = (tuple(subscription.code_set), tuple(subscription.tags_set), subscription.class_filter_mode) if subscription else ()
        key = (kind, expression, *own)
        found = self._filters.get(key)
        if found is not None:
            return found
        server = self._broker.registry.filter_servers.get(kind)
        if server is None:
            if kind == SQL92:
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, "The broker does not support consumer to filter message by SQL92")
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"no plugin filters by expressions of type {kind!r}")
        try:
            compiled = server.compile(subscription or server.subscription(header.topic, expression, header.sub_version))
        except ValueError as error:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"the subscription {expression!r} cannot be parsed: {error}"
            ) from error
        if len(self._filters) >= _MAX_CACHED_FILTERS:
            self._filters.clear()
        self._filters[key] = compiled
        return compiled

    def _limits(self, header: PullMessageRequestHeader) -> ReadLimits:
        config = self._config
        max_bytes = config.max_transfer_bytes_on_message_in_memory
        if header.max_msg_bytes is not None and header.max_msg_bytes > 0:
            max_bytes = max(_MIN_TRANSFER_BYTES, min(max_bytes, header.max_msg_bytes))
        count = max(1, min(header.max_msg_nums, config.max_transfer_count_on_message_in_memory))
        return ReadLimits(
            count,
            max_bytes,
            max(config.max_filter_message_size // _UNIT_BYTES, count),
            config.max_transfer_count_on_message_in_disk,
            config.max_transfer_bytes_on_message_in_disk,
            self._memory_bytes,
            wait=False,
        )

    def _read(self, pull: _Pull, wait: bool) -> ReadResult:
        header = pull.header
        limits = pull.limits._replace(wait=True) if wait else pull.limits
        return self._broker.store.read(header.topic, header.queue_id, header.queue_offset, limits, pull.filter.unit, pull.filter.record)

    def _hold(self, pull: _Pull, result: ReadResult) -> bool:
        header = pull.header
        hold_ms = header.suspend_timeout_millis if self._config.long_polling_enable else self._config.short_polling_time_mills
        # An empty queue is read at 0; what arrives there gets offset 0 or more.
        held = HeldPull(
            pull.request,
            pull.peer,
            header.queue_offset,
            self._broker.clock.now_ms() + min(max(hold_ms, 0), MAX_HOLD_MS),
            pull.filter.unit,
            partial(self._retry, pull),
        )
        return self._broker.held_pulls.hold(header.topic, header.queue_id, held)

    def _retry(self, pull: _Pull) -> None:
        """Second run of a held pull: it is answered now, whatever it finds, or as soon as that is in memory. It may run inside another client's send,
        which must neither wait for it nor fail."""
        try:
            pull.peer.respond(pull.request, self._answer(pull, wait=False))
        except NotInMemory as missed:
            pull.peer.defer(partial(self._retry_when_warm, pull, missed), 1)
        except Exception as error:  # noqa: BLE001 - see above
            pull.peer.respond(pull.request, error_answer(pull.request, error))

    async def _retry_when_warm(self, pull: _Pull, missed: NotInMemory) -> None:
        try:
            answered: Command | Reply = await again_when_warm(self._broker.store, partial(self._answer, pull), missed)
        except Exception as error:  # noqa: BLE001 - whatever it is, the peer waits for an answer
            answered = error_answer(pull.request, error)
        pull.peer.respond(pull.request, answered)

    def _answer(self, pull: _Pull, wait: bool) -> Command | Reply:
        """The answer to a pull that is not held (any more). Raises RequestRefused, NotInMemory unless `wait`."""
        self._check(pull.header)
        result = self._read(pull, wait)
        return self._reply(pull, result, _code(result.status, pull.header.queue_offset))

    def _reply(self, pull: _Pull, result: ReadResult, code: int) -> Command | Reply:
        header = PullMessageResponseHeader(
            suggest_which_broker_id=0,
            next_begin_offset=result.next_offset,
            min_offset=result.min_offset,
            max_offset=result.max_offset,
            topic_sys_flag=0,
            group_sys_flag=0,
        )
        head = answer(pull.request, code, result.status.value, header=header)
        if self._tell_hooks is not None:
            self._tell_hooks(_context(pull, result, code))
        if code != ResponseCode.SUCCESS:
            return head
        self._broker.stats.got(pull.header.consumer_group, pull.header.topic, result.message_count, result.total_bytes)
        return Reply(head, result.slices, result.total_bytes)


def _context(pull: _Pull, result: ReadResult, code: int) -> ConsumeContext:
    header = pull.header
    return ConsumeContext(
        request=pull.request,
        status=RCV_SUCCESS if code == ResponseCode.SUCCESS else RCV_EPOLLS,
        group=header.consumer_group,
        topic=header.topic,
        queue_id=header.queue_id,
        client_address=pull.peer.remote_text,
        code=code,
        message_count=result.message_count,
        body_bytes=result.total_bytes,
        offset=header.queue_offset,
        next_offset=result.next_offset,
    )


def _code(status: ReadStatus, offset: int) -> int:
    """Store status -> answer code; a queue without data answers by the offset asked for (store-format sheet, section 8.4)."""
    if status in (ReadStatus.NO_MATCHED_LOGIC_QUEUE, ReadStatus.NO_MESSAGE_IN_QUEUE):
        return ResponseCode.PULL_OFFSET_MOVED if offset != 0 else ResponseCode.PULL_NOT_FOUND
    return _CODES[status]
