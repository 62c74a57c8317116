"""Sends: stored content, answers, and refusals without storing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import trio

from rmqkit import hookimpl
from rmqkit.broker.processors.send import SendProcessor
from rmqkit.broker.tables.journal import TableJournal
from rmqkit.config import Config
from rmqkit.limits import MAX_PROPERTIES_BYTES
from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.model.queue import MessageQueue
from rmqkit.model.sysflag import (
    BORN_HOST_V6,
    COMPRESSED,
    INNER_BATCH,
    PERM_READ,
    STORE_HOST_V6,
    TRANSACTION_PREPARED,
)
from rmqkit.model.topic import SubscriptionGroupConfig, TopicConfig
from rmqkit.plugin.hooks import EachPutHook, PutMessageHook
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.request import Ticket, whole
from rmqkit.protocol.codes import RequestCode, ResponseCode, SerializeType
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import (
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from rmqkit.protocol.message_id import pack_host, parse_offset_message_id
from rmqkit.protocol.tags import java_hash
from rmqkit.testing.peer import FakePeer
from tests.broker.desk import PORT, BrokerHarness

Opened = Callable[..., AbstractAsyncContextManager[BrokerHarness]]
FULL = MAX_PROPERTIES_BYTES


@pytest.mark.row("S005", "S020", "S097", "S146")
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
async def test_a_message_is_stored_as_it_was_sent(desk: BrokerHarness, code: int) -> None:
    """Body, flag, birth and properties are the client's; place, hosts and times the broker's. Both header
    forms give the same record."""
    fields = {
        "producer_group": "p",
        "topic": "T",
        "queue_id": 2,
        "flag": 9,
        "born_timestamp": 12345,
        "reconsume_times": 1,
    }
    text = props.encode({"TAGS": "A", "KEYS": "k1 k2", "UNIQ_KEY": "0A0B"})
    kind = SendMessageRequestHeader if code == RequestCode.SEND_MESSAGE else SendMessageRequestHeaderV2
    header = kind(**fields, properties=text)  # type: ignore[arg-type]
    peer = FakePeer("10.1.2.3", 4_567)
    answer = await desk.ask(code, header, b"\x00body", peer=peer)
    assert answer.code == 0
    (message,) = desk.stored("T", 2)
    assert (message.body, message.flag, message.born_timestamp_ms, message.reconsume_times) == (
        b"\x00body",
        9,
        12345,
        1,
    )
    assert (message.topic, message.queue_id, message.queue_offset, message.physical_offset) == ("T", 2, 0, 0)
    assert message.born_host == pack_host("10.1.2.3", 4_567)
    assert message.store_host == pack_host("127.0.0.1", PORT)
    assert message.store_timestamp_ms == desk.clock.now_ms()
    assert message.properties["TAGS"] == "A"
    (unit,) = desk.broker.store.read_units("T", 2, 0, 9)
    assert unit.tags_code == java_hash("A")


@pytest.mark.row("S051")
async def test_the_answer_says_where_the_message_is(desk: BrokerHarness) -> None:
    """The answer has message id (the offset id), queue, queue offset, unique key as transaction id, region
    and trace switch, in both serialisations and encodings."""
    await desk.sent(properties={"UNIQ_KEY": "FIRST"})
    for codec in (SerializeType.JSON, SerializeType.ROCKETMQ):
        for number, key in enumerate(("0A0B0C", 'odd"key')):
            header = SendMessageRequestHeader(
                producer_group="p", topic="T", queue_id=3, properties=props.encode({"UNIQ_KEY": key})
            )
            asked = request(RequestCode.SEND_MESSAGE, header, b"x", opaque=-5)
            asked.codec = codec
            answer = await desk.outcome(asked)
            assert answer is not None
            assert (answer.codec, answer.code, answer.opaque, answer.is_response) == (codec, 0, -5, True)
            got = answer.header(SendMessageResponseHeader)
            stored = desk.stored("T", 3)[-1]
            assert parse_offset_message_id(got.msg_id) == ("127.0.0.1", PORT, stored.physical_offset)
            assert (got.queue_id, got.queue_offset, got.transaction_id) == (3, stored.queue_offset, key)
            assert (got.region_id, got.trace_on) == ("DefaultRegion", True)
            assert stored.queue_offset == 2 * codec + number


@pytest.mark.row("S051")
async def test_the_broker_adds_its_properties(desk: BrokerHarness) -> None:
    """Region, trace switch and cluster are set whatever the client sends; a unique key is added if there is
    none; POP_CK is removed."""
    first = await desk.sent(properties={"a": "b"})
    await desk.sent(
        properties={
            "MSG_REGION": "moon",
            "TRACE_ON": "false",
            "CLUSTER": "x",
            "UNIQ_KEY": "K",
            "POP_CK": "1 2 3",
            "a": "b",
        }
    )
    await desk.sent(properties=None)
    ours = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
    made, kept, bare = (message.properties for message in desk.stored())
    assert kept == ours | {"UNIQ_KEY": "K", "a": "b"}
    assert made == ours | {"UNIQ_KEY": first.transaction_id, "a": "b"}
    assert bare.keys() == ours.keys() | {"UNIQ_KEY"}
    assert len(made["UNIQ_KEY"]) == 32
    assert made["UNIQ_KEY"] != bare["UNIQ_KEY"]


async def test_properties_without_a_last_separator_are_not_glued_together(desk: BrokerHarness) -> None:
    """The Go client omits the last 0x02."""
    await desk.sent(properties="UNIQ_KEY\x01K\x02TAGS\x01A")
    assert desk.stored()[0].properties["TAGS"] == "A"


async def test_a_client_has_no_say_in_the_brokers_flag_bits(desk: BrokerHarness) -> None:
    """Host widths, transaction state and inner batch are set by the broker, compression by the client."""
    bad = BORN_HOST_V6 | STORE_HOST_V6 | TRANSACTION_PREPARED | INNER_BATCH
    await desk.sent(sys_flag=bad | COMPRESSED)
    (message,) = desk.stored()
    assert message.sys_flag == COMPRESSED


@pytest.mark.parametrize("ip", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("peer_ip", ["10.0.0.1", "fe80::1"])
async def test_hosts_of_both_families(opened: Opened, ip: str, peer_ip: str) -> None:
    """The flag bits match the hosts in the record, and the message id leads back to it."""
    async with opened(ip=ip) as desk:
        got = await desk.sent(peer=FakePeer(peer_ip, 77))
        (message,) = desk.stored()
        assert (message.born_host, message.store_host) == (pack_host(peer_ip, 77), pack_host(ip, PORT))
        assert parse_offset_message_id(got.msg_id) == (ip, PORT, 0)


async def test_a_negative_queue_id_lets_the_broker_choose(desk: BrokerHarness) -> None:
    """The broker chooses a write queue, which the answer contains."""
    await desk.broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=8, write_queue_nums=3))
    chosen = {(await desk.sent(queue_id=-1)).queue_id for _ in range(100)}
    assert chosen == {0, 1, 2}
    assert sum(len(desk.stored("T", queue_id)) for queue_id in range(3)) == 100


@pytest.mark.row("S100")
@pytest.mark.parametrize(
    ("read", "write", "queue_id", "code"),
    [(4, 2, 3, 0), (2, 4, 3, 0), (4, 2, 4, 29), (4, 4, 2**31 - 1, 29), (0, 0, 0, 29)],
)
async def test_queue_ids_reach_to_the_larger_count(
    desk: BrokerHarness, read: int, write: int, queue_id: int, code: int
) -> None:
    """Beyond both counts the answer is INVALID_PARAMETER and nothing is stored."""
    await desk.broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=read, write_queue_nums=write))
    answer = await desk.send(queue_id=queue_id)
    assert answer.code == code
    assert desk.is_empty() is (code != 0)


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "../x",
        "a/b",
        "..",
        "a\0b",
        "a.b",
        "/etc/passwd",
        "x" * 128,
        "%RETRY%../../x",
        "%DLQ%" + "x" * 255,
    ],
)
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_BATCH_MESSAGE])
@pytest.mark.only_store("mmap", why="is about the files of one store")
async def test_names_never_become_paths(opened: Opened, tmp_path: Path, name: str, code: int) -> None:
    """A topic with separators, dots, NUL or too many characters is INVALID_PARAMETER (a batch to a retry
    topic MESSAGE_ILLEGAL), and no file or directory of that name is created."""
    async with opened(store="mmap") as desk:
        before = sorted(path.name for path in tmp_path.parent.iterdir())
        answer = await desk.ask(code, _header(code, name), b"body")
        retry_batch = name.startswith("%RETRY%") and code == RequestCode.SEND_BATCH_MESSAGE
        assert answer.code == (
            ResponseCode.MESSAGE_ILLEGAL if retry_batch else ResponseCode.INVALID_PARAMETER
        )
        assert desk.is_empty()
        assert desk.broker.topics.get(name) is None
        assert list((tmp_path / "consumequeue").iterdir()) == []
        assert sorted(path.name for path in tmp_path.parent.iterdir()) == before


def _header(code: int, topic: str) -> SendMessageRequestHeader | SendMessageRequestHeaderV2:
    kind = SendMessageRequestHeader if code == RequestCode.SEND_MESSAGE else SendMessageRequestHeaderV2
    return kind(producer_group="p", topic=topic, queue_id=0)


@pytest.mark.parametrize("topic", sorted(names.NO_SEND_TOPICS))
async def test_clients_may_not_send_to_system_topics(desk: BrokerHarness, topic: str) -> None:
    """Sends to system topics are refused, above all to the schedule topic, where a message could choose its
    own time."""
    answer = await desk.send(topic)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert desk.is_empty()


async def test_an_empty_body_is_illegal(desk: BrokerHarness) -> None:
    """Java fails with a NullPointerException; here the answer names the fault."""
    answer = await desk.send(body=b"")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert desk.is_empty()


async def test_a_body_over_max_message_size_is_illegal(opened: Opened) -> None:
    """A body of exactly the limit is accepted."""
    async with opened(maxMessageSize=1_000) as desk:
        assert (await desk.send(body=bytes(1_001))).code == ResponseCode.MESSAGE_ILLEGAL
        assert desk.is_empty()
        assert (await desk.send(body=bytes(1_000))).code == 0


async def test_properties_have_a_limit_of_32767_bytes(desk: BrokerHarness) -> None:
    """The broker's own properties are included and counted in UTF-8; a message just within the limit is
    stored and can be read."""
    await desk.sent(properties={"UNIQ_KEY": "K"})
    ours = len(props.encode(desk.stored()[0].properties).encode())
    room = FULL - ours - len("x\x01\x02")
    for value, code in (
        ("ü" * (room // 2) + "y" * (room % 2), 0),
        ("y" * (room + 1), 13),
        ("ü" * room, 13),
        ("y" * 100_000, 13),
    ):
        assert (await desk.send(properties={"UNIQ_KEY": "K", "x": value})).code == code
    assert len(desk.stored()) == 2
    assert len(desk.stored()[1].properties["x"].encode()) == room


@pytest.mark.parametrize(
    "properties",
    ["\x01\x02\x01\x02\x02", "a", "a\x01", "\x01b\x02", "a\x01b\x01c\x02UNIQ_KEY\x01K\x02", "\x02" * 100],
)
async def test_crooked_properties_are_stored_or_refused_but_never_lost_halfway(
    desk: BrokerHarness, properties: str
) -> None:
    """For any properties text, the answer agrees with the stored message."""
    answer = await desk.send(properties=properties)
    assert (answer.code == 0) is not desk.is_empty()
    if answer.code == 0:
        assert desk.stored()[0].properties["CLUSTER"] == "DefaultCluster"


@pytest.mark.parametrize(
    ("properties", "code", "word"),
    [
        ({"TIMER_DELAY_SEC": "soon"}, ResponseCode.MESSAGE_ILLEGAL, "TIMER_DELAY_SEC"),
        ({"TIMER_DELAY_MS": "soon"}, ResponseCode.MESSAGE_ILLEGAL, "TIMER_DELAY_MS"),
        ({"TIMER_DELIVER_MS": "soon"}, ResponseCode.MESSAGE_ILLEGAL, "TIMER_DELIVER_MS"),
        ({"DELAY": "soon"}, ResponseCode.MESSAGE_ILLEGAL, "soon"),
    ],
)
async def test_what_must_not_be_delivered_at_once_is_refused(
    desk: BrokerHarness, properties: dict[str, str], code: int, word: str
) -> None:
    """Half messages and timed messages are refused with the reason, and nothing is stored."""
    answer = await desk.send(properties=properties)
    assert answer.code == code
    assert word in (answer.remark or "")
    assert desk.is_empty()


async def test_half_messages_without_the_transaction_plugin_are_refused(opened: Opened) -> None:
    """The code is that of Java's broker which rejects them."""
    async with opened(disabledPlugins="transaction") as desk:
        for value in ("true", "TRUE"):
            answer = await desk.send(properties={"TRAN_MSG": value})
            assert answer.code == ResponseCode.NO_PERMISSION
            assert "transactional" in (answer.remark or "")
        assert desk.is_empty()


@pytest.mark.parametrize(
    ("fields", "properties", "prepared"),
    [
        ({}, {"TRAN_MSG": "true"}, True),
        ({}, {"TRAN_MSG": "TRUE"}, True),
        ({}, {"TRAN_MSG": "false"}, False),
        ({"sys_flag": 4}, {}, False),
        ({"sys_flag": 12}, {"TRAN_MSG": "true"}, True),
        ({"reconsume_times": 1}, {"TRAN_MSG": "true"}, True),
        ({"reconsume_times": 1}, {"TRAN_MSG": "true", "DELAY": "0"}, True),
        ({"reconsume_times": 1}, {"TRAN_MSG": "true", "DELAY": "3"}, False),
        ({"reconsume_times": 0}, {"TRAN_MSG": "true", "DELAY": "3"}, True),
    ],
)
async def test_hooks_see_which_sends_are_prepared(
    opened: Opened, fields: dict[str, int], properties: dict[str, str], prepared: bool
) -> None:
    """By the system flag, which clients cannot set: those of a producer, but not a consumer's that sends a
    delivered message again."""
    flags: list[int] = []

    class Look(EachPutHook):
        claims = frozenset({"TRAN_MSG"})

        def before_each(self, message: PutMessage) -> None:
            flags.append(message.sys_flag & 0xC)
            message.sys_flag &= ~0xC

    class Plugin:
        @hookimpl
        def rmqkit_register_put_message_hooks(
            self, register: Register[PutMessageHook], config: Config
        ) -> None:
            register("look", Look())

    async with opened(disabledPlugins="transaction", extra=[("look", Plugin())]) as desk:
        await desk.sent(properties=properties, **fields)
    assert flags == [4 if prepared else 0]


async def test_the_answer_to_a_parked_message_names_its_real_queue(opened: Opened) -> None:
    """The one for which it is meant, as in Java, for single sends and for those of a run."""
    async with opened() as desk:
        assert (await desk.sent(queue_id=3, properties={"DELAY": "7", "UNIQ_KEY": "K"})).queue_id == 3
        # A property that a client sends for an ordinary message means nothing.
        assert (await desk.sent(queue_id=2, properties={"REAL_QID": "9", "UNIQ_KEY": "K"})).queue_id == 2


async def test_a_delay_level_without_the_delay_plugin_is_refused(opened: Opened) -> None:
    """The message is neither delivered at once nor parked for ever."""
    for keys in ({"disabledPlugins": ("delay",)}, {"disabledServices": ("delay",)}):
        async with opened(**keys) as desk:
            answer = await desk.send(properties={"DELAY": "3"})
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            assert desk.is_empty()


async def test_a_delayed_message_is_parked(desk: BrokerHarness) -> None:
    """The message is in the queue of its level in the schedule topic, with its due time; the sender gets the
    usual answer."""
    got = await desk.sent(properties={"DELAY": "3", "TAGS": "A"}, queue_id=1)
    assert got.queue_offset == 0
    assert desk.stored("T", 1) == []
    (message,) = desk.stored(names.SCHEDULE_TOPIC, 2)
    assert (
        message.properties["REAL_TOPIC"],
        message.properties["REAL_QID"],
        message.properties["DELAY"],
    ) == ("T", "1", "3")
    (unit,) = desk.broker.store.read_units(names.SCHEDULE_TOPIC, 2, 0, 1)
    assert unit.tags_code == desk.clock.now_ms() + 10_000


async def test_an_unknown_topic_is_created_from_the_template(desk: BrokerHarness) -> None:
    """The topic has as many queues as the client requests, at most the template's."""
    await desk.sent("New", default_topic_queue_nums=3)
    topic = desk.broker.topics.get("New")
    assert topic is not None
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (3, 3, 6)


async def test_a_send_that_creates_its_topic_is_answered_when_the_name_servers_know_it(
    desk: BrokerHarness,
) -> None:
    """Others find its route then. Later sends are answered at once."""
    asked, told = trio.Event(), trio.Event()
    answers: list[Command] = []

    async def announced() -> None:
        asked.set()
        await told.wait()

    async def send() -> None:
        answers.append(await desk.send("New"))

    desk.broker.topics.on_announce.append(announced)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await asked.wait()
        assert (len(desk.stored("New")), len(answers)) == (1, 0)
        await desk.sent("New", peer=FakePeer())
        told.set()
    assert [answer.code for answer in answers] == [0]


async def test_an_unknown_topic_that_may_not_be_created(opened: Opened) -> None:
    """The answer is TOPIC_NOT_EXIST with a hint; retry topics are still created."""
    async with opened(autoCreateTopicEnable=False) as desk:
        answer = await desk.send("New")
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert "rmqkit topic create New" in (answer.remark or "")
        assert desk.is_empty()
        await desk.sent("%RETRY%g", queue_id=0)
        retry = desk.broker.topics.get("%RETRY%g")
        assert retry is not None
        assert retry.write_queue_nums == 1


async def test_the_topics_own_write_permission_is_not_asked(desk: BrokerHarness) -> None:
    """As in Java, a route without write permission keeps clients away, but the broker itself accepts such a
    send."""
    await desk.broker.topics.put(TopicConfig(topic_name="T", perm=PERM_READ))
    assert (await desk.send()).code == 0


@pytest.mark.parametrize(("order", "code"), [(True, ResponseCode.NO_PERMISSION), (False, 0)])
async def test_a_broker_without_write_permission_refuses_ordered_topics(
    opened: Opened, order: bool, code: int
) -> None:
    """As in Java, only ordered topics are refused, because they would lose their order elsewhere."""
    async with opened(brokerPermission=PERM_READ) as desk:
        await desk.broker.topics.put(TopicConfig(topic_name="T", order=order))
        assert (await desk.send()).code == code


# --- retry topics -------------------------------------------------------------------------------------------


@pytest.mark.row("S108")
@pytest.mark.parametrize(
    ("times", "client_limit", "version", "dead"),
    [
        (16, None, 475, False),
        (17, None, 475, True),
        (3, 3, 475, False),
        (4, 3, 475, True),
        (4, 3, 121, True),
        (4, 3, 120, False),
        (17, 99, 475, False),
        (17, 99, 120, True),
    ],
)
async def test_a_retry_too_many_goes_to_the_dead_letters(
    desk: BrokerHarness, times: int, client_limit: int | None, version: int, dead: bool
) -> None:
    """The limit is the client's from version 3.4.9 (121) on, else the group's; beyond it the topic becomes
    %DLQ%group, without a delay."""
    header = {"reconsume_times": times, "max_reconsume_times": client_limit, "version": version}
    await desk.sent("%RETRY%g", properties={"DELAY": "3"} if dead else None, **header)
    (message,) = desk.stored("%DLQ%g" if dead else "%RETRY%g")
    assert message.reconsume_times == times
    assert "DELAY" not in message.properties
    assert not desk.stored("%RETRY%g" if dead else "%DLQ%g")
    topic = desk.broker.topics.get("%DLQ%g")
    assert (topic is not None and topic.write_queue_nums == 1 and topic.perm == 6) is dead


async def test_while_a_group_holds_a_queue_lock_its_retries_are_dead_letters(desk: BrokerHarness) -> None:
    """An ordered consumer has already retried; after the lock has expired, retries are ordinary again."""
    desk.broker.locks.lock("g", [MessageQueue("T", "broker-a", 0)], "c1", desk.clock.now_ms())
    await desk.sent("%RETRY%g", reconsume_times=1)
    assert len(desk.stored("%DLQ%g")) == 1
    await desk.sent("%RETRY%other", reconsume_times=1)
    assert len(desk.stored("%RETRY%other")) == 1
    desk.clock.advance(60_001)
    await desk.sent("%RETRY%g", reconsume_times=1)
    assert len(desk.stored("%RETRY%g")) == 1


async def test_a_retry_for_an_unknown_group(opened: Opened) -> None:
    """The answer is SUBSCRIPTION_GROUP_NOT_EXIST if groups are not created by use."""
    async with opened(autoCreateSubscriptionGroup=False) as desk:
        assert (await desk.send("%RETRY%g")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert desk.is_empty()
        await desk.broker.groups.put(SubscriptionGroupConfig(group_name="g", retry_max_times=0))
        await desk.sent("%RETRY%g", reconsume_times=1)
        assert len(desk.stored("%DLQ%g")) == 1


# --- several at once ----------------------------------------------------------------------------------------


def commands(*bodies: bytes, topic: str = "T", code: int = RequestCode.SEND_MESSAGE) -> list[Command]:
    return [request(code, _header(code, topic), body, opaque=number) for number, body in enumerate(bodies)]


def processor(desk: BrokerHarness) -> SendProcessor:
    found = desk.router.processors[RequestCode.SEND_MESSAGE]
    assert isinstance(found, SendProcessor)
    return found


async def codes(desk: BrokerHarness, *together: Command) -> list[tuple[int, int]]:
    """(opaque, code) of the answers, in the order of the requests; waits for a store that writes later."""
    outcomes = processor(desk).process(together, desk.peer)
    answers = [whole(outcome) for outcome in outcomes if isinstance(outcome, (bytes, Command, tuple))]
    assert desk.broker.store.written_by_append is (len(answers) == len(outcomes))
    await desk.peer.all_answered()
    return sorted((answer.opaque, answer.code) for answer in answers + desk.peer.answers)


async def test_requests_that_arrived_together_are_answered_each_for_itself(desk: BrokerHarness) -> None:
    """A bad request is refused, the others are stored in order of arrival."""
    sent = commands(b"0", b"", b"2", b"3")
    sent[3].ext = {"topic": "T"}
    assert await codes(desk, *sent) == [
        (0, 0),
        (1, ResponseCode.MESSAGE_ILLEGAL),
        (2, 0),
        (3, ResponseCode.SYSTEM_ERROR),
    ]
    assert [message.body for message in desk.stored()] == [b"0", b"2"]
    assert desk.broker.stats.put_failures == 2
    assert desk.broker.stats.put_messages == 2


async def test_a_put_hook_that_breaks_costs_its_message_only(opened: Opened) -> None:
    """The other messages are stored once."""

    class Broken(EachPutHook):
        def before_each(self, message: PutMessage) -> None:
            if message.body == b"1":
                raise ValueError("boom")

    class Plugin:
        @hookimpl
        def rmqkit_register_put_message_hooks(
            self, register: Register[PutMessageHook], config: Config
        ) -> None:
            register("broken", Broken())

    async with opened(extra=[("broken", Plugin())]) as desk:
        assert await codes(desk, *commands(b"0", b"1", b"2")) == [
            (0, 0),
            (1, ResponseCode.SYSTEM_ERROR),
            (2, 0),
        ]
        assert [message.body for message in desk.stored()] == [b"0", b"2"]


async def test_missing_fields_are_a_system_error_that_names_them(desk: BrokerHarness) -> None:
    """The error names the missing fields."""
    answer = await desk.outcome(
        Command(code=RequestCode.SEND_MESSAGE, ext={"producerGroup": "p", "queueId": "0"}, body=b"x")
    )
    assert answer is not None
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "topic" in (answer.remark or "")


async def test_numbers_beyond_their_width_are_refused(desk: BrokerHarness) -> None:
    """Values that do not fit the stored format are refused."""
    ext = {"producerGroup": "p", "topic": "T", "queueId": "0", "bornTimestamp": "9" * 30, "flag": "0"}
    answer = await desk.outcome(Command(code=RequestCode.SEND_MESSAGE, ext=ext, body=b"x"))
    assert answer is not None
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert desk.is_empty()


def sends(*topics: str) -> list[Command]:
    return [
        request(
            RequestCode.SEND_MESSAGE_V2,
            SendMessageRequestHeaderV2(
                producer_group="p", topic=topic, queue_id=0, properties=f"UNIQ_KEY\x01K{number}\x02"
            ),
            f"{number}".encode(),
            opaque=number,
        )
        for number, topic in enumerate(topics)
    ]


async def test_only_sends_to_a_new_topic_wait_for_it(desk: BrokerHarness) -> None:
    """Sends to a known topic are answered at once; those to a new one when it is on the disk, in order, after
    a single creation."""
    processor = desk.router.processors[RequestCode.SEND_MESSAGE_V2]
    assert isinstance(processor, SendProcessor)
    version = desk.broker.topics.data_version.counter
    outcomes = processor.process(sends("T", "New", "T", "New", "New"), desk.peer)
    assert [isinstance(outcomes[at], Ticket) for at in (1, 3, 4)] == [True] * 3
    assert desk.broker.topics.get("New") is None
    assert desk.stored("New") == []
    await desk.peer.all_answered()
    assert [answer.opaque for answer in desk.peer.answers if answer.opaque not in (0, 2)] == [1, 3, 4]
    assert {answer.code for answer in desk.peer.answers} == {0}
    assert [stored.body for stored in desk.stored("New")] == [b"1", b"3", b"4"]
    assert [stored.body for stored in desk.stored("T")] == [b"0", b"2"]
    assert desk.broker.topics.data_version.counter == version + 1


async def test_sends_to_a_topic_that_cannot_be_saved_are_all_refused(
    desk: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All such sends are refused and nothing is stored; when there is space again, both succeed."""
    processor = desk.router.processors[RequestCode.SEND_MESSAGE_V2]
    assert isinstance(processor, SendProcessor)

    def full(journal: TableJournal, changes: Sequence[bytes]) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(TableJournal, "append", full)
        outcomes = processor.process(sends("New", "New"), desk.peer)
        assert [type(outcome) for outcome in outcomes] == [Ticket, Ticket]
        await desk.peer.all_answered()
    assert [answer.code for answer in desk.peer.answers] == [ResponseCode.SYSTEM_ERROR] * 2
    assert all("No space left on device" in (answer.remark or "") for answer in desk.peer.answers)
    assert desk.stored("New") == []
    desk.peer.answers.clear()
    outcomes = processor.process(sends("New", "New"), desk.peer)
    assert [type(outcome) for outcome in outcomes] == [Ticket, Ticket]
    await desk.peer.all_answered()
    assert [answer.code for answer in desk.peer.answers] == [0, 0]
