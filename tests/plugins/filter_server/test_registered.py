"""The registrations of filter servers with a broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rmqkit.limits import MAX_FILTER_SERVERS
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import RegisterFilterServerRequestHeader, RegisterFilterServerResponseHeader
from rmqkit.testing.peer import FakePeer
from rmqkit_filter_server.registered import EXPIRY_MS, RegisteredFilterServers
from tests.broker.desk import BrokerHarness, open_desk

HERE = "127.0.0.1:4000"


def registering(address: str = HERE) -> Command:
    header = RegisterFilterServerRequestHeader(filter_server_addr=address)
    return request(RequestCode.REGISTER_FILTER_SERVER, header)


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[BrokerHarness]:
    async with open_desk(tmp_path, ip="10.0.0.1", brokerName="broker-x") as desk:
        yield desk


async def test_the_answer_names_the_broker(desk: BrokerHarness) -> None:
    """The filter server is among the broker's, and gets the broker's name and id."""
    answer = await desk.outcome(registering())
    assert answer is not None
    assert answer.header(RegisterFilterServerResponseHeader).broker_name == "broker-x"
    assert answer.header(RegisterFilterServerResponseHeader).broker_id == 0
    assert list(desk.broker.filter_servers.addresses) == [HERE]


@pytest.mark.row("S346")
async def test_a_silent_filter_server_is_removed(desk: BrokerHarness) -> None:
    """It is removed by the first scan after 30 s without a registration; another that registered meanwhile
    stays. Listeners are called when the list changes, and not by every registration."""
    changes: list[list[str]] = []
    servers = desk.broker.filter_servers
    servers.on_change.append(lambda: changes.append(list(servers.addresses)))
    registered = RegisteredFilterServers(desk.broker)
    first, second = FakePeer(), FakePeer()
    registered.process([registering()], first)
    registered.process([registering("127.0.0.1:4001")], second)
    desk.clock.advance(EXPIRY_MS)
    registered.process([registering()], first)
    registered.scan()
    assert list(servers.addresses) == [HERE, "127.0.0.1:4001"]
    desk.clock.advance(1)
    registered.scan()
    assert list(servers.addresses) == [HERE]
    assert changes == [[HERE], [HERE, "127.0.0.1:4001"], [HERE]]


async def test_a_filter_server_whose_connection_ends_is_removed(desk: BrokerHarness) -> None:
    """The scan does not wait until it counts as silent."""
    registered, peer = RegisteredFilterServers(desk.broker), FakePeer()
    registered.process([registering()], peer)
    peer.closed = True
    registered.scan()
    assert list(desk.broker.filter_servers.addresses) == []


@pytest.mark.parametrize(("host", "code"), [("10.0.0.1", 0), ("10.0.0.9", ResponseCode.NO_PERMISSION)])
async def test_filter_servers_of_other_machines_are_refused(
    desk: BrokerHarness, host: str, code: int
) -> None:
    """Consumers would connect to any address that a stranger registers."""
    (answer,) = RegisteredFilterServers(desk.broker).process([registering()], FakePeer(host))
    assert isinstance(answer, Command)
    assert answer.code == code, answer.remark
    assert len(desk.broker.filter_servers.addresses) == (0 if code else 1)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "x",
        "127.0.0.1",
        "127.0.0.1:0",
        "127.0.0.1:99999",
        "unix:///run/x",
        "a b:1;rm -rf /",
        "x" * 300 + ":1",
    ],
)
async def test_what_is_no_address_is_refused(desk: BrokerHarness, address: str) -> None:
    """The remark says what an address is like."""
    answer = await desk.outcome(registering(address))
    assert answer is not None
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert answer.remark
    assert list(desk.broker.filter_servers.addresses) == []


async def test_the_number_of_filter_servers_is_limited(desk: BrokerHarness) -> None:
    """One more than the limit is refused; those that are registered may register again."""
    for number in range(MAX_FILTER_SERVERS):
        await desk.outcome(registering(f"127.0.0.1:{4000 + number}"))
    answer = await desk.outcome(registering("127.0.0.1:9"))
    assert answer is not None
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (await desk.outcome(registering())).code == 0  # type: ignore[union-attr]
    assert len(desk.broker.filter_servers.addresses) == MAX_FILTER_SERVERS
