"""Which events the audit writes for requests to a real broker."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rmqkit import config, hookimpl
from rmqkit.config import Config
from rmqkit.errors import ConfigError, RequestRefused
from rmqkit.model.message import PutMessage
from rmqkit.model.names import SET_ASIDE_TOPIC, TIMER_TOPIC, revive_topic
from rmqkit.plugin import loader
from rmqkit.plugin.access import PRINCIPAL
from rmqkit.plugin.hooks import EachSendHook, SendContext, SendingBroker, SendMessageHook, SendRun
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.request import Caller
from rmqkit.plugin.request_hooks import RpcHook
from rmqkit.plugin.store import Appended
from rmqkit.protocol import batch, loose_json
from rmqkit.protocol.batch import BatchItem
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import request
from rmqkit.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
    PutKvConfigRequestHeader,
    ResetOffsetRequestHeader,
    SendMessageRequestHeaderV2,
)
from rmqkit.remoting.pool import ConnectionPool
from rmqkit.testing.broker import dialer, running_broker, running_cluster
from rmqkit.testing.peer import FakePeer
from rmqkit_hook_audit.hooks import SendAudit
from rmqkit_hook_audit.recorder import Queue, Recorder
from rmqkit_hook_audit.settings import AuditSettings
from tests.hooks.audit.kit import CALL_MS, FILE, audited, events_in


async def test_sends_are_written_down(tmp_path: Path) -> None:
    """The event has address, group, user, topic, and the ids and offsets of the messages; never a body."""
    before = datetime.now(UTC)
    async with audited(tmp_path) as asker:
        await asker.send("first")
        await asker.send("second", body=b"secret-body", AccessKey="alice", Signature="sig")
        for queue_id in range(2):
            assert (await asker.pull(queue_id=queue_id)).code in (0, 19, 21)
    first, second = events_in(tmp_path, "send")
    assert (first["broker"], first["group"], first["topic"], first["messages"]) == (
        "broker-a",
        "p",
        "T",
        [{"id": "first", "queue": 0, "offset": 0, "sizeBytes": 4}],
    )
    assert "user" not in first
    assert (second["user"], second["messages"][0]["id"], second["messages"][0]["offset"]) == (
        "alice",
        "second",
        1,
    )
    assert first["client"] == second["client"]
    assert first["client"].startswith("127.0.0.1:")
    assert before - timedelta(seconds=1) <= datetime.fromisoformat(first["time"]) <= datetime.now(UTC)
    text = (tmp_path / FILE).read_text()
    assert "secret-body" not in text
    assert "sig" not in text


async def test_a_refused_send_is_written_down(tmp_path: Path) -> None:
    """The event has code and remark of the answer, shortened, so that text made up by a client cannot fill
    the disk."""
    async with audited(tmp_path, autoCreateTopicEnable=False) as asker:
        assert (await asker.send("x", topic="No")).code == 17
        assert (await asker.send("x", topic="T" * 100_000)).code == 29
    first, second = events_in(tmp_path, "send")
    assert (first["code"], first["topic"], "messages" in first) == (17, "No", False)
    assert first["remark"].startswith("topic No does not exist")
    assert (second["code"], len(second["topic"])) == (29, 256)


async def test_what_another_hook_refuses_is_written_down(tmp_path: Path) -> None:
    """The audit is called first and sees the final answer, whatever the order of the refusing hook."""

    class Closed(EachSendHook):
        def before_each(self, context: SendContext) -> None:
            raise RequestRefused(ResponseCode.NO_PERMISSION, "closed today")

    class Plugin:
        @hookimpl
        def rmqkit_register_send_message_hooks(self, register: Register[SendMessageHook]) -> None:
            register("closed", Closed(), order=-10)

    async with audited(tmp_path, extra=[("closed", Plugin())]) as asker:
        assert (await asker.send("x")).code == ResponseCode.NO_PERMISSION
    (event,) = events_in(tmp_path, "send")
    assert (event["code"], event["remark"], event["topic"]) == (
        ResponseCode.NO_PERMISSION,
        "closed today",
        "T",
    )


async def test_a_name_server_of_the_same_process_is_seen_too(tmp_path: Path) -> None:
    """Requests to the name server role pass through the same hooks."""
    async with (
        running_cluster(tmp_path, hooks="audit") as there,
        ConnectionPool(connect=there.connect) as pool,
    ):
        put = PutKvConfigRequestHeader(namespace="n", key="k", value="v")
        assert (
            await pool.call(there.namesrv_text, request(RequestCode.PUT_KV_CONFIG, put), CALL_MS)
        ).code == 0
    (event,) = events_in(tmp_path, "request")
    assert (event["action"], event["fields"]) == ("putKvConfig", {"namespace": "n", "key": "k", "value": "v"})


async def test_bodies_that_are_kept_take_room(tmp_path: Path) -> None:
    """The queue is bounded by memory as well as by number of events."""
    queue = Queue(1_000)
    hook = SendAudit(AuditSettings(body_bytes=4096))
    hook.begin(Recorder("b", [queue]))
    message = PutMessage(topic="T", queue_id=0, body=b"x" * 10_000, properties={}, properties_bytes=b"")
    send = request(
        RequestCode.SEND_MESSAGE_V2, SendMessageRequestHeaderV2(producer_group="p", topic="T", queue_id=0)
    )
    header = send.header(SendMessageRequestHeaderV2)
    run = SendRun(SendingBroker("", "", b""), 0, [send] * 3, [FakePeer()] * 3, [header] * 3)
    run.messages, run.results = [message] * 3, [Appended(0, 0, 10_100, 0)] * 3
    hook.after(run.ended(0))
    assert len(queue) == 3 + 3 * 4


async def test_sends_that_arrive_together_make_one_event(tmp_path: Path) -> None:
    """Sends of the same group, topic and user make one event. A batch is one event too; the event of a
    delayed message names the topic it waits in."""
    async with audited(tmp_path) as asker:
        await asker.send("first")
        items = batch.encode(
            [BatchItem(0, b"1", b"UNIQ_KEY\x01b1\x02"), BatchItem(0, b"22", b"UNIQ_KEY\x01b2\x02")]
        )
        header = SendMessageRequestHeaderV2(
            producer_group="p", topic="T", queue_id=1, properties="", batch=True
        )
        assert (await asker.ask(RequestCode.SEND_BATCH_MESSAGE, header, items)).code == 0
        assert (await asker.send("late", properties="DELAY\x013\x02")).code == 0
    _, together, delayed = events_in(tmp_path, "send")
    assert together["messages"] == [
        {"id": "b1", "queue": 1, "offset": 0, "sizeBytes": 1},
        {"id": "b2", "queue": 1, "offset": 1, "sizeBytes": 2},
    ]
    assert delayed["topic"] == "T"
    assert delayed["messages"] == [
        {"id": "late", "topic": "SCHEDULE_TOPIC_XXXX", "queue": 2, "offset": 0, "sizeBytes": 4}
    ]


async def test_sends_of_several_connections_make_an_event_for_each(tmp_path: Path) -> None:
    """Each event names its connection and has the messages that arrived there, in order."""
    queue = Queue(1_000)
    hook = SendAudit(AuditSettings())
    hook.begin(Recorder("b", [queue]))
    first, second = FakePeer(port=1), FakePeer(port=2)
    headers = [
        SendMessageRequestHeaderV2(producer_group="p", topic=topic, queue_id=0)
        for topic in ("T", "T", "T", "U")
    ]
    requests = [request(RequestCode.SEND_MESSAGE_V2, header, b"body") for header in headers]
    for count in (3, 4):
        peers = [first, first, second, second][:count]
        run = SendRun(SendingBroker("", "", b""), 0, requests[:count], peers, headers[:count])
        run.messages = [
            PutMessage(header.topic, 0, b"body", {"UNIQ_KEY": str(at)}, b"")
            for at, header in enumerate(headers[:count])
        ]
        run.results = [Appended(at, 100 * at, 100, 0) for at in range(count)]
        hook.after(run.ended(0))
    events = [json.loads(line) for line in queue.look(100)]
    shown = [
        (event["client"][-2:], event["topic"], [each["id"] for each in event["messages"]]) for event in events
    ]
    of_three = [(":1", "T", ["0", "1"]), (":2", "T", ["2"])]
    assert shown == [*of_three, *of_three, (":2", "U", ["3"])]


async def test_bodies_and_properties_only_when_asked_for(tmp_path: Path) -> None:
    """When configured, events have the first bytes of the body as base64, and properties by name."""
    keys = {"plugins.audit.bodyBytes": "3", "plugins.audit.properties": "KEYS,nothing"}
    async with audited(tmp_path, **keys) as asker:
        await asker.send("a", properties="KEYS\x01k1 k2\x02other\x01hidden\x02")
    (event,) = events_in(tmp_path, "send")
    assert event["messages"][0]["body"] == "Ym9k"
    assert event["messages"][0]["properties"] == {"KEYS": "k1 k2"}


async def test_consumption_is_written_down(tmp_path: Path) -> None:
    """Pulls that returned messages are written, and send-backs with the topic the message went to."""
    async with audited(tmp_path) as asker:
        await asker.send("a")
        await asker.send("b")
        assert (await asker.pull()).code == 0
        assert (await asker.pull(offset=9)).code == 21
        for delay_level in (0, -1):
            header = ConsumerSendMsgBackRequestHeader(offset=0, group="g", delay_level=delay_level)
            assert (await asker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)).code == 0
    (pulled,) = events_in(tmp_path, "consume")
    assert {name: pulled[name] for name in ("group", "topic", "queue", "offset", "nextOffset", "count")} == {
        "group": "g",
        "topic": "T",
        "queue": 0,
        "offset": 0,
        "nextOffset": 2,
        "count": 2,
    }
    assert pulled["sizeBytes"] > 8
    retried, dead = events_in(tmp_path, "sendBack")
    assert (retried["topic"], retried["target"], dead["target"]) == ("T", "%RETRY%g", "%DLQ%g")


async def test_requests_that_change_something_are_written_down(tmp_path: Path) -> None:
    """The event has the user, the fields of the header and the answer; signatures and passwords are left
    out."""
    async with audited(tmp_path) as asker:
        create = CreateTopicRequestHeader(topic="New", read_queue_nums=2, write_queue_nums=2, perm=6)
        assert (
            await asker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, create, AccessKey="bob", Signature="sig")
        ).code == 0
        assert (
            await asker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic="TBW102"))
        ).code == 29
        group = loose_json.dumps({"groupName": "team", "consumeEnable": True})
        assert (await asker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)).code == 0
        assert (
            await asker.ask(
                RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteSubscriptionGroupRequestHeader(group_name="team")
            )
        ).code == 0
        reset = ResetOffsetRequestHeader(topic="T", group="g", timestamp=-1)
        assert (await asker.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)).code != 0
        assert (await asker.ask(RequestCode.GET_ALL_TOPIC_CONFIG)).code == 0
    events = events_in(tmp_path, "request")
    assert [(event["action"], event.get("code", 0)) for event in events][:4] == [
        ("updateTopic", 0),
        ("deleteTopic", 29),
        ("updateGroup", 0),
        ("deleteGroup", 0),
    ]
    assert events[4]["action"] == "resetOffset"
    assert len(events) == 5
    assert (events[0]["user"], events[0]["fields"]["topic"], events[0]["fields"]["readQueueNums"]) == (
        "bob",
        "New",
        "2",
    )
    assert "Signature" not in events[0]["fields"]
    assert events[1]["remark"] == "TBW102 is a system topic"
    assert events[2]["fields"]["groupName"] == "team"
    assert events[4]["fields"]["timestamp"] == "-1"


async def test_a_one_way_request_is_written_down(tmp_path: Path) -> None:
    """A request without an answer is audited too."""
    async with audited(tmp_path) as asker, ConnectionPool(connect=dialer()) as pool:
        command = request(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            CreateTopicRequestHeader(topic="Quiet", read_queue_nums=1, write_queue_nums=1, perm=6),
            oneway=True,
        )
        await pool.oneway(asker.address, command, CALL_MS)
        assert (await pool.call(asker.address, request(RequestCode.GET_ALL_TOPIC_CONFIG), CALL_MS)).code == 0
    (event,) = events_in(tmp_path, "request")
    assert (event["action"], event["fields"]["topic"]) == ("updateTopic", "Quiet")
    assert event["remark"] == "one-way: its result was not sent"


async def test_what_comes_and_goes_is_written_down(tmp_path: Path) -> None:
    """Topics and groups are written when created or deleted, by request, by a first send or pull, or by the
    broker for its own use."""
    async with audited(tmp_path) as asker:
        await asker.send("a", topic="First")
        await asker.pull(topic="First")
        create = CreateTopicRequestHeader(topic="Second", read_queue_nums=1, write_queue_nums=1, perm=6)
        await asker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, create)
        await asker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic="First"))
        await asker.ask(
            RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteSubscriptionGroupRequestHeader(group_name="g")
        )
        await asker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, create)
    found = [
        (event["kind"], event.get("created"), event.get("deleted")) for event in events_in(tmp_path, "create")
    ]
    assert found == [
        ("topic", ["SCHEDULE_TOPIC_XXXX"], None),
        ("topic", [SET_ASIDE_TOPIC], None),
        ("topic", [revive_topic("DefaultCluster")], None),
        ("topic", [TIMER_TOPIC], None),
        ("topic", ["First"], None),
        ("group", ["g"], None),
        ("topic", ["Second"], None),
        ("topic", None, ["First"]),
        ("group", None, ["g"]),
    ]


async def test_kinds_that_are_not_wanted_are_not_written(tmp_path: Path) -> None:
    """`events` names the kinds that are written."""
    async with audited(tmp_path, **{"plugins.audit.events": "create"}) as asker:
        await asker.send("a")
        await asker.pull()
        await asker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic="T"))
        assert len(asker.running.context.registry.send_message_hooks) == 0
    assert {event["event"] for event in events_in(tmp_path)} == {"create"}


async def test_it_is_off_unless_named(tmp_path: Path) -> None:
    """Without the setting there is no hook, no service and no file, and the registry does not even import the
    plugin."""
    async with running_broker(tmp_path) as running:
        registry = running.context.registry
        assert "audit" not in registry.services
        kinds = registry.send_message_hooks, registry.rpc_hooks, registry.consume_message_hooks
        assert not [entry for kind in kinds for entry in kind.entries if entry.plugin == "audit"]
        (found,) = [plugin for plugin in registry.plugins if plugin.name == "audit"]
        assert (found.enabled, found.registers) == (False, [])
    assert not (tmp_path / "audit").exists()


async def test_a_disabled_service_keeps_no_events(tmp_path: Path) -> None:
    """Without a service to write them, kept events would only fill the memory."""
    async with audited(tmp_path, disabledServices="audit") as asker:
        await asker.send("a")
    assert not (tmp_path / "audit").exists()


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("maxBytes", "1", "maxBytes is at least 4096"),
        ("file", "", "nothing would be written"),
        ("topic", "a b", "topic: the topic 'a b' has characters"),
        ("events", "send,sent", "plugins.audit.events .*Invalid enum value 'sent'"),
    ],
)
def test_wrong_settings_stop_the_start(key: str, value: str, fault: str) -> None:
    """The error says what is wrong, once."""
    with pytest.raises(ConfigError, match=fault) as caught:
        loader.load(config.load(environ={}, flags={"hooks": "audit", f"plugins.audit.{key}": value}))
    assert len(caught.value.faults) == 1


async def test_a_place_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    """A broker must not run with an audit that cannot be written."""
    (tmp_path / "audit").write_text("in the way")
    with pytest.raises(ExceptionGroup) as caught:
        async with audited(tmp_path):
            raise AssertionError("it started")
    assert caught.group_contains(ConfigError, match=r"the audit cannot be written: .*see \[plugins.audit\]")


async def test_a_hook_sees_keys_and_tag(tmp_path: Path) -> None:
    """As the message has them; a send without them has none."""
    seen: list[tuple[tuple[str, ...], str | None]] = []

    class Looking(EachSendHook):
        def before_each(self, context: SendContext) -> None:
            seen.append((context.keys, context.tag))

    class Plugin:
        @hookimpl
        def rmqkit_register_send_message_hooks(self, register: Register[SendMessageHook]) -> None:
            register("looking", Looking())

    async with audited(tmp_path, extra=[("looking", Plugin())]) as asker:
        assert (await asker.send("x", properties="KEYS\x01a b\x02TAGS\x01new\x02")).code == 0
        assert (await asker.send("x")).code == 0
    assert seen == [(("a", "b"), "new"), ((), None)]


class Known(RpcHook):
    """Says who every connection is, as access control does by a certificate."""

    def connected(self, caller: Caller) -> None:
        caller.attributes[PRINCIPAL] = "alice"

    @hookimpl
    def rmqkit_register_rpc_hooks(self, register: Register[RpcHook], config: Config) -> None:
        register("known", self)


async def test_users_whom_a_connection_proves(tmp_path: Path) -> None:
    """A request without access key is that of the user whom the certificate or token names; an access key
    counts before it. Changes of users are written down, without their passwords."""
    async with audited(tmp_path, extra=[("known", Known())]) as asker:
        await asker.send("first")
        await asker.send("second", AccessKey="bob", Signature="sig")
        await asker.ask(RequestCode.AUTH_CREATE_USER, body=b'{"password":"geheim"}', username="carl")
    assert [event["user"] for event in events_in(tmp_path, "send")] == ["alice", "bob"]
    (made,) = events_in(tmp_path, "request")
    assert (made["action"], made["user"], made["fields"]) == ("createUser", "alice", {"username": "carl"})
