"""Administration: topics, groups, statistics, connections, settings."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rmqkit.limits import MAX_QUEUES_PER_TOPIC
from rmqkit.model import names
from rmqkit.model.subscription import ConsumerData, SubscriptionData
from rmqkit.model.topic import SubscriptionGroupConfig, TopicConfig
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command
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
from tests.broker.desk import Desk

Opened = Callable[..., AbstractAsyncContextManager[Desk]]


def content(answer: Command) -> Any:
    assert (answer.code, answer.remark) == (0, None)
    return msgspec.json.decode(answer.body)


async def create(desk: Desk, topic: str = "New", **fields: Any) -> Command:
    fields = dict[str, Any](read_queue_nums=2, write_queue_nums=3, perm=6) | fields
    return await desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicRequestHeader(topic=topic, **fields))


async def delete(desk: Desk, topic: str) -> Command:
    return await desk.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic=topic))


def key(queue_id: int, topic: str = "T") -> str:
    """A queue as the text of an object key."""
    return f'{{"topic":"{topic}","brokerName":"broker-a","queueId":{queue_id}}}'


# --- topics -----------------------------------------------------------------------------------------------------------


@pytest.mark.row("S008", "S024", "S224", "S229")
async def test_a_topic_is_created_changed_and_deleted(desk: Desk) -> None:
    """As asked; changing replaces it; an equal request is a success that changes nothing; deleting what is not there is a success too."""
    assert (await create(desk, order=True, topic_sys_flag=1)).code == 0
    expected = TopicConfig(topic_name="New", read_queue_nums=2, write_queue_nums=3, perm=6, order=True, topic_sys_flag=1)
    assert desk.broker.topics.get("New") == expected
    version = desk.broker.topics.data_version.counter
    assert (await create(desk, order=True, topic_sys_flag=1)).code == 0
    assert desk.broker.topics.data_version.counter == version
    assert (await create(desk, perm=4)).code == 0
    assert content(await desk.ask(RequestCode.GET_TOPIC_CONFIG, GetTopicConfigRequestHeader(topic="New")))["perm"] == 4
    for _ in range(2):
        assert (await delete(desk, "New")).code == 0
    answer = await desk.ask(RequestCode.GET_TOPIC_CONFIG, GetTopicConfigRequestHeader(topic="New"))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


async def test_attributes_come_and_go(desk: Desk) -> None:
    """`+key=value` sets, `-key` removes, what is not named stays; anything else is refused."""
    assert (await create(desk, attributes="+message.type=NORMAL,+a=b")).code == 0
    assert (await create(desk, attributes="-a,+c=d")).code == 0
    topic = desk.broker.topics.get("New")
    assert topic is not None
    assert topic.attributes == {"message.type": "NORMAL", "c": "d"}
    for bad in ("a=b", "+a", "+=b", "-"):
        assert (await create(desk, attributes=bad)).code == ResponseCode.SYSTEM_ERROR
    assert desk.broker.topics.get("New") == topic


@pytest.mark.parametrize("topic", ["", " ", "../x", "a/b", "a\0b", "a.b", "x" * 128])
async def test_illegal_names_are_refused(desk: Desk, topic: str) -> None:
    """INVALID_PARAMETER, and nothing changes."""
    before = dict(desk.broker.topics.configs)
    assert (await create(desk, topic)).code == ResponseCode.INVALID_PARAMETER
    assert desk.broker.topics.configs == before


@pytest.mark.parametrize(
    "fields",
    [{"perm": 8}, {"perm": -1}, {"read_queue_nums": -1}, {"write_queue_nums": MAX_QUEUES_PER_TOPIC + 1}, {"read_queue_nums": 2**31 - 1}],
)
async def test_illegal_numbers_are_refused(desk: Desk, fields: dict[str, Any]) -> None:
    """Permissions beyond read, write, inherit; negative and enormous queue counts."""
    assert (await create(desk, **fields)).code == ResponseCode.INVALID_PARAMETER
    assert desk.broker.topics.get("New") is None


@pytest.mark.parametrize(
    "topic", [names.TEMPLATE_TOPIC, names.SCHEDULE_TOPIC, "rmq_sys_x", "broker-a", "DefaultCluster", "DefaultCluster_REPLY_TOPIC"]
)
async def test_system_topics_are_left_alone(desk: Desk, topic: str) -> None:
    """Neither changed nor deleted."""
    before = dict(desk.broker.topics.configs)
    assert (await create(desk, topic)).code == ResponseCode.INVALID_PARAMETER
    assert (await delete(desk, topic)).code == ResponseCode.INVALID_PARAMETER
    assert desk.broker.topics.configs == before


@pytest.mark.row("S008")
async def test_a_deleted_topic_takes_its_queues_and_offsets_along(desk: Desk) -> None:
    """A topic of the same name starts from nothing; other topics stay."""
    await desk.sent()
    await desk.sent("Other")
    desk.broker.offsets.commit("g", "T", 0, 1)
    desk.broker.offsets.commit("g", "Other", 0, 1)
    assert (await delete(desk, "T")).code == 0
    assert desk.broker.store.queues() == {"Other": [0]}
    assert desk.broker.offsets.topics_of("g") == ["Other"]
    await desk.sent(body=b"again")
    assert [message.body for message in desk.stored()] == [b"again"]


@pytest.mark.only_store("mmap", why="is about the files of one store")
async def test_deleting_an_unknown_name_touches_no_file(opened: Opened, tmp_path: Path) -> None:
    """A name like a path least of all."""
    victim = tmp_path / "consumequeue" / "victim"
    async with opened(store="mmap") as desk:
        victim.mkdir()
        for name in ("victim", "../consumequeue/victim", "../config"):
            assert (await delete(desk, name)).code == 0
        assert (await delete(desk, " ")).code == ResponseCode.INVALID_PARAMETER
        assert victim.is_dir()
        assert (tmp_path / "config").is_dir()
        victim.rmdir()


@pytest.mark.row("S224")
async def test_all_topics(desk: Desk) -> None:
    """The table with its version, as slaves and tools read it."""
    body = content(await desk.ask(RequestCode.GET_ALL_TOPIC_CONFIG))
    assert body["dataVersion"]["counter"] == 1
    assert body["topicConfigTable"]["T"] == {
        "topicName": "T",
        "readQueueNums": 4,
        "writeQueueNums": 4,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
        "attributes": {},
    }
    assert names.TEMPLATE_TOPIC in body["topicConfigTable"]


async def test_system_topics_are_listed(desk: Desk) -> None:
    """The reserved ones and the broker's own, no user's."""
    await create(desk, "Mine")
    found = content(await desk.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER))["topicList"]
    assert {"TBW102", "broker-a", "DefaultCluster", "BenchmarkTest"} <= set(found)
    assert not {"Mine", "T"} & set(found)


@pytest.mark.row("S011")
async def test_statistics_of_a_topic(desk: Desk) -> None:
    """Ends and time of the last message for every write queue; keys are queues in JSON."""
    await desk.sent(queue_id=1)
    desk.clock.advance(9)
    await desk.sent(queue_id=1)
    body = content(await desk.ask(RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequestHeader(topic="T")))
    assert set(body["offsetTable"]) == {key(queue_id) for queue_id in range(4)}
    assert body["offsetTable"][key(1)] == {"minOffset": 0, "maxOffset": 2, "lastUpdateTimestamp": desk.clock.now_ms()}
    assert body["offsetTable"][key(0)] == {"minOffset": 0, "maxOffset": 0, "lastUpdateTimestamp": 0}
    answer = await desk.ask(RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequestHeader(topic="Nothing"))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


# --- groups -----------------------------------------------------------------------------------------------------------


@pytest.mark.row("S061", "S231")
async def test_a_group_is_created_changed_and_deleted(desk: Desk) -> None:
    """With cleanOffset its offsets go as well."""
    group = SubscriptionGroupConfig(group_name="g", retry_max_times=3)
    assert (await desk.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=loose_json.dumps(group))).code == 0
    found = content(await desk.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupRequestHeader(group="g")))
    assert (found["retryMaxTimes"], found["retryQueueNums"]) == (3, 1)
    table = content(await desk.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
    assert table["subscriptionGroupTable"]["g"] == found
    assert table["dataVersion"]["counter"] == 1
    desk.broker.offsets.commit("g", "T", 0, 1)
    for clean, left in ((False, 1), (True, None)):
        header = DeleteSubscriptionGroupRequestHeader(group_name="g", clean_offset=clean)
        assert (await desk.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)).code == 0
        assert desk.broker.offsets.get("g", "T", 0) == left
    answer = await desk.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupRequestHeader(group="g"))
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


@pytest.mark.parametrize(("body", "code"), [(b'{"groupName":"../x"}', 29), (b'{"groupName":""}', 29), (b"{}", 1), (b"", 1), (b"{half", 1)])
async def test_bad_groups_are_refused(desk: Desk, body: bytes, code: int) -> None:
    """Illegal names and bodies that do not parse."""
    before = dict(desk.broker.groups.configs)
    assert (await desk.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code == code
    assert desk.broker.groups.configs == before


@pytest.mark.row("S011")
async def test_consume_statistics(desk: Desk) -> None:
    """The broker's and the group's offset of every queue of the topics it consumes, and the time of the last message consumed."""
    for _ in range(3):
        await desk.sent()
    desk.broker.offsets.commit("g", "T", 0, 2)
    body = content(await desk.ask(RequestCode.GET_CONSUME_STATS, GetConsumeStatsRequestHeader(consumer_group="g")))
    assert set(body["offsetTable"]) == {key(queue_id) for queue_id in range(4)}
    assert body["offsetTable"][key(0)] == {"brokerOffset": 3, "consumerOffset": 2, "pullOffset": 2, "lastTimestamp": desk.clock.now_ms()}
    assert body["offsetTable"][key(1)] == {"brokerOffset": 0, "consumerOffset": 0, "pullOffset": 0, "lastTimestamp": 0}
    for topic, group in (("Nothing", "g"), (None, "nobody")):
        body = content(await desk.ask(RequestCode.GET_CONSUME_STATS, GetConsumeStatsRequestHeader(consumer_group=group, topic=topic)))
        assert body["offsetTable"] == {}


@pytest.mark.row("S011")
async def test_who_consumes_what(desk: Desk) -> None:
    """Groups of a topic and topics of a group: online ones by their subscriptions, others by their offsets."""
    await desk.subscribe("online", SubscriptionData(topic="T"), SubscriptionData(topic="U"))
    desk.broker.offsets.commit("offline", "T", 0, 1)
    found = content(await desk.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, GetTopicStatsInfoRequestHeader(topic="T")))
    assert found == {"groupList": ["offline", "online"]}
    for group, topics in (("online", ["T", "U"]), ("offline", ["T"]), ("nobody", [])):
        found = content(await desk.ask(RequestCode.QUERY_TOPICS_BY_CONSUMER, GroupRequestHeader(group=group)))
        assert found == {"topicList": topics}


@pytest.mark.row("S011")
async def test_connections(desk: Desk) -> None:
    """Of a consumer group with its subscriptions, and of a producer group; 206 and SYSTEM_ERROR when nobody is there."""
    consumer = ConsumerData(group_name="g", subscription_data_set=[SubscriptionData(topic="T")])
    await desk.heartbeat(consumer, client_id="c1", producers=["p"])
    body = content(await desk.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupRequestHeader(consumer_group="g")))
    one = {"clientAddr": desk.peer.remote_text, "clientId": "c1", "language": "PYTHON", "version": 475}
    assert body["connectionSet"] == [one]
    assert (body["messageModel"], body["consumeType"]) == ("CLUSTERING", "CONSUME_PASSIVELY")
    assert body["subscriptionTable"]["T"]["subString"] == "*"
    body = content(await desk.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, ProducerGroupRequestHeader(producer_group="p")))
    assert body == {"connectionSet": [one]}
    answer = await desk.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupRequestHeader(consumer_group="nobody"))
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
    answer = await desk.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, ProducerGroupRequestHeader(producer_group="nobody"))
    assert answer.code == ResponseCode.SYSTEM_ERROR


# --- tables and settings ----------------------------------------------------------------------------------------------


async def test_tables_of_offsets(desk: Desk) -> None:
    """Those of the groups from memory, those of the delay levels as written, empty when they never were."""
    desk.broker.offsets.commit("g", "T", 1, 5)
    assert content(await desk.ask(RequestCode.GET_ALL_CONSUMER_OFFSET))["offsetTable"] == {"T@g": {"1": 5}}
    assert content(await desk.ask(RequestCode.GET_ALL_DELAY_OFFSET))["offsetTable"] == {}
    (desk.broker.config.config_path / "delayOffset.json").write_bytes(b'{"offsetTable":{"3":9}}')
    assert content(await desk.ask(RequestCode.GET_ALL_DELAY_OFFSET))["offsetTable"] == {"3": 9}


async def test_the_settings_as_properties(desk: Desk) -> None:
    """Lines of key=value, as broker.conf has them."""
    lines = (await desk.ask(RequestCode.GET_BROKER_CONFIG)).body.decode().splitlines()
    assert "brokerName=broker-a" in lines
    assert "flushDiskType=ASYNC_FLUSH" in lines


@pytest.mark.row("S011")
async def test_runtime_information(desk: Desk) -> None:
    """What clusterList reads, all as text; counters and log positions are true."""
    await desk.sent()
    await desk.send(body=b"")
    await desk.pull()
    desk.clock.advance(61_000)
    table = content(await desk.ask(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
    assert all(isinstance(value, str) for value in table.values())
    size = desk.broker.store.statistics().max_physical_offset
    assert table["runtime"] == "[ 61 seconds ]"
    assert (table["putMessageTimesTotal"], table["putMessageFailedTimes"], table["putMessageSizeTotal"]) == ("1", "1", str(size))
    assert (table["msgPutTotalTodayNow"], table["msgGetTotalTodayNow"]) == ("1", "1")
    assert (table["commitLogMinOffset"], table["commitLogMaxOffset"]) == ("0", str(size))
    assert 0.0 <= float(table["commitLogDiskRatio"]) <= 1.0
    read_by_cluster_list = {"brokerVersionDesc", "putTps", "getTransferredTps", "sendThreadPoolQueueSize", "pullThreadPoolQueueSize"}
    assert read_by_cluster_list <= set(table)


async def test_without_a_directory_the_disk_is_unknown(opened: Opened, tmp_path: Path) -> None:
    """-1 instead of a failure."""
    async with opened(storePathRootDir=str(tmp_path / "gone")) as desk:
        for path in sorted((tmp_path / "gone").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (tmp_path / "gone").rmdir()
        table = content(await desk.ask(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
        assert table["commitLogDiskRatio"] == "-1.0"
