"""Administration: topics, groups, statistics, connections, settings."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from rmqkit.broker.processors.runtime_info import readable_bytes
from rmqkit.broker.pulling import filter_cache
from rmqkit.limits import MAX_LISTED_CONFIGS, MAX_QUEUES_PER_TOPIC
from rmqkit.model import names
from rmqkit.model.subscription import ConsumerData, SubscriptionData
from rmqkit.model.topic import SubscriptionGroupConfig, TopicConfig
from rmqkit.plugin.role import Role
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers import (
    ConsumerGroupRequestHeader,
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
    GroupRequestHeader,
    ProducerGroupRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)
from tests.broker.desk import BrokerHarness

Opened = Callable[..., AbstractAsyncContextManager[BrokerHarness]]


def content(answer: Command) -> Any:
    assert (answer.code, answer.remark) == (0, None)
    return loose_json.loads(answer.body)


def offset_table(answer: Command) -> Any:
    """The table of a body by queues; its keys are bare objects, the only form that all versions of Java
    read."""
    assert (answer.code, answer.remark) == (0, None)
    table = loose_json.loads(answer.body)["offsetTable"]
    assert (b'"offsetTable":{{"brokerName":' in answer.body) is bool(table)
    return table


async def create(desk: BrokerHarness, topic: str = "New", **fields: Any) -> Command:
    fields = dict[str, Any](read_queue_nums=2, write_queue_nums=3, perm=6) | fields
    return await desk.ask(
        RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicRequestHeader(topic=topic, **fields)
    )


async def delete(desk: BrokerHarness, topic: str) -> Command:
    return await desk.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic=topic))


def key(queue_id: int, topic: str = "T") -> str:
    """A queue as the text of an object key."""
    return f'{{"brokerName":"broker-a","queueId":{queue_id},"topic":"{topic}"}}'


# --- topics -------------------------------------------------------------------------------------------------


@pytest.mark.row("S008", "S024", "S224", "S229")
async def test_a_topic_is_created_changed_and_deleted(desk: BrokerHarness) -> None:
    """A change replaces the settings; an equal request succeeds without effect; deleting a missing topic
    succeeds too."""
    assert (await create(desk, order=True, topic_sys_flag=1)).code == 0
    expected = TopicConfig(
        topic_name="New", read_queue_nums=2, write_queue_nums=3, perm=6, order=True, topic_sys_flag=1
    )
    assert desk.broker.topics.get("New") == expected
    version = desk.broker.topics.data_version.counter
    assert (await create(desk, order=True, topic_sys_flag=1)).code == 0
    assert desk.broker.topics.data_version.counter == version
    assert (await create(desk, perm=4)).code == 0
    assert (
        content(await desk.ask(RequestCode.GET_TOPIC_CONFIG, GetTopicConfigRequestHeader(topic="New")))[
            "perm"
        ]
        == 4
    )
    for _ in range(2):
        assert (await delete(desk, "New")).code == 0
    answer = await desk.ask(RequestCode.GET_TOPIC_CONFIG, GetTopicConfigRequestHeader(topic="New"))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


async def test_attributes_come_and_go(desk: BrokerHarness) -> None:
    """`+key=value` sets, `-key` removes, other attributes stay; a refused request changes nothing."""
    assert (await create(desk, attributes="+message.type=NORMAL,+reserve.time=5")).code == 0
    assert (await create(desk, attributes="-reserve.time")).code == 0
    assert (await create(desk)).code == 0
    topic = desk.broker.topics.get("New")
    assert topic is not None
    assert topic.attributes == {"message.type": "NORMAL"}
    for bad in ("a=b", "+a", "+=b", "-", "+a=b", "+queue.type=SimpleCQ", "-reserve.time"):
        assert (await create(desk, attributes=bad)).code == ResponseCode.SYSTEM_ERROR
    assert desk.broker.topics.get("New") == topic


async def test_kinds_of_queues_and_messages_that_are_not_served(opened: Opened) -> None:
    """A batch consume queue is refused; mixed message types need their setting."""
    async with opened() as desk:
        refused = await create(desk, attributes="+queue.type=BatchCQ")
        assert (refused.code, refused.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "queue.type=BatchCQ is not supported by this broker, only SimpleCQ",
        )
        mixed = await create(desk, attributes="+message.type=MIXED")
        assert (mixed.code, mixed.remark) == (
            ResponseCode.INVALID_PARAMETER,
            "MIXED message type is not supported.",
        )
        assert desk.broker.topics.get("New") is None
    async with opened(enableMixedMessageType=True) as desk:
        assert (await create(desk, attributes="+message.type=MIXED")).code == 0


@pytest.mark.row("S008")
async def test_several_topics_are_created_at_once(desk: BrokerHarness) -> None:
    """All topics are created or none."""
    body: dict[str, Any] = {
        "topicConfigList": [
            {
                "topicName": "A",
                "readQueueNums": 2,
                "writeQueueNums": 3,
                "attributes": {"+message.type": "FIFO"},
            },
            {"topicName": "B", "readQueueNums": 1, "writeQueueNums": 1, "perm": 4, "order": True},
        ]
    }
    assert (await desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=loose_json.dumps(body))).code == 0
    configs = desk.broker.topics.configs
    assert configs["A"] == TopicConfig(
        topic_name="A", read_queue_nums=2, write_queue_nums=3, attributes={"message.type": "FIFO"}
    )
    assert (configs["B"].perm, configs["B"].order) == (4, True)
    for name, code in (("../x", 29), (names.SCHEDULE_TOPIC, 29)):
        body["topicConfigList"] = [{"topicName": "C"}, {"topicName": name}]
        assert (
            await desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=loose_json.dumps(body))
        ).code == code
    assert "C" not in configs
    body["topicConfigList"] = [{"topicName": f"X{number}"} for number in range(MAX_LISTED_CONFIGS + 1)]
    assert (await desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=loose_json.dumps(body))).code == 29
    assert (await desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=b"[]")).code == 1


@pytest.mark.parametrize("topic", ["", " ", "../x", "a/b", "a\0b", "a.b", "x" * 128])
async def test_illegal_names_are_refused(desk: BrokerHarness, topic: str) -> None:
    """The answer is INVALID_PARAMETER, and nothing changes."""
    before = dict(desk.broker.topics.configs)
    assert (await create(desk, topic)).code == ResponseCode.INVALID_PARAMETER
    assert desk.broker.topics.configs == before


@pytest.mark.parametrize(
    "fields",
    [
        {"perm": 8},
        {"perm": -1},
        {"read_queue_nums": -1},
        {"write_queue_nums": MAX_QUEUES_PER_TOPIC + 1},
        {"read_queue_nums": 2**31 - 1},
    ],
)
async def test_illegal_numbers_are_refused(desk: BrokerHarness, fields: dict[str, Any]) -> None:
    """Permissions beyond read, write and inherit, and negative or enormous queue counts are refused."""
    assert (await create(desk, **fields)).code == ResponseCode.INVALID_PARAMETER
    assert desk.broker.topics.get("New") is None


@pytest.mark.parametrize(
    "topic",
    [
        names.TEMPLATE_TOPIC,
        names.SCHEDULE_TOPIC,
        "rmq_sys_x",
        "broker-a",
        "DefaultCluster",
        "DefaultCluster_REPLY_TOPIC",
    ],
)
async def test_system_topics_are_left_alone(desk: BrokerHarness, topic: str) -> None:
    """System topics can be neither changed nor deleted."""
    before = dict(desk.broker.topics.configs)
    assert (await create(desk, topic)).code == ResponseCode.INVALID_PARAMETER
    assert (await delete(desk, topic)).code == ResponseCode.INVALID_PARAMETER
    assert desk.broker.topics.configs == before


@pytest.mark.row("S008")
async def test_a_deleted_topic_takes_its_queues_and_offsets_along(desk: BrokerHarness) -> None:
    """A new topic of the same name starts empty; other topics stay."""
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
    """Names like paths delete no file."""
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
async def test_all_topics(desk: BrokerHarness) -> None:
    """The answer is the table with its version, as slaves and tools read it."""
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


async def test_system_topics_are_listed(desk: BrokerHarness) -> None:
    """The list contains the reserved topics and the broker's own, but no user's."""
    await create(desk, "Mine")
    found = content(await desk.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER))["topicList"]
    assert {"TBW102", "broker-a", "DefaultCluster", "BenchmarkTest"} <= set(found)
    assert not {"Mine", "T"} & set(found)


@pytest.mark.row("S011")
async def test_statistics_of_a_topic(desk: BrokerHarness) -> None:
    """Offsets and last store time are given for every write queue; keys are queues."""
    await desk.sent(queue_id=1)
    desk.clock.advance(9)
    await desk.sent(queue_id=1)
    table = offset_table(
        await desk.ask(RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequestHeader(topic="T"))
    )
    assert table.keys() == {key(queue_id) for queue_id in range(4)}
    assert table[key(1)] == {"minOffset": 0, "maxOffset": 2, "lastUpdateTimestamp": desk.clock.now_ms()}
    assert table[key(0)] == {"minOffset": 0, "maxOffset": 0, "lastUpdateTimestamp": 0}
    answer = await desk.ask(RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequestHeader(topic="Nothing"))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


# --- groups -------------------------------------------------------------------------------------------------


@pytest.mark.row("S061", "S231")
async def test_a_group_is_created_changed_and_deleted(desk: BrokerHarness) -> None:
    """With cleanOffset its offsets are deleted as well; its filters always."""
    group = SubscriptionGroupConfig(group_name="g", retry_max_times=3)
    version = desk.broker.groups.data_version.counter
    assert (
        await desk.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=loose_json.dumps(group))
    ).code == 0
    found = content(await desk.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupRequestHeader(group="g")))
    assert (found["retryMaxTimes"], found["retryQueueNums"]) == (3, 1)
    table = content(await desk.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
    assert table["subscriptionGroupTable"]["g"] == found
    assert table["dataVersion"]["counter"] == version + 1
    desk.broker.offsets.commit("g", "T", 0, 1)
    index = desk.broker.filters.index
    assert index is not None
    index.subscribe("g", [SubscriptionData(topic="T", sub_string="a > 1", expression_type="SQL92")])
    assert index.get("T", "g") is not None
    for clean, left in ((False, 1), (True, None)):
        header = DeleteSubscriptionGroupRequestHeader(group_name="g", clean_offset=clean)
        assert (await desk.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)).code == 0
        assert desk.broker.offsets.get("g", "T", 0) == left
        assert index.get("T", "g") is None
    answer = await desk.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupRequestHeader(group="g"))
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


@pytest.mark.parametrize(
    ("body", "code"),
    [(b'{"groupName":"../x"}', 29), (b'{"groupName":""}', 29), (b"{}", 1), (b"", 1), (b"{half", 1)],
)
async def test_bad_groups_are_refused(desk: BrokerHarness, body: bytes, code: int) -> None:
    """Illegal names and invalid bodies are refused."""
    before = dict(desk.broker.groups.configs)
    assert (await desk.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code == code
    assert desk.broker.groups.configs == before


async def test_several_groups_are_created_at_once(desk: BrokerHarness) -> None:
    """All groups are created or none; groups have no attributes."""
    body: dict[str, Any] = {"groupConfigList": [{"groupName": "a", "retryMaxTimes": 3}, {"groupName": "b"}]}
    assert (
        await desk.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=loose_json.dumps(body))
    ).code == 0
    assert (
        desk.broker.groups.configs["a"].retry_max_times,
        desk.broker.groups.configs["b"].retry_max_times,
    ) == (3, 16)
    for group, code in (({"groupName": "../x"}, 29), ({"groupName": "d", "attributes": {"+a": "b"}}, 1)):
        body["groupConfigList"] = [{"groupName": "c"}, group]
        assert (
            await desk.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=loose_json.dumps(body))
        ).code == code
    assert "c" not in desk.broker.groups.configs


@pytest.mark.row("S011")
async def test_connections(desk: BrokerHarness) -> None:
    """The answers list a consumer group with its subscriptions, and a producer group; 206 and SYSTEM_ERROR
    when there is no client."""
    consumer = ConsumerData(group_name="g", subscription_data_set=[SubscriptionData(topic="T")])
    await desk.heartbeat(consumer, client_id="c1", producers=["p"])
    body = content(
        await desk.ask(
            RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupRequestHeader(consumer_group="g")
        )
    )
    one = {"clientAddr": desk.peer.remote_text, "clientId": "c1", "language": "PYTHON", "version": 475}
    assert body["connectionSet"] == [one]
    assert (body["messageModel"], body["consumeType"]) == ("CLUSTERING", "CONSUME_PASSIVELY")
    assert body["subscriptionTable"]["T"]["subString"] == "*"
    body = content(
        await desk.ask(
            RequestCode.GET_PRODUCER_CONNECTION_LIST, ProducerGroupRequestHeader(producer_group="p")
        )
    )
    assert body == {"connectionSet": [one]}
    answer = await desk.ask(
        RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupRequestHeader(consumer_group="nobody")
    )
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
    answer = await desk.ask(
        RequestCode.GET_PRODUCER_CONNECTION_LIST, ProducerGroupRequestHeader(producer_group="nobody")
    )
    assert answer.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.row("S011")
async def test_all_producers(desk: BrokerHarness) -> None:
    """Producers are listed by group, as mqadmin's producer command requests them."""
    assert content(await desk.ask(RequestCode.GET_ALL_PRODUCER_INFO)) == {"data": {}}
    await desk.heartbeat(client_id="c1", producers=["p"])
    one = {
        "clientId": "c1",
        "remoteIP": f"/{desk.peer.remote_text}",
        "language": "PYTHON",
        "version": 475,
        "lastUpdateTimestamp": desk.clock.now_ms(),
    }
    assert content(await desk.ask(RequestCode.GET_ALL_PRODUCER_INFO)) == {"data": {"p": [one]}}


# --- tables and settings ------------------------------------------------------------------------------------


async def test_tables_of_offsets(desk: BrokerHarness) -> None:
    """Offsets of groups come from memory, those of delay levels from their file; the table is empty if there
    is none."""
    desk.broker.offsets.commit("g", "T", 1, 5)
    assert content(await desk.ask(RequestCode.GET_ALL_CONSUMER_OFFSET))["offsetTable"] == {"T@g": {"1": 5}}
    assert content(await desk.ask(RequestCode.GET_ALL_DELAY_OFFSET))["offsetTable"] == {}
    (desk.broker.config.config_path / "delayOffset.json").write_bytes(b'{"offsetTable":{"3":9}}')
    assert content(await desk.ask(RequestCode.GET_ALL_DELAY_OFFSET))["offsetTable"] == {"3": 9}


async def test_the_settings_as_properties(desk: BrokerHarness) -> None:
    """The settings are lines of key=value, as in broker.conf."""
    lines = (await desk.ask(RequestCode.GET_BROKER_CONFIG)).body.decode().splitlines()
    assert "brokerName=broker-a" in lines
    assert "flushDiskType=ASYNC_FLUSH" in lines


@pytest.mark.row("S011")
async def test_runtime_information(desk: BrokerHarness) -> None:
    """The keys read by clusterList and brokerStatus are texts with correct counters, rates, log positions and
    oldest store time."""
    first = desk.clock.now_ms()
    await desk.sent()
    await desk.send(body=b"")
    await desk.pull()
    await desk.pull(offset=1)
    desk.clock.advance(10_000)
    await desk.sent()
    desk.clock.advance(60_000)
    table = content(await desk.ask(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
    assert all(isinstance(value, str) for value in table.values())
    size = desk.broker.store.end_offset
    assert table["runtime"] == "[ 0 days, 0 hours, 1 minutes, 10 seconds ]"
    assert (table["putMessageTimesTotal"], table["putMessageFailedTimes"], table["putMessageSizeTotal"]) == (
        "2",
        "1",
        str(size),
    )
    assert (table["msgPutTotalTodayNow"], table["msgGetTotalTodayNow"]) == ("2", "1")
    assert (table["msgPutTotalTodayMorning"], table["msgPutTotalYesterdayMorning"]) == ("0", "0")
    assert table["putTps"].split() == [str(2 / 70)] * 3
    assert (table["getFoundTps"], table["getMissTps"]) == (" ".join([str(1 / 70)] * 3),) * 2
    assert table["getTotalTps"].split() == [str(1 / 70 + 1 / 70)] * 3
    assert table["getTransferredTps"].split() == [str(1 / 70)] * 3
    assert (table["commitLogMinOffset"], table["commitLogMaxOffset"]) == ("0", str(size))
    assert table["earliestMessageTimeStamp"] == str(first)
    assert float(table["putLatency999"]) >= float(table["putLatency99"]) >= 0.0
    assert 0.0 <= float(table["commitLogDiskRatio"]) <= 1.0
    read_by_tools = {
        "brokerVersionDesc",
        "sendThreadPoolQueueSize",
        "pullThreadPoolQueueSize",
        "commitLogDirCapacity",
    }
    assert read_by_tools <= set(table)


async def test_runtime_information_of_an_empty_broker(desk: BrokerHarness) -> None:
    """Without messages there is no time, and rates are 0."""
    table = content(await desk.ask(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
    assert (table["earliestMessageTimeStamp"], table["putTps"], table["putMessageAverageSize"]) == (
        "-1",
        "0.0 0.0 0.0",
        "0.0",
    )


async def test_runtime_information_counts_compiled_filters(
    desk: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cached and evicted filters are counted."""
    monkeypatch.setattr(filter_cache, "MAX_CACHED_FILTERS", 2)
    for tag in "ABC":
        await desk.pull(subscription=tag)
    table = content(await desk.ask(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
    assert (table["cachedFilters"], table["cachedFiltersEvicted"]) == ("2", "1")


async def test_runtime_information_walks_no_directory(
    desk: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request does not call the store's function that reads every file."""
    monkeypatch.setattr(
        type(desk.broker.store), "statistics", lambda store: pytest.fail("looked at every file")
    )
    assert (await desk.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).code == 0


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (1_023, "1023 B"), (1_536, "1.5 KiB"), (64 * 1024**3, "64.0 GiB"), (2**80, "1048576.0 EiB")],
)
def test_sizes_are_written_as_java_writes_them(size_bytes: int, text: str) -> None:
    """Sizes have powers of 1024 with one decimal."""
    assert readable_bytes(size_bytes) == text


@pytest.mark.row("S011", "S080")
async def test_statistics_of_the_last_minute_hour_and_day(desk: BrokerHarness) -> None:
    """VIEW_BROKER_STATS_DATA answers as statsAll expects; for unknown items it is SYSTEM_ERROR."""

    async def view(name: str, key: str) -> Any:
        return content(
            await desk.ask(
                RequestCode.VIEW_BROKER_STATS_DATA,
                ViewBrokerStatsDataRequestHeader(stats_name=name, stats_key=key),
            )
        )

    for _ in range(6):
        await desk.sent()
    assert (await desk.pull()).code == 0
    desk.clock.advance(60_000)
    found = await view("TOPIC_PUT_NUMS", "T")
    assert found["statsMinute"] == {"sum": 6, "tps": 0.1, "avgpt": 1.0}
    assert (found["statsHour"]["sum"], found["statsDay"]["sum"]) == (6, 6)
    assert (await view("TOPIC_PUT_SIZE", "T"))["statsDay"]["sum"] == desk.broker.store.end_offset
    assert (await view("GROUP_GET_NUMS", "T@g"))["statsMinute"] == {"sum": 6, "tps": 0.1, "avgpt": 6.0}
    assert (await view("BROKER_PUT_NUMS", "DefaultCluster"))["statsDay"]["sum"] == 6
    stats = content(
        await desk.ask(RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequestHeader(topic="T"))
    )
    assert stats["topicPutTps"] == 0.1
    missing = ViewBrokerStatsDataRequestHeader(stats_name="TOPIC_PUT_NUMS", stats_key="U")
    answer = await desk.ask(RequestCode.VIEW_BROKER_STATS_DATA, missing)
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "The stats <TOPIC_PUT_NUMS> <U> not exist",
    )
    await delete(desk, "T")
    gone = ViewBrokerStatsDataRequestHeader(stats_name="TOPIC_PUT_NUMS", stats_key="T")
    assert (await desk.ask(RequestCode.VIEW_BROKER_STATS_DATA, gone)).code == ResponseCode.SYSTEM_ERROR


async def test_without_a_directory_the_disk_is_unknown(opened: Opened, tmp_path: Path) -> None:
    """Disk usage is -1 instead of a failure."""
    async with opened(storePathRootDir=str(tmp_path / "gone")) as desk:
        for table in (desk.broker.topics, desk.broker.groups):
            await table.fold()
        shutil.rmtree(tmp_path / "gone")
        info = content(await desk.ask(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
        assert info["commitLogDiskRatio"] == "-1.0"


async def test_a_master_has_no_offset_of_a_master_to_correct(desk: BrokerHarness) -> None:
    """As at Apache's master the request succeeds and changes nothing; a slave says that it keeps no such
    offset."""
    assert (await desk.ask(RequestCode.RESET_MASTER_FLUSH_OFFSET)).code == 0
    desk.broker.role.begin(Role.SLAVE, 1)
    refused = await desk.ask(RequestCode.RESET_MASTER_FLUSH_OFFSET)
    assert refused.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "asks its master" in (refused.remark or "")
