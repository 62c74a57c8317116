"""CONSUMER_SEND_MSG_BACK: a message that a consumer could not process goes to its group's retry or
dead-letter topic (Java: AbstractSendMessageProcessor)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import randrange

from rmqkit.broker.processors import send_checks as checks
from rmqkit.errors import DecodeError, MessageIllegal, RequestRefused
from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.buffer import Buffer
from rmqkit.model.dead_letter import CAUSES, Why, reasons
from rmqkit.model.message import PutMessage, StoredMessage
from rmqkit.model.retries import own_retries, retries_of
from rmqkit.model.run import MessageRun
from rmqkit.model.sysflag import PERM_WRITE
from rmqkit.model.topic import SubscriptionGroupConfig, TopicConfig
from rmqkit.plugin.access import check_read
from rmqkit.plugin.hooks import SEND_BACK, SEND_BACK_TO_DLQ, ConsumeContext, ConsumeMessageHook
from rmqkit.plugin.request import EachRequest, Outcome, Peer
from rmqkit.plugin.request_broker import RequestBroker
from rmqkit.protocol import record
from rmqkit.protocol.codes import VERSION_MAX_RECONSUME_TIMES, ResponseCode, is_temporary
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import ConsumerSendMsgBackRequestHeader
from rmqkit.protocol.message_id import offset_message_id
from rmqkit.toolkit.cold_reads import read_cached
from rmqkit.toolkit.later import Due, Level, Time, mark_later
from rmqkit.toolkit.restored import restored
from rmqkit.toolkit.set_aside import Origin, set_aside
from rmqkit.toolkit.unsaved import when_saved

#: Delay level of the first retry; each further one uses the next level.
FIRST_RETRY_LEVEL = 3
#: The name under which messages are set aside.
_SERVICE = "send-back"


class SendBackProcessor(EachRequest):
    """Stores the record at a commit-log offset again in the group's retry topic, with a delay level, or in
    its dead-letter topic."""

    def __init__(self, broker: RequestBroker) -> None:
        self._broker = broker
        self._hooks = broker.registry.consume_message_hooks.checked(ConsumeMessageHook, ("before", "after"))

    def handle(self, request: Command, peer: Peer) -> Outcome:
        read = partial(self._send_back, request, peer)
        return when_saved(partial(read_cached, self._broker.store, read, request, peer), request, peer)

    def _send_back(self, request: Command, peer: Peer) -> Outcome:
        header = request.header(ConsumerSendMsgBackRequestHeader)
        broker = self._broker
        group = checks.group_of(broker, header.group)
        if not broker.config.broker_permission & PERM_WRITE:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"broker {broker.config.broker_name} takes no messages now"
            )
        if group.retry_queue_nums <= 0:
            # Java drops the message and answers SUCCESS.
            return answer(request)
        retry = checks.retry_topic(broker, group)
        if not retry.writable:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"topic {retry.topic_name} may not be written")
        found = self._found(header.offset)
        check_read(peer, request, found)
        try:
            original = record.unpack(found)
        except DecodeError as error:
            return self._set_aside(request, header, found, str(error))
        limit = group.retry_max_times
        if request.version >= VERSION_MAX_RECONSUME_TIMES and header.max_reconsume_times is not None:
            limit = header.max_reconsume_times
        if (own := own_retries(original.properties)) is not None:
            limit = own
        to_dead_letters = original.reconsume_times >= limit or header.delay_level < 0
        target = checks.dead_letter_topic(broker, header.group) if to_dead_letters else retry
        queue_id = 0 if to_dead_letters else randrange(max(target.write_queue_nums, 1))
        try:
            message = self._copy(original, target, queue_id, header, to_dead_letters=to_dead_letters)
            if not to_dead_letters:
                self._put_off(message, original.reconsume_times, header, group)
        except MessageIllegal as error:
            return self._set_aside(request, header, found, str(error))
        tell = partial(self._tell, request, header, original, peer, target)
        appended = broker.appender.append_durably(MessageRun([message]))
        (at,) = appended.results
        if isinstance(at, RequestRefused):
            tell(at.code)
            if is_temporary(at.code):
                raise at
            return self._set_aside(request, header, found, str(at))
        table = broker.stats.dead_lettered if to_dead_letters else broker.stats.sent_back
        table[header.group, original.topic].add(1)
        if appended.outcome is not None:
            return self._settled(request, tell, appended.outcome)
        ticket = peer.postpone((request,))
        appended.when_settled(lambda outcome: ticket.complete((self._settled(request, tell, outcome),)))
        return ticket

    def _settled(
        self, request: Command, tell: Callable[[int], None], outcome: int | RequestRefused
    ) -> Command:
        if outcome == ResponseCode.SUCCESS:
            tell(ResponseCode.SUCCESS)
            return answer(request)
        remark = "the message was sent back, but is not on disk yet"
        if isinstance(outcome, RequestRefused):
            remark = outcome.remark
        tell(ResponseCode.SYSTEM_ERROR)
        return answer(request, ResponseCode.SYSTEM_ERROR, remark)

    def _found(self, offset: int) -> Buffer:
        found = self._broker.store.read_record(offset) if offset >= 0 else None
        if found is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"no message begins at commit-log offset {offset}"
            )
        return found

    def _set_aside(
        self, request: Command, header: ConsumerSendMsgBackRequestHeader, found: Buffer, reason: str
    ) -> Command:
        """The answer for a message that can go neither to a retry topic nor to dead letters: SUCCESS, for it
        is set aside, and its consumer would send it back again and again. Raises RequestRefused when it
        cannot be set aside now; Unsaved."""
        self._broker.topics.require(names.SET_ASIDE_TOPIC, 1)
        place = record.peek_place(found)
        origin = Origin(_SERVICE, _topic_of(found, header), place.queue_id, place.queue_offset, header.offset)
        reason = f"sent back by group {header.group}: {reason}"
        if not set_aside(self._broker, origin, found, reason):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"the message at commit-log offset {header.offset} cannot be sent back: {reason}",
            )
        return answer(request)

    def _copy(
        self,
        original: StoredMessage,
        target: TopicConfig,
        queue_id: int,
        header: ConsumerSendMsgBackRequestHeader,
        *,
        to_dead_letters: bool,
    ) -> PutMessage:
        """The record to write: same body and birth, one more reconsumption."""
        properties = dict(original.properties)
        properties.setdefault(props.RETRY_TOPIC, names.owning_topic(original.topic))
        properties.setdefault(
            props.ORIGIN_MESSAGE_ID, offset_message_id(original.store_host, original.physical_offset)
        )
        for name in (props.DELAY, props.REAL_TOPIC, props.REAL_QUEUE_ID):
            properties.pop(name, None)
        if to_dead_letters:
            properties[props.DLQ_ORIGIN_TOPIC] = properties[props.RETRY_TOPIC]
            properties[props.DLQ_ORIGIN_MESSAGE_ID] = properties[props.ORIGIN_MESSAGE_ID]
            if header.cause in CAUSES:
                why = Why(header.cause, header.last_error or "")
                properties |= reasons(why, original.reconsume_times + 1)
        message = restored(original, target.topic_name, queue_id)
        message.reconsume_times += 1
        message.set_properties(properties)
        return message

    def _put_off(
        self,
        message: PutMessage,
        failed: int,
        header: ConsumerSendMsgBackRequestHeader,
        group: SubscriptionGroupConfig,
    ) -> None:
        """Have a retry delivered later: after the level that the consumer names, or that of its failures. If
        it names none and the message or its group has a retry policy, after the policy's delay; Java has
        levels alone."""
        policy = retries_of(group, message.properties).policy
        wanted: list[Due] = [Level(header.delay_level or FIRST_RETRY_LEVEL + failed)]
        if policy is not None and not header.delay_level:
            wanted.insert(0, Time(self._broker.clock.now_ms() + policy.delay_ms(failed)))
        for due in wanted:
            # A broker without timers has levels, and without those it delivers the retry at once.
            with suppress(RequestRefused):
                mark_later(self._broker, message, due)
                return

    def _tell(
        self,
        request: Command,
        header: ConsumerSendMsgBackRequestHeader,
        original: StoredMessage,
        peer: Peer,
        target: TopicConfig,
        code: int,
    ) -> None:
        """Show the result to the hooks. Java does so only when the client sends the original's id, which is
        always known here."""
        if not len(self._hooks):
            return
        context = ConsumeContext(
            request=request,
            status=SEND_BACK_TO_DLQ if target.topic_name.startswith(names.DLQ_PREFIX) else SEND_BACK,
            group=header.group,
            topic=original.properties.get(props.RETRY_TOPIC, original.topic),
            queue_id=original.queue_id,
            client_address=peer.remote_text,
            code=code,
            message_count=1,
            body_bytes=len(original.body),
            offset=original.queue_offset,
            target_topic=target.topic_name,
        )
        self._hooks.notify("after", context)


def _topic_of(found: Buffer, header: ConsumerSendMsgBackRequestHeader) -> str:
    """The topic in the record, or the one that the consumer names."""
    try:
        return record.unpack(found, check_crc=False).topic
    except DecodeError:
        return header.origin_topic or ""
