"""Heartbeats, unregistering, membership."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from threading import Event

import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from rmqkit.broker.processors import client_manage
from rmqkit.broker.tables.journal import TableJournal
from rmqkit.model.subscription import BROADCASTING, ConsumerData, SubscriptionData, tag_subscription
from rmqkit.model.topic import SubscriptionGroupConfig
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers import ConsumerGroupRequestHeader, UnregisterClientRequestHeader
from rmqkit.testing.peer import FakePeer
from tests.broker.desk import BrokerHarness

Opened = Callable[..., AbstractAsyncContextManager[BrokerHarness]]


def group(name: str = "g", *topics: str, **fields: str) -> ConsumerData:
    subscriptions = [SubscriptionData(topic=topic) for topic in topics or ("T",)]
    return msgspec.structs.replace(
        ConsumerData(group_name=name, subscription_data_set=subscriptions), **fields
    )


def notified(peer: FakePeer) -> list[str]:
    """Groups whose change a peer was notified of."""
    assert all(command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED for command in peer.pushed)
    return [command.fields()["consumerGroup"] for command in peer.pushed]


async def unregister(
    desk: BrokerHarness, client_id: str, *, producer: str | None = None, consumer: str | None = None
) -> Command:
    header = UnregisterClientRequestHeader(
        client_id=client_id, producer_group=producer, consumer_group=consumer
    )
    return await desk.ask(RequestCode.UNREGISTER_CLIENT, header)


@pytest.mark.row("S120", "S121", "S122", "S123", "S127", "S293", "S294", "S023", "S058", "S060")
async def test_a_heartbeat_registers_producers_and_consumers(desk: BrokerHarness) -> None:
    """Client id, language, version and time are recorded by connection, subscriptions by group; the answer
    has the fields that clients read."""
    answer = await desk.heartbeat(group("g", "T", "U"), producers=["p"], client_id="10.0.0.1@77")
    assert answer.code == 0
    assert answer.fields() == {"IS_SUPPORT_HEART_BEAT_V2": "false", "IS_SUB_CHANGE": "true"}
    consumer = desk.broker.clients.consumers["g"].members[desk.peer]
    assert (consumer.client_id, consumer.language, consumer.version, consumer.last_seen_ms) == (
        "10.0.0.1@77",
        "PYTHON",
        475,
        desk.clock.now_ms(),
    )
    assert set(desk.broker.clients.consumers["g"].subscriptions) == {"T", "U"}
    assert desk.broker.clients.producers["p"][desk.peer] is consumer


async def test_who_leaves_before_the_groups_are_written_has_left(
    desk: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat that creates the groups registers the client in those that it has not left meanwhile."""
    append, go_on = TableJournal.append, Event()

    def waiting(journal: TableJournal, lines: Sequence[bytes]) -> None:
        go_on.wait(60)
        append(journal, lines)

    monkeypatch.setattr(TableJournal, "append", waiting)

    async def beat() -> None:
        answer = await desk.heartbeat(group("g"), group("h"), producers=["p", "q"], client_id="c1")
        assert answer.code == 0

    async with trio.open_nursery() as nursery:
        nursery.start_soon(beat)
        await wait_all_tasks_blocked()
        await unregister(desk, "c1", producer="p", consumer="g")
        go_on.set()
    assert (list(desk.broker.clients.consumers), list(desk.broker.clients.producers)) == (["h"], ["q"])


@pytest.mark.row("S293")
async def test_the_next_heartbeat_renews_the_time(desk: BrokerHarness) -> None:
    """A client that continues to send heartbeats is not silent."""
    await desk.heartbeat(group())
    desk.clock.advance(120_001)
    assert desk.broker.clients.silent_peers(desk.clock.now_ms(), 120_000) == {desk.peer}
    await desk.heartbeat(group())
    assert desk.broker.clients.silent_peers(desk.clock.now_ms(), 120_000) == set()


@pytest.mark.row("S228")
@pytest.mark.parametrize(("queues", "made"), [(1, 1), (5, 5), (2_000_000, 1_024)])
async def test_a_heartbeat_makes_the_retry_topic(desk: BrokerHarness, queues: int, made: int) -> None:
    """The topic has the group's retryQueueNums, at most 1024; with 0 there is none."""
    await desk.broker.groups.put(SubscriptionGroupConfig(group_name="g", retry_queue_nums=queues))
    await desk.broker.groups.put(SubscriptionGroupConfig(group_name="none", retry_queue_nums=0))
    await desk.heartbeat(group("g"), group("none"))
    topic = desk.broker.topics.get("%RETRY%g")
    assert topic is not None
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (made, made, 6)
    assert desk.broker.topics.get("%RETRY%none") is None


async def test_a_heartbeat_needs_no_disk(desk: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """If neither a new group nor its retry topic can be written, the client is registered all the same, with
    the other groups of its heartbeat."""

    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    await desk.broker.groups.put(SubscriptionGroupConfig(group_name="known"))
    monkeypatch.setattr(TableJournal, "append", no_space)
    assert (await desk.heartbeat(group("new"), group("known"))).code == ResponseCode.SUCCESS
    assert set(desk.broker.clients.consumers) == {"new", "known"}
    assert desk.broker.topics.get("%RETRY%new") is None


@pytest.mark.row("S069", "S124", "S126")
async def test_members_are_told_to_rebalance(desk: BrokerHarness) -> None:
    """A new connection or changed topics notify every member (NOTIFY_CONSUMER_IDS_CHANGED); an equal
    heartbeat or a changed expression does not."""
    first, second = FakePeer(), FakePeer()
    await desk.heartbeat(group(), peer=first, client_id="c1")
    await desk.heartbeat(group(), peer=second, client_id="c2")
    assert (notified(first), notified(second)) == (["g", "g"], ["g"])
    await desk.heartbeat(group(), peer=first, client_id="c1")
    tags = ConsumerData(group_name="g", subscription_data_set=[tag_subscription("T", "A", 9)])
    await desk.heartbeat(tags, peer=first, client_id="c1")
    assert (len(first.pushed), len(second.pushed)) == (2, 1)
    await desk.heartbeat(group("g", "T", "U"), peer=first, client_id="c1")
    assert (len(first.pushed), len(second.pushed)) == (3, 2)


@pytest.mark.row("S124")
async def test_a_broadcasting_group_has_nothing_to_share(desk: BrokerHarness) -> None:
    """No member is notified."""
    await desk.heartbeat(group(message_model=BROADCASTING))
    await desk.heartbeat(group(message_model=BROADCASTING), peer=FakePeer(), client_id="c2")
    assert desk.peer.pushed == []


@pytest.mark.parametrize("by", ["group", "broker"])
async def test_notifications_can_be_switched_off(opened: Opened, by: str) -> None:
    """With the group's or the broker's setting off, joining, unregistering and a lost connection cause no
    notification."""
    async with opened(notifyConsumerIdsChangedEnable=by != "broker") as desk:
        await desk.broker.groups.put(
            SubscriptionGroupConfig(group_name="g", notify_consumer_ids_changed_enable=by != "group")
        )
        other = FakePeer()
        await desk.heartbeat(group(), client_id="c1")
        await desk.heartbeat(group(), client_id="c2", peer=other)
        await desk.heartbeat(group(), client_id="c3", peer=FakePeer())
        await unregister(desk, "c3", consumer="g")
        desk.broker.clients.drop_peer(other)
        assert desk.peer.pushed == []
        assert desk.broker.clients.consumers["g"].client_ids() == ["c1"]


@pytest.mark.row("S120", "S125")
async def test_unregistering(desk: BrokerHarness) -> None:
    """The client leaves the groups that it names, and remaining members are notified."""
    other = FakePeer()
    await desk.heartbeat(group(), client_id="c1", producers=["p"])
    await desk.heartbeat(group(), client_id="c2", peer=other)
    other.pushed.clear()
    assert (await unregister(desk, "c1", producer="p", consumer="g")).code == 0
    assert desk.broker.clients.producers == {}
    assert desk.broker.clients.consumers["g"].client_ids() == ["c2"]
    assert notified(other) == ["g"]
    assert (await unregister(desk, "nobody", producer="x", consumer="y")).code == 0


@pytest.mark.row("S023")
async def test_the_consumer_list(desk: BrokerHarness) -> None:
    """The list has each client id of a group once; for a group without clients the answer is SYSTEM_ERROR."""
    header = ConsumerGroupRequestHeader(consumer_group="g")
    assert (await desk.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)).code == ResponseCode.SYSTEM_ERROR
    for number, client_id in enumerate(("c1", "c2", "c2")):
        await desk.heartbeat(group(), client_id=client_id, peer=FakePeer(port=number + 1))
    answer = await desk.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
    assert msgspec.json.decode(answer.body) == {"consumerIdList": ["c1", "c2"]}


async def test_an_unknown_group_is_skipped_silently(opened: Opened) -> None:
    """If groups are not created by use, the answer is SUCCESS, and the other groups of the heartbeat are
    registered."""
    async with opened(autoCreateSubscriptionGroup=False) as desk:
        await desk.broker.groups.put(SubscriptionGroupConfig(group_name="known"))
        answer = await desk.heartbeat(group("unknown"), group("known"))
        assert answer.code == 0
        assert list(desk.broker.clients.consumers) == ["known"]


@pytest.mark.parametrize("name", ["../x", "a/b", "", "g" * 121])
async def test_illegal_names_are_skipped(desk: BrokerHarness, name: str) -> None:
    """Illegal names create neither a group nor a retry topic."""
    topics = set(desk.broker.topics.configs)
    assert (await desk.heartbeat(group(name), producers=[name])).code == 0
    assert desk.broker.clients.consumers == {}
    assert desk.broker.clients.producers == {}
    assert set(desk.broker.topics.configs) == topics


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"{}",
        b"[]",
        b"{half",
        b'{"clientID":7}x',
        b'{"clientID":"c","consumerDataSet":{}}',
        b"\xff",
        b"[" * 10_000,
    ],
)
async def test_a_heartbeat_that_does_not_parse(desk: BrokerHarness, body: bytes) -> None:
    """The answer is SYSTEM_ERROR with the reason."""
    answer = await desk.ask(RequestCode.HEART_BEAT, body=body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (answer.remark or "").startswith("the body cannot be read")
    assert desk.broker.clients.producers == {}


async def test_fastjsons_forms_are_read(desk: BrokerHarness) -> None:
    """Numbers for text, null sets, unknown fields, and fields in any order are accepted."""
    body = (
        b'{clientID:"c",consumerDataSet:null,"producerDataSet":[{"groupName":"p"}],'
        b'"heartbeatFingerprint":0,"new":[1]}'
    )
    assert (await desk.ask(RequestCode.HEART_BEAT, body=body)).code == 0
    assert list(desk.broker.clients.producers) == ["p"]


async def test_a_heartbeat_has_a_limit(desk: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups and subscriptions are counted together; beyond the limit the whole heartbeat is refused."""
    monkeypatch.setattr(client_manage, "MAX_HEARTBEAT_ENTRIES", 5)
    assert (await desk.heartbeat(group("g", "A", "B"), producers=["p"])).code == 0
    answer = await desk.heartbeat(group("h", "A", "B"), producers=["p", "q", "r"])
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "at most 5" in (answer.remark or "")
    assert list(desk.broker.clients.consumers) == ["g"]


@pytest.mark.row("S120")
@pytest.mark.parametrize(
    ("subscription", "code"),
    [
        (None, 0),
        ({"topic": "T", "subString": "A", "expressionType": "TAG"}, 0),
        ({"topic": "T", "subString": "A", "expressionType": None}, 0),
        ({"topic": "T", "subString": "a > 1", "expressionType": "SQL92"}, ResponseCode.SYSTEM_ERROR),
        ({"topic": "T", "subString": "a", "expressionType": "Magic"}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_check_client_config(
    desk: BrokerHarness, subscription: dict[str, object] | None, code: int
) -> None:
    """Tags always pass; an expression type without a plugin is reported at the start, not at the first
    pull."""
    body = loose_json.dumps({"clientId": "c", "group": "g", "subscriptionData": subscription})
    assert (await desk.ask(RequestCode.CHECK_CLIENT_CONFIG, body=body)).code == code


async def test_members_that_leave_at_once_make_one_notification(desk: BrokerHarness) -> None:
    """Remaining members are notified once, however many connections of the group are closed together."""
    stays, gone = FakePeer(), [FakePeer(port=41_000 + number) for number in range(20)]
    for number, peer in enumerate([stays, *gone]):
        await desk.heartbeat(group(), client_id=f"c{number}", peer=peer)
    stays.pushed.clear()
    for peer in gone:
        desk.broker.clients.drop_peer(peer)
    desk.broker.work.finish()
    assert notified(stays) == ["g"]


async def test_a_heartbeat_beyond_a_limit_is_refused_with_a_remark(desk: BrokerHarness) -> None:
    """The remark says why the client is not registered."""
    answer = await desk.heartbeat(producers=["p"], client_id="c" * 10_000)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "client id" in (answer.remark or "")
    assert desk.broker.clients.producers == {}
