"""Finding the addresses of the name servers by HTTP and by a function (behaviour sheet, A2)."""

from __future__ import annotations

import logging
import threading

import anyio
import pytest

from rmqkit.client import BlockingClient, Client, NameServersUnreachable
from rmqkit.client.routing.discovery import Discovery, name_server_source
from rmqkit.errors import ConfigError
from rmqkit.testing.rocketmq import rocketmq_in_thread
from rmqkit.toolkit.address_server import MAX_ANSWER_BYTES
from tests.client.fake_cluster import NAMESRV, FakeCluster
from tests.client.fakes import Network, on_both_backends, run
from tests.toolkit.address_servers import AddressServer

OTHER = "10.0.0.8:9876"


def look_up(url: str) -> tuple[str, ...]:
    return anyio.run(Discovery(url).look_up)


@pytest.mark.row("S168")
def test_a_client_finds_its_name_servers_by_http() -> None:
    """The first line of the answer has the addresses; the path of the URL is asked for; a send succeeds."""
    with rocketmq_in_thread() as cluster:
        answer = f" {cluster.namesrv_text} \nignored\n".encode()
        with AddressServer(answer).running() as server:
            url = f"{server.url}/rocketmq/nsaddr?nofix=1"
            with BlockingClient(url) as client, client.producer("g") as producer:
                assert producer.send("T", b"x").is_ok
            assert server.paths == ["/rocketmq/nsaddr?nofix=1"]


@pytest.mark.parametrize(
    ("server", "why"),
    [
        (AddressServer(b"a:1", status=404), "status 404"),
        (AddressServer(b"a:1", status=302, headers={"Location": "/else"}), "status 302"),
        (AddressServer(b"a:1;" * MAX_ANSWER_BYTES), "more than 65536 bytes"),
        (AddressServer(b"\n a:1"), "empty"),
        (AddressServer(b"<html>"), "not of the form"),
        (AddressServer(b"unix:///etc/passwd"), "not of the form"),
        (AddressServer(b"tcp://a:1"), "not of the form"),
        (AddressServer(b"\xff:1"), "utf-8"),
    ],
    ids=["status", "redirect", "size", "first-line", "html", "scheme", "tcp", "text"],
)
def test_a_wrong_answer_names_no_name_servers(server: AddressServer, why: str) -> None:
    """The error names the URL and says what was wrong."""
    with server.running(), pytest.raises(NameServersUnreachable, match=why) as caught:
        look_up(server.url)
    assert server.url in str(caught.value)


def test_a_server_that_is_away_names_no_name_servers() -> None:
    """A refused connection and a host without an answer in time are the same to the caller."""
    with AddressServer().running() as server:
        url = server.url
    with pytest.raises(NameServersUnreachable, match="refused"):
        look_up(url)


def test_a_look_up_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that accepts and never answers does not hold the client."""
    monkeypatch.setattr("rmqkit.client.routing.discovery.LOOK_UP_S", 0.2)
    with AddressServer(b"a:1").running() as server:
        server.hold.clear()
        with pytest.raises(NameServersUnreachable):
            look_up(server.url)


@pytest.mark.row("S168")
def test_changes_are_followed_after_10_s_and_every_120_s() -> None:
    """The function is asked at the first use, 10 s after the start, then every 120 s; requests go to the new
    address without a restart."""

    async def body() -> None:
        known = [NAMESRV]
        asked: list[float] = []

        async def coroutine() -> str:
            asked.append(anyio.current_time() - began_s)
            await anyio.lowlevel.checkpoint()
            return ";".join(known)

        async with Network() as network:
            fake = FakeCluster(network, "a")
            fake.topics = {"T": {"broker-a": 1}}
            second = network.add(OTHER, fake.handle)
            async with Client(coroutine, connect=network.connect) as client:
                began_s = anyio.current_time()
                assert await client.admin.route("T") is not None
                assert second.requests == []
                known[:] = [OTHER]
                await anyio.sleep(11)
                before = len(fake.namesrv.requests)
                assert await client.admin.route("T") is not None
                assert len(fake.namesrv.requests) == before
                assert second.requests
                await anyio.sleep(250)
                assert asked == pytest.approx([0, 10, 130, 250], abs=1)

    run("trio", body)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_plain_function_runs_in_a_thread(backend: str) -> None:
    """It may block, and returns text or texts."""
    threads: list[threading.Thread] = []

    def plain() -> list[str]:
        threads.append(threading.current_thread())
        return ["a:1;b:2", "c:3", "a:1"]

    assert anyio.run(Discovery(plain).look_up, backend=backend) == ("a:1", "b:2", "c:3")
    assert threads != [threading.current_thread()]


@on_both_backends
def test_a_failed_look_up_keeps_the_addresses_and_is_logged_once(
    backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Failures in a row give one line; after a success the next failure gives another one."""

    async def body() -> None:
        answers: list[str | Exception] = [
            NAMESRV,
            OSError("away"),
            OSError("still away"),
            NAMESRV,
            ValueError("odd"),
        ]

        async def discover() -> str:
            await anyio.lowlevel.checkpoint()
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        async with Network() as network:
            FakeCluster(network, "a").topics = {"T": {"broker-a": 1}}
            async with Client(discover, connect=network.connect) as client:
                assert await client.admin.route("T") is not None
                name_servers = client.admin._instance.name_servers
                for _ in range(4):
                    await name_servers.refresh()
                    assert name_servers.addresses == (NAMESRV,)
        lines = [
            record.getMessage()
            for record in caplog.records
            if record.name == "rmqkit.client.routing.name_servers"
        ]
        assert len(lines) == 2
        assert "away" in lines[0]
        assert "odd" in lines[1]
        assert all(NAMESRV in line for line in lines)

    caplog.set_level(logging.WARNING)
    run(backend, body)


@on_both_backends
def test_the_first_use_fails_while_nothing_is_found_and_then_succeeds(backend: str) -> None:
    """Until the first look-up succeeds every use asks again, and its error has the reason."""

    async def body() -> None:
        answers: list[str] = [NAMESRV, ""]

        async def discover() -> str:
            await anyio.lowlevel.checkpoint()
            return answers.pop()

        async with Network() as network:
            FakeCluster(network, "a").topics = {"T": {"broker-a": 1}}
            async with Client(discover, connect=network.connect) as client:
                with pytest.raises(NameServersUnreachable, match=r"discover names no name servers.*empty"):
                    await client.admin.route("T")
                assert await client.admin.route("T") is not None

    run(backend, body)


def test_the_sources_of_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment may hold a URL; a URL beside other addresses is refused."""
    monkeypatch.setenv("NAMESRV_ADDR", "http://addresses/rocketmq/nsaddr")
    assert name_server_source(None) == ((), Discovery("http://addresses/rocketmq/nsaddr"))
    with pytest.raises(ConfigError, match="no further address"):
        name_server_source("a:1;http://addresses/x")
