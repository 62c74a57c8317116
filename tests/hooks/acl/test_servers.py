"""Access control at the servers of a cluster: who registers, who is routed, and what reaches other ports."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from rmqkit.client import BrokerError, SendFailed
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import QueryMessageRequestHeader, ViewMessageRequestHeader
from rmqkit.remoting.pool import ConnectionPool
from rmqkit.testing.broker import Cluster
from tests.hooks.acl.kit import checked_cluster, client_of, signed
from tests.plugins.filter_server.shop import until

Code = RequestCode
ALICE = ("alice", "alice-secret")
_MS = 30_000


async def asked(address: str, cluster: Cluster, command: Command) -> Command:
    async with ConnectionPool(connect=cluster.connect) as pool:
        return await pool.call(address, command, _MS)


async def with_alice(cluster: Cluster, *rules: str) -> None:
    async with client_of(cluster) as root:
        await root.access.set_user(ALICE[0], password=ALICE[1])
        for rule in rules:
            resource, actions = rule.split()
            await root.access.set_policy(ALICE[0], [resource], actions.split(","))


REGISTRATION = {
    "brokerName": "pair",
    "brokerAddr": "127.0.0.1:1",
    "clusterName": "DefaultCluster",
    "haServerAddr": "127.0.0.1:2",
    "brokerId": "0",
}


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (Code.REGISTER_BROKER, REGISTRATION),
        (Code.REGISTER_BROKER, REGISTRATION | {"clusterName": "other"}),
        (Code.UNREGISTER_BROKER, REGISTRATION | {"brokerName": "broker-a"}),
        (Code.BROKER_HEARTBEAT, REGISTRATION),
        (Code.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"}),
        (Code.DELETE_KV_CONFIG, {"namespace": "n", "key": "k"}),
        (Code.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"}),
        (Code.REGISTER_TOPIC_IN_NAMESRV, {"topic": "T"}),
        (Code.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"}),
        (Code.UPDATE_NAMESRV_CONFIG, {}),
        (Code.GET_NAMESRV_CONFIG, {}),
        (Code.GET_BROKER_CLUSTER_INFO, {}),
        (Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}),
        (4711, {}),
    ],
)
async def test_strangers_change_nothing_at_a_name_server(
    tmp_path: Path, code: int, fields: dict[str, str]
) -> None:
    """Neither without a key, nor as a user with policies for topics: no registration, no KV entry, no
    deletion."""
    async with checked_cluster(tmp_path) as cluster:
        await with_alice(cluster, "Topic:* All", "Group:* All")
        for command in (Command(code, ext=dict(fields)), signed(Command(code, ext=dict(fields)), *ALICE)):
            answer = await asked(cluster.namesrv_text, cluster, command)
            assert answer.code == ResponseCode.NO_PERMISSION, answer
        async with client_of(cluster) as root:
            assert [*(await root.admin.masters())] == ["broker-a"]


async def test_routes_are_for_users(tmp_path: Path) -> None:
    """The broker has registered with its signature. A name server tells every user where a topic is, so that
    the broker's refusal, with its reason, reaches the client; strangers are told nothing."""
    async with checked_cluster(tmp_path) as cluster:
        await with_alice(cluster, "Topic:T Pub")
        async with client_of(cluster) as root:
            await root.admin.create_topic("T")
            await root.admin.create_topic("Other")
        async with client_of(cluster, ALICE) as alice, alice.producer("p", retries=0) as producer:
            assert (await producer.send("T", b"x")).message_id
            with pytest.raises(SendFailed, match="no permission to access Topic:Other"):
                await producer.send("Other", b"x")
        async with client_of(cluster, ("alice", "wrong-secret")) as stranger:
            with pytest.raises(BrokerError, match="check signature failed"):
                await stranger.admin.route("T")


async def test_the_fast_port_is_guarded(tmp_path: Path) -> None:
    """All ports of a broker ask the same."""
    async with checked_cluster(tmp_path) as cluster:
        fast = cluster.broker.fast_address
        assert fast is not None
        for address in (cluster.broker.address, fast):
            answer = await asked(str(address), cluster, Command(Code.GET_BROKER_CONFIG))
            assert answer.code == ResponseCode.NO_PERMISSION


async def test_a_place_in_the_log_gives_no_message_of_another_topic(tmp_path: Path) -> None:
    """A user who may read one topic gets no record of another one by its offset, whatever topic the request
    names, neither as it is nor by a send-back to a group of its own; nor by a key whose hash is that of a key
    of the other topic."""
    async with checked_cluster(tmp_path) as cluster:
        await with_alice(cluster, "Topic:T Pub,Sub,Get", "Group:mine Sub,Get")
        async with client_of(cluster) as root:
            await root.admin.create_topic("T", queues=1)
            await root.admin.create_topic("S", queues=1)
            async with root.producer("p") as producer:
                own = await producer.send("T", b"own", keys=["k"])
                secret = await producer.send("S", b"secret", keys=["b"])
        address = str(cluster.broker.address)

        def offset_of(message_id: str | None) -> int:
            assert message_id is not None
            return int(message_id[16:], 16)

        async def view(offset: int, topic: str | None) -> int:
            command = request(Code.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=offset, topic=topic))
            return (await asked(address, cluster, signed(command, *ALICE))).code

        ids = offset_of(own.offset_message_id), offset_of(secret.offset_message_id)
        for topic in (None, "T", "S"):
            assert await view(ids[0], topic) == ResponseCode.SUCCESS
            assert await view(ids[1], topic) == ResponseCode.NO_PERMISSION
        for offset, code in ((ids[0], ResponseCode.SUCCESS), (ids[1], ResponseCode.NO_PERMISSION)):
            back = {"offset": str(offset), "group": "mine", "delayLevel": "-1", "originTopic": "T"}
            command = signed(Command(Code.CONSUMER_SEND_MSG_BACK, ext=back), *ALICE)
            assert (await asked(address, cluster, command)).code == code
        async with client_of(cluster) as root:
            with trio.fail_after(60):
                while not (found := await root.admin.query_by_key("S", "b")):  # noqa: ASYNC110
                    await trio.sleep(0.01)
        assert [message.body for message in found] == [b"secret"]
        colliding = _colliding("S#b", "T#")
        for key, wanted in (("k", ResponseCode.SUCCESS), (colliding, ResponseCode.QUERY_NOT_FOUND)):
            header = QueryMessageRequestHeader(topic="T", key=key)
            answer = await asked(address, cluster, signed(request(Code.QUERY_MESSAGE, header), *ALICE))
            assert answer.code == wanted
            assert b"secret" not in answer.body


def _java_hash(text: str) -> int:
    value = 0
    for character in text:
        value = (value * 31 + ord(character)) & 0xFFFFFFFF
    return abs(value - (1 << 32) if value >= 1 << 31 else value)


def _colliding(wanted: str, beginning: str) -> str:
    """What makes a text with this beginning have the hash of another text."""
    target = _java_hash(wanted)
    letters = [chr(code) for code in range(33, 127)]
    half = {}
    base = 0
    for character in beginning:
        base = (base * 31 + ord(character)) & 0xFFFFFFFF
    for first in letters:
        for second in letters:
            for third in letters:
                half[(ord(first) * 31 + ord(second)) * 31 + ord(third)] = first + second + third
    modulus, power = 1 << 32, 31**3
    for first in letters:
        for second in letters:
            for third in letters:
                for fourth in letters[:4]:
                    head = base
                    for character in first + second + third + fourth:
                        head = (head * 31 + ord(character)) % modulus
                    left = (target - head * power) % modulus
                    if left in half:
                        return first + second + third + fourth + half[left]
    raise AssertionError("no text was found")


async def test_filter_servers_are_behind_it(tmp_path: Path) -> None:
    """A broker's filter server registers with the signature of the servers, and refuses strangers itself."""
    async with checked_cluster(tmp_path, scheme="tcp", filterServerNums=1) as cluster:
        await until(lambda: bool(cluster.broker.context.filter_servers.addresses))
        (address,) = cluster.broker.context.filter_servers.addresses
        for command in (
            Command(Code.PULL_MESSAGE, ext={"topic": "T", "consumerGroup": "g"}),
            Command(Code.REGISTER_MESSAGE_FILTER_CLASS, ext={"topic": "T", "consumerGroup": "g"}),
        ):
            async with ConnectionPool() as pool:
                answer = await pool.call(address, command, _MS)
            assert answer.code == ResponseCode.NO_PERMISSION
