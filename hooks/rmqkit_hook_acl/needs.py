"""What requests want: which action on which resource (wire-protocol sheet, section 7.3; Java:
DefaultAuthorizationContextBuilder and the annotations of the headers).

A request of a code that is not listed wants to change the cluster, so that only super users and those with a
policy for it send what is unknown here. The names come from the same fields that processors read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec
from attrs import frozen

from rmqkit.errors import DecodeError
from rmqkit.model.subscription import HeartbeatData
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.lite import LiteSubscriptionCtlRequestBody
from rmqkit_hook_acl.decide import Need
from rmqkit_hook_acl.model import CLUSTER, GROUP, TOPIC, Action, group_of, is_retry_topic

T = TypeVar("T", bound=msgspec.Struct)
Code = RequestCode
_PUB, _SUB, _GET, _LIST = Action.PUB, Action.SUB, Action.GET, Action.LIST
_CREATE, _UPDATE, _DELETE = Action.CREATE, Action.UPDATE, Action.DELETE


@frozen
class _Fields:
    """A code whose header fields name the resources; a field with `?` may be missing, one with `,` at its end
    has several names."""

    actions: Action
    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    def needs(self, request: Command, cluster: str) -> Iterator[Need]:
        fields = request.fields()
        for name in self.topics:
            for topic in _values(fields, name):
                yield on_topic(topic, self.actions)
        for name in self.groups:
            for group in _values(fields, name):
                yield Need(GROUP, group_of(group), self.actions)


def _values(fields: Mapping[str, str], spec: str) -> Iterable[str]:
    name = spec.rstrip("?,")
    value = fields.get(name)
    if value is None:
        return () if "?" in spec else ("",)
    return [each for each in value.split(",") if each] if "," in spec else (value,)


def on_topic(topic: str, actions: Action) -> Need:
    """The need for a topic; the retry topic of a group belongs to the group."""
    if is_retry_topic(topic):
        return Need(GROUP, group_of(topic), Action.SUB if actions & _PUB else actions)
    return Need(TOPIC, topic, actions)


@frozen
class _OfCluster:
    """A code that is about the cluster, the one that the header names in `field`, if it has such a field."""

    actions: Action
    field: str = ""

    def needs(self, request: Command, cluster: str) -> Iterator[Need]:
        named = request.fields().get(self.field) if self.field else None
        yield Need(CLUSTER, named or cluster, self.actions)


_Bodies = Callable[[Command], Iterable[Need]]


@frozen
class _Body:
    """A code whose body names the resources."""

    read: _Bodies

    def needs(self, request: Command, cluster: str) -> Iterable[Need]:
        return self.read(request)


class _Queue(msgspec.Struct):
    topic: str = ""


class _GroupBody(msgspec.Struct, rename="camel"):
    consumer_group: str = ""
    topic: str = ""
    mq_set: list[_Queue] | None = None


class _Subscription(msgspec.Struct):
    topic: str = ""


class _CheckBody(msgspec.Struct, rename="camel"):
    group: str = ""
    subscription_data: _Subscription | None = None


class _TopicConfig(msgspec.Struct, rename="camel"):
    topic_name: str = ""


class _TopicsBody(msgspec.Struct, rename="camel"):
    topic_config_list: list[_TopicConfig] | None = None


class _GroupConfig(msgspec.Struct, rename="camel"):
    group_name: str = ""


class _GroupsBody(msgspec.Struct, rename="camel"):
    group_config_list: list[_GroupConfig] | None = None


class _Ack(msgspec.Struct):
    c: str = ""
    t: str = ""


class _AcksBody(msgspec.Struct):
    acks: list[dict[str, Any]] | None = None


def _heartbeat(request: Command) -> Iterator[Need]:
    for group in request.decode_body(HeartbeatData).consumer_data_set or ():
        yield Need(GROUP, group_of(group.group_name), _SUB)
        for each in group.subscription_data_set or ():
            yield on_topic(each.topic, _SUB)


def _locks(request: Command) -> Iterator[Need]:
    body = request.decode_body(_GroupBody)
    yield Need(GROUP, group_of(body.consumer_group), _SUB)
    for topic in {queue.topic for queue in body.mq_set or ()}:
        yield on_topic(topic, _SUB)


def _group_and_topic(actions: Action) -> _Bodies:
    def needs(request: Command) -> Iterator[Need]:
        body = request.decode_body(_GroupBody)
        yield Need(GROUP, group_of(body.consumer_group), actions)
        yield on_topic(body.topic, actions)

    return needs


def _check_client(request: Command) -> Iterator[Need]:
    body = request.decode_body(_CheckBody)
    yield Need(GROUP, group_of(body.group), _SUB)
    if body.subscription_data is not None:
        yield on_topic(body.subscription_data.topic, _SUB)


def _topics(request: Command) -> Iterator[Need]:
    for each in request.decode_body(_TopicsBody).topic_config_list or ():
        yield Need(TOPIC, each.topic_name, _CREATE)


def _group_config(request: Command) -> Iterator[Need]:
    yield Need(GROUP, request.decode_body(_GroupConfig).group_name, _CREATE | _UPDATE)


def _group_configs(request: Command) -> Iterator[Need]:
    for each in request.decode_body(_GroupsBody).group_config_list or ():
        yield Need(GROUP, each.group_name, _CREATE | _UPDATE)


def _acks(request: Command) -> Iterator[Need]:
    for each in request.decode_body(_AcksBody).acks or ():
        ack = msgspec.convert(each, _Ack, strict=False)
        yield Need(GROUP, group_of(ack.c), _SUB)
        yield on_topic(ack.t, _SUB)


def _lite_subscriptions(request: Command) -> Iterator[Need]:
    for each in request.decode_body(LiteSubscriptionCtlRequestBody).subscription_set or ():
        yield Need(GROUP, group_of(each.group), _SUB)
        yield on_topic(each.topic, _SUB)


@frozen
class _Route:
    """A route is for whoever may use the topic in any way."""

    def needs(self, request: Command, cluster: str) -> Iterator[Need]:
        topic = request.fields().get("topic", "")
        yield on_topic(topic, _SUB | _GET if is_retry_topic(topic) else _PUB | _SUB | _GET)


_Spec = _Fields | _OfCluster | _Body | _Route
_READ = _SUB | _GET
_OF_TOPIC: dict[Action, tuple[Code, ...]] = {
    _CREATE: (Code.UPDATE_AND_CREATE_TOPIC, Code.UPDATE_AND_CREATE_STATIC_TOPIC),
    _DELETE: (Code.DELETE_TOPIC_IN_BROKER,),
    _UPDATE: (Code.RESUME_CHECK_HALF_MESSAGE,),
    _PUB: (Code.SEND_MESSAGE, Code.SEND_REPLY_MESSAGE, Code.RECALL_MESSAGE),
    _READ: (
        Code.QUERY_MESSAGE,
        Code.SEARCH_OFFSET_BY_TIMESTAMP,
        Code.GET_MAX_OFFSET,
        Code.GET_MIN_OFFSET,
        Code.GET_EARLIEST_MSG_STORETIME,
    ),
    _GET: (
        Code.GET_TOPIC_STATS_INFO,
        Code.QUERY_TOPIC_CONSUME_BY_WHO,
        Code.GET_TOPIC_CONFIG,
        Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
    ),
}
_OF_CLUSTER: dict[Action, tuple[Code, ...]] = {
    _GET: (
        Code.GET_ALL_TOPIC_CONFIG,
        Code.GET_BROKER_CONFIG,
        Code.GET_BROKER_RUNTIME_INFO,
        Code.GET_ALL_CONSUMER_OFFSET,
        Code.GET_ALL_DELAY_OFFSET,
        Code.GET_TIMER_CHECK_POINT,
        Code.GET_TIMER_METRICS,
        Code.GET_BROKER_LITE_INFO,
        Code.GET_KV_CONFIG,
        Code.GET_KVLIST_BY_NAMESPACE,
        Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        Code.GET_PRODUCER_CONNECTION_LIST,
        Code.VIEW_BROKER_STATS_DATA,
        Code.GET_BROKER_CONSUME_STATS,
        Code.GET_NAMESRV_CONFIG,
        Code.GET_ALL_PRODUCER_INFO,
        Code.EXPORT_ROCKSDB_CONFIG_TO_JSON,
        Code.GET_ALL_MESSAGE_REQUEST_MODE,
        Code.GET_BROKER_HA_STATUS,
        Code.GET_BROKER_EPOCH_CACHE,
        Code.GET_COLD_DATA_FLOW_CTR_INFO,
        Code.AUTH_GET_USER,
        Code.AUTH_LIST_USER,
        Code.AUTH_GET_ACL,
        Code.AUTH_LIST_ACL,
        Code.GET_BROKER_CLUSTER_ACL_INFO,
    ),
    _GET | _LIST: (
        Code.GET_BROKER_CLUSTER_INFO,
        Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        Code.GET_TOPICS_BY_CLUSTER,
        Code.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        Code.GET_UNIT_TOPIC_LIST,
        Code.GET_HAS_UNIT_SUB_TOPIC_LIST,
        Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    ),
}
_SPECS: dict[int, _Spec] = {
    **{code: _Fields(actions, ("topic",)) for actions, codes in _OF_TOPIC.items() for code in codes},
    **{code: _OfCluster(actions) for actions, codes in _OF_CLUSTER.items() for code in codes},
    Code.SEND_MESSAGE_V2: _Fields(_PUB, ("b",)),
    Code.SEND_BATCH_MESSAGE: _Fields(_PUB, ("b",)),
    Code.SEND_REPLY_MESSAGE_V2: _Fields(_PUB, ("b",)),
    # Clients of 4.x name no topic.
    Code.END_TRANSACTION: _Fields(_PUB, ("topic?",)),
    # The topic is the record's: `check_read`.
    Code.CONSUMER_SEND_MSG_BACK: _Fields(_SUB, (), ("group",)),
    Code.VIEW_MESSAGE_BY_ID: _Fields(_READ),
    Code.PULL_MESSAGE: _Fields(_SUB, ("topic",), ("consumerGroup",)),
    Code.LITE_PULL_MESSAGE: _Fields(_SUB, ("topic",), ("consumerGroup",)),
    Code.POP_MESSAGE: _Fields(_SUB, ("topic",), ("consumerGroup",)),
    Code.POP_LITE_MESSAGE: _Fields(_SUB, ("topic",), ("consumerGroup",)),
    Code.LITE_SUBSCRIPTION_CTL: _Body(_lite_subscriptions),
    Code.GET_PARENT_TOPIC_INFO: _Fields(_GET, ("topic",)),
    Code.GET_LITE_TOPIC_INFO: _Fields(_GET, ("parentTopic",)),
    Code.GET_LITE_GROUP_INFO: _Fields(_GET, (), ("group",)),
    Code.GET_LITE_CLIENT_INFO: _Fields(_GET, (), ("group",)),
    Code.TRIGGER_LITE_DISPATCH: _Fields(_UPDATE, (), ("group",)),
    Code.PEEK_MESSAGE: _Fields(_SUB, ("topic",), ("consumerGroup",)),
    Code.NOTIFICATION: _Fields(_SUB, ("topic",), ("consumerGroup",)),
    Code.ACK_MESSAGE: _Fields(_SUB, ("topic",), ("consumerGroup",)),
    Code.CHANGE_MESSAGE_INVISIBLETIME: _Fields(_SUB, ("topic",), ("consumerGroup",)),
    Code.POLLING_INFO: _Fields(_READ, ("topic",), ("consumerGroup",)),
    Code.BATCH_ACK_MESSAGE: _Body(_acks),
    Code.QUERY_CONSUMER_OFFSET: _Fields(_READ, ("topic",), ("consumerGroup",)),
    Code.UPDATE_CONSUMER_OFFSET: _Fields(_SUB | _UPDATE, ("topic",), ("consumerGroup",)),
    Code.GET_CONSUMER_LIST_BY_GROUP: _Fields(_READ, (), ("consumerGroup",)),
    Code.UNREGISTER_CLIENT: _Fields(_SUB, (), ("consumerGroup?",)),
    Code.HEART_BEAT: _Body(_heartbeat),
    Code.LOCK_BATCH_MQ: _Body(_locks),
    Code.UNLOCK_BATCH_MQ: _Body(_locks),
    Code.CHECK_CLIENT_CONFIG: _Body(_check_client),
    Code.QUERY_ASSIGNMENT: _Body(_group_and_topic(_SUB)),
    Code.SET_MESSAGE_REQUEST_MODE: _Body(_group_and_topic(_UPDATE)),
    Code.GET_ROUTEINFO_BY_TOPIC: _Route(),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: _Body(_topics),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _Body(_group_config),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _Body(_group_configs),
    Code.DELETE_SUBSCRIPTIONGROUP: _Fields(_DELETE, (), ("groupName",)),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: _Fields(_GET, (), ("group",)),
    Code.GET_CONSUMER_CONNECTION_LIST: _Fields(_GET, (), ("consumerGroup",)),
    Code.GET_CONSUMER_RUNNING_INFO: _Fields(_GET, (), ("consumerGroup",)),
    Code.GET_CONSUME_STATS: _Fields(_GET, ("topic?",), ("consumerGroup",)),
    Code.QUERY_TOPICS_BY_CONSUMER: _Fields(_GET, (), ("group",)),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: _Fields(_GET, ("topic",), ("group",)),
    Code.QUERY_CONSUME_TIME_SPAN: _Fields(_GET, ("topic",), ("group",)),
    Code.QUERY_CORRECTION_OFFSET: _Fields(_GET, ("topic",), ("filterGroups?,", "compareGroup")),
    Code.QUERY_CONSUME_QUEUE: _Fields(_GET, ("topic",), ("consumerGroup?",)),
    Code.CONSUME_MESSAGE_DIRECTLY: _Fields(_SUB, ("topic?",), ("consumerGroup",)),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: _Fields(_UPDATE, ("topic",), ("group",)),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _Fields(_GET, ("topic",), ("group",)),
    Code.CLONE_GROUP_OFFSET: _Fields(_UPDATE, ("topic",), ("srcGroup", "destGroup")),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: _Fields(_UPDATE, ("topic",), ("group",)),
    Code.REGISTER_MESSAGE_FILTER_CLASS: _Fields(_SUB, ("topic",), ("consumerGroup",)),
    Code.REGISTER_BROKER: _OfCluster(_UPDATE, "clusterName"),
    Code.UNREGISTER_BROKER: _OfCluster(_UPDATE, "clusterName"),
    Code.BROKER_HEARTBEAT: _OfCluster(_UPDATE, "clusterName"),
    Code.QUERY_DATA_VERSION: _OfCluster(_GET, "clusterName"),
    Code.GET_BROKER_MEMBER_GROUP: _OfCluster(_GET, "clusterName"),
    Code.DELETE_TOPIC_IN_NAMESRV: _OfCluster(_UPDATE, "clusterName"),
}
_UNLISTED = _OfCluster(_UPDATE)
#: Code -> the header fields that say what a request is about.
NAMING = {
    code: tuple(name.rstrip("?,") for name in (*spec.topics, *spec.groups))
    for code, spec in _SPECS.items()
    if isinstance(spec, _Fields)
}


def named_by(request: Command) -> tuple[str | None, ...] | None:
    """All that the header names of a request whose needs follow from that alone; None for other requests."""
    names = NAMING.get(request.code)
    if names is None:
        return None
    return tuple(map(request.fields().get, names))


def needs_of(request: Command, cluster: str) -> list[Need]:
    """What a request to a server of this cluster wants; all of it must be allowed. Raises DecodeError when
    that cannot be read, HeaderError."""
    try:
        return list(_SPECS.get(request.code, _UNLISTED).needs(request, cluster))
    except msgspec.MsgspecError as error:
        raise DecodeError(str(error)) from error
