"""HEART_BEAT, UNREGISTER_CLIENT, CHECK_CLIENT_CONFIG, GET_CONSUMER_LIST_BY_GROUP (Java:
ClientManageProcessor, ConsumerManageProcessor)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from weakref import WeakKeyDictionary, WeakSet

from attrs import define, field

from rmqkit.broker.clients import ClientInfo, ConsumerGroup
from rmqkit.broker.processors import send_checks as destination
from rmqkit.broker.run.context import BrokerContext
from rmqkit.errors import DecodeError, RequestRefused
from rmqkit.limits import MAX_HEARTBEAT_ENTRIES
from rmqkit.model import names
from rmqkit.model.subscription import TAG, CheckClientRequestBody, ConsumerData, HeartbeatData
from rmqkit.plugin.request import EachRequest, Outcome, Peer
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer, json_answer, request
from rmqkit.protocol.headers import ConsumerGroupRequestHeader, UnregisterClientRequestHeader
from rmqkit.toolkit.unsaved import Unsaved

#: Approximate cost of a notification in microseconds.
_PUSH_COST = 30


@define(eq=False)
class _Waiting:
    """A heartbeat that is registered once its groups are written.

    left_by_producers, left_by_consumers   groups that its client has left meanwhile
    """

    client_id: str
    left_by_producers: set[str | None] = field(factory=set)
    left_by_consumers: set[str | None] = field(factory=set)


class ClientManageProcessor(EachRequest):
    """Keeps the client table."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._handlers = {
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.CHECK_CLIENT_CONFIG: self._check_config,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._consumer_list,
        }
        self._notifying: set[str] = set()
        self._waiting: WeakKeyDictionary[Peer, WeakSet[_Waiting]] = WeakKeyDictionary()
        broker.clients.on_group_change.append(self._notify)

    def codes(self) -> list[int]:
        return list(self._handlers)

    def handle(self, request: Command, peer: Peer) -> Outcome:
        return self._handlers[RequestCode(request.code)](request, peer)

    def _heartbeat(self, request: Command, peer: Peer) -> Outcome:
        beat = request.decode_body(HeartbeatData)
        consumers, producers = beat.consumer_data_set or [], beat.producer_data_set or []
        entries = (
            len(consumers) + len(producers) + sum(len(data.subscription_data_set or []) for data in consumers)
        )
        if entries > MAX_HEARTBEAT_ENTRIES:
            raise DecodeError(
                f"heartbeat with {entries} groups and subscriptions, at most {MAX_HEARTBEAT_ENTRIES} are"
                " allowed"
            )
        client = ClientInfo(
            beat.client_id, peer, request.language, request.version, self._broker.clock.now_ms()
        )
        unsaved = self._unsaved(consumers)
        if unsaved:
            waiting = _Waiting(client.client_id)
            self._waiting.setdefault(peer, WeakSet()).add(waiting)
            return peer.answer_async(
                request, partial(self._register_when_saved, request, beat, client, unsaved, waiting)
            )
        return self._register(request, beat, client)

    async def _register_when_saved(
        self,
        request: Command,
        beat: HeartbeatData,
        client: ClientInfo,
        unsaved: Mapping[str, Unsaved],
        waiting: _Waiting,
    ) -> Command:
        """Answer once groups and retry topics are written. As in Java, a client may consume if that fails: a
        retry topic is needed, and created, when a message is sent back."""
        failed: set[str] = set()
        while unsaved:
            for group, error in unsaved.items():
                try:
                    await error.change.done()
                except RequestRefused:
                    failed.add(group)
            unsaved = self._unsaved(
                [data for data in beat.consumer_data_set or () if data.group_name not in failed]
            )
        beat.consumer_data_set = [
            data for data in beat.consumer_data_set or () if data.group_name not in waiting.left_by_consumers
        ]
        beat.producer_data_set = [
            data for data in beat.producer_data_set or () if data.group_name not in waiting.left_by_producers
        ]
        return self._register(request, beat, client)

    def _register(self, request: Command, beat: HeartbeatData, client: ClientInfo) -> Command:
        for data in beat.consumer_data_set or ():
            if beat.without_sub:
                data.subscription_data_set = None
            if data.group_name in self._broker.groups.configs:
                self._broker.clients.register_consumer(data, client, notify=True)
        for producer in beat.producer_data_set or ():
            if not names.group_fault(producer.group_name):
                self._broker.clients.register_producer(producer.group_name, client)
        response = answer(request)
        response.ext = {"IS_SUPPORT_HEART_BEAT_V2": "false", "IS_SUB_CHANGE": "true"}
        return response

    def _unsaved(self, consumers: Sequence[ConsumerData]) -> dict[str, Unsaved]:
        """Create missing groups and retry topics. Returns by group what is being written.

        An unknown group that may not be created is skipped, as in Java; its pulls will be refused. A fenced
        broker creates nothing.
        """
        unsaved: dict[str, Unsaved] = {}
        if self._broker.role.is_fenced:
            return unsaved
        for data in consumers:
            try:
                group = self._broker.groups.get(data.group_name)
                if group is not None and group.retry_queue_nums > 0:
                    destination.retry_topic(self._broker, group)
            except Unsaved as error:
                unsaved[data.group_name] = error
        return unsaved

    def _notify(self, group: ConsumerGroup) -> None:
        """Let every member rebalance (Java: DefaultConsumerIdsChangeListener). Broadcasting groups do not
        divide queues.

        Changes before the members have been notified are combined, because many members may leave at once.
        """
        if group.broadcasting or group.name in self._notifying or not self._notifies(group.name):
            return
        self._notifying.add(group.name)
        self._broker.work.add(self._notify_members(group))

    def _notify_members(self, group: ConsumerGroup) -> Iterator[int]:
        self._notifying.discard(group.name)
        for peer in list(group.members):
            peer.push(
                request(
                    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                    ConsumerGroupRequestHeader(consumer_group=group.name),
                )
            )
            yield _PUSH_COST

    def _notifies(self, group: str) -> bool:
        """Whether the settings of broker and group let members be notified of changes."""
        settings = self._broker.groups.configs.get(group)
        enabled = settings is None or settings.notify_consumer_ids_changed_enable
        return enabled and self._broker.config.notify_consumer_ids_changed_enable

    def _unregister(self, request: Command, peer: Peer) -> Command:
        header = request.header(UnregisterClientRequestHeader)
        for waiting in self._waiting.get(peer, ()):
            if waiting.client_id == header.client_id:
                waiting.left_by_producers.add(header.producer_group)
                waiting.left_by_consumers.add(header.consumer_group)
        self._broker.clients.unregister(
            header.client_id, header.producer_group, header.consumer_group, notify=True
        )
        return answer(request)

    def _check_config(self, request: Command, peer: Peer) -> Command:
        """Check that a non-TAG subscription compiles on this broker."""
        body = request.decode_body(CheckClientRequestBody) if request.body else CheckClientRequestBody()
        subscription = body.subscription_data
        if subscription is None or subscription.is_tag:
            return answer(request)
        self._broker.filters.check_support(subscription.expression_type or TAG)
        try:
            self._broker.filters.compiled(subscription, body.group)
        except ValueError as error:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error
        return answer(request)

    def _consumer_list(self, request: Command, peer: Peer) -> Command:
        header = request.header(ConsumerGroupRequestHeader)
        group = self._broker.clients.consumers.get(header.consumer_group)
        if group is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"no consumer of the group {header.consumer_group} is online"
            )
        ids = list(dict.fromkeys(group.client_ids()))
        return json_answer(request, {"consumerIdList": ids})
