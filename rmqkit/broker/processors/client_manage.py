"""HEART_BEAT, UNREGISTER_CLIENT, CHECK_CLIENT_CONFIG, GET_CONSUMER_LIST_BY_GROUP (Java: ClientManageProcessor, ConsumerManageProcessor)."""

from __future__ import annotations

from rmqkit.abc import Outcome, Peer, RequestProcessor
from rmqkit.broker.clients import ClientInfo, ConsumerGroup
from rmqkit.broker.context import BrokerContext
from rmqkit.broker.processors import destination
from rmqkit.errors import DecodeError, RequestRefused
from rmqkit.limits import MAX_HEARTBEAT_ENTRIES
from rmqkit.model import names
from rmqkit.model.subscription import SQL92, CheckClientRequestBody, ConsumerData, HeartbeatData
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer, request
from rmqkit.protocol.headers import ConsumerGroupRequestHeader, UnregisterClientRequestHeader


class ClientManageProcessor(RequestProcessor):
    """Keeps the client table."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._handlers = {
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.CHECK_CLIENT_CONFIG: self._check_config,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._consumer_list,
        }
        broker.clients.on_group_change.append(self._notify)

    def codes(self) -> list[int]:
        return list(self._handlers)

    def process(self, request: Command, peer: Peer) -> Outcome:
        return self._handlers[RequestCode(request.code)](request, peer)

    def _heartbeat(self, request: Command, peer: Peer) -> Command:
        beat = request.decode_body(HeartbeatData)
        consumers, producers = beat.consumer_data_set or [], beat.producer_data_set or []
        entries = len(consumers) + len(producers) + sum(len(data.subscription_data_set or []) for data in consumers)
        if entries > MAX_HEARTBEAT_ENTRIES:
            raise DecodeError(f"heartbeat with {entries} groups and subscriptions, at most {MAX_HEARTBEAT_ENTRIES} are allowed")
        client = ClientInfo(beat.client_id, peer, request.language, request.version, self._broker.clock.now_ms())
        for data in consumers:
            if beat.without_sub:
                data.subscription_data_set = None
            self._consumer(data, client)
        for producer in producers:
            if not names.group_fault(producer.group_name):
                self._broker.clients.register_producer(producer.group_name, client)
        response = answer(request)
        response.ext = {"IS_SUPPORT_HEART_BEAT_V2": "false", "IS_SUB_CHANGE": "true"}
        return response

    def _consumer(self, data: ConsumerData, client: ClientInfo) -> None:
        group = self._broker.groups.get(data.group_name)
        if group is None:
            # Unknown and not to be created: skipped silently, as in Java; the pull will say so.
            return
        if group.retry_queue_nums > 0:
            destination.retry_topic(self._broker, group)
        self._broker.clients.register_consumer(data, client, notify=True)

    def _notify(self, group: ConsumerGroup) -> None:
        """Tell every member to rebalance (Java: DefaultConsumerIdsChangeListener). Broadcasting groups have nothing to share."""
        if group.broadcasting or not self._notifies(group.name):
            return
        for peer in list(group.members):
            peer.push(request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ConsumerGroupRequestHeader(consumer_group=group.name)))

    def _notifies(self, group: str) -> bool:
        """Whether the broker's and the group's settings let members be told of changes."""
        settings = self._broker.groups.configs.get(group)
        enabled = settings is None or settings.notify_consumer_ids_changed_enable
        return enabled and self._broker.config.notify_consumer_ids_changed_enable

    def _unregister(self, request: Command, peer: Peer) -> Command:
        header = request.header(UnregisterClientRequestHeader)
        self._broker.clients.unregister(header.client_id, header.producer_group, header.consumer_group, notify=True)
        return answer(request)

    def _check_config(self, request: Command, peer: Peer) -> Command:
        """Does a non-TAG subscription compile here?"""
        body = request.decode_body(CheckClientRequestBody) if request.body else CheckClientRequestBody()
        subscription = body.subscription_data
        if subscription is None or subscription.is_tag:
            return answer(request)
        kind = subscription.expression_type or ""
        server = self._broker.registry.filter_servers.get(kind)
        if server is None:
            what = "SQL92" if kind == SQL92 else kind
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"The broker does not support consumer to filter message by {what}")
        try:
            server.compile(subscription)
        except ValueError as error:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error
        return answer(request)

    def _consumer_list(self, request: Command, peer: Peer) -> Command:
        header = request.header(ConsumerGroupRequestHeader)
        group = self._broker.clients.consumers.get(header.consumer_group)
        if group is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"no consumer of the group {header.consumer_group} is online")
        ids = list(dict.fromkeys(group.client_ids()))
        return answer(request, body=loose_json.dumps({"consumerIdList": ids}))
