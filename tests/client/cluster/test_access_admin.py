"""Administration of users and policies from Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqkit.client import BlockingClient, BrokerError, Client, ClientError
from rmqkit.protocol.codes import ResponseCode
from rmqkit.testing.broker import running_cluster
from rmqkit.testing.rocketmq import rocketmq_in_thread
from tests.hooks.acl.kit import CHECKED, ROOT, checked_cluster, client_of


async def test_users_and_policies(tmp_path: Path) -> None:
    """A user is made, changed, shown without its password, and may do what its policies say; what decides is
    explained."""
    async with checked_cluster(tmp_path) as cluster, client_of(cluster) as root:
        access = root.access
        assert await access.set_user("alice", password="alice-secret") == ["broker-a"]
        assert await access.set_user("alice", user_status="enable") == ["broker-a"]
        (alice,) = (await access.users("ali"))["broker-a"]
        assert (alice.username, alice.user_type, alice.password) == ("alice", "Normal", None)
        await root.admin.create_topic("T")
        async with client_of(cluster, ("alice", "alice-secret")) as user:
            with pytest.raises(BrokerError, match="no matched policies"):
                await user.admin.delete_topic("T")
            await access.set_policy("alice", ["Topic:T", "Topic:U*"], ["Pub"], sources=["127.0.0.0/8"])
            async with user.producer("p") as producer:
                assert (await producer.send("T", b"x")).message_id
        (acl,) = (await access.policies("alice", "Topic:U"))["broker-a"]
        assert [each.resource for policy in acl.policies or () for each in policy.entries or ()] == [
            "Topic:U*"
        ]
        (said,) = await access.explain("alice", "Pub", "Topic:Users", source="127.0.0.1")
        assert said.is_allowed
        assert said.rule == "Custom policy Topic:U* Pub from 127.0.0.0/8 Allow"
        (said,) = await access.explain("alice", "Pub", "Topic:T")
        assert (said.is_allowed, said.rule) == (False, "no policy matches")
        (said,) = await access.explain("root", "Delete", "Cluster:any")
        assert said.rule == "super user"
        with pytest.raises(BrokerError, match="name one resource"):
            await access.explain("alice", "Pub", "Topic:*")
        await access.delete_policy("alice", "Topic:T")
        await access.delete_policy("alice")
        with pytest.raises(BrokerError) as caught:
            await access.delete_policy("alice")
        assert caught.value.code == ResponseCode.NO_PERMISSION
        assert await access.delete_user("alice") == ["broker-a"]
        assert (await access.users("alice"))["broker-a"] == []


async def test_the_table_of_a_broker(tmp_path: Path) -> None:
    """Users and policies to be kept: with passwords for a super user, and without for one who may list
    them."""
    async with checked_cluster(tmp_path) as cluster, client_of(cluster) as root:
        await root.access.set_user("alice", password="alice-secret")
        await root.access.set_policy("alice", ["Cluster:*"], ["Get", "List"])
        table = await root.access.table("broker-a")
        assert table is not None
        passwords = {each.username: each.password for each in table.users}
        assert (passwords["alice"], passwords[ROOT[0]]) == ("alice-secret", ROOT[1])
        assert [each.subject for each in table.acls] == ["User:alice"]
        async with client_of(cluster, ("alice", "alice-secret")) as user:
            seen = await user.access.table("broker-a")
            assert seen is not None
            assert {each.username for each in seen.users} == passwords.keys()
            assert not any(each.password for each in seen.users)
        await root.access.delete_policy("alice")
        async with client_of(cluster, ("alice", "alice-secret")) as user:
            with pytest.raises(BrokerError) as caught:
                await user.access.table("broker-a")
            assert caught.value.code == ResponseCode.NO_PERMISSION


async def test_a_broker_without_access_control(tmp_path: Path) -> None:
    """The error says what to set."""
    async with (
        running_cluster(tmp_path) as cluster,
        Client(cluster.namesrv_text, connect=cluster.connect) as client,
    ):
        with pytest.raises(ClientError, match="authenticationEnabled = true"):
            await client.access.users()
        assert await client.access.table("broker-a") is None


async def test_who_is_refused(tmp_path: Path) -> None:
    """Servers take the signature of a user that may do nothing, and refuse a wrong one, a stranger, and a
    user that is disabled; servers that do not answer are left out."""
    async with checked_cluster(tmp_path) as cluster, client_of(cluster) as root:
        namesrv, broker = cluster.namesrv_text, str(cluster.broker.address)
        await root.access.set_user("alice", password="alice-secret")
        assert list((await root.access.refusals()).values()) == ["", ""]
        async with client_of(cluster, ("alice", "alice-secret")) as alice:
            assert await alice.access.refusals([broker, "127.0.0.1:1"]) == {broker: ""}
        async with client_of(cluster, ("root", "wrong")) as wrong:
            found = await wrong.access.refusals([namesrv, broker])
            assert list(found) == [namesrv, broker]
            assert all("check signature failed" in text for text in found.values())
        async with Client(namesrv, connect=cluster.connect) as stranger:
            assert "username cannot be null" in (await stranger.access.refusals())[namesrv]
        await root.access.set_user("alice", user_status="disable")
        async with client_of(cluster, ("alice", "alice-secret")) as alice:
            assert "disabled" in (await alice.access.refusals([broker]))[broker]


def test_the_blocking_face() -> None:
    """Every method is there for threads."""
    with (
        rocketmq_in_thread(settings=CHECKED) as rocketmq,
        BlockingClient(rocketmq.namesrv_text, access_key=ROOT[0], secret_key=ROOT[1]) as client,
    ):
        client.access.set_user("alice", password="alice-secret")
        client.access.set_policy("alice", ["*"], ["Get"], policy_type="Default", decision="Deny")
        assert client.access.policies("alice")["broker-a"][0].subject == "User:alice"
        assert not client.access.explain("alice", "Get", "Group:g")[0].is_allowed
        client.access.delete_policy("alice", "*", policy_type="Default")
        assert client.access.refusals([rocketmq.namesrv_text]) == {rocketmq.namesrv_text: ""}
        client.access.delete_user("alice")
        assert "alice" not in {each.username for each in client.access.users()["broker-a"]}
