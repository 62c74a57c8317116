"""`rmqkit proxy`."""

from __future__ import annotations

import os
import signal
import socket
from functools import partial
from pathlib import Path

import pytest
import trio

from rmqkit.config import Config
from rmqkit.plugin import loader
from rmqkit.plugin.transport import Address
from rmqkit.remoting.dial import Dialer
from rmqkit.testing.broker import running_cluster
from rmqkit.testing.listening import ENDED
from tests.cli.conftest import Run, Start
from tests.plugins.grpc.client import (
    CODES,
    CONNECT_TIMEOUT_MS,
    Client,
    M,
    message,
    producing,
    resource,
    sending,
)

pytestmark = [
    pytest.mark.only_store(why="the store makes no difference"),
    pytest.mark.only_transport(why="the proxy is another process"),
]


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_proxy_before_a_broker(tmp_path: Path, start: Start, processes: int) -> None:
    """It says where it listens, serves clients there, by all of its processes, and stops in peace."""
    async with running_cluster(tmp_path / "data", scheme="tcp") as cluster:
        words = ["proxy", "--namesrv", cluster.namesrv_text, "--grpc", "127.0.0.1:0"]
        server = await trio.to_thread.run_sync(partial(start, *words, "--processes", str(processes)))
        assert server.line.startswith("rmqkit ready grpc=127.0.0.1:")
        address, config = Address.parse(server.where["grpc"]), Config()
        dial = Dialer(config, loader.load(config))
        for number in range(6):
            async with await dial(address, CONNECT_TIMEOUT_MS) as stream:
                client = Client(stream, f"client-{number}")
                await client.settle(producing("Orders"))
                route = await client.call("QueryRoute", M["QueryRouteRequest"](topic=resource("Orders")))
                assert route.status.code == CODES["OK"]
                sent = await client.call("SendMessage", sending(message("Orders", b"%d" % number)))
                assert sent.status.code == CODES["OK"]
        stored = sum(cluster.broker.context.store.max_offset("Orders", at) for at in range(4))
        assert stored == 6
        assert await trio.to_thread.run_sync(server.stop) == 0


async def test_a_process_that_is_killed(tmp_path: Path, start: Start) -> None:
    """The others serve on, and it is started again at the same port."""
    async with running_cluster(tmp_path / "data", scheme="tcp") as cluster:
        words = ["proxy", "--namesrv", cluster.namesrv_text, "--grpc", "127.0.0.1:0", "--processes", "2"]
        server = await trio.to_thread.run_sync(partial(start, *words))
        dial, address = Dialer(Config(), loader.load(Config())), Address.parse(server.where["grpc"])
        killed = _child(server.process.pid, "proxy-1")
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        with trio.fail_after(120):
            while _child(server.process.pid, "proxy-1") in (None, killed):
                await trio.to_thread.run_sync(os.sched_yield)
        served = 0
        with trio.fail_after(120):
            while served < 8:
                try:
                    async with await dial(address, CONNECT_TIMEOUT_MS) as stream:
                        client = Client(stream, f"client-{served}")
                        await client.settle(producing("Orders"))
                        sent = await client.call("SendMessage", sending(message("Orders")))
                        assert sent.status.code == CODES["OK"]
                        served += 1
                except ENDED:
                    # The connection was one of the killed process.
                    continue
        assert await trio.to_thread.run_sync(server.stop) == 0


def _child(parent: int, name: str) -> int | None:
    """The process of a parent that has this word at the end of its command line."""
    for children in Path(f"/proc/{parent}/task").glob("*/children"):
        for pid in children.read_text().split():
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except FileNotFoundError:
                continue
            if name.encode() in words:
                return int(pid)
    return None


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_port_that_is_taken(rmqkit: Run, processes: str) -> None:
    """One line says so, and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        words = ("proxy", "--namesrv", "127.0.0.1:1", "--grpc", where, "--processes", processes)
        ended = rmqkit(*words)
    assert ended.returncode == 2
    assert f"cannot listen on {where}" in ended.stderr.replace("tcp://", "")
    assert "Traceback" not in ended.stderr


def test_a_proxy_without_a_cluster(rmqkit: Run) -> None:
    """It says what is missing."""
    ended = rmqkit("proxy")
    assert ended.returncode == 2
    assert "add --namesrv HOST:PORT" in ended.stderr


async def test_several_brokers_have_one_door(start: Start, tmp_path: Path) -> None:
    """`rmqkit serve --brokers 2` serves clients of gRPC before both."""
    words = ["serve", "--brokers", "2", "--namesrv", "127.0.0.1:0", "--broker", "127.0.0.1:0"]
    server = await trio.to_thread.run_sync(partial(start, *words, "--grpc", "127.0.0.1:0", "--data", "data"))
    address, config = Address.parse(server.where["grpc"]), Config()
    async with await Dialer(config, loader.load(config))(address, CONNECT_TIMEOUT_MS) as stream:
        client = Client(stream)
        await client.settle(producing("Orders"))
        route = await client.call("QueryRoute", M["QueryRouteRequest"](topic=resource("Orders")))
        assert {each.broker.name for each in route.message_queues} == {"broker-a", "broker-b"}
        for number in range(8):
            sent = await client.call("SendMessage", sending(message("Orders", b"%d" % number)))
            assert sent.status.code == CODES["OK"]
    assert await trio.to_thread.run_sync(server.stop) == 0
