"""The hooks that count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter

from rmqkit.abc import Appended, Peer
from rmqkit.errors import HeaderError
from rmqkit.hooks import ConsumeContext, ConsumeMessageHook, ManyRequestsHook, ManySendsHook, SendContext, SentTogether
from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.message_type import MessageType
from rmqkit.model.sysflag import PULL_SUSPEND
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers import CreateTopicRequestHeader, PullMessageRequestHeader
from rmqkit_hook_metrics.counting import Counts

#: Label values of message types (Java: TopicMessageType.getMetricsValue).
TYPE_LABELS = {
    MessageType.NORMAL: "normal",
    MessageType.ORDER: "fifo",
    MessageType.DELAY: "delay",
    MessageType.HALF: "transaction",
    MessageType.COMMIT: "transaction",
}
_NORMAL, _FIFO = TYPE_LABELS[MessageType.NORMAL], TYPE_LABELS[MessageType.ORDER]
#: Requests that are under way; those whose connection ends are never answered, so the oldest make room.
MAX_UNDER_WAY = 16_384
_PULLS = frozenset({int(RequestCode.PULL_MESSAGE), int(RequestCode.LITE_PULL_MESSAGE)})
_CREATIONS = frozenset({int(RequestCode.UPDATE_AND_CREATE_TOPIC), int(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)})
_REQUEST_NAMES = {int(code): code.name.lower() for code in RequestCode}
_RESPONSE_NAMES = {int(code): code.name.lower() for code in ResponseCode}
_SUCCESS = _RESPONSE_NAMES[ResponseCode.SUCCESS]


def is_retry_or_dead(topic: str) -> bool:
    """Traffic of these topics is not counted (Java: BrokerMetricsManager.isRetryOrDlqTopic)."""
    return topic.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX))


class Counting:
    """What counts something."""

    _counts: Counts | None = None

    def begin(self, counts: Counts) -> None:
        """From now on count there."""
        self._counts = counts


class SendMetrics(Counting, ManySendsHook):
    """Counts messages by the topic they are stored in, a delayed one under the schedule topic, as Java does."""

    def after_many(self, sends: SentTogether) -> None:
        counts = self._counts
        if counts is None or not sends.success:
            return
        messages, landed, start = sends.messages, sends.landed, 0
        first, fifo = messages[0].topic, props.SHARDING_KEY in messages[0].properties
        for at, message in enumerate(messages):
            if message.topic != first or (props.SHARDING_KEY in message.properties) != fifo:
                _count(counts, first, _FIFO if fifo else _NORMAL, landed[start:at])
                first, fifo, start = message.topic, props.SHARDING_KEY in message.properties, at
        _count(counts, first, _FIFO if fifo else _NORMAL, landed[start:])

    def after(self, context: SendContext) -> None:
        counts = self._counts
        if counts is not None and context.success:
            label = TYPE_LABELS[context.message_type]
            for message, at in zip(context.messages, context.landed, strict=True):
                _count(counts, message.topic, label, (at,))


def _count(counts: Counts, topic: str, label: str, landed: Sequence[Appended]) -> None:
    if is_retry_or_dead(topic):
        return
    counted = counts.incoming[topic, label]
    sizes = [at.size_bytes for at in landed]
    counted.messages += len(sizes)
    counted.size_bytes += sum(sizes)
    counted.sizes.add_many(sizes)


class ConsumeMetrics(Counting, ConsumeMessageHook):
    """Counts what pulls give, and remembers how far they have come."""

    def before(self, context: ConsumeContext) -> None:
        counts = self._counts
        if counts is None:
            return
        counts.pulled[context.group, context.topic, context.queue_id] = context.next_offset
        if context.message_count and not is_retry_or_dead(context.topic):
            counted = counts.outgoing[context.topic, context.group]
            counted.messages += context.message_count
            counted.size_bytes += context.body_bytes


class RpcMetrics(Counting, ManyRequestsHook):
    """Times requests: those that make topics and groups, or all of them."""

    def __init__(self, every: bool) -> None:
        self._every = every
        if not every:
            self.codes = frozenset(_CREATIONS)
        #: The request itself is kept, so that its id stays its own.
        self._under_way: dict[int, tuple[float, Command]] = {}
        #: Those that came together last and when, as long as none of them is answered.
        self._together: Sequence[Command] = ()
        self._together_s = 0.0

    def before(self, request: Command, peer: Peer) -> None:
        if self._counts is not None:
            self._keep(request, perf_counter())

    def after(self, request: Command, response: Command, peer: Peer) -> None:
        self._part()
        began_s, _ = self._under_way.pop(id(request), (None, None))
        if began_s is not None and self._counts is not None:
            self._count(self._counts, request, response.code, (perf_counter() - began_s) * 1000)

    def before_many(self, requests: Sequence[Command], peer: Peer) -> None:
        if self._counts is not None:
            self._part()
            self._together, self._together_s = requests, perf_counter()

    def after_many(self, requests: Sequence[Command], peer: Peer) -> None:
        now_s, counts = perf_counter(), self._counts
        if requests is not self._together:
            self._part()
            for request in requests:
                began_s, _ = self._under_way.pop(id(request), (None, None))
                if began_s is not None and counts is not None:
                    self._count(counts, request, ResponseCode.SUCCESS, (now_s - began_s) * 1000)
            return
        self._together = ()
        took_ms, code = (now_s - self._together_s) * 1000, requests[0].code
        if counts is None:
            return
        if code in _CREATIONS or code in _PULLS or any(request.code != code for request in requests):
            for request in requests:
                self._count(counts, request, ResponseCode.SUCCESS, took_ms)
        else:
            counts.requests["false", _name(_REQUEST_NAMES, code), _SUCCESS].add_times(took_ms, len(requests))

    def _part(self) -> None:
        """Those that came together are not answered together: from now on each counts for itself."""
        for request in self._together:
            self._keep(request, self._together_s)
        self._together = ()

    def _keep(self, request: Command, now_s: float) -> None:
        if not request.is_oneway:
            under_way = self._under_way
            if len(under_way) >= MAX_UNDER_WAY:
                del under_way[next(iter(under_way))]
            under_way[id(request)] = now_s, request

    def _count(self, counts: Counts, request: Command, code: int, took_ms: float) -> None:
        if request.code in _CREATIONS:
            status = _SUCCESS if code == ResponseCode.SUCCESS else "failure"
            if request.code == RequestCode.UPDATE_AND_CREATE_TOPIC:
                counts.topics[status, _is_system(request)].add(took_ms)
            else:
                counts.groups[(status,)].add(took_ms)
        if self._every:
            held = _may_be_held(request) if request.code in _PULLS else "false"
            counts.requests[held, _name(_REQUEST_NAMES, request.code), _name(_RESPONSE_NAMES, code)].add(took_ms)


def _is_system(request: Command) -> str:
    try:
        return flag(names.is_system_topic(request.header(CreateTopicRequestHeader).topic))
    except HeaderError:
        return flag(False)


def _may_be_held(request: Command) -> str:
    try:
        return flag(request.header(PullMessageRequestHeader).sys_flag & PULL_SUSPEND != 0)
    except HeaderError:
        return flag(False)


def _name(names_by_code: Mapping[int, str], code: int) -> str:
    """Unknown codes share one name: a peer may make up as many as it likes."""
    return names_by_code.get(code, "unknown")


def flag(value: bool) -> str:
    return "true" if value else "false"
