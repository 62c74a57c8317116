"""Queues, topics, groups and routes as JSON: RocketMQ's names and defaults."""

from __future__ import annotations

import msgspec
import pytest

from rmqkit.errors import DecodeError
from rmqkit.model.queue import MessageQueue
from rmqkit.model.route import (
    BrokerData,
    KVTable,
    QueueData,
    RegisterBrokerBody,
    TopicList,
    TopicRouteData,
    compact,
)
from rmqkit.model.subscription import CheckClientRequestBody, ConsumerData, HeartbeatData
from rmqkit.model.topic import (
    ConsumerOffsetFile,
    DataVersion,
    DelayOffsetFile,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigAndMappingTable,
    TopicConfigTable,
)
from rmqkit.protocol import loose_json
from rmqkit.protocol.headers import LockBatchMqBody, LockBatchMqResponseBody


def members(value: object) -> dict[str, object]:
    """JSON members of a value as sent."""
    parsed: dict[str, object] = msgspec.json.decode(compact(value))
    return parsed


def test_data_version() -> None:
    """Each change sets the time and increments the counter; two versions are equal only if all three numbers
    are."""
    version = DataVersion(state_version=4)
    before = msgspec.structs.replace(version)
    assert version.same(before)
    version.next(1000)
    assert (version.state_version, version.timestamp, version.counter) == (4, 1000, 1)
    version.next(1000)
    assert version.counter == 2
    assert not version.same(before)
    for change in ({"counter": 3}, {"timestamp": 1001}, {"state_version": 5}):
        assert not version.same(msgspec.structs.replace(version, **change))
    assert loose_json.decode(b'{"counter":3,"timestamp":9}', DataVersion) == DataVersion(
        counter=3, timestamp=9
    )


@pytest.mark.row("S138")
def test_queue() -> None:
    """Queues are ordered by topic, broker and number, can be keys, and have Java's text form for consistent
    hashing."""
    queues = [
        MessageQueue("T", "b", 10),
        MessageQueue("T", "b", 9),
        MessageQueue("T", "a", 11),
        MessageQueue("S", "z", 99),
    ]
    assert sorted(queues) == [queues[3], queues[2], queues[1], queues[0]]
    assert {MessageQueue("T", "b", 10): 1}[queues[0]] == 1
    assert queues[0].java_text() == "MessageQueue [topic=T, brokerName=b, queueId=10]"
    assert str(queues[0]) == "T@b:10"
    assert members(queues[0]) == {"topic": "T", "brokerName": "b", "queueId": 10}


@pytest.mark.row("S229")
def test_topic_config() -> None:
    """A topic's members, defaults and permission bits."""
    assert members(TopicConfig(topic_name="T")) == {
        "attributes": {},
        "order": False,
        "perm": 6,
        "readQueueNums": 16,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "T",
        "topicSysFlag": 0,
        "writeQueueNums": 16,
    }
    access = {
        perm: (
            TopicConfig(topic_name="T", perm=perm).readable,
            TopicConfig(topic_name="T", perm=perm).writable,
        )
        for perm in range(8)
    }
    assert access == {perm: (bool(perm & 4), bool(perm & 2)) for perm in range(8)}


def test_subscription_group() -> None:
    """A group's members and defaults are right, also in a table written by a 4.x broker (5 queues, fewer
    members)."""
    assert members(SubscriptionGroupConfig(group_name="G")) == {
        "attributes": {},
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeMessageOrderly": False,
        "consumeTimeoutMinute": 15,
        "groupName": "G",
        "groupSysFlag": 0,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": 16,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }
    old = (
        b'{"dataVersion":{"counter":1,"timestamp":1},"subscriptionGroupTable":{"G":{"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
        b'"consumeFromMinEnable":true,"groupName":"G","retryMaxTimes":5,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}}}'
    )
    table = loose_json.decode(old, SubscriptionGroupTable)
    assert table.subscription_group_table == {"G": SubscriptionGroupConfig(group_name="G", retry_max_times=5)}
    assert set(members(table)) == {"dataVersion", "forbiddenTable", "subscriptionGroupTable"}


def test_integer_keyed_files() -> None:
    """Offset files have integer keys, which are decoded bare and quoted."""
    for text in (b'{"offsetTable":{1:10,18:7}}', b'{"offsetTable":{"1":10,"18":7}}'):
        assert loose_json.decode(text, DelayOffsetFile).offset_table == {1: 10, 18: 7}
    for text in (b'{"offsetTable":{"T@G":{0:1}}}', b'{"offsetTable":{"T@G":{"0":"1"}}}'):
        assert loose_json.decode(text, ConsumerOffsetFile).offset_table == {"T@G": {0: 1}}
    with pytest.raises(DecodeError):
        loose_json.decode(b'{"offsetTable":{"T@G":{"x":1}}}', ConsumerOffsetFile)


def test_tables_do_not_share_their_defaults() -> None:
    """New values do not share lists or dictionaries."""
    for kind in (
        TopicConfigTable,
        TopicConfigAndMappingTable,
        SubscriptionGroupTable,
        ConsumerOffsetFile,
        RegisterBrokerBody,
        TopicRouteData,
    ):
        one, other = kind(), kind()
        for name in kind.__struct_fields__:
            value = getattr(one, name)
            assert not isinstance(value, (list, dict, DataVersion)) or value is not getattr(other, name), name


def test_compact_leaves_null_out() -> None:
    """Members that are None are omitted at every depth; keys and lists stay."""
    route = TopicRouteData(
        broker_datas=[BrokerData(cluster="c", broker_name="b", broker_addrs={0: "a:1", 2: "a:2"})],
        queue_datas=[QueueData(broker_name="b", perm=6)],
        filter_server_table={"a:1": None, "a:2": ["f"]},
    )
    text = compact(route)
    assert b"null" not in text
    assert b" " not in text
    assert msgspec.json.decode(text) == {
        "brokerDatas": [
            {
                "cluster": "c",
                "brokerName": "b",
                "brokerAddrs": {"0": "a:1", "2": "a:2"},
                "enableActingMaster": False,
            }
        ],
        "queueDatas": [
            {"brokerName": "b", "readQueueNums": 0, "writeQueueNums": 0, "perm": 6, "topicSysFlag": 0}
        ],
        "filterServerTable": {"a:2": ["f"]},
    }
    assert members(TopicList(topic_list=["T"])) == {"topicList": ["T"]}
    assert members(KVTable(table={"k": "v"})) == {"table": {"k": "v"}}
    assert BrokerData(cluster="c", broker_name="b").master is None


def test_go_heartbeat() -> None:
    """The Go client omits members, sends null lists, and sends numbers where Java has text."""
    beat = loose_json.decode(
        b'{"clientID":"10.0.0.1@1","producerDataSet":null,"consumerDataSet":[{"groupName":"G","consumeType":"CONSUME_PASSIVELY",'
        b'"messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","subscriptionDataSet":null,"unitMode":false}]}',
        HeartbeatData,
    )
    assert not beat.producer_data_set
    assert beat.consumer_data_set == [ConsumerData(group_name="G", subscription_data_set=None)]
    null_tags = (
        b'{"subscriptionData":{"topic":"T","tagsSet":null,"codeSet":null,"subVersion":"7","subString":"*"}}'
    )
    checked = loose_json.decode(null_tags, CheckClientRequestBody).subscription_data
    assert checked is not None
    assert (checked.tags_set, checked.code_set, checked.sub_version, checked.takes_all) == ([], [], 7, True)


def test_lock_answer() -> None:
    """The answer to a lock has its queues under lockOKMQSet."""
    assert members(LockBatchMqResponseBody(lock_ok_mq_set=[MessageQueue("T", "b", 0)])) == {
        "lockOKMQSet": [{"topic": "T", "brokerName": "b", "queueId": 0}]
    }
    with pytest.raises(DecodeError, match="consumerGroup"):
        loose_json.decode(b'{"clientId":"c"}', LockBatchMqBody)
