"""PULL_MESSAGE and LITE_PULL_MESSAGE with long polling (Java: PullMessageProcessor; behaviour sheet, C5;
store-format sheet, section 8)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter

import msgspec

from rmqkit.broker.processors.pull_answers import found_answer
from rmqkit.broker.pulling.filtered_reads import FilteredRead
from rmqkit.broker.roles.role_refusals import pull_refusal
from rmqkit.errors import RequestRefused
from rmqkit.limits import MAX_HOLD_MS, MAX_SEQUENTIAL_PULL_BYTES, MAX_SEQUENTIAL_PULL_MESSAGES
from rmqkit.model.route import MASTER_ID
from rmqkit.model.sysflag import PERM_READ, PULL_COMMIT_OFFSET, PULL_SUSPEND
from rmqkit.model.topic import SubscriptionGroupConfig
from rmqkit.plugin.filter import CompiledFilter
from rmqkit.plugin.held import HeldRequest
from rmqkit.plugin.hooks import RCV_EPOLLS, RCV_SUCCESS, ConsumeContext, ConsumeMessageHook
from rmqkit.plugin.request import Answer, Outcome, Peer, RequestProcessor, Ticket
from rmqkit.plugin.request_broker import RequestBroker
from rmqkit.plugin.store import NotInMemory, ReadLimits, ReadResult, ReadStatus
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.error_answer import error_answer
from rmqkit.protocol.headers import PullMessageRequestHeader
from rmqkit.protocol.headers.pull import pull_answer_fields
from rmqkit.toolkit.cold_reads import hot_bytes, retry_when_cached
from rmqkit.toolkit.unsaved import Unsaved

_log = logging.getLogger(__name__)
_UNIT_BYTES = 20
#: Numbers of messages whose limits are kept.
_KEPT_LIMITS = 64
#: A held pull keeps the text of its header, the subscription decoded from it, and the filter compiled from
#: that.
_TEXT_COPIES = 3
#: A client whose limit is at most this many bytes still gets its first message.
_MIN_TRANSFER_BYTES = 100

_SUCCESS, _NOT_FOUND = int(ResponseCode.SUCCESS), int(ResponseCode.PULL_NOT_FOUND)
_REJECTED = ReadStatus.NO_MATCHED_MESSAGE
_CODES = {
    ReadStatus.FOUND: ResponseCode.SUCCESS,
    ReadStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_RESET: ResponseCode.PULL_OFFSET_MOVED,
}


class _Pull(msgspec.Struct, eq=False, gc=False):
    """A checked pull, read from `offset` on. Calling it runs a held pull again. Like HeldRequest, it refers
    to no object of its own that the garbage collector would visit."""

    processor: PullProcessor
    request: Command
    header: PullMessageRequestHeader
    peer: Peer
    filter: CompiledFilter
    offset: int
    ticket: Ticket | None = None
    #: When it is answered at the latest, once it has been held.
    deadline_ms: int = 0
    #: Whether it is held for a member of its group.
    of_member: bool = False

    def __call__(self, final: bool) -> tuple[int, ...] | None:
        return self.processor.retry(self, final)


class PullProcessor(RequestProcessor):
    """Answers pulls with slices of the log, or holds them until there is an answer."""

    #: An answer is large.
    max_run = 1

    def __init__(self, broker: RequestBroker) -> None:
        self._broker = broker
        self._tell_hooks = broker.registry.consume_message_hooks.checked(
            ConsumeMessageHook, ("before", "after")
        ).teller("before")
        self._filters = broker.filters
        #: By the number of messages, for pulls that set no further limits.
        self._plain_limits: dict[int, ReadLimits] = {}
        broker.role.on_change.append(self._role_changed)
        broker.on_config_change.append(self._plain_limits.clear)

    def _role_changed(self) -> None:
        """Held pulls are refused by a broker from which messages may no longer be read."""
        if self._refusal() is not None:
            self._broker.held.end_all()

    def _refusal(self) -> tuple[int, str] | None:
        """The reason why the role of the broker permits no pull."""
        broker = self._broker
        return pull_refusal(
            broker.role, broker.replication.group, may_read_slave=broker.config.slave_read_enable
        )

    def process(self, requests: Sequence[Command], peer: Peer) -> Sequence[Outcome]:
        return [self._answered(request, peer) for request in requests]

    def _answered(self, request: Command, peer: Peer) -> Outcome:
        try:
            header = request.header(PullMessageRequestHeader)
            self._check(header)
            pull = _Pull(self, request, header, peer, self._filters.of(header), header.queue_offset)
            self._commit(header)
            if pull.filter.needs_records:
                return self._filtered(pull)
            result = self._read(pull)
            code = _code(result.status, header.queue_offset)
            if code == _NOT_FOUND and header.sys_flag & PULL_SUSPEND and self._hold(pull):
                return pull.ticket
            return self._reply(pull, result, code)
        except Unsaved as unsaved:
            return peer.answer_async(request, partial(self._answered_when_saved, request, peer, unsaved))
        except NotInMemory as missed:
            again = partial(retry_when_cached, self._broker.store, partial(self._answer, pull), missed)
            return peer.answer_async(request, again)
        except Exception as error:  # noqa: BLE001 - whatever a processor raises must become an answer
            return error_answer(request, error)

    async def _answered_when_saved(self, request: Command, peer: Peer, unsaved: Unsaved) -> Outcome:
        """Wait for the new group to be saved, then answer the pull. Raises RequestRefused."""
        await unsaved.change.done()
        return self._answered(request, peer)

    def _commit(self, header: PullMessageRequestHeader) -> None:
        """Commit the offset included in the request, once, before the first read; not an offset made invalid
        by a reset."""
        if header.sys_flag & PULL_SUSPEND and header.sys_flag & PULL_COMMIT_OFFSET:
            offsets, place = self._broker.offsets, (header.consumer_group, header.topic, header.queue_id)
            if offsets.resets.get(*place) is None:
                offsets.commit(*place, header.commit_offset)

    def _check(self, header: PullMessageRequestHeader) -> None:
        """Check the request in the order of the sheet. Raises RequestRefused; Unsaved while the group is
        being created."""
        broker = self._broker
        refusal = self._refusal()
        if refusal is not None:
            raise RequestRefused(*refusal)
        if not self._broker.config.broker_permission & PERM_READ:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"broker {self._broker.config.broker_name} may not be read now"
            )
        group = broker.groups.get(header.consumer_group)
        if group is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"consumer group {header.consumer_group!r} does not exist",
            )
        if not group.consume_enable:
            raise RequestRefused(ResponseCode.NO_PERMISSION, group.consume_refusal)
        topic = broker.topics.get(header.topic)
        if topic is None:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {header.topic!r} does not exist at broker {self._broker.config.broker_name}",
            )
        if not topic.readable:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"topic {header.topic} may not be read")
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"queue {header.queue_id} of topic {header.topic} does not exist, it has"
                f" {topic.read_queue_nums}",
            )

    def _is_member(self, pull: _Pull) -> bool:
        group = self._broker.clients.consumers.get(pull.header.consumer_group)
        return group is not None and pull.peer in group.members

    def _check_member(self, pull: _Pull) -> None:
        """Check that the consumer for which a pull was held is still there: otherwise its answer would move
        the group's progress without being read. Raises RequestRefused."""
        if pull.of_member and not self._is_member(pull):
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"this client has left the consumer group {pull.header.consumer_group}, its pull was held",
            )

    def _limits(self, header: PullMessageRequestHeader) -> ReadLimits:
        config = self._broker.config
        most = min(config.max_transfer_bytes_on_sequential_pull, MAX_SEQUENTIAL_PULL_BYTES)
        sequential_bytes = min(header.sequential_bytes or 0, most)
        if sequential_bytes > 0:
            count = max(1, min(header.max_msg_nums, MAX_SEQUENTIAL_PULL_MESSAGES))
            return ReadLimits(count, sequential_bytes, count, count, sequential_bytes)
        max_bytes = config.max_transfer_bytes_on_message_in_memory
        if header.max_msg_bytes is not None and header.max_msg_bytes > 0:
            max_bytes = max(_MIN_TRANSFER_BYTES, min(max_bytes, header.max_msg_bytes))
        count = max(1, min(header.max_msg_nums, config.max_transfer_count_on_message_in_memory))
        limits = ReadLimits(
            count,
            max_bytes,
            max(config.max_filter_message_size // _UNIT_BYTES, count),
            config.max_transfer_count_on_message_in_disk,
            config.max_transfer_bytes_on_message_in_disk,
            hot_bytes(config.access_message_in_memory_max_ratio),
        )
        if not header.max_msg_bytes and len(self._plain_limits) < _KEPT_LIMITS:
            self._plain_limits[header.max_msg_nums] = limits
        return limits

    def _read(self, pull: _Pull) -> ReadResult:
        """The result of the pull; records the group's progress. Raises NotInMemory."""
        header, store = pull.header, self._broker.store
        result = self._reset(header)
        if result is None:
            limits = self._plain_limits.get(header.max_msg_nums)
            if limits is None or header.sequential_bytes or header.max_msg_bytes:
                limits = self._limits(header)
            began_s = perf_counter()
            result = store.read(header.topic, header.queue_id, pull.offset, limits, pull.filter.unit)
            self._broker.stats.read_took(perf_counter() - began_s)
        return self._noted(pull, result)

    def _reset(self, header: PullMessageRequestHeader) -> ReadResult | None:
        """The result when the group's offset was reset."""
        place = header.topic, header.queue_id
        reset = self._broker.offsets.resets.take(header.consumer_group, *place)
        if reset is None:
            return None
        ends = self._broker.store.min_offset(*place), self._broker.store.max_offset(*place)
        return ReadResult(ReadStatus.OFFSET_RESET, reset, *ends, [])

    def _noted(self, pull: _Pull, result: ReadResult) -> ReadResult:
        """Record the group's progress."""
        header = pull.header
        if result.status is ReadStatus.FOUND:
            self._broker.stats.found_pulls += 1
        else:
            self._broker.stats.missed_pulls += 1
        self._broker.offsets.pulled.set(
            header.consumer_group, header.topic, header.queue_id, result.next_offset
        )
        return result

    def _filtered(self, pull: _Pull, final: bool = False) -> Outcome:
        """The outcome of a pull whose filter needs the records: at once if one window of them is enough, else
        by a task. Raises RequestRefused."""
        result = self._reset(pull.header)
        if result is None:
            read = self._filtered_read(pull)
            if pull.filter.records is not None:
                with suppress(NotInMemory):
                    result = read.step()
            if result is None:
                return pull.peer.answer_async(pull.request, partial(self._finished, pull, read, final))
        return self._held_or_answered(pull, result, final)

    def _filtered_read(self, pull: _Pull) -> FilteredRead:
        header, store = pull.header, self._broker.store
        return FilteredRead(
            store,
            header.topic,
            header.queue_id,
            pull.offset,
            self._limits(header),
            store.end_offset,
            pull.filter,
        )

    async def _finished(self, pull: _Pull, read: FilteredRead, final: bool) -> Outcome:
        """Check again after the last window, then answer or hold. Raises RequestRefused."""
        result = await read.finish()
        self._check(pull.header)
        return self._held_or_answered(pull, result, final)

    def _held_or_answered(self, pull: _Pull, result: ReadResult, final: bool) -> Outcome:
        """Hold a pull whose filter has rejected everything up to the end of the queue. Consumers that match
        one message in a million would otherwise pull without a pause."""
        self._noted(pull, result)
        code = _code(result.status, pull.offset)
        if code == _NOT_FOUND or _rejected_all(result):
            pull.offset = result.next_offset
            in_time = not pull.deadline_ms or pull.deadline_ms > self._broker.clock.now_ms()
            if not final and in_time and pull.header.sys_flag & PULL_SUSPEND and self._hold(pull):
                assert pull.ticket is not None, "a held pull has one"
                return pull.ticket
        return self._reply(pull, result, code)

    def _hold(self, pull: _Pull) -> bool:
        header = pull.header
        if not pull.deadline_ms:
            hold_ms = (
                header.suspend_timeout_millis
                if self._broker.config.long_polling_enable
                else self._broker.config.short_polling_time_mills
            )
            pull.deadline_ms = self._broker.clock.now_ms() + min(max(hold_ms, 0), MAX_HOLD_MS)
        pull.of_member = self._is_member(pull)
        # An empty queue is read at 0; new messages get offset 0 or more.
        held = HeldRequest(
            pull.request,
            pull.peer,
            ((header.topic, header.queue_id),),
            (pull.offset,),
            pull.deadline_ms,
            pull.filter.unit,
            pull,
            len(pull.request.body) + len(pull.request.ext_json) * _TEXT_COPIES,
        )
        if not self._broker.held.hold(held):
            return False
        pull.ticket = pull.peer.postpone((pull.request,), held=True)
        return True

    def retry(self, pull: _Pull, final: bool) -> tuple[int, ...] | None:
        """Run a held pull again (HeldRequest.retry). It is answered now, or when its data is in memory,
        unless its filter rejects all new messages. Raises nothing."""
        outcome: Outcome | None
        try:
            self._check(pull.header)
            self._check_member(pull)
            if pull.filter.needs_records:
                outcome = self._filtered_again(pull, final)
            else:
                result = self._read(pull)
                if not final and _rejected_all(result):
                    pull.offset = result.next_offset
                    return (pull.offset,)
                outcome = self._reply(pull, result, _code(result.status, pull.offset))
        except NotInMemory as missed:
            again = partial(retry_when_cached, self._broker.store, partial(self._answer, pull), missed)
            outcome = pull.peer.answer_async(pull.request, again)
        except Exception as error:  # noqa: BLE001 - the peer needs an answer to every error
            outcome = error_answer(pull.request, error)
        if outcome is None:
            return (pull.offset,)
        assert pull.ticket is not None, "only a held pull is run again"
        pull.ticket.complete((outcome,))
        return None

    def _filtered_again(self, pull: _Pull, final: bool) -> Outcome | None:
        """The outcome of a held pull whose filter needs the records. None: the records up to `pull.offset` do
        not match, and it stays held. Raises RequestRefused, NotInMemory."""
        result = self._reset(pull.header)
        if result is None:
            if pull.filter.records is None:
                return self._filtered(pull, final)
            read = self._filtered_read(pull)
            result = read.step() or read.result()
            if not final and result.status is _REJECTED and result.next_offset > pull.offset:
                pull.offset = result.next_offset
                return None
        return self._reply(pull, self._noted(pull, result), _code(result.status, pull.offset))

    def _answer(self, pull: _Pull) -> Outcome:
        """The answer to a pull that is not held or no longer held. Raises RequestRefused, NotInMemory."""
        self._check(pull.header)
        if pull.filter.needs_records:
            return self._filtered(pull, final=True)
        result = self._read(pull)
        return self._reply(pull, result, _code(result.status, pull.offset))

    def _reply(self, pull: _Pull, result: ReadResult, code: int) -> Answer:
        """The answer to a pull, with records if there are any. Raises NotInMemory."""
        suggested = self._suggested(pull, result) if self._broker.config.slave_read_enable else MASTER_ID
        if self._tell_hooks is not None:
            self._tell_hooks(_context(pull, result, code))
        if code != _SUCCESS:
            head = answer(pull.request, code, result.status.value)
            head.ext = pull_answer_fields(result.next_offset, result.min_offset, result.max_offset, suggested)
            return head
        self._broker.stats.got(
            pull.header.consumer_group, pull.header.topic, result.message_count, result.total_bytes
        )
        return found_answer(pull.request, result, suggested)

    def _suggested(self, pull: _Pull, result: ReadResult) -> int:
        """The id of the broker from which the group reads next (Java: PullMessageProcessor): a slave, by
        default the one with id 1, if the next message is farther from the end of the log than the part that
        counts as in memory. Raises NotInMemory."""
        broker, header = self._broker, pull.header
        group = broker.groups.configs.get(header.consumer_group) or SubscriptionGroupConfig(group_name="")
        units = broker.store.read_units(header.topic, header.queue_id, result.next_offset, 1)
        memory_bytes = self._limits(header).memory_bytes
        if units and broker.store.end_offset - units[0].physical_offset > memory_bytes:
            return group.which_broker_when_consume_slowly
        return group.broker_id


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


def _rejected_all(result: ReadResult) -> bool:
    """Whether the filter has rejected all messages up to the end of the queue."""
    return result.status is _REJECTED and result.next_offset >= result.max_offset


def _code(status: ReadStatus, offset: int) -> int:
    """Store status -> answer code; for a queue without data it depends on the requested offset (store-format
    sheet, section 8.4)."""
    if status in (ReadStatus.NO_MATCHED_LOGIC_QUEUE, ReadStatus.NO_MESSAGE_IN_QUEUE):
        return ResponseCode.PULL_OFFSET_MOVED if offset != 0 else ResponseCode.PULL_NOT_FOUND
    return _CODES[status]
