"""Requests over a quota wait, and are refused when they would have to wait for too long."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from rmqkit.model.topic import SubscriptionGroupConfig, TopicConfig
from rmqkit.plugin.access import PRINCIPAL
from rmqkit.plugin.request_hooks import RpcHook
from rmqkit.protocol import batch, loose_json
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.frame import FrameDecoder, encode
from rmqkit.protocol.headers import PullMessageRequestHeader, SendMessageRequestHeader
from rmqkit.testing.hooks import RpcHookContract
from rmqkit.testing.peer import FakePeer
from rmqkit_hook_quota.hook import QuotaHook
from rmqkit_hook_quota.settings import QuotaSettings
from tests.broker.desk import BrokerHarness, open_desk
from tests.remoting.wire import Client, served


class TestContract(RpcHookContract):
    """A broker with the hook answers all kinds of requests."""

    def make_hook(self) -> RpcHook:
        return QuotaHook(QuotaSettings(), lambda: 0.0)


def send(body: bytes = b"x" * 100, topic: str = "T", **fields: Any) -> Command:
    header = SendMessageRequestHeader(producer_group="p", topic=topic, queue_id=0, properties="", **fields)
    return request(RequestCode.SEND_MESSAGE, header, body)


def pull(offset: int, group: str = "g") -> Command:
    header = PullMessageRequestHeader(
        consumer_group=group, topic="T", queue_id=0, queue_offset=offset, max_msg_nums=10, sys_flag=4
    )
    header.subscription = "*"
    return request(RequestCode.PULL_MESSAGE, header)


class Door:
    """A broker with quotas, and a client of it."""

    def __init__(self, desk: BrokerHarness, client: Client) -> None:
        self.desk, self.client = desk, client

    async def took_s(self, *commands: Command) -> tuple[list[int], float]:
        """The codes of the answers, and how long the last one took."""
        began = trio.current_time()
        await self.client.send(*commands)
        codes = [(await self.client.receive()).code for _ in commands]
        return codes, round(trio.current_time() - began, 3)


@asynccontextmanager
async def door(directory: Path, **quotas: Any) -> AsyncIterator[Door]:
    keys: dict[str, Any] = {f"plugins.quota.{key}": str(value) for key, value in quotas.items()}
    async with open_desk(directory, hooks="quota", **keys) as desk:
        hooks, default = desk.broker.registry.rpc_hooks, desk.router.default
        async with (
            served(desk.router.processors, rpc_hooks=hooks, default=default) as there,
            there.client() as client,
        ):
            yield Door(desk, client)


async def test_a_topic_with_a_quota(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Ten messages a second: after those of one second and one more each waits for a tenth, and what would
    wait for longer than half a second is refused with FLOW_CONTROL, which is not stored."""
    async with door(tmp_path) as there:
        topics = there.desk.broker.topics
        await topics.put(TopicConfig(topic_name="T", attributes={"quota.messages": "10"}))
        assert await there.took_s(*[send() for _ in range(11)]) == ([0] * 11, 0)
        assert await there.took_s(*[send() for _ in range(5)]) == ([0] * 5, 0.5)
        codes, took_s = await there.took_s(*[send() for _ in range(9)])
        assert (sorted(codes), took_s) == ([0] * 5 + [ResponseCode.FLOW_CONTROL] * 4, 0.5)
        assert len(there.desk.stored()) == 21
        assert await there.took_s(*[send(topic="Other") for _ in range(50)]) == ([0] * 50, 0)


async def test_bytes_of_every_topic(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A setting is for all topics but those with an attribute; 0 frees a topic. A message larger than a
    second's bytes passes, and the next one waits for its time."""
    async with door(tmp_path, topicBytes=1_000, maxDelayMs=2_000) as there:
        await there.desk.broker.topics.put(TopicConfig(topic_name="Free", attributes={"quota.bytes": "0"}))
        assert await there.took_s(*[send(topic="Free") for _ in range(50)]) == ([0] * 50, 0)
        assert await there.took_s(send(b"x" * 2_500)) == ([0], 0)
        assert await there.took_s(send()) == ([0], 1.5)


async def test_a_batch_counts_its_messages(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """As many as it has."""
    async with door(tmp_path, topicMessages=10) as there:
        body = batch.encode([batch.BatchItem(0, b"b", b"")] * 11)
        assert await there.took_s(send(body, batch=True)) == ([0], 0)
        assert await there.took_s(send()) == ([0], 0.1)


async def test_what_a_client_sends(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """To all topics, over all of its connections."""
    async with door(tmp_path, clientMessages=10) as there:
        assert await there.took_s(*[send(topic=f"T{at}") for at in range(10)]) == ([0] * 10, 0)
        assert await there.took_s(send(), send()) == ([0, 0], 0.1)


def test_a_client_is_a_user_or_an_address() -> None:
    """Two users at one address have a quota each; without users the address has it."""
    hook = QuotaHook(QuotaSettings(client_messages=1, max_delay_ms=0), lambda: 5.0)
    assert [held(hook, "10.0.0.1", user) for user in ("ann", "ann", "ann", "bob")] == [
        False,
        False,
        True,
        False,
    ]
    assert [held(hook, host, None) for host in ("10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.2")] == [
        False,
        False,
        True,
        False,
    ]


def held(hook: QuotaHook, host: str, user: str | None) -> bool:
    """Whether a send of a peer is held up."""
    peer = FakePeer(host)
    if user is not None:
        peer.attributes[PRINCIPAL] = user
    (command,) = FrameDecoder().feed(encode(send()))
    return bool(hook.before([command], peer))


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
async def test_what_a_group_gets(tmp_path: Path, autojump_clock: trio.testing.MockClock, code: int) -> None:
    """Its next pull waits until the last one is paid for, or is refused when that takes too long; another
    group does not wait."""
    async with door(tmp_path) as there:
        await there.desk.broker.groups.put(
            SubscriptionGroupConfig(group_name="g", attributes={"quota.messages": "20"})
        )
        await there.took_s(*[send() for _ in range(40)])
        assert await there.took_s(pulled(code, 0)) == ([0], 0)
        assert await there.took_s(pulled(code, 10)) == ([0], 0)
        assert await there.took_s(pulled(code, 20)) == ([0], 0)
        assert await there.took_s(pulled(code, 20)) == ([0], 0.5)
        assert (await there.took_s(pulled(code, 20), pulled(code, 20)))[0] == [0, 0]
        assert await there.took_s(pulled(code, 20)) == ([ResponseCode.FLOW_CONTROL], 0)
        assert await there.took_s(pulled(code, 0, "other")) == ([0], 0)


def pulled(code: int, offset: int, group: str = "g") -> Command:
    command = pull(offset, group)
    command.code = code
    return command


async def test_groups_may_have_a_quota_by_request(tmp_path: Path) -> None:
    """The attributes are those of the plugin: without it the broker refuses them, and a value that is no
    number in any case."""
    config = {"groupName": "g", "attributes": {"+quota.bytes": "1000"}}
    async with open_desk(tmp_path / "with", hooks="quota") as desk:
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        assert (await desk.ask(code, body=loose_json.dumps(config))).code == 0
        assert desk.broker.groups.configs["g"].attributes == {"quota.bytes": "1000"}
        config["attributes"] = {"+quota.bytes": "much"}
        assert (await desk.ask(code, body=loose_json.dumps(config))).code != 0
    async with open_desk(tmp_path / "without") as desk:
        config["attributes"] = {"+quota.bytes": "1000"}
        assert (await desk.ask(code, body=loose_json.dumps(config))).code != 0
