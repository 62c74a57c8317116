"""What requests want."""

from __future__ import annotations

import msgspec
import pytest

from rmqkit.errors import DecodeError
from rmqkit.model.subscription import ConsumerData, HeartbeatData, SubscriptionData
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command
from rmqkit_hook_acl.needs import needs_of

Code = RequestCode


def shown(code: int, body: object = None, **fields: str) -> list[str]:
    """The needs of a request as texts."""
    data = b"" if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
    return [
        f"{need} {need.actions.name}" for need in needs_of(Command(code, ext=fields, body=data), "cluster")
    ]


@pytest.mark.parametrize(
    ("code", "fields", "needs"),
    [
        (Code.SEND_MESSAGE, {"topic": "T"}, ["Topic:T PUB"]),
        (Code.SEND_MESSAGE_V2, {"a": "p", "b": "T"}, ["Topic:T PUB"]),
        (Code.SEND_BATCH_MESSAGE, {"b": "T"}, ["Topic:T PUB"]),
        (Code.SEND_MESSAGE_V2, {"a": "other", "b": "%RETRY%g"}, ["Group:g SUB"]),
        (Code.SEND_REPLY_MESSAGE_V2, {"b": "c_REPLY_TOPIC"}, ["Topic:c_REPLY_TOPIC PUB"]),
        (Code.PULL_MESSAGE, {"topic": "T", "consumerGroup": "g"}, ["Topic:T SUB", "Group:g SUB"]),
        (Code.PULL_MESSAGE, {"topic": "%RETRY%x", "consumerGroup": "g"}, ["Group:x SUB", "Group:g SUB"]),
        (Code.PULL_MESSAGE, {}, ["Topic: SUB", "Group: SUB"]),
        (Code.GET_MAX_OFFSET, {"topic": "T"}, ["Topic:T SUB|GET"]),
        (Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}, ["Topic:T PUB|SUB|GET"]),
        (Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "%RETRY%g"}, ["Group:g SUB|GET"]),
        (Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "%RETRY%g+T"}, ["Group:g SUB|GET"]),
        (Code.END_TRANSACTION, {}, []),
        (Code.END_TRANSACTION, {"topic": "T"}, ["Topic:T PUB"]),
        (Code.VIEW_MESSAGE_BY_ID, {"offset": "1", "topic": "T"}, []),
        (Code.CONSUMER_SEND_MSG_BACK, {"group": "g", "originTopic": "T"}, ["Group:g SUB"]),
        (Code.UNREGISTER_CLIENT, {"producerGroup": "p"}, []),
        (Code.UNREGISTER_CLIENT, {"consumerGroup": "g"}, ["Group:g SUB"]),
        (Code.UPDATE_AND_CREATE_TOPIC, {"topic": "T"}, ["Topic:T CREATE"]),
        (Code.DELETE_TOPIC_IN_BROKER, {"topic": "T"}, ["Topic:T DELETE"]),
        (Code.GET_CONSUME_STATS, {"consumerGroup": "g"}, ["Group:g GET"]),
        (
            Code.QUERY_CORRECTION_OFFSET,
            {"topic": "T", "filterGroups": "a,b", "compareGroup": "c"},
            ["Topic:T GET", "Group:a GET", "Group:b GET", "Group:c GET"],
        ),
        (Code.REGISTER_BROKER, {"clusterName": "other"}, ["Cluster:other UPDATE"]),
        (Code.UPDATE_BROKER_CONFIG, {}, ["Cluster:cluster UPDATE"]),
        (Code.AUTH_CREATE_USER, {"username": "u"}, ["Cluster:cluster UPDATE"]),
        (Code.AUTH_LIST_ACL, {}, ["Cluster:cluster GET"]),
        (31_337, {"topic": "T"}, ["Cluster:cluster UPDATE"]),
    ],
)
def test_needs_from_header_fields(code: int, fields: dict[str, str], needs: list[str]) -> None:
    """The fields that processors read say the resources; a missing one is a nameless resource, an unknown
    code a change of the cluster."""
    assert shown(code, **fields) == needs


def test_needs_from_bodies() -> None:
    """Heartbeats, locks and requests for several topics or groups name their resources in the body."""
    beat = HeartbeatData(
        client_id="c",
        consumer_data_set=[
            ConsumerData(
                group_name="g",
                subscription_data_set=[SubscriptionData(topic="T"), SubscriptionData(topic="%RETRY%g")],
            )
        ],
    )
    assert shown(Code.HEART_BEAT, beat) == ["Group:g SUB", "Topic:T SUB", "Group:g SUB"]
    locks = {"consumerGroup": "g", "mqSet": [{"topic": "T", "brokerName": "b", "queueId": 1}]}
    assert shown(Code.LOCK_BATCH_MQ, locks) == ["Group:g SUB", "Topic:T SUB"]
    topics = {"topicConfigList": [{"topicName": "a"}, {"topicName": "b"}]}
    assert shown(Code.UPDATE_AND_CREATE_TOPIC_LIST, topics) == ["Topic:a CREATE", "Topic:b CREATE"]
    assert shown(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": "g"}) == ["Group:g CREATE|UPDATE"]
    groups = {"groupConfigList": [{"groupName": "g"}]}
    assert shown(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, groups) == ["Group:g CREATE|UPDATE"]
    assignment = {"consumerGroup": "g", "topic": "T"}
    assert shown(Code.QUERY_ASSIGNMENT, assignment) == ["Group:g SUB", "Topic:T SUB"]
    assert shown(Code.SET_MESSAGE_REQUEST_MODE, assignment) == ["Group:g UPDATE", "Topic:T UPDATE"]
    check = {"group": "g", "subscriptionData": {"topic": "T"}}
    assert shown(Code.CHECK_CLIENT_CONFIG, check) == ["Group:g SUB", "Topic:T SUB"]
    acks = {"acks": [{"c": "g", "t": "T", "q": 1}]}
    assert shown(Code.BATCH_ACK_MESSAGE, acks) == ["Group:g SUB", "Topic:T SUB"]


@pytest.mark.parametrize(
    "code",
    [
        Code.HEART_BEAT,
        Code.LOCK_BATCH_MQ,
        Code.UPDATE_AND_CREATE_TOPIC_LIST,
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        Code.QUERY_ASSIGNMENT,
        Code.CHECK_CLIENT_CONFIG,
        Code.BATCH_ACK_MESSAGE,
    ],
)
@pytest.mark.parametrize("body", [b"", b"no json", b"[]", b"1", b'{"acks": 1, "mqSet": 1, "group": []}'])
def test_a_body_that_cannot_be_read_is_an_error(code: int, body: bytes) -> None:
    """Nothing is guessed: either the body is read as the processor reads it, or the request is refused."""
    try:
        found = needs_of(Command(code, body=body), "c")
    except DecodeError:
        return
    assert all(need.name == "" for need in found)
