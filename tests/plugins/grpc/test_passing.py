"""Requests that a proxy passes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from rmqkit.client import Client
from rmqkit.plugin.request import REMOTING
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import PopMessageRequestHeader, QueueRequestHeader, SendMessageRequestHeaderV2
from rmqkit.testing.broker import Cluster, running_cluster
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.peer import FakePeer
from rmqkit_grpc.cluster import ClusterBackend
from rmqkit_grpc.members import Members
from rmqkit_grpc.names import PROTOCOL
from rmqkit_grpc.passing import Passing


@asynccontextmanager
async def passing_to(tmp_path: Path) -> AsyncIterator[tuple[Cluster, Passing]]:
    async with (
        running_cluster(tmp_path, scheme="tcp") as cluster,
        Client(cluster.namesrv_text) as client,
        trio.open_nursery() as nursery,
    ):
        backend = ClusterBackend(client, FakeClock())
        passing, scope = Passing(client.relay, backend, Members(client.relay)), trio.CancelScope()
        await nursery.start(passing.run, scope)
        yield cluster, passing
        scope.cancel()


async def answer_of(passing: Passing, command: Command, peer: FakePeer) -> Command:
    """The answer to a request of a peer."""
    passing.process([command], peer)
    with trio.fail_after(60):
        while (found := await peer.answer_to(command)) is None:
            await trio.testing.wait_all_tasks_blocked(0.005)
    return found


def grpc_peer() -> FakePeer:
    peer = FakePeer()
    peer.protocol = PROTOCOL
    return peer


def popping(broker: str, poll_ms: int = 0) -> Command:
    header = PopMessageRequestHeader(
        consumer_group="G",
        topic="T",
        queue_id=-1,
        max_msg_nums=8,
        invisible_time=60_000,
        poll_time=poll_ms,
        bname=broker,
    )
    return request(RequestCode.POP_MESSAGE, header)


def sending(broker: str) -> Command:
    header = SendMessageRequestHeaderV2(producer_group="P", topic="T", queue_id=0, bname=broker)
    return request(RequestCode.SEND_MESSAGE_V2, header, b"hello")


async def test_a_request_goes_to_its_broker(tmp_path: Path) -> None:
    """The answer is that of the broker, whatever its code; the request keeps its number."""
    async with passing_to(tmp_path) as (cluster, passing):
        name, peer = cluster.broker.context.config.broker_name, grpc_peer()
        command = sending(name)
        command.opaque = 4_711
        sent = await answer_of(passing, command, peer)
        assert (sent.code, sent.opaque, command.opaque) == (0, 4_711, 4_711)
        header = QueueRequestHeader(topic="T", queue_id=0, bname=name)
        end = await answer_of(passing, request(RequestCode.GET_MAX_OFFSET, header), peer)
        assert end.fields()["offset"] == "1"
        late = request(RequestCode.POP_MESSAGE, popping(name).typed)
        assert isinstance(late.typed, PopMessageRequestHeader)
        late.typed.topic = "nothing"
        assert (await answer_of(passing, late, peer)).code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize(("broker", "said"), [("", "names no broker"), ("nobody", "no address of broker")])
async def test_a_broker_that_is_not_there(tmp_path: Path, broker: str, said: str) -> None:
    """The answer says so."""
    async with passing_to(tmp_path) as (_, passing):
        refused = await answer_of(passing, sending(broker), grpc_peer())
        assert refused.code != 0
        assert said in (refused.remark or "")


async def test_other_protocols(tmp_path: Path) -> None:
    """A client of remoting is told where to go."""
    async with passing_to(tmp_path) as (_, passing):
        peer = FakePeer()
        assert peer.protocol == REMOTING
        (outcome,) = passing.process([sending("broker-a")], peer)
        assert isinstance(outcome, Command)
        assert outcome.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert "name servers and brokers" in (outcome.remark or "")


async def test_messages_for_a_client_that_has_gone(tmp_path: Path) -> None:
    """What comes for a receive that was given up goes to another one at once."""
    async with passing_to(tmp_path) as (cluster, passing):
        name = cluster.broker.context.config.broker_name
        await answer_of(passing, sending(name), grpc_peer())
        gone, there = grpc_peer(), grpc_peer()
        passing.process([popping(name)], gone)
        gone.close()
        with trio.fail_after(60):
            while (await answer_of(passing, popping(name, 100), there)).code:
                pass
