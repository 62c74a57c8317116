"""What mqadmin asks of lite topics (Java: LiteManagerProcessor)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial

import msgspec
import trio

from rmqkit.errors import RequestRefused
from rmqkit.model.attributes import LITE_BIND_TOPIC
from rmqkit.plugin.request import EachRequest, Outcome, Peer
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer, json_answer
from rmqkit.protocol.headers import (
    GetLiteClientInfoRequestHeader,
    GetLiteGroupInfoRequestHeader,
    GetLiteTopicInfoRequestHeader,
    GetParentTopicInfoRequestHeader,
    TriggerLiteDispatchRequestHeader,
)
from rmqkit.protocol.lite import (
    BrokerLiteInfo,
    ClientGroup,
    LiteClientInfo,
    LiteGroupInfo,
    LiteGroupOffset,
    LiteLagInfo,
    LiteQueueOffset,
    LiteTopicInfo,
    ParentTopicInfo,
)
from rmqkit.toolkit.cold_reads import read_when_cached
from rmqkit_pop.lite.service import EXPIRATION, lite_topic_of
from rmqkit_pop.lite.subscriptions import Subscriber
from rmqkit_pop.lite.topics import LiteTopics, lite_queues

_MAX_LAGS = 1_000
_MAX_NAMES = 10_000
_RUN = 256


class LiteInspection(EachRequest):
    """Answers questions about lite topics, and lets clients look again."""

    def __init__(self, lites: LiteTopics) -> None:
        self._lites = lites
        self._answers: Mapping[int, Callable[[Command], msgspec.Struct]] = {
            RequestCode.GET_BROKER_LITE_INFO: self._broker_info,
            RequestCode.GET_PARENT_TOPIC_INFO: self._parent_info,
            RequestCode.GET_LITE_CLIENT_INFO: self._client_info,
        }
        self._awaited: Mapping[int, Callable[[Command], Awaitable[msgspec.Struct]]] = {
            RequestCode.GET_LITE_TOPIC_INFO: self._topic_info,
            RequestCode.GET_LITE_GROUP_INFO: self._group_info,
        }

    @property
    def codes(self) -> list[int]:
        """The codes of these requests."""
        return [*self._answers, *self._awaited, int(RequestCode.TRIGGER_LITE_DISPATCH)]

    def handle(self, request: Command, peer: Peer) -> Outcome:
        if request.code == RequestCode.TRIGGER_LITE_DISPATCH:
            return self._trigger(request)
        if request.code in self._awaited:
            return peer.answer_async(request, partial(self._when_known, request))
        return json_answer(request, self._answers[request.code](request))

    async def _when_known(self, request: Command) -> Command:
        return json_answer(request, await self._awaited[request.code](request))

    def _broker_info(self, request: Command) -> BrokerLiteInfo:
        lites, table, broker = self._lites, self._lites.subscriptions, self._lites.broker
        return BrokerLiteInfo(
            store_type="default",
            max_lmq_num=lites.settings.max_lmq_consume_queue_num,
            current_lmq_num=lites.count,
            lite_subscription_count=table.count,
            order_info_count=len(lites.engine.leases.queues),
            cq_table_size=lites.count,
            offset_table_size=len(broker.offsets.table().offset_table),
            event_map_size=sum(bool(each.ready) for each in table.clients.values()),
            topic_meta={
                name: self._expiration(name) for name in broker.topics.configs if lites.is_parent(name)
            },
            group_meta={topic: sorted(groups) for topic, groups in table.topics().items()},
        )

    def _parent_info(self, request: Command) -> ParentTopicInfo:
        topic = request.header(GetParentTopicInfoRequestHeader).topic
        self._check_parent(topic)
        count = len(self._lites.queues.get(topic, ()))
        bound = [
            name
            for name, group in self._lites.broker.groups.configs.items()
            if group.attributes.get(LITE_BIND_TOPIC) == topic
        ]
        return ParentTopicInfo(
            topic=topic,
            ttl=self._expiration(topic),
            groups=sorted({*bound, *self._lites.subscriptions.topics().get(topic, ())}),
            lmq_num=count,
            lite_topic_count=count,
        )

    def _client_info(self, request: Command) -> LiteClientInfo:
        header = request.header(GetLiteClientInfoRequestHeader)
        client = self._lites.subscriptions.of(header.group, header.client_id)
        if client is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"client {header.client_id[:100]!r} of group {header.group[:100]!r} has no lite topics here",
            )
        most = header.max_count if 0 < header.max_count <= _MAX_NAMES else _MAX_NAMES
        return LiteClientInfo(
            parent_topic=client.topic,
            group=client.group,
            client_id=client.client_id,
            last_access_time=client.said_ms,
            last_consume_time=client.popped_ms,
            lite_topic_count=len(client.queues),
            lite_topic_set=list(client.queues)[:most],
        )

    def _expiration(self, topic: str) -> int:
        """Minutes after its last message; -1 for never."""
        return int(self._lites.broker.topics.configs[topic].attributes.get(EXPIRATION, "-1"))

    async def _topic_info(self, request: Command) -> LiteTopicInfo:
        header = request.header(GetLiteTopicInfoRequestHeader)
        self._check_parent(header.parent_topic)
        name = self._queue(header.parent_topic, header.lite_topic)
        store = self._lites.broker.store
        first, end = store.min_offset(name, 0), store.max_offset(name, 0)
        return LiteTopicInfo(
            parent_topic=header.parent_topic,
            lite_topic=header.lite_topic,
            subscriber=[
                ClientGroup(client_id=each.client_id, group=each.group)
                for each in self._lites.subscriptions.subscribers(header.parent_topic, name)
            ],
            topic_offset=LiteQueueOffset(
                min_offset=first,
                max_offset=end,
                last_update_timestamp=await self._time_of(name, end - 1) if end > first else 0,
            ),
        )

    async def _group_info(self, request: Command) -> LiteGroupInfo:
        header = request.header(GetLiteGroupInfoRequestHeader)
        lites = self._lites
        group = lites.broker.groups.configs.get(header.group)
        if group is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"consumer group {header.group[:300]!r} does not exist",
            )
        clients = [each for each in lites.subscriptions.clients.values() if each.group == header.group]
        topic = group.attributes.get(LITE_BIND_TOPIC) or next((each.topic for each in clients), "")
        if header.lite_topic:
            lag = await self._lag(header.group, self._queue(topic, header.lite_topic))
            return self._info(header.group, topic, header.lite_topic, [lag], 0)
        lags = []
        for number, name in enumerate(self._subscribed(clients, topic)):
            if number % _RUN == _RUN - 1:
                await trio.lowlevel.checkpoint()
            lag = await self._lag(header.group, name)
            if lag.lag_count:
                lags.append(lag)
        return self._info(header.group, topic, None, lags, max(0, min(header.top_k, _MAX_LAGS)))

    def _subscribed(self, clients: Iterable[Subscriber], topic: str) -> list[str]:
        found: dict[str, None] = {}
        for client in clients:
            found |= client.queues
            if client.has_all:
                found |= self._lites.queues.get(topic, {})
        return list(found)

    def _info(
        self, group: str, topic: str, lite_topic: str | None, lags: list[LiteLagInfo], top: int
    ) -> LiteGroupInfo:
        broker, wrapper = self._lites.broker, None
        times = [each.earliest_unconsumed_timestamp for each in lags if each.lag_count]
        if lite_topic is not None:
            name = self._queue(topic, lite_topic)
            committed = broker.offsets.get(group, name, 0)
            wrapper = LiteGroupOffset(
                broker_offset=broker.store.max_offset(name, 0),
                consumer_offset=-1 if committed is None else committed,
                pull_offset=-1 if committed is None else committed,
                last_timestamp=min(times, default=0),
            )
        by_count = sorted(lags, key=lambda each: -each.lag_count)
        by_time = sorted(lags, key=lambda each: each.earliest_unconsumed_timestamp)
        return LiteGroupInfo(
            group=group,
            parent_topic=topic,
            lite_topic=lite_topic,
            earliest_unconsumed_timestamp=min(times, default=-1),
            total_lag_count=sum(each.lag_count for each in lags),
            lite_topic_offset_wrapper=wrapper,
            lag_count_top_k=by_count[:top] if lite_topic is None else None,
            lag_timestamp_top_k=by_time[:top] if lite_topic is None else None,
        )

    async def _lag(self, group: str, name: str) -> LiteLagInfo:
        broker = self._lites.broker
        end = broker.store.max_offset(name, 0)
        at = max(broker.offsets.get(group, name, 0) or 0, broker.store.min_offset(name, 0))
        return LiteLagInfo(
            lite_topic=lite_topic_of(name),
            lag_count=max(0, end - at),
            earliest_unconsumed_timestamp=await self._time_of(name, at) if at < end else 0,
        )

    async def _time_of(self, name: str, offset: int) -> int:
        store = self._lites.broker.store
        return await read_when_cached(store, lambda: store.store_time(name, 0, offset))

    def _trigger(self, request: Command) -> Command:
        """Let one client of a group look at all its lite topics, or all clients."""
        header = request.header(TriggerLiteDispatchRequestHeader)
        lites = self._lites
        for client in list(lites.subscriptions.clients.values()):
            if client.group == header.group and header.client_id in (None, "", client.client_id):
                client.ready |= client.queues
                if client.has_all:
                    client.ready |= lites.queues.get(client.topic, {})
                lites.wake_client(client)
        return answer(request)

    def _check_parent(self, topic: str) -> None:
        if not self._lites.is_parent(topic):
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"topic {topic[:300]!r} is unknown, or has no lite topics"
            )

    def _queue(self, topic: str, lite_topic: str) -> str:
        """The queue of a lite topic that exists. Raises RequestRefused."""
        try:
            (name,) = lite_queues(topic, [lite_topic])
        except ValueError as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from error
        if name not in self._lites.queues.get(topic, ()):
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"topic {topic} has no lite topic {lite_topic} here"
            )
        return name


__all__ = ["LiteInspection"]
