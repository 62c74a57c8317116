"""The hooks that count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter

from rmqkit.errors import HeaderError
from rmqkit.model import names
from rmqkit.model.message_type import MessageType, message_type
from rmqkit.model.run import looks
from rmqkit.model.sysflag import PULL_SUSPEND
from rmqkit.plugin.hooks import STORED_CODES, ConsumeContext, ConsumeMessageHook, SendMessageHook, SendRun
from rmqkit.plugin.request import Answers, Peer
from rmqkit.plugin.request_hooks import RpcHook
from rmqkit.plugin.store import Appended
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
#: Java: MixAll.SCHEDULE_CONSUMER_GROUP.
SCHEDULE_GROUP = "SCHEDULE_CONSUMER"
_NOT_COUNTED = (names.RETRY_PREFIX, names.DLQ_PREFIX)
#: Maximum number of requests in progress that are tracked. Requests whose connection ends are never answered,
#: so the oldest are dropped.
MAX_UNDER_WAY = 16_384
_PULLS = frozenset({int(RequestCode.PULL_MESSAGE), int(RequestCode.LITE_PULL_MESSAGE)})
_CREATIONS = frozenset(
    {int(RequestCode.UPDATE_AND_CREATE_TOPIC), int(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)}
)
_REQUEST_NAMES = {int(code): code.name.lower() for code in RequestCode}
_RESPONSE_NAMES = {int(code): code.name.lower() for code in ResponseCode}
_SUCCESS = _RESPONSE_NAMES[ResponseCode.SUCCESS]


def is_retry_or_dead(topic: str) -> bool:
    """Traffic of retry and dead-letter topics is not counted (Java:
    BrokerMetricsManager.isRetryOrDlqTopic)."""
    return topic.startswith(_NOT_COUNTED)


class Counting:
    """A hook that counts."""

    _counts: Counts | None = None

    def begin(self, counts: Counts) -> None:
        """Count into these counters from now on."""
        self._counts = counts


class SendMetrics(Counting, SendMessageHook):
    """Counts messages by the topic in which they are stored: a delayed one under the schedule topic now, and
    under its own by `Deliveries`."""

    def after(self, sends: SendRun) -> None:
        counts = self._counts
        if counts is None or sends.code not in STORED_CODES:
            return
        messages, results = sends.messages, sends.results
        topics = looks.topics_of(messages)
        if len(topics) == 1 and looks.are_normal(messages):
            _count(counts, topics[0], MessageType.NORMAL, results)
            return
        for message, at in zip(messages, results, strict=True):
            _count(counts, message.topic, message_type(message.properties), (at,))


def _count(counts: Counts, topic: str, kind: MessageType, results: Sequence[Appended]) -> None:
    """Count messages of one topic and type by their places."""
    if not topic.startswith(_NOT_COUNTED):
        counts.incoming[topic, TYPE_LABELS[kind]].add(results)


class Deliveries:
    """Counts delayed messages when they are delivered: as given to the group of the delay service, and as
    stored under their own topics, retry topics included (Java: ScheduleMessageService, onSuccess)."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def __call__(self, source: str, topic: str, at: Appended) -> None:
        given = self._counts.outgoing[source, SCHEDULE_GROUP]
        given.messages += 1
        given.size_bytes += at.size_bytes
        self._counts.incoming[topic, TYPE_LABELS[MessageType.DELAY]].add((at,))


class ConsumeMetrics(Counting, ConsumeMessageHook):
    """Counts the messages returned by pulls, and records the progress of groups."""

    def before(self, context: ConsumeContext) -> None:
        counts = self._counts
        if counts is None:
            return
        counts.pulled[context.group, context.topic, context.queue_id] = context.next_offset
        if context.message_count and not is_retry_or_dead(context.topic):
            counted = counts.outgoing[context.topic, context.group]
            counted.messages += context.message_count
            counted.size_bytes += context.body_bytes


class RpcMetrics(Counting, RpcHook):
    """Times requests: those that create topics and groups, or all of them."""

    def __init__(self, every: bool) -> None:
        self._every = every
        if not every:
            self.codes = frozenset(_CREATIONS)
        #: The request itself is referenced, so that its id is not reused.
        self._under_way: dict[int, tuple[float, Command]] = {}
        #: The latest batch of requests and its time, while none of them has been answered.
        self._together: Sequence[Command] = ()
        self._together_s = 0.0

    def before(self, requests: Sequence[Command], peer: Peer) -> None:
        if self._counts is not None:
            self._part()
            self._together, self._together_s = requests, perf_counter()

    def after(self, requests: Sequence[Command], answers: Answers, peer: Peer) -> None:
        now_s, counts = perf_counter(), self._counts
        if requests is not self._together:
            self._part()
            for request, answered in zip(requests, answers.codes, strict=True):
                began_s, _ = self._under_way.pop(id(request), (None, None))
                if began_s is not None and counts is not None:
                    self._count(counts, request, answered, (now_s - began_s) * 1000)
            return
        self._together = ()
        if counts is None:
            return
        took_ms, code = (now_s - self._together_s) * 1000, requests[0].code
        mixed = any(answers.codes) or any(request.code != code for request in requests)
        if mixed or code in _CREATIONS or code in _PULLS:
            for request, answered in zip(requests, answers.codes, strict=True):
                self._count(counts, request, answered, took_ms)
        elif self._every:
            counts.requests["false", _name(_REQUEST_NAMES, code), _SUCCESS].add_times(took_ms, len(requests))

    def _part(self) -> None:
        """The requests of a batch are not answered together: from now on each is tracked separately."""
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
            counts.requests[held, _name(_REQUEST_NAMES, request.code), _name(_RESPONSE_NAMES, code)].add(
                took_ms
            )


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
    """Unknown codes share one name, because a peer could send any number of them."""
    return names_by_code.get(code, "unknown")


def flag(value: bool) -> str:
    return "true" if value else "false"
