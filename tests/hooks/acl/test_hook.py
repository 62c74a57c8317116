"""Requests that are admitted, and those that are refused."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
import trio.testing

from rmqkit.errors import RequestRefused
from rmqkit.plugin.access import PRINCIPAL, READ_CHECK
from rmqkit.plugin.request import REPLICATION, StreamCaller
from rmqkit.plugin.request_hooks import RpcHook
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.frame import FrameDecoder, encode
from rmqkit.protocol.headers import SendMessageRequestHeaderV2
from rmqkit.testing.hooks import RpcHookContract
from rmqkit.testing.peer import FakePeer
from rmqkit_hook_acl.decide import Need
from rmqkit_hook_acl.hook import AccessHook
from rmqkit_hook_acl.model import DISABLED, SUPER, Action, Policies, User
from tests.hooks.acl import test_decide
from tests.hooks.acl.kit import CHECKED, ROOT, access_of, policies, signed
from tests.hooks.acl.test_decide import plain_verdict

Code = RequestCode
ALICE = User("alice", "alice-secret")


class TestContract(RpcHookContract):
    """A broker with the hook answers all kinds of requests."""

    may_refuse = True

    def make_hook(self) -> RpcHook:
        from rmqkit import config as settings
        from rmqkit_hook_acl.access import Access

        return AccessHook(Access(settings.load(environ={}, flags=dict(CHECKED))))


def received(command: Command) -> Command:
    """The command as the other end has it."""
    (found,) = FrameDecoder().feed(encode(command))
    return found


def send(topic: str = "T", body: bytes = b"body") -> Command:
    header = SendMessageRequestHeaderV2(producer_group="p", topic=topic, queue_id=0, properties="K\x01v\x02")
    return request(Code.SEND_MESSAGE_V2, header, body)


def outcome(hook: AccessHook, command: Command, peer: FakePeer | None = None) -> str:
    """The remark of a refusal; empty for an admitted request."""
    found = hook.before([received(command)], peer or FakePeer()) or {}
    error = found.get(0)
    if error is None:
        return ""
    assert isinstance(error, RequestRefused), error
    assert error.code == ResponseCode.NO_PERMISSION
    return error.remark


@pytest.fixture
def hook(tmp_path: Path) -> AccessHook:
    return AccessHook(access_of(tmp_path, [ALICE], {"alice": policies(["Topic:T Pub Allow"])}))


@pytest.mark.parametrize("codec", [0, 1])
def test_a_signed_request_is_admitted(hook: AccessHook, codec: int) -> None:
    """In both header forms, with the field that old clients do not sign, and with a token that Go does
    not."""
    command = send()
    command.codec = codec
    assert outcome(hook, signed(command, "alice", "alice-secret")) == ""
    command = signed(send(), "alice", "alice-secret")
    command.fields()["SecurityToken"] = "unsigned"
    assert outcome(hook, command) == ""
    command = signed(Command(Code.QUERY_MESSAGE, ext={"topic": "T", "key": "k"}), *ROOT)
    command.fields()["_UNIQUE_KEY_QUERY"] = "true"
    assert outcome(hook, command) == ""


def test_what_is_not_proven_is_refused(hook: AccessHook) -> None:
    """Without a key, with an unknown one, a wrong password, or no signature."""
    assert outcome(hook, send()) == "username cannot be null."
    assert outcome(hook, signed(send(), "bob", "x")) == "User:bob is not found."
    assert outcome(hook, signed(send(), "alice", "wrong")) == "check signature failed."
    command = signed(send(), "alice", "alice-secret")
    del command.fields()["Signature"]
    assert outcome(hook, command) == "check signature failed."


def test_altered_and_truncated_signatures(hook: AccessHook) -> None:
    """A signature holds for the fields and the body that were signed, and for nothing else."""
    whole = signed(send(), "alice", "alice-secret").fields()["Signature"]
    for text in (whole[:-1], whole[:8], "", whole.lower(), whole + "=", " " + whole, whole[::-1], "ü" * 28):
        command = signed(send(), "alice", "alice-secret")
        command.fields()["Signature"] = text
        assert outcome(hook, command) == "check signature failed.", text
    for change in ({"b": "Other"}, {"i": "K\x01w\x02"}, {"extra": "1"}, {"e": "1"}):
        command = signed(send(), "alice", "alice-secret")
        command.fields().update(change)
        assert outcome(hook, command) == "check signature failed.", change
    command = signed(send(), "alice", "alice-secret")
    command.body = b"Body"
    assert outcome(hook, command) == "check signature failed."


def test_a_replayed_signature_is_the_same_request_of_the_same_user(hook: AccessHook) -> None:
    """A signature taken from one user's request is of no use for another user, topic or body; the request
    itself can be sent again, as with Apache's brokers, and the user's rights decide about it once more."""
    heard = signed(send(), "alice", "alice-secret").fields()["Signature"]
    for command in (send("Other"), send(body=b"other")):
        command.fields().update({"AccessKey": "alice", "Signature": heard})
        assert outcome(hook, command) == "check signature failed."
    command = send()
    command.fields().update({"AccessKey": "root", "Signature": heard})
    assert outcome(hook, command) == "check signature failed."
    again = send()
    again.fields().update({"AccessKey": "alice", "Signature": heard})
    assert outcome(hook, again) == ""
    hook.access.change({"alice": ALICE}, {})
    assert outcome(hook, again).endswith("no matched policies.")


def test_a_run_is_refused_by_its_parts(hook: AccessHook) -> None:
    """Each request of a run is decided by itself."""
    run = [
        signed(send(), "alice", "alice-secret"),
        send(),
        signed(send("Other"), "alice", "alice-secret"),
        signed(send("Other"), *ROOT),
    ]
    refused = hook.before([received(each) for each in run], FakePeer()) or {}
    assert sorted(refused) == [1, 2]
    assert (
        str(refused[2])
        == "User:alice has no permission to access Topic:Other from 127.0.0.1, no matched policies."
    )


def test_two_topics_in_one_header_are_one(hook: AccessHook) -> None:
    """Of a field that is there twice, the check and the processor see the same value."""
    command = signed(send(), "alice", "alice-secret")
    frame = encode(command)
    twice = frame[8:].replace(b'"b":"T"', b'"b":"T","b":"Secret"')
    head = int.from_bytes(frame[4:8], "big") + len(twice) - len(frame) + 8
    (found,) = FrameDecoder().feed((4 + len(twice)).to_bytes(4, "big") + head.to_bytes(4, "big") + twice)
    topic = found.header(SendMessageRequestHeaderV2).topic
    assert found.fields()["b"] == topic
    assert hook.before([found], FakePeer())


def test_a_disabled_user_is_refused(hook: AccessHook) -> None:
    """The request before the change is admitted, the one after it is not."""
    command = signed(send(), "alice", "alice-secret")
    assert outcome(hook, command) == ""
    hook.access.change({"alice": User("alice", "alice-secret", SUPER, DISABLED)}, {})
    assert outcome(hook, command) == "User:alice is disabled."


def test_codes_that_need_no_proof(tmp_path: Path) -> None:
    """The white lists leave out the one check and the other."""
    route = Command(Code.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "T"})
    open_hook = AccessHook(access_of(tmp_path, authenticationWhitelist="105"))
    assert (
        outcome(open_hook, route)
        == "User: has no permission to access Topic:T from 127.0.0.1, the user does not exist."
    )
    free = AccessHook(access_of(tmp_path, authenticationWhitelist="105", authorizationWhitelist="105, 310"))
    assert outcome(free, route) == ""
    assert outcome(free, send()) == "username cannot be null."


def test_codes_that_need_no_proof_take_any_keys(tmp_path: Path) -> None:
    """A name server does not know the users of the brokers, whose clients sign all that they send: a request
    of the white list is admitted whoever has signed it. Where users are known, their policies still count."""
    route = Command(Code.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "T"})
    hook = AccessHook(
        access_of(tmp_path, [ALICE], authenticationWhitelist="105", authorizationWhitelist="105")
    )
    for name, password in (("nobody", "any-secret"), ("alice", "another-secret"), ("alice", "alice-secret")):
        assert outcome(hook, signed(route, name, password)) == ""
        others = outcome(hook, signed(send(), name, password))
        assert others != ""
    known = AccessHook(access_of(tmp_path, [ALICE], authenticationWhitelist="310"))
    assert "User:alice has no permission" in outcome(known, signed(send("Other"), "alice", "alice-secret"))


def test_authentication_alone(tmp_path: Path) -> None:
    """Without authorization every user may do everything, and nobody else anything."""
    hook = AccessHook(access_of(tmp_path, [ALICE], authorizationEnabled="false"))
    assert outcome(hook, signed(send("Other"), "alice", "alice-secret")) == ""
    assert outcome(hook, send("Other")) == "username cannot be null."


def test_header_fields_that_are_not_flat(hook: AccessHook) -> None:
    """A header that has no fields to sign is refused, not failed on."""
    head = b'{"code":310,"extFields":{"AccessKey":{"a":1}}}'
    frame = (4 + len(head)).to_bytes(4, "big") + len(head).to_bytes(4, "big") + head
    (found,) = FrameDecoder().feed(frame)
    error = (hook.before([found], FakePeer()) or {})[0]
    assert isinstance(error, RequestRefused)
    assert "not a scalar" in error.remark


def test_the_replication_port_takes_introduced_brokers(hook: AccessHook) -> None:
    """A connection without an introduction is refused, and so is a user who may not change the cluster."""

    def connect(said: Command | None) -> None:
        _, stream = trio.testing.memory_stream_pair()
        stream.remote, stream.transport = ("127.0.0.1", 1), FakePeer().transport  # type: ignore[attr-defined]
        hook.connected(StreamCaller(cast(Any, stream), REPLICATION, said))

    for said in (None, Command(ext={"nonce": "1"}), signed(Command(ext={}), "alice", "alice-secret")):
        with pytest.raises(RequestRefused):
            connect(said)
    connect(signed(Command(ext={"nonce": "1"}), *ROOT))


def test_a_read_is_checked_when_the_record_is_known(hook: AccessHook) -> None:
    """Processors that learn the topic from the store ask for it by the caller."""
    peer = FakePeer()
    hook.connected(peer)
    check: Any = peer.attributes[READ_CHECK]
    hook.access.change({"alice": ALICE}, {"alice": policies(["Topic:T Sub Allow", "Group:g Sub Allow"])})
    view = received(signed(Command(Code.VIEW_MESSAGE_BY_ID, ext={"offset": "7"}), "alice", "alice-secret"))
    check(view, "T")
    check(view, "%RETRY%g")
    for topic in ("Other", "%RETRY%x", ""):
        with pytest.raises(RequestRefused):
            check(view, topic)


def test_a_read_of_a_code_that_is_not_checked(tmp_path: Path) -> None:
    """The white list of authorization leaves out this check, too."""
    hook = AccessHook(access_of(tmp_path, [ALICE], authorizationWhitelist="33"))
    peer = FakePeer()
    hook.connected(peer)
    view = received(signed(Command(Code.VIEW_MESSAGE_BY_ID, ext={"offset": "7"}), "alice", "alice-secret"))
    assert not hook.before([view], peer)
    check: Any = peer.attributes[READ_CHECK]
    check(view, "T")


def _request(random: Random, topic: str, group: str) -> tuple[Command, list[Need]]:
    """A request, and what it needs according to the sheet."""
    sub_topic, sub_group = Need("Topic", topic, Action.SUB), Need("Group", group, Action.SUB)
    pub = Need("Topic", topic, Action.PUB)
    read = Need("Topic", topic, Action.SUB | Action.GET), Need("Group", group, Action.SUB | Action.GET)
    beat = b'{"clientID":"c","consumerDataSet":[{"groupName":"%b","subscriptionDataSet":[{"topic":"%b"}]}]}'
    kinds: list[tuple[Command, list[Need]]] = [
        (send(topic), [pub]),
        (Command(Code.SEND_MESSAGE, ext={"topic": topic, "producerGroup": group}), [pub]),
        (Command(Code.PULL_MESSAGE, ext={"topic": topic, "consumerGroup": group}), [sub_topic, sub_group]),
        (Command(Code.QUERY_CONSUMER_OFFSET, ext={"topic": topic, "consumerGroup": group}), [*read]),
        (Command(Code.GET_CONSUMER_LIST_BY_GROUP, ext={"consumerGroup": group}), [read[1]]),
        (Command(Code.GET_MAX_OFFSET, ext={"topic": topic}), [read[0]]),
        (
            Command(Code.GET_ROUTEINFO_BY_TOPIC, ext={"topic": topic}),
            [Need("Topic", topic, Action.PUB | Action.SUB | Action.GET)],
        ),
        (
            Command(Code.HEART_BEAT, ext={}, body=beat % (group.encode(), topic.encode())),
            [sub_group, sub_topic],
        ),
        (Command(Code.DELETE_TOPIC_IN_BROKER, ext={"topic": topic}), [Need("Topic", topic, Action.DELETE)]),
        (Command(Code.UPDATE_BROKER_CONFIG, ext={}), [Need("Cluster", "DefaultCluster", Action.UPDATE)]),
    ]
    return random.choice(kinds)


def test_a_matrix_of_ten_thousand_requests(tmp_path: Path) -> None:
    """Requests of all kinds, by users of all kinds, from several addresses, are admitted and refused as a
    plain search through users and policies says."""
    random = Random(3001)
    users = [
        User(f"u{at}", f"secret-{at}", SUPER if at == 0 else "Normal", DISABLED if at == 1 else "enable")
        for at in range(12)
    ]
    rules: dict[str, Policies] = {
        user.name: Policies(test_decide._entries(random), test_decide._entries(random)) for user in users[:10]
    }
    hook = AccessHook(access_of(tmp_path, users, rules))
    peers = {host: FakePeer(host) for host in test_decide._HOSTS}
    counts = {True: 0, False: 0}
    for number in range(10_000):
        topic, group = random.choice(test_decide._NAMES), random.choice(test_decide._NAMES)
        command, needs = _request(random, topic, group)
        host = random.choice(test_decide._HOSTS)
        user = random.choice(users)
        proof = random.choice(["good"] * 8 + ["none", "wrong", "stranger"])
        if proof != "none":
            name = "stranger" if proof == "stranger" else user.name
            signed(command, name, user.password if proof == "good" else "wrong-password")
        wanted = (
            proof == "good"
            and user.status != DISABLED
            and (
                user.type == SUPER
                or all(plain_verdict(rules.get(user.name, Policies()), need, host) for need in needs)
            )
        )
        refused = hook.before([received(command)], peers[host]) or {}
        assert (not refused) is wanted, (number, command, user, proof, host, rules.get(user.name))
        counts[wanted] += 1
    assert min(counts.values()) > 1_000, counts


def test_who_it_is_without_an_access_key(hook: AccessHook) -> None:
    """The connection remembers a user that its certificate names; a signed request names its own."""
    peer = FakePeer()
    hook.before([received(signed(send(), "alice", "alice-secret"))], peer)
    assert PRINCIPAL not in peer.attributes
