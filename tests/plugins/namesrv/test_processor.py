"""Requests to a name server, as commands."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmqkit.config import Config, load
from rmqkit.model.topic import DataVersion, TopicConfig
from rmqkit.plugin.request import Ticket
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.testing.peer import FakePeer
from rmqkit_namesrv import changes as changes_module

if TYPE_CHECKING:
    from tests.plugins.namesrv.conftest import BrokerHarness

A, SLAVE = "10.0.0.1:10911", "10.0.0.2:10911"
GO_VERSION, JAVA_5 = 317, 479
#: Wire-protocol sheet, section 4.2, marked as verified against Java.
RAW_ROUTE = (
    b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"b-a","cluster":"c","enableActingMaster":false}],'
    b'"filterServerTable":{},"queueDatas":[{"brokerName":"b-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
)
RAW_CLUSTER = (
    b'{"brokerAddrTable":{"b-a":{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"b-a","cluster":"c","enableActingMaster":false}},'
    b'"clusterAddrTable":{"c":["b-a"]}}'
)


def command(code: int, body: bytes = b"", **fields: Any) -> Command:
    ext = {name: str(value) for name, value in fields.items()}
    return Command(code=int(code), opaque=7, language="JAVA", version=JAVA_5, ext=ext, body=body)


def register_body(*topics: TopicConfig, counter: int = 1) -> bytes:
    table = {topic.topic_name: topic for topic in topics}
    wrapper = {"dataVersion": DataVersion(counter=counter, timestamp=1), "topicConfigTable": table}
    return msgspec.json.encode({"topicConfigSerializeWrapper": wrapper, "filterServerList": []})


def register(body: bytes | None = None, *, version: int = JAVA_5, **changes: Any) -> Command:
    topics = (
        TopicConfig(topic_name="TopicTest", read_queue_nums=4, write_queue_nums=4),
        TopicConfig(topic_name="Other"),
    )
    body = register_body(*topics) if body is None else body
    fields = {
        "brokerName": "b-a",
        "brokerAddr": A,
        "clusterName": "c",
        "haServerAddr": "10.0.0.1:10912",
        "brokerId": 0,
    }
    request = command(RequestCode.REGISTER_BROKER, body, **(fields | changes))
    request.version = version
    return request


def route(topic: str, *, version: int = JAVA_5, **fields: Any) -> Command:
    request = command(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic, **fields)
    request.version = version
    return request


@pytest.mark.row("S298")
def test_register_then_route(desk: BrokerHarness) -> None:
    """Old clients get raw integer keys, clients from 4.9.4 on and those that ask for it strict ones, never
    with spaces."""
    assert desk.ask(register()).code == ResponseCode.SUCCESS
    assert desk.ask(register(brokerAddr=SLAVE, brokerId=1)).code == ResponseCode.SUCCESS
    strict = RAW_ROUTE.replace(b"{0:", b'{"0":').replace(b",1:", b',"1":')
    assert desk.ask(route("TopicTest", version=GO_VERSION)).body == RAW_ROUTE
    assert desk.ask(route("TopicTest", version=400)).body == RAW_ROUTE
    assert desk.ask(route("TopicTest", version=401)).body == strict
    assert desk.ask(route("TopicTest", version=GO_VERSION, acceptStandardJsonOnly="true")).body == strict
    assert desk.ask(route("TopicTest", version=GO_VERSION, acceptStandardJsonOnly="false")).body == RAW_ROUTE


def test_topics_of_an_acting_master_are_read_only(desk: BrokerHarness) -> None:
    """A slave that acts for its master defines topics without the write permission."""
    acting = register(brokerAddr=SLAVE, brokerId=1, enableActingMaster="true")
    assert desk.ask(acting).code == ResponseCode.SUCCESS
    assert b'"perm":4' in desk.ask(route("TopicTest")).body


def many_topics(prefix: str, queues: int, counter: int = 1) -> bytes:
    topics = [
        TopicConfig(topic_name=f"{prefix}{number}", read_queue_nums=queues, write_queue_nums=queues)
        for number in range(3_000)
    ]
    return register_body(*topics, counter=counter)


async def test_others_are_answered_between_slices(desk: BrokerHarness) -> None:
    """A registration of many topics is answered later; meanwhile routes and heartbeats are answered, changes
    that came behind it are made behind it, and a broker whose connection ends is not registered."""
    peer, gone = FakePeer(), FakePeer()
    changes = [
        register(many_topics("Many", 4)),
        register(many_topics("Many", 8, counter=2)),
        command(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="Many7"),
        register(many_topics("Lost", 4), brokerName="b-b", brokerAddr=SLAVE),
    ]
    for request in changes:
        (outcome,) = desk.processor.process([request], gone if request is changes[-1] else peer)
        assert isinstance(outcome, Ticket)
    gone.closed = True
    assert desk.ask(route("Many2999")).code == ResponseCode.TOPIC_NOT_EXIST
    heartbeat = command(RequestCode.BROKER_HEARTBEAT, brokerName="b-a", brokerAddr=A, clusterName="c")
    assert desk.ask(heartbeat).code == ResponseCode.SUCCESS
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.state.changes.run)
        await peer.all_answered()
        assert [answer.code for answer in peer.answers] == [0, 0, 0]
        assert b'"readQueueNums":8' in desk.ask(route("Many2999")).body
        assert desk.ask(route("Many7")).code == ResponseCode.TOPIC_NOT_EXIST
        await gone.all_answered()
        nursery.cancel_scope.cancel()
    assert set(desk.state.tables.brokers) == {"b-a"}


async def test_a_registration_that_is_wrong_behind_many_topics(desk: BrokerHarness) -> None:
    """Nothing of it is registered, and the next one is made."""
    wrong = register(many_topics("Many", 4)[:-10])
    right = register(many_topics("Good", 4))
    for request in (wrong, right):
        desk.processor.process([request], desk.peer)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.state.changes.run)
        await desk.peer.all_answered()
        nursery.cancel_scope.cancel()
    assert [answer.code for answer in desk.peer.answers] == [ResponseCode.SYSTEM_ERROR, ResponseCode.SUCCESS]
    assert set(desk.state.tables.all_topics()) == {f"Good{number}" for number in range(3_000)}


def test_pending_registrations_have_a_limit_in_bytes(
    desk: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one registration is being applied, further ones are refused as busy beyond a limit in bytes."""
    body = many_topics("Many", 4)
    monkeypatch.setattr(changes_module, "MAX_PENDING_CHANGE_BYTES", 2 * len(body))
    outcomes = [desk.processor.process([register(body)], FakePeer())[0] for _ in range(3)]
    assert [isinstance(outcome, Ticket) for outcome in outcomes] == [True, True, False]
    assert isinstance(outcomes[2], Command)
    assert outcomes[2].code == ResponseCode.SYSTEM_BUSY


def test_unknown_topic(desk: BrokerHarness) -> None:
    answer = desk.ask(route("Nowhere"))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert "Nowhere" in str(answer.remark)


def test_route_without_a_topic(desk: BrokerHarness) -> None:
    answer = desk.ask(command(RequestCode.GET_ROUTEINFO_BY_TOPIC))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "topic" in str(answer.remark)


def test_a_slave_is_told_its_master(desk: BrokerHarness) -> None:
    """Slaves get the master's address and replication address; masters get no such fields."""
    assert desk.ask(register()).ext in (None, {})
    answer = desk.ask(register(brokerAddr=SLAVE, brokerId=1, haServerAddr="10.0.0.2:10912"))
    assert answer.ext == {"masterAddr": A, "haServerAddr": "10.0.0.1:10912"}


@pytest.mark.parametrize("claims", ["true", "false"])
def test_compressed_registration(desk: BrokerHarness, claims: str) -> None:
    """The compressed form is recognised by its first byte, whatever the header of a 5.x broker says."""

    def block(data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + data

    version = b'{"counter":3,"stateVersion":0,"timestamp":1700000000000}'
    topic = b'TopicTest 4 4 6 SINGLE_TAG {"message.type":"FIFO"}'
    body = zlib.compress(block(version) + b"\0\0\0\1" + block(topic) + block(b"[]") + bytes(4), 9)
    answer = desk.ask(register(body, compressed=claims, bodyCrc32=zlib.crc32(body) & 0x7FFFFFFF))
    assert answer.code == ResponseCode.SUCCESS
    assert desk.ask(route("TopicTest")).code == ResponseCode.SUCCESS


def test_the_body_crc_is_checked(desk: BrokerHarness) -> None:
    """A wrong checksum is refused and nothing is registered; 0 or none disables the check."""
    answer = desk.ask(register(bodyCrc32=1))
    assert (answer.code, "crc32 not match" in str(answer.remark)) == (ResponseCode.SYSTEM_ERROR, True)
    assert desk.ask(route("TopicTest")).code == ResponseCode.TOPIC_NOT_EXIST
    assert desk.ask(register(bodyCrc32=0)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    "changes",
    [
        {"brokerName": ""},
        {"brokerName": "{x}"},
        {"brokerName": 'a"b'},
        {"brokerName": "a\nb"},
        {"clusterName": "  "},
        {"brokerAddr": "nowhere"},
        {"brokerAddr": "{}:1"},
        {"brokerId": "-1"},
        {"brokerId": "99999999999999999999"},
        {"brokerId": "first"},
    ],
)
def test_a_header_that_lies_is_refused(desk: BrokerHarness, changes: dict[str, Any]) -> None:
    """The registration is refused with a reason and changes no table, because such a name could break the
    JSON of other answers."""
    answer = desk.ask(register(**changes))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark
    assert desk.state.tables.brokers == {}


@pytest.mark.parametrize(
    "body",
    [
        b"garbage",
        b"{",
        b"[]",
        b"\x78\x9c",
        b'{"topicConfigSerializeWrapper":7,"topicConfigTable":7}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_garbage_bodies_get_an_answer(desk: BrokerHarness, body: bytes) -> None:
    for request in (register(body), register(body, version=28), register(body, compressed="true")):
        answer = desk.ask(request)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark
    assert desk.state.tables.brokers == {}


def test_a_registration_without_fields(desk: BrokerHarness) -> None:
    """Java answers its NullPointerException as SYSTEM_ERROR."""
    answer = desk.ask(Command(code=RequestCode.REGISTER_BROKER, ext=None, body=register_body()))
    assert answer.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.row("S296", "S303", "S304")
def test_registration_heartbeat_and_version_query_keep_a_broker_alive(desk: BrokerHarness) -> None:
    """Each restarts the two minutes; the version query also returns whether the topics differ."""
    who: dict[str, Any] = {"brokerName": "b-a", "brokerAddr": A, "clusterName": "c", "brokerId": 0}
    desk.ask(register())
    for code, body in (
        (RequestCode.REGISTER_BROKER, register_body()),
        (RequestCode.BROKER_HEARTBEAT, b""),
        (RequestCode.QUERY_DATA_VERSION, b'{"counter":1,"stateVersion":0,"timestamp":1}'),
    ):
        desk.now_ms += 100_000
        assert desk.ask(command(code, body, haServerAddr="", **who)).code == ResponseCode.SUCCESS
        assert desk.state.tables.expire(desk.now_ms + 50_000) == []
    assert len(desk.state.tables.expire(desk.now_ms + 120_001)) == 1


def test_a_broker_may_ask_for_its_own_timeout(desk: BrokerHarness) -> None:
    desk.ask(register(heartbeatTimeoutMillis=10_000))
    assert desk.state.tables.expire(10_000) == []
    assert len(desk.state.tables.expire(10_001)) == 1


def test_query_data_version(desk: BrokerHarness) -> None:
    """The answer has `changed` and the stored version; an unknown broker is always changed and has no
    body."""
    who: dict[str, Any] = {"brokerName": "b-a", "brokerAddr": A, "clusterName": "c", "brokerId": 0}
    same, other = (
        b'{"counter":1,"stateVersion":0,"timestamp":1}',
        b'{"counter":2,"stateVersion":0,"timestamp":1}',
    )
    answer = desk.ask(command(RequestCode.QUERY_DATA_VERSION, same, **who))
    assert (answer.fields(), answer.body) == ({"changed": "true"}, b"")
    desk.ask(register())
    answer = desk.ask(command(RequestCode.QUERY_DATA_VERSION, same, **who))
    assert answer.fields() == {"changed": "false"}
    assert answer.decode_body(DataVersion) == DataVersion(counter=1, timestamp=1)
    assert desk.ask(command(RequestCode.QUERY_DATA_VERSION, other, **who)).fields() == {"changed": "true"}
    assert desk.ask(command(RequestCode.QUERY_DATA_VERSION, b"", **who)).code == ResponseCode.SYSTEM_ERROR


def test_unregister(desk: BrokerHarness) -> None:
    desk.ask(register())
    who: dict[str, Any] = {"brokerName": "b-a", "brokerAddr": A, "clusterName": "c", "brokerId": 0}
    assert desk.ask(command(RequestCode.UNREGISTER_BROKER, **who)).code == ResponseCode.SUCCESS
    assert desk.ask(route("TopicTest")).code == ResponseCode.TOPIC_NOT_EXIST
    assert desk.ask(command(RequestCode.UNREGISTER_BROKER, **who)).code == ResponseCode.SUCCESS


def test_the_connection_of_a_registration_is_kept(desk: BrokerHarness) -> None:
    peer = FakePeer()
    desk.ask(register(), peer)
    assert [entry.connection for entry in desk.state.tables.live.values()] == [peer]


@pytest.mark.row("S364")
def test_cluster_info(desk: BrokerHarness) -> None:
    """The answer always has raw integer keys."""
    desk.ask(register())
    assert desk.ask(command(RequestCode.GET_BROKER_CLUSTER_INFO)).body == RAW_CLUSTER


def test_member_group(desk: BrokerHarness) -> None:
    """The answer has all addresses of a broker name; none for an unknown one or one of another cluster
    (section 3.8)."""
    desk.ask(register())
    answer = desk.ask(command(RequestCode.GET_BROKER_MEMBER_GROUP, clusterName="c", brokerName="b-a"))
    assert (
        answer.body
        == b'{"brokerMemberGroup":{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"b-a","cluster":"c"}}'
    )
    answer = desk.ask(command(RequestCode.GET_BROKER_MEMBER_GROUP, clusterName="d", brokerName="b-a"))
    assert answer.body == b'{"brokerMemberGroup":{"brokerAddrs":{},"brokerName":"b-a","cluster":"d"}}'


@pytest.mark.row("S364")
def test_topic_lists(desk: BrokerHarness) -> None:
    """The lists contain all topics, those of a cluster, the names of clusters and brokers, and topics by unit
    flag."""
    flags = (
        TopicConfig(topic_name="Unit", topic_sys_flag=1),
        TopicConfig(topic_name="Sub", topic_sys_flag=2),
    )
    desk.ask(register(register_body(*flags)))

    def ask(code: int, **fields: Any) -> bytes:
        return desk.ask(command(code, **fields)).body

    assert ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == b'{"topicList":["Unit","Sub"]}'
    assert ask(RequestCode.GET_TOPICS_BY_CLUSTER, cluster="c") == b'{"topicList":["Sub","Unit"]}'
    assert ask(RequestCode.GET_TOPICS_BY_CLUSTER, cluster="d") == b'{"topicList":[]}'
    assert (
        ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
        == b'{"brokerAddr":"10.0.0.1:10911","topicList":["c","b-a"]}'
    )
    assert ask(RequestCode.GET_UNIT_TOPIC_LIST) == b'{"topicList":["Unit"]}'
    assert ask(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST) == b'{"topicList":["Sub"]}'
    assert ask(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == b'{"topicList":["Sub"]}'


def test_the_list_of_all_topics_can_be_switched_off(make_desk: Callable[[Config], BrokerHarness]) -> None:
    desk = make_desk(Config(unknown={"enableAllTopicList": False}))
    assert desk.ask(command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).code == ResponseCode.SYSTEM_ERROR


def test_delete_and_register_topic(desk: BrokerHarness) -> None:
    desk.ask(register())
    queues = (
        b'{"brokerDatas":[],"queueDatas":'
        b'[{"brokerName":"b-a","perm":6,"readQueueNums":2,"writeQueueNums":2}]}'
    )
    assert (
        desk.ask(command(RequestCode.REGISTER_TOPIC_IN_NAMESRV, queues, topic="New")).code
        == ResponseCode.SUCCESS
    )
    assert b'"readQueueNums":2' in desk.ask(route("New")).body
    assert (
        desk.ask(command(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="New", clusterName="c")).code
        == ResponseCode.SUCCESS
    )
    assert desk.ask(route("New")).code == ResponseCode.TOPIC_NOT_EXIST
    assert (
        desk.ask(command(RequestCode.REGISTER_TOPIC_IN_NAMESRV, queues, topic="bad/name")).code
        == ResponseCode.SYSTEM_ERROR
    )
    too_many = queues.replace(b":2", b":4294967296")
    assert (
        desk.ask(command(RequestCode.REGISTER_TOPIC_IN_NAMESRV, too_many, topic="New")).code
        == ResponseCode.SYSTEM_ERROR
    )
    assert (
        desk.ask(command(RequestCode.REGISTER_TOPIC_IN_NAMESRV, b"{]", topic="New")).code
        == ResponseCode.SYSTEM_ERROR
    )


def test_write_permission(desk: BrokerHarness) -> None:
    """The counts are in differently named fields."""
    desk.ask(register())
    assert desk.ask(command(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="b-a")).fields() == {
        "wipeTopicCount": "2"
    }
    assert b'"perm":4' in desk.ask(route("TopicTest")).body
    assert desk.ask(command(RequestCode.ADD_WRITE_PERM_OF_BROKER, brokerName="b-a")).fields() == {
        "addTopicCount": "2"
    }
    assert b'"perm":6' in desk.ask(route("TopicTest")).body


@pytest.mark.row("S364")
async def test_key_value_configuration(desk: BrokerHarness) -> None:
    """Entries can be set, read, listed and deleted; a missing one is QUERY_NOT_FOUND, an incomplete request
    SYSTEM_ERROR."""

    async def ask(code: int, **fields: Any) -> Command:
        return await desk.ask_waiting(command(code, **fields))

    assert (await ask(RequestCode.GET_KV_CONFIG, namespace="n", key="k")).code == ResponseCode.QUERY_NOT_FOUND
    assert (
        await ask(RequestCode.PUT_KV_CONFIG, namespace="n", key="k", value="v")
    ).code == ResponseCode.SUCCESS
    assert (await ask(RequestCode.GET_KV_CONFIG, namespace="n", key="k")).fields() == {"value": "v"}
    assert (await ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="n")).body == b'{"table":{"k":"v"}}'
    assert (await ask(RequestCode.DELETE_KV_CONFIG, namespace="n", key="k")).code == ResponseCode.SUCCESS
    assert (
        await ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="n")
    ).code == ResponseCode.QUERY_NOT_FOUND
    assert (await ask(RequestCode.PUT_KV_CONFIG, namespace="n", value="v")).code == ResponseCode.SYSTEM_ERROR


async def test_order_of_topics(make_desk: Callable[[Config], BrokerHarness]) -> None:
    """Brokers get the whole table with every registration; routes contain it only with orderMessageEnable."""
    put = command(RequestCode.PUT_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="TopicTest", value="b-a:4")
    for enabled in (False, True):
        desk = make_desk(Config(unknown={"orderMessageEnable": enabled}))
        await desk.ask_waiting(put)
        assert desk.ask(register()).body == b'{"table":{"TopicTest":"b-a:4"}}'
        assert (b'"orderTopicConf":"b-a:4"' in desk.ask(route("TopicTest")).body) is enabled
    quiet = make_desk(Config(unknown={"returnOrderTopicConfigToBroker": False}))
    await quiet.ask_waiting(put)
    assert quiet.ask(register()).body == b""


@pytest.mark.row("S364")
async def test_settings(desk: BrokerHarness, tmp_path: Path) -> None:
    """Settings read at run time can be changed, all or none, and are written to the file where there is one;
    protected ones are NO_PERMISSION, others are refused by name."""

    async def update(text: bytes) -> Command:
        return await desk.ask_waiting(command(RequestCode.UPDATE_NAMESRV_CONFIG, text))

    changed = await update(b"orderMessageEnable=TRUE\nscanNotActiveBrokerInterval = 1000")
    assert changed.code == ResponseCode.SUCCESS
    assert "until the next start only" in str(changed.remark)
    assert (
        desk.state.settings.order_message_enable,
        desk.state.settings.scan_not_active_broker_interval,
    ) == (True, 1000)
    shown = desk.ask(command(RequestCode.GET_NAMESRV_CONFIG)).body
    assert b"orderMessageEnable=true\n" in shown
    for key in ("configStorePath", "kvConfigPath", "rocketmqHome", "configBlackList"):
        assert (await update(f"{key}=x".encode())).code == ResponseCode.NO_PERMISSION
    for text in (
        b"orderMessageEnable=false\nlistenPort=1",
        b"noSuchKey=1",
        b"orderMessageEnable=maybe",
        b"\xff=1",
        b"scanNotActiveBrokerInterval=0",
    ):
        answer = await update(text)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert answer.remark
    assert desk.ask(command(RequestCode.GET_NAMESRV_CONFIG)).body == shown
    path = tmp_path / "namesrv.conf"
    path.write_text("# mine\nscanNotActiveBrokerInterval=2000\n")
    desk.state.config = load(path, environ={})
    assert (await update(b"scanNotActiveBrokerInterval=3000")).remark is None
    assert path.read_text() == "# mine\nscanNotActiveBrokerInterval=3000\n"


def test_unknown_codes(desk: BrokerHarness) -> None:
    answer = desk.ask(command(9999))
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "9999" in str(answer.remark)


FIELDS = [
    "topic",
    "brokerName",
    "brokerAddr",
    "clusterName",
    "cluster",
    "haServerAddr",
    "brokerId",
    "heartbeatTimeoutMillis",
    "enableActingMaster",
    "compressed",
    "bodyCrc32",
    "namespace",
    "key",
    "value",
    "acceptStandardJsonOnly",
]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_no_request_raises(desk: BrokerHarness, data: st.DataObject) -> None:
    """Any code with any fields and body is answered, and the tables can still be encoded as JSON."""
    code = data.draw(st.sampled_from(desk.processor.codes) | st.integers(-1, 400))
    ext = data.draw(
        st.none()
        | st.dictionaries(
            st.sampled_from(FIELDS), st.text(max_size=8) | st.sampled_from(["0", "1", "b-a", A, "true"])
        )
    )
    body = data.draw(
        st.binary(max_size=60)
        | st.sampled_from([register_body(), b"{}", b"null", b'{"topicConfigSerializeWrapper":{}}'])
    )
    request = Command(
        code=code, opaque=3, ext=ext, body=body, version=data.draw(st.sampled_from([0, 317, 401, 479]))
    )
    answer = await desk.ask_waiting(request)
    assert answer.opaque == 3
    assert answer.code == ResponseCode.SUCCESS or answer.remark
    info = desk.ask(command(RequestCode.GET_BROKER_CLUSTER_INFO))
    assert set(msgspec.json.decode(info.body.replace(b"{0:", b'{"0":').replace(b"{1:", b'{"1":')))


def test_two_live_brokers_of_one_name_are_reported_once(
    desk: BrokerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """The conflict of two addresses for one name and id is logged once, however often they replace each
    other."""
    for address in ("10.0.0.1:10911", "10.0.0.9:10911") * 5:
        assert desk.ask(register(brokerAddr=address)).code == 0
    (line,) = [message for message in caplog.messages if "takes the place" in message]
    assert "10.0.0.9:10911" in line
    assert "10.0.0.1:10911" in line


@pytest.mark.parametrize(
    "changes",
    [{"haServerAddr": "h" * 1_000}, {"body": register_body(TopicConfig(topic_name="t" * 1_000))}],
    ids=["address", "topic"],
)
def test_texts_of_a_registration_have_a_length_limit(desk: BrokerHarness, changes: dict[str, Any]) -> None:
    """A registration with a text that is too long is refused with a remark."""
    answer = desk.ask(register(**changes))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "255" in (answer.remark or "")
