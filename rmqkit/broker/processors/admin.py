"""Administration: topics, groups, offsets, connections (Java: AdminBrokerProcessor;
wire-protocol sheet, section 3.7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from rmqkit.broker.processors.by_code import ProcessorByCode
from rmqkit.broker.processors.queues import queue_of, topic_at
from rmqkit.errors import RequestRefused
from rmqkit.limits import MAX_LISTED_CONFIGS
from rmqkit.model import attributes, names
from rmqkit.model.attributes import GROUP_ATTRIBUTES, TOPIC_ATTRIBUTES, Attribute, AttributeFault
from rmqkit.model.message_type import MESSAGE_TYPE, TopicMessageType
from rmqkit.model.topic import (
    CreateTopicListRequestBody,
    DelayOffsetFile,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfig,
    TopicConfigAndMappingTable,
)
from rmqkit.plugin.request_broker import Client, RequestBroker
from rmqkit.plugin.role import Role
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer, json_answer
from rmqkit.protocol.headers import (
    ConsumerGroupRequestHeader,
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
    GroupRequestHeader,
    ProducerGroupRequestHeader,
)
from rmqkit.toolkit.cold_reads import all_of

T = TypeVar("T")


class AdminProcessor(ProcessorByCode):
    """Answers the requests of `mqadmin` and of the `rmqkit` command line."""

    def __init__(self, broker: RequestBroker) -> None:
        self._broker = broker
        self._attributes = {**TOPIC_ATTRIBUTES, **broker.registry.topic_attributes}
        self._group_attributes = {**GROUP_ATTRIBUTES, **broker.registry.group_attributes}
        self._handlers = {
            RequestCode.GET_ALL_TOPIC_CONFIG: self._all_topics,
            RequestCode.GET_TOPIC_CONFIG: self._topic_config,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self._system_topics,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._all_groups,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self._group_config,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self._consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self._producer_connections,
            RequestCode.GET_ALL_PRODUCER_INFO: self._all_producers,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self._all_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: self._delay_offsets,
            RequestCode.RESET_MASTER_FLUSH_OFFSET: self._reset_master_flush_offset,
        }
        self._readers = {RequestCode.GET_TOPIC_STATS_INFO: self._topic_stats}

        self._tasks = {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self._create_topic,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self._create_topics,
            RequestCode.DELETE_TOPIC_IN_BROKER: self._delete_topic,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self._create_group,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self._create_groups,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self._delete_group,
        }

    # Topics.

    async def _create_topic(self, request: Command) -> Command:
        header = request.header(CreateTopicRequestHeader)
        config = TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag or 0,
            order=header.order,
        )
        try:
            changes = attributes.parse(header.attributes)
        except AttributeFault as fault:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(fault)) from fault
        await self._put_topics([self._checked_topic(config, changes)])
        return answer(request)

    async def _create_topics(self, request: Command) -> Command:
        """All or none; the attribute keys in the body have signs."""
        configs = _limited(request.decode_body(CreateTopicListRequestBody).topic_config_list)
        await self._put_topics([self._checked_topic(config, config.attributes) for config in configs])
        return answer(request)

    def _checked_topic(self, config: TopicConfig, changes: Mapping[str, str]) -> TopicConfig:
        """The topic after the change. Raises RequestRefused."""
        name = config.topic_name
        fault = names.topic_fault(name)
        if fault:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, fault)
        if self._is_system(name):
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"{name} is a system topic")
        if not 0 <= config.perm <= 7:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"perm is 0 to 7 (4 read, 2 write, 1 inherit), not {config.perm}",
            )
        is_mixed = changes.get(f"+{MESSAGE_TYPE}") == TopicMessageType.MIXED
        if is_mixed and not self._broker.config.enable_mixed_message_type:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, "MIXED message type is not supported.")
        known = self._broker.topics.get(name)
        return msgspec.structs.replace(config, attributes=_altered(self._attributes, known, changes))

    async def _put_topics(self, configs: Sequence[TopicConfig]) -> None:
        await self._broker.topics.put_all(configs)
        await self._broker.topics.announced()

    async def _delete_topic(self, request: Command) -> Command:
        topic = request.header(DeleteTopicRequestHeader).topic
        if not topic or topic.isspace():
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, "the topic is blank")
        if self._is_system(topic):
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"{topic} is a system topic")
        if await self._broker.topics.delete(topic):
            await self._broker.offsets.persist()
            self._broker.stats.forget_topic(topic)
            await self._broker.topics.announced()
        return answer(request)

    def _is_system(self, topic: str) -> bool:
        config = self._broker.config
        own = (config.broker_name, config.broker_cluster_name, names.reply_topic(config.broker_cluster_name))
        return names.is_system_topic(topic) or topic in own

    def _all_topics(self, request: Command) -> Command:
        table = self._broker.topics.table()
        body = TopicConfigAndMappingTable(
            data_version=table.data_version,
            topic_config_table=table.topic_config_table,
            deletions=table.deletions,
        )
        return json_answer(request, body)

    def _topic_config(self, request: Command) -> Command:
        return json_answer(request, topic_at(self._broker, request.header(GetTopicConfigRequestHeader).topic))

    def _topic_stats(self, request: Command) -> Command:
        topic = topic_at(self._broker, request.header(GetTopicStatsInfoRequestHeader).topic)
        name, store = topic.topic_name, self._broker.store
        places = [
            (name, queue_id, store.max_offset(name, queue_id))
            for queue_id in range(max(topic.write_queue_nums, topic.read_queue_nums))
        ]
        table = {}
        for (_, queue_id, end), updated in zip(places, self._times_before(places), strict=True):
            first = store.min_offset(name, queue_id)
            table[queue_of(self._broker, name, queue_id)] = {
                "lastUpdateTimestamp": updated,
                "maxOffset": end,
                "minOffset": first,
            }
        return json_answer(
            request,
            {"offsetTable": table, "topicPutTps": self._broker.stats.topics.per_second(name)},
            raw_keys=True,
        )

    def _times_before(self, places: Iterable[tuple[str, int, int]]) -> list[int]:
        """Store times of the messages before the given queue offsets; 0 where there is none."""
        store = self._broker.store
        reads = (partial(store.store_time, topic, queue_id, offset - 1) for topic, queue_id, offset in places)
        return [max(stored_ms, 0) for stored_ms in all_of(reads)]

    def _system_topics(self, request: Command) -> Command:
        topics = [topic for topic in self._broker.topics.configs if self._is_system(topic)]
        return json_answer(request, {"topicList": sorted(topics)})

    # Groups.

    async def _create_group(self, request: Command) -> Command:
        await self._put_groups([request.decode_body(SubscriptionGroupConfig)])
        return answer(request)

    async def _create_groups(self, request: Command) -> Command:
        await self._put_groups(_limited(request.decode_body(SubscriptionGroupList).group_config_list))
        return answer(request)

    async def _put_groups(self, configs: Iterable[SubscriptionGroupConfig]) -> None:
        """Create or change all groups or none. Raises RequestRefused."""
        checked = []
        for config in configs:
            fault = names.group_fault(config.group_name)
            if fault:
                raise RequestRefused(ResponseCode.INVALID_PARAMETER, fault)
            known = self._broker.groups.configs.get(config.group_name)
            altered = _altered(self._group_attributes, known, config.attributes)
            checked.append(msgspec.structs.replace(config, attributes=altered))
        await self._broker.groups.put_all(checked)

    async def _delete_group(self, request: Command) -> Command:
        header = request.header(DeleteSubscriptionGroupRequestHeader)
        await self._broker.groups.delete(header.group_name)
        self._broker.stats.forget_group(header.group_name)
        self._broker.filters.forget_group(header.group_name)
        if header.clean_offset:
            self._broker.offsets.forget_group(header.group_name)
            await self._broker.offsets.persist()
        return answer(request)

    def _all_groups(self, request: Command) -> Command:
        return json_answer(request, self._broker.groups.table())

    def _group_config(self, request: Command) -> Command:
        group = request.header(GroupRequestHeader).group
        config = self._broker.groups.configs.get(group)
        if config is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"consumer group {group!r} does not exist"
            )
        return json_answer(request, config)

    # Connections.

    def _consumer_connections(self, request: Command) -> Command:
        name = request.header(ConsumerGroupRequestHeader).consumer_group
        group = self._broker.clients.consumers.get(name)
        if group is None:
            raise RequestRefused(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group <{name}> not online")
        body = {
            "connectionSet": [_connection(client) for client in group.members.values()],
            "consumeFromWhere": group.consume_from_where,
            "consumeType": group.consume_type,
            "messageModel": group.message_model,
            "subscriptionTable": group.subscriptions,
        }
        return json_answer(request, body)

    def _producer_connections(self, request: Command) -> Command:
        name = request.header(ProducerGroupRequestHeader).producer_group
        clients = self._broker.clients.producers.get(name)
        if not clients:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        return json_answer(request, {"connectionSet": [_connection(client) for client in clients.values()]})

    def _all_producers(self, request: Command) -> Command:
        """Java: ProducerTableInfo."""
        data = {
            group: [_producer(client) for client in clients.values()]
            for group, clients in self._broker.clients.producers.items()
        }
        return json_answer(request, {"data": data})

    # Tables and settings.

    def _all_offsets(self, request: Command) -> Command:
        return json_answer(request, self._broker.offsets.table())

    def _delay_offsets(self, request: Command) -> Command:
        path = self._broker.config.config_path / "delayOffset.json"
        try:
            body = path.read_bytes()
        except FileNotFoundError:
            body = loose_json.dumps(DelayOffsetFile())
        return answer(request, body=body)

    def _reset_master_flush_offset(self, request: Command) -> Command:
        """A correction of what a slave knows of its master: nothing to do on a master, as in Java, and
        refused by a slave, which learns its master's progress from the master alone."""
        if self._broker.role.current is not Role.MASTER:
            raise RequestRefused(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                "this slave keeps no flushed offset of its master that could be corrected: it asks its master"
                " when it connects",
            )
        return answer(request)


def _producer(client: Client) -> dict[str, object]:
    """Java: ProducerInfo."""
    return {
        "clientId": client.client_id,
        "language": client.language or "OTHER",
        "lastUpdateTimestamp": client.last_seen_ms,
        "remoteIP": f"/{client.peer.remote_text}",
        "version": client.version,
    }


def _connection(client: Client) -> dict[str, object]:
    return {
        "clientAddr": client.peer.remote_text,
        "clientId": client.client_id,
        "language": client.language or "OTHER",
        "version": client.version,
    }


def _altered(
    known: Mapping[str, Attribute],
    config: TopicConfig | SubscriptionGroupConfig | None,
    changes: Mapping[str, str],
) -> dict[str, str]:
    """Attributes after a change; `config` is None for a new topic or group. Raises RequestRefused."""
    try:
        return attributes.altered(known, None if config is None else config.attributes, changes)
    except AttributeFault as fault:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(fault)) from fault


def _limited(configs: list[T]) -> list[T]:
    if len(configs) > MAX_LISTED_CONFIGS:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"{len(configs)} entries, at most {MAX_LISTED_CONFIGS} are allowed in one request",
        )
    return configs
