"""The hook that delays or refuses requests of those who are over their quota."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import trio

from rmqkit.errors import RequestDelayed, RequestRefused
from rmqkit.log_limit import limited_logger
from rmqkit.model import names
from rmqkit.model.topic import SubscriptionGroupConfig, TopicConfig
from rmqkit.plugin.access import PRINCIPAL, READ_CHECK
from rmqkit.plugin.hooks import Refusals
from rmqkit.plugin.request import BROKER, Peer
from rmqkit.plugin.request_broker import NeedsBroker, RequestBroker
from rmqkit.plugin.request_hooks import RpcHook
from rmqkit.protocol import batch
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.message_id import unpack_host
from rmqkit.protocol.signature import ACCESS_KEY
from rmqkit_hook_quota.buckets import Buckets, Rate
from rmqkit_hook_quota.settings import QuotaSettings, own_rate

_log = limited_logger(__name__)
#: Code of a send -> the header fields of its topic.
_TOPIC_FIELD = {
    RequestCode.SEND_MESSAGE: "topic",
    RequestCode.SEND_MESSAGE_V2: "b",
    RequestCode.SEND_BATCH_MESSAGE: "b",
}
#: The fields by which other sends say that they are batches.
_BATCH = ("batch", "m")
_READS = (
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.PEEK_MESSAGE,
    RequestCode.POP_MESSAGE,
    RequestCode.POP_LITE_MESSAGE,
)


class _Charge(NamedTuple):
    """Who pays for a request, at which rate, and for how long."""

    who: str
    rate: Rate
    span_s: float


class QuotaHook(NeedsBroker, RpcHook):
    """Sends are charged before they are stored, to their topic and to the client. What a group gets is
    charged when it was delivered, and its next request waits.

    A request waits at most `maxDelayMs`: one that would have to wait longer is refused with FLOW_CONTROL."""

    servers = frozenset({BROKER})
    codes = frozenset(map(int, (*_TOPIC_FIELD, *_READS)))

    def __init__(self, settings: QuotaSettings, time: Callable[[], float] = trio.current_time) -> None:
        self._time = time
        self._max_delay_s = settings.max_delay_ms / 1000
        self._topic, self._group, self._client = settings.topic, settings.group, settings.client
        self._buckets = Buckets()
        self._topics: Mapping[str, TopicConfig] = {}
        self._groups: Mapping[str, SubscriptionGroupConfig] = {}

    def open(self, broker: RequestBroker) -> None:
        self._topics, self._groups = broker.topics.configs, broker.groups.configs
        broker.stats.on_got.append(self._got)

    def before(self, requests: Sequence[Command], peer: Peer) -> Refusals | None:
        now = self._time()
        found: dict[int, Exception] = {}
        for at, request in enumerate(requests):
            fields = request.fields()
            is_send = request.code in _TOPIC_FIELD
            charges = self._of_send(request, fields, peer) if is_send else self._of_read(fields)
            held_up = self._held_up(charges, now)
            if held_up is not None:
                found[at] = held_up
        return found or None

    def _of_read(self, fields: Mapping[str, str]) -> list[_Charge]:
        group = fields.get("consumerGroup", "")
        rate = _rate(self._groups.get(group), self._group)
        return [_Charge(f"group {group}", rate, 0.0)] if rate.limits else []

    def _of_send(self, request: Command, fields: Mapping[str, str], peer: Peer) -> list[_Charge]:
        topic = names.owning_topic(fields.get(_TOPIC_FIELD[RequestCode(request.code)], ""))
        of_topic, of_client = _rate(self._topics.get(topic), self._topic), self._client
        charges: list[_Charge] = []
        if of_topic.limits or of_client.limits:
            is_batch = request.code == RequestCode.SEND_BATCH_MESSAGE or "true" in map(fields.get, _BATCH)
            count, size = max(batch.count(request.body), 1) if is_batch else 1, len(request.body)
            for who, rate in ((f"topic {topic}", of_topic), (_client(fields, peer), of_client)):
                if rate.limits:
                    charges.append(_Charge(who, rate, rate.span_s(count, size)))
        return charges

    def _held_up(self, charges: Sequence[_Charge], now: float) -> RequestRefused | None:
        """Charge a request. Returns how it is held up, or None when it passes at once; what is refused costs
        nothing."""
        waits = [self._buckets.wait_s(each.who, now) for each in charges]
        wait_s = max(waits, default=0.0)
        if wait_s > self._max_delay_s:
            who, rate, _ = charges[waits.index(wait_s)]
            _log.warning("requests refused: %s is over its quota of %s", who, rate)
            return RequestRefused(
                ResponseCode.FLOW_CONTROL, f"{who} is over its quota of {rate}, again in {wait_s:.1f} s"
            )
        for who, _, span_s in charges:
            if span_s:
                self._buckets.charge(who, span_s, now)
        return RequestDelayed(wait_s) if wait_s else None

    def _got(self, group: str, topic: str, messages: int, size_bytes: int) -> None:
        rate = _rate(self._groups.get(group), self._group)
        if rate.limits:
            self._buckets.charge(f"group {group}", rate.span_s(messages, size_bytes), self._time())


def _rate(config: TopicConfig | SubscriptionGroupConfig | None, default: Rate) -> Rate:
    """The quota of a topic or group: its own, or that of all."""
    return own_rate(config.attributes, default) if config is not None and config.attributes else default


def _client(fields: Mapping[str, str], peer: Peer) -> str:
    """Who sends: the user that access control has found, or the address without it."""
    user = peer.attributes.get(PRINCIPAL)
    if READ_CHECK in peer.attributes:
        user = fields.get(ACCESS_KEY, user)
    return f"user {user}" if user else f"client {unpack_host(peer.remote_host)[0]}"


__all__ = ["QuotaHook"]
