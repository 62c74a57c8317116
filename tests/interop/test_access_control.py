"""Access control with Apache's programs: mqadmin and Java's clients with keys, and the same policies at
Apache's broker."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import trio

from rmqkit.client import Client, SendFailed
from rmqkit.protocol.codes import RequestCode, ResponseCode, SerializeType
from rmqkit.protocol.signature import content_of, sign
from tests.hooks.acl.kit import CHECKED, INNER, ROOT
from tests.interop import class_archive, peers
from tests.interop.builds import SERVER_VERSION, BuildError, JavaClient, java_admin, tool

Code = RequestCode
ALICE = ("alice", "alice-secret")
BOB = ("bob", "bob-secret")
TOPICS = ("orders", "orders-eu", "other")
GROUPS = ("billing", "billing-eu")


class Tools:
    """mqadmin as one user."""

    def __init__(self, program: JavaClient, home: Path, user: tuple[str, str]) -> None:
        self._program = program
        self._home = home / f"tools-of-{user[0]}"
        (self._home / "conf").mkdir(parents=True)
        text = f"accessKey: {user[0]}\nsecretKey: {user[1]}\n"
        (self._home / "conf" / "tools.yml").write_text(text)

    def __call__(self, *words: str) -> str:
        done = class_archive.run(
            [
                tool("java"),
                *peers.JAVA_CLIENT,
                f"-Drocketmq.home.dir={self._home}",
                "-Drocketmq.client.logUseSlf4j=true",
                "-cp",
                self._program.classpath,
                "org.apache.rocketmq.tools.command.MQAdminStartup",
                *words,
            ],
            capture_output=True,
            text=True,
            timeout=120,
        )
        return str(done.stdout + done.stderr)


@pytest.fixture(scope="module")
def program() -> JavaClient:
    """Apache's tools."""
    try:
        return java_admin(SERVER_VERSION)
    except BuildError as problem:
        pytest.fail(str(problem), pytrace=False)


#: The classes without which Apache's broker checks nothing; here they are what there is.
_AUTH = "org.apache.rocketmq.auth"
SETTINGS = {
    **CHECKED,
    "authenticationProvider": f"{_AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationProvider": f"{_AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
}


def _settings() -> list[str]:
    return [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[peers.Server]:
    """rmqkit's name server and broker, which check everything."""
    try:
        with peers.rmqkit_serve(tmp_path_factory.mktemp("rmqkit"), arguments=_settings()) as server:
            yield server
    except peers.PeerError as problem:
        pytest.fail(str(problem), pytrace=False)


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[peers.Server]:
    """Apache's servers with the same settings; their name server checks nothing."""
    try:
        with peers.apache_cluster(tmp_path_factory.mktemp("apache"), settings=SETTINGS) as server:
            yield server
    except (BuildError, peers.PeerError) as problem:
        pytest.fail(str(problem), pytrace=False)


def call(
    server: peers.Server,
    code: int,
    fields: Mapping[str, str],
    body: object = None,
    user: tuple[str, str] | None = ROOT,
) -> peers.Answer:
    """A request to a broker with the signature of a user."""
    data = b"" if body is None else json.dumps(body).encode()
    header = dict(fields)
    if user is not None:
        header["AccessKey"] = user[0]
        header["Signature"] = sign(content_of(header, data), user[1])
    return peers.call(server.broker, code, header, data)


def test_mqadmin_and_its_twelve_verbs(
    program: JavaClient, checked: peers.Server, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Users and policies are made, shown, changed, copied to another broker and deleted, with the words and
    the tables of Apache's tool."""
    root = Tools(program, tmp_path, ROOT)
    at = ("-n", checked.namesrv, "-b", checked.broker)
    assert "success" in root("createUser", *at, "-u", "carl", "-p", "carl-secret", "-t", "Normal")
    assert "success" in root("updateUser", *at, "-u", "carl", "-s", "disable")
    shown = root("getUser", *at, "-u", "carl")
    assert shown.splitlines()[-1].split() == ["carl", "carl-secret", "Normal", "disable"]
    assert {"carl", ROOT[0], INNER[0]} <= set(root("listUser", *at).split())
    assert ROOT[0] not in root("listUser", *at, "-f", "car").split()
    rule = ("-s", "User:carl", "-r", "Topic:orders,Group:billing*", "-a", "Pub,Sub", "-i", "10.0.0.0/8")
    assert "success" in root("createAcl", *at, *rule, "-d", "Allow")
    changed = ("-s", "User:carl", "-r", "Topic:orders", "-a", "Pub", "-d", "Deny")
    assert "success" in root("updateAcl", *at, *changed)
    rows = [line.split() for line in root("getAcl", *at, "-s", "User:carl").splitlines()]
    assert ["User:carl", "Custom", "Topic:orders", "[Pub]", "null", "Deny"] in rows
    assert any(row[:3] == ["User:carl", "Custom", "Group:billing*"] for row in rows)
    assert "Topic:orders" in root("listAcl", *at, "-s", "carl", "-r", "orders")
    with peers.rmqkit_serve(tmp_path_factory.mktemp("second"), arguments=_settings()) as second:
        copied = ("-n", second.namesrv, "-f", checked.broker, "-t", second.broker)
        assert "copy user of carl" in root("copyUser", *copied, "-u", "carl")
        assert "copy acl of User:carl" in root("copyAcl", *copied, "-s", "User:carl")
        there = ("-n", second.namesrv, "-b", second.broker)
        assert "carl-secret" in root("getUser", *there, "-u", "carl")
        assert "Group:billing*" in root("getAcl", *there, "-s", "User:carl")
    assert "success" in root("deleteAcl", *at, "-s", "User:carl", "-r", "Topic:orders")
    assert "Topic:orders" not in root("getAcl", *at, "-s", "User:carl")
    assert "success" in root("deleteUser", *at, "-u", "carl")
    assert "carl" not in root("listUser", *at).split()
    eve = Tools(program, tmp_path / "eve", ("root", "guessed-secret"))
    assert "check signature failed" in eve("listUser", *at)


def _prepare(server: peers.Server) -> None:
    """Users and policies, the same at any broker."""
    for name, secret in (ALICE, BOB):
        call(server, Code.AUTH_CREATE_USER, {"username": name}, {"password": secret})
    for topic in TOPICS:
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": "1",
            "writeQueueNums": "1",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        assert call(server, Code.UPDATE_AND_CREATE_TOPIC, fields).code == 0

    def rules(name: str, kind: str, *texts: str) -> None:
        entries = []
        for text in texts:
            resource, actions, decision, *sources = text.split()
            entry: dict[str, object] = {
                "resource": resource,
                "actions": actions.split(","),
                "decision": decision,
            }
            if sources:
                entry["sourceIps"] = sources
            entries.append(entry)
        body = {"subject": f"User:{name}", "policies": [{"policyType": kind, "entries": entries}]}
        answer = call(server, Code.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, body)
        assert answer.code == 0, answer.remark

    rules(
        "alice", "Custom", "Topic:orders* Pub,Sub Allow", "Topic:orders-eu Pub Deny", "Group:* Sub,Get Allow"
    )
    rules("alice", "Custom", "Group:billing-eu All Deny", "Topic:other Pub Allow 10.0.0.0/8")
    rules("alice", "Default", "* Get Allow")
    rules("bob", "Custom", "* All Deny", "Topic:* Sub Allow", "Topic:other All Allow 127.0.0.1")
    rules("bob", "Custom", "Group:billing Sub Allow", "Cluster:DefaultCluster Get Allow")


def _requests() -> Iterator[tuple[str, int, dict[str, str], object]]:
    """Requests that Apache's broker checks by the fields that name their topics and groups."""
    for topic, group in itertools.product(TOPICS, GROUPS):
        queue = {"topic": topic, "queueId": "0"}
        both = queue | {"consumerGroup": group}
        yield f"send {topic}", Code.SEND_MESSAGE, queue | {"producerGroup": group} | _SENT, None
        pull = both | {"queueOffset": "0", "maxMsgNums": "1", "sysFlag": "0", "commitOffset": "0"}
        pull |= {"suspendTimeoutMillis": "0", "subVersion": "0"}
        yield f"pull {topic} {group}", Code.PULL_MESSAGE, pull, None
        yield f"offset {topic} {group}", Code.QUERY_CONSUMER_OFFSET, both, None
        yield f"commit {topic} {group}", Code.UPDATE_CONSUMER_OFFSET, both | {"commitOffset": "0"}, None
        yield f"members {group}", Code.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group}, None
        yield f"stats {topic}", Code.GET_TOPIC_STATS_INFO, {"topic": topic}, None
        beat = {
            "clientID": "c",
            "producerDataSet": [],
            "consumerDataSet": [
                {
                    "groupName": group,
                    "consumeType": "CONSUME_PASSIVELY",
                    "messageModel": "CLUSTERING",
                    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                    "unitMode": False,
                    "subscriptionDataSet": [{"topic": topic, "subString": "*", "subVersion": 1}],
                }
            ],
        }
        yield f"heartbeat {topic} {group}", Code.HEART_BEAT, {"any": "1"}, beat
        lock = {
            "consumerGroup": group,
            "clientId": "c",
            "mqSet": [{"topic": topic, "brokerName": "b", "queueId": 0}],
        }
        yield f"lock {topic} {group}", Code.LOCK_BATCH_MQ, {"any": "1"}, lock
    yield "delete", Code.DELETE_TOPIC_IN_BROKER, {"topic": "nobody-has-it"}, None
    yield "users", Code.AUTH_LIST_USER, {"filter": "nobody"}, None
    yield "make user", Code.AUTH_CREATE_USER, {"username": "eve"}, {"password": "eve-secret"}
    yield "stats data", Code.VIEW_BROKER_STATS_DATA, {"statsName": "x", "statsKey": "y"}, None


_SENT = {
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "1",
    "sysFlag": "0",
    "bornTimestamp": "1",
    "flag": "0",
    "properties": "",
    "reconsumeTimes": "0",
    "unitMode": "false",
}


def _verdicts(
    server: peers.Server, asked: Sequence[tuple[str, int, dict[str, str], object]]
) -> dict[str, bool]:
    """Which requests of which users are refused for want of a right."""
    found = {}
    for name, code, fields, body in asked:
        for user in (ALICE, BOB, ("alice", "wrong-secret"), ("nobody", "x"), None):
            answer = call(server, code, fields, body, user)
            who = "nobody" if user is None else " ".join(user)
            found[f"{who}: {name}"] = answer.code == ResponseCode.NO_PERMISSION
    return found


def test_the_same_policies_give_the_same_verdicts(checked: peers.Server, apache: peers.Server) -> None:
    """For requests that Apache's broker checks, each verdict is the same as here."""
    for server in (checked, apache):
        _prepare_once(server)
    asked = list(_requests())
    ours, theirs = _verdicts(checked, asked), _verdicts(apache, asked)
    assert {name: ours[name] for name in ours if ours[name] != theirs[name]} == {}
    assert {*ours.values()} == {True, False}


#: A user with one rule, and none of the cluster.
EVA, EVAS_RULE = ("eva", "eva-secret"), {"resource": "Topic:orders", "actions": ["Sub"], "decision": "Allow"}
_PULL = {
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "1",
    "sysFlag": "0",
    "commitOffset": "0",
    "suspendTimeoutMillis": "0",
    "subVersion": "0",
}
#: What docs/secure.md says of both: a request, and whether Apache's broker and ours refuse it to eva.
#: {offset} is the place of a message of the topic `other`.
DIFFERENCES = {
    "settings": (Code.UPDATE_BROKER_CONFIG, {"any": "1"}, False, True),
    "all topics": (Code.GET_ALL_TOPIC_CONFIG, {"any": "1"}, False, True),
    "a message by its place, without topic": (Code.VIEW_MESSAGE_BY_ID, {"offset": "{offset}"}, False, True),
    "a message by its place, of another topic": (
        Code.VIEW_MESSAGE_BY_ID,
        {"offset": "{offset}", "topic": "orders"},
        True,
        True,
    ),
    "a retry topic under another group's name": (
        Code.PULL_MESSAGE,
        {"topic": "%RETRY%billing-eu", "consumerGroup": "evas"} | _PULL,
        False,
        True,
    ),
    "the end of a queue": (Code.GET_MAX_OFFSET, {"topic": "orders", "queueId": "0"}, True, False),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_the_differences_that_the_document_names(
    checked: peers.Server, apache: peers.Server, name: str
) -> None:
    """Each is as documented, on both sides."""
    code, fields, there, here = DIFFERENCES[name]
    for server, refused in ((apache, there), (checked, here)):
        _prepare_once(server)
        call(server, Code.AUTH_CREATE_USER, {"username": EVA[0]}, {"password": EVA[1]})
        rules = [EVAS_RULE, {"resource": "Group:evas", "actions": ["Sub"], "decision": "Allow"}]
        body = {"policies": [{"policyType": "Custom", "entries": rules}]}
        assert call(server, Code.AUTH_CREATE_ACL, {"subject": "User:eva"}, body).code == 0
        sent = call(server, Code.SEND_MESSAGE, _send("other"), "secret")
        assert sent.code == 0, sent
        offset = str(int(sent.fields["msgId"][16:], 16))
        asked = {key: value.replace("{offset}", offset) for key, value in fields.items()}
        answer = call(server, code, asked, user=EVA)
        assert (answer.code == ResponseCode.NO_PERMISSION) is refused, (server.kind, answer)


def _send(topic: str) -> dict[str, str]:
    return {"topic": topic, "queueId": "0", "producerGroup": "p"} | _SENT


@pytest.mark.parametrize("order", [("Allow", "Deny"), ("Deny", "Allow")])
def test_of_equal_rules_the_denial_decides(
    checked: peers.Server, apache: peers.Server, order: tuple[str, str]
) -> None:
    """Whatever their order is, here and there."""
    name = f"dora-{order[0]}"
    for server in (apache, checked):
        call(server, Code.AUTH_CREATE_USER, {"username": name}, {"password": "dora-secret"})
        entries = [{"resource": "Topic:both", "actions": ["Pub"], "decision": decision} for decision in order]
        body = {"policies": [{"policyType": "Custom", "entries": entries}]}
        assert call(server, Code.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, body).code == 0
        answer = call(server, Code.SEND_MESSAGE, _send("both"), user=(name, "dora-secret"))
        assert answer.code == ResponseCode.NO_PERMISSION, (server.kind, answer)


_prepared: set[str] = set()


def _prepare_once(server: peers.Server) -> None:
    if server.broker not in _prepared:
        _prepared.add(server.broker)
        _prepare(server)


def test_java_sends_and_consumes_with_keys(
    program: JavaClient, checked: peers.Server, tmp_path: Path
) -> None:
    """Java's producer and pull consumer, signed by a user with policies, do their work; without the right the
    error says so, and with a wrong key nothing goes."""
    _prepare_once(checked)
    body = {
        "policies": [
            {
                "policyType": "Custom",
                "entries": [
                    {"resource": "Topic:java", "actions": ["Pub", "Sub", "Get"], "decision": "Allow"},
                    {"resource": "Group:*", "actions": ["Sub", "Get"], "decision": "Allow"},
                ],
            }
        ]
    }
    call(checked, Code.AUTH_CREATE_USER, {"username": "java"}, {"password": "java-secret"})
    assert call(checked, Code.AUTH_CREATE_ACL, {"subject": "User:java"}, body).code == 0
    topic = {"topic": "java", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    made = call(checked, Code.UPDATE_AND_CREATE_TOPIC, {"defaultTopic": "TBW102", "order": "false"} | topic)
    assert made.code == 0, made
    done = class_archive.run(
        [
            *peers.java_command(program, tmp_path)[:-1],
            "rmqkit.interop.admin.KeysProgram",
            *(checked.namesrv, "java", "orders", "java", "java-secret", "guessed-secret"),
        ],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["sent"] == "SEND_OK", seen
    assert seen["read"] == "one coffee", seen
    assert seen["forbidden"].startswith("16 "), seen
    assert "no permission" in seen["forbidden"], seen
    # The name server says nothing to a stranger, and so there is no broker to send to.
    assert seen["guessed"].startswith("client No route info of this topic"), seen


async def test_our_client_signs_for_apache(apache: peers.Server) -> None:
    """Apache's broker takes what a user of it sends and reads with our client, in both header forms, and our
    administration shows its users."""
    _prepare_once(apache)
    for kind in SerializeType:
        client = Client(apache.namesrv, serialize_type=kind, access_key=ROOT[0], secret_key=ROOT[1])
        async with client, client.producer("p") as producer, client.pull_consumer("g") as consumer:
            sent = await producer.send("orders", f"from {kind.name}".encode(), tag="a", keys=["k"])
            assert sent.queue is not None
            with trio.fail_after(60):
                while sent.queue_offset >= await consumer.max_offset(sent.queue):  # noqa: ASYNC110
                    await trio.sleep(0.05)
            found = await consumer.pull(sent.queue, sent.queue_offset)
            assert [message.body for message in found.messages] == [f"from {kind.name}".encode()]
            (users,) = (await client.access.users("ali")).values()
            assert [user.username for user in users] == ["alice"]
    async with (
        Client(apache.namesrv, access_key="alice", secret_key="wrong") as stranger,
        stranger.producer("p", retries=0) as producer,
    ):
        with pytest.raises(SendFailed, match="check signature failed"):
            await producer.send("orders", b"x")
