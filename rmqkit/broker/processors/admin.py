"""Administration: topics, groups, statistics, connections, settings (Java: AdminBrokerProcessor; wire-protocol sheet, section 3.7)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from rmqkit import config as settings
from rmqkit.abc import Outcome, Peer, RequestProcessor
from rmqkit.broker.clients import ClientInfo
from rmqkit.broker.context import BrokerContext
from rmqkit.broker.processors import runtime_info
from rmqkit.broker.warming import all_of, when_warm
from rmqkit.errors import DecodeError, RequestRefused
from rmqkit.model import names
from rmqkit.model.queue import MessageQueue
from rmqkit.model.topic import DelayOffsetFile, SubscriptionGroupConfig, TopicConfig, TopicConfigAndMappingTable
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import (
    ConsumerGroupRequestHeader,
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
    GetConsumeStatsRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
    GroupRequestHeader,
    ProducerGroupRequestHeader,
)


class AdminProcessor(RequestProcessor):
    """What `mqadmin` and the `rmqkit` command line ask a broker."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._handlers = {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self._create_topic,
            RequestCode.DELETE_TOPIC_IN_BROKER: self._delete_topic,
            RequestCode.GET_ALL_TOPIC_CONFIG: self._all_topics,
            RequestCode.GET_TOPIC_CONFIG: self._topic_config,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self._system_topics,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self._create_group,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self._delete_group,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._all_groups,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self._group_config,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self._consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self._producer_connections,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self._consumed_by,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self._topics_of_group,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self._all_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: self._delay_offsets,
            RequestCode.GET_BROKER_CONFIG: self._broker_config,
            RequestCode.GET_BROKER_RUNTIME_INFO: self._runtime_info,
        }
        self._readers = {
            RequestCode.GET_TOPIC_STATS_INFO: self._topic_stats,
            RequestCode.GET_CONSUME_STATS: self._consume_stats,
        }

    def codes(self) -> list[int]:
        return [*self._handlers, *self._readers]

    def process(self, request: Command, peer: Peer) -> Outcome:
        code = RequestCode(request.code)
        if code in self._readers:
            return when_warm(self._broker.store, partial(self._readers[code], request))
        return self._handlers[code](request)

    # Topics.

    def _create_topic(self, request: Command) -> Command:
        header = request.header(CreateTopicRequestHeader)
        fault = names.topic_fault(header.topic)
        if fault:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, fault)
        if self._is_system(header.topic):
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"{header.topic} is a system topic")
        if not 0 <= header.perm <= 7:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"perm is 0 to 7 (4 read, 2 write, 1 inherit), not {header.perm}")
        known = self._broker.topics.get(header.topic)
        self._broker.topics.put(
            TopicConfig(
                topic_name=header.topic,
                read_queue_nums=header.read_queue_nums,
                write_queue_nums=header.write_queue_nums,
                perm=header.perm,
                topic_filter_type=header.topic_filter_type,
                topic_sys_flag=header.topic_sys_flag or 0,
                order=header.order,
                attributes=_attributes(known.attributes if known else {}, header.attributes),
            )
        )
        return answer(request)

    def _delete_topic(self, request: Command) -> Command:
        topic = request.header(DeleteTopicRequestHeader).topic
        if not topic or topic.isspace():
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, "the topic is blank")
        if self._is_system(topic):
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"{topic} is a system topic")
        if self._broker.topics.delete(topic):
            self._broker.offsets.forget_topic(topic)
            self._broker.store.delete_topic(topic)
        return answer(request)

    def _is_system(self, topic: str) -> bool:
        config = self._broker.config
        own = (config.broker_name, config.broker_cluster_name, names.reply_topic(config.broker_cluster_name))
        return names.is_system_topic(topic) or topic in own

    def _all_topics(self, request: Command) -> Command:
        table = self._broker.topics.table()
        body = TopicConfigAndMappingTable(data_version=table.data_version, topic_config_table=table.topic_config_table)
        return answer(request, body=loose_json.dumps(body))

    def _topic_config(self, request: Command) -> Command:
        return answer(request, body=loose_json.dumps(self._topic(request.header(GetTopicConfigRequestHeader).topic)))

    def _topic(self, topic: str) -> TopicConfig:
        config = self._broker.topics.get(topic)
        if config is None:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST, f"topic {topic!r} does not exist at broker {self._broker.config.broker_name}"
            )
        return config

    def _topic_stats(self, request: Command, wait: bool) -> Command:
        topic = self._topic(request.header(GetTopicStatsInfoRequestHeader).topic)
        name, store = topic.topic_name, self._broker.store
        places = [(name, queue_id, store.max_offset(name, queue_id)) for queue_id in range(topic.write_queue_nums)]
        table = {}
        for (_, queue_id, end), updated in zip(places, self._times_before(places, wait), strict=True):
            first = store.min_offset(name, queue_id)
            table[self._queue_key(name, queue_id)] = {"lastUpdateTimestamp": updated, "maxOffset": end, "minOffset": first}
        return answer(request, body=loose_json.dumps({"offsetTable": table, "topicPutTps": 0.0}))

    def _times_before(self, places: Iterable[tuple[str, int, int]], wait: bool) -> list[int]:
        """Store times of the messages before offsets of queues, 0 where there is none."""
        store = self._broker.store
        reads = (partial(store.store_time, topic, queue_id, offset - 1, wait) for topic, queue_id, offset in places)
        return [max(stored_ms, 0) for stored_ms in all_of(reads)]

    def _queue_key(self, topic: str, queue_id: int) -> str:
        """A queue as the text Java accepts in place of an object key."""
        return loose_json.dumps(MessageQueue(topic, self._broker.config.broker_name, queue_id)).decode()

    def _system_topics(self, request: Command) -> Command:
        topics = [topic for topic in self._broker.topics.configs if self._is_system(topic)]
        return answer(request, body=loose_json.dumps({"topicList": sorted(topics)}))

    # Groups.

    def _create_group(self, request: Command) -> Command:
        self._broker.groups.put(request.decode_body(SubscriptionGroupConfig))
        return answer(request)

    def _delete_group(self, request: Command) -> Command:
        header = request.header(DeleteSubscriptionGroupRequestHeader)
        self._broker.groups.delete(header.group_name)
        if header.clean_offset:
            self._broker.offsets.forget_group(header.group_name)
        return answer(request)

    def _all_groups(self, request: Command) -> Command:
        return answer(request, body=loose_json.dumps(self._broker.groups.table()))

    def _group_config(self, request: Command) -> Command:
        group = request.header(GroupRequestHeader).group
        config = self._broker.groups.configs.get(group)
        if config is None:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"consumer group {group!r} does not exist")
        return answer(request, body=loose_json.dumps(config))

    def _consume_stats(self, request: Command, wait: bool) -> Command:
        header = request.header(GetConsumeStatsRequestHeader)
        topics = [header.topic] if header.topic else sorted(self._topics_consumed(header.consumer_group))
        places = []
        for topic in topics:
            config = self._broker.topics.get(topic)
            for queue_id in range(config.read_queue_nums if config else 0):
                places.append((topic, queue_id, self._broker.offsets.get(header.consumer_group, topic, queue_id) or 0))
        table = {}
        for (topic, queue_id, consumed), last in zip(places, self._times_before(places, wait), strict=True):
            table[self._queue_key(topic, queue_id)] = {
                "brokerOffset": self._broker.store.max_offset(topic, queue_id),
                "consumerOffset": consumed,
                "lastTimestamp": last,
                "pullOffset": consumed,
            }
        return answer(request, body=loose_json.dumps({"consumeTps": 0.0, "offsetTable": table}))

    def _topics_consumed(self, group: str) -> set[str]:
        online = self._broker.clients.consumers.get(group)
        return set(self._broker.offsets.topics_of(group)) | set(online.subscriptions if online else ())

    def _consumed_by(self, request: Command) -> Command:
        topic = request.header(GetTopicStatsInfoRequestHeader).topic
        groups = set(self._broker.offsets.groups_of(topic)) | set(self._broker.clients.groups_consuming(topic))
        return answer(request, body=loose_json.dumps({"groupList": sorted(groups)}))

    def _topics_of_group(self, request: Command) -> Command:
        group = request.header(GroupRequestHeader).group
        return answer(request, body=loose_json.dumps({"topicList": sorted(self._topics_consumed(group))}))

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
        return answer(request, body=loose_json.dumps(body))

    def _producer_connections(self, request: Command) -> Command:
        name = request.header(ProducerGroupRequestHeader).producer_group
        clients = self._broker.clients.producers.get(name)
        if not clients:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        return answer(request, body=loose_json.dumps({"connectionSet": [_connection(client) for client in clients.values()]}))

    # Tables and settings.

    def _all_offsets(self, request: Command) -> Command:
        return answer(request, body=loose_json.dumps(self._broker.offsets.table()))

    def _delay_offsets(self, request: Command) -> Command:
        path = self._broker.config.config_path / "delayOffset.json"
        try:
            body = path.read_bytes()
        except FileNotFoundError:
            body = loose_json.dumps(DelayOffsetFile())
        return answer(request, body=body)

    def _broker_config(self, request: Command) -> Command:
        response = answer(request, body=settings.properties_text(self._broker.config).encode())
        response.ext = {"version": loose_json.dumps(self._broker.topics.data_version).decode()}
        return response

    def _runtime_info(self, request: Command) -> Command:
        return answer(request, body=loose_json.dumps({"table": runtime_info.collect(self._broker)}))


def _connection(client: ClientInfo) -> dict[str, object]:
    return {
        "clientAddr": client.peer.remote_text,
        "clientId": client.client_id,
        "language": client.language or "OTHER",
        "version": client.version,
    }


def _attributes(known: dict[str, str], text: str | None) -> dict[str, str]:
    """Apply `+key=value,-key` to a topic's attributes. Raises DecodeError for anything else."""
    result = dict(known)
    for item in filter(None, (part.strip() for part in (text or "").split(","))):
        key, _, value = item[1:].partition("=")
        if item[0] == "+" and key and value:
            result[key] = value
        elif item[0] == "-" and key:
            result.pop(key, None)
        else:
            raise DecodeError(f"attribute {item!r} is neither +key=value nor -key")
    return result
